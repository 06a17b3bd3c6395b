// logsumexp on the CPU: one read, one number a row.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

constexpr Kernel<RowProblem> kLogSumExpKernels[] = {
    {"logsumexp_tiled", tiled_refuses, tiled<Result::lse>, nullptr},
};

}  // namespace

RowKernels logsumexp_kernels() { return kLogSumExpKernels; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
