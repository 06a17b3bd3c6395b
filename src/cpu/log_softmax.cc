// log_softmax on the CPU: y = ln softmax(x), from the state, never as x - lse.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

const char* tiled_refuses(const RowProblem& p, const Context&) { return refuses_rung(p, Rung::tiled); }

void tiled(const RowProblem& p, const Context& context) {
  with_fold_type(p, [&]<class T>(T) { run_tiled<T>(p, context, Result::log_softmax); });
}

constexpr Kernel<RowProblem> kKernels[] = {
    {"log_softmax_tiled", tiled_refuses, tiled, nullptr},
};

}  // namespace

RowKernels log_softmax_kernels() { return kKernels; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
