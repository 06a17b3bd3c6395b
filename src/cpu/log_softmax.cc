// log_softmax on the CPU: y = ln softmax(x), from the state, never as x - lse.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

constexpr Kernel<RowProblem> kLogSoftmaxKernels[] = {
    {"log_softmax_tiled", tiled_refuses, tiled<Result::log_softmax>, nullptr},
};

}  // namespace

RowKernels log_softmax_kernels() { return kLogSoftmaxKernels; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
