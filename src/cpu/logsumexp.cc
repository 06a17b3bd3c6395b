// logsumexp on the CPU: one read, one number a row.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

const char* tiled_refuses(const RowProblem& p, const Context&) { return refuses_rung(p, Rung::tiled); }

void tiled(const RowProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) { run_tiled<T>(p, context, Result::lse); });
}

constexpr Kernel<RowProblem> kKernels[] = {
    {"logsumexp_tiled", tiled_refuses, tiled, nullptr},
};

}  // namespace

RowKernels logsumexp_kernels() { return kKernels; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
