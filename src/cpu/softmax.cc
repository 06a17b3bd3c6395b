// softmax on the CPU: y = 2^t / sum 2^t.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

const char* fused_refuses(const RowProblem& p, const Context&) {
  const std::int64_t limit = p.is_double() ? RowWorker<double>::kFusedLimit : RowWorker<float>::kFusedLimit;
  if (p.n > limit) return "a row's terms do not fit the cache";
  return refuses_rung(p, Rung::fused);
}

void fused(const RowProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) {
    for_rows<T>(p, context, Result::softmax, [](auto& worker, const Row& r) { worker.fused(r); });
  });
}

const char* tiled_refuses(const RowProblem& p, const Context&) { return refuses_rung(p, Rung::tiled); }

void tiled(const RowProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) {
    for_rows<T>(p, context, Result::softmax, [](auto& worker, const Row& r) { worker.tiled(r); });
  });
}

constexpr Kernel<RowProblem> kKernels[] = {
    {"softmax_fused", fused_refuses, fused, nullptr},
    {"softmax_tiled", tiled_refuses, tiled, nullptr},
};

}  // namespace

RowKernels softmax_kernels() { return kKernels; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
