// state on the CPU: a row's (m, d), to be merged with those of other shards.
#include "cpu/row_kernels.hpp"
#include "cpu/row_schedules.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {
namespace {

constexpr Kernel<RowProblem> kStateKernels[] = {
    {"state_tiled", tiled_refuses, tiled<Result::state>, nullptr},
};

}  // namespace

RowKernels state_kernels() { return kStateKernels; }

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
