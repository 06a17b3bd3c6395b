// Ragged rows of float64: softmax, log_softmax, logsumexp and state.
#include "cuda/double_parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/ragged_mixed.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

template <int kLanes, int kCount>
using Softmax = DoubleSoftmaxPart<kLanes, kCount, RaggedLeaves::softmax>;
template <int kLanes, int kCount>
using LogSoftmax = DoubleSoftmaxPart<kLanes, kCount, RaggedLeaves::log_softmax>;
template <int kLanes, int kCount>
using OfRow = DoubleSoftmaxPart<kLanes, kCount, RaggedLeaves::row>;

constexpr auto run = run_mixed<Softmax, LogSoftmax, OfRow>;
constexpr auto workspace = mixed_workspace<fold::LogSumExp<double>::State>;

}  // namespace

const RowKernel softmax_double_ragged_kernel{"softmax_double_ragged", refuses_double_mixed, run, workspace, true};
const RowKernel fold_double_ragged_kernel{"fold_double_ragged", refuses_double_mixed, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
