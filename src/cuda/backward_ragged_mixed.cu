// Gradients of ragged rows with masks, scales of their own, or operands that are not alike.
#include "cuda/kernels.hpp"
#include "cuda/ragged_mixed.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

template <int kLanes, int kCount>
using Softmax = GradientPart<RaggedElements<kLanes, kCount>, fold::SoftmaxGradient>;
template <int kLanes, int kCount>
using LogSoftmax = GradientPart<RaggedElements<kLanes, kCount>, fold::LogSoftmaxGradient>;

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_single_mixed(p)) return why;
  return p[Slot::dy].dtype == DType::float64 ? "float64 is not among what a part may be of" : nullptr;
}

constexpr auto run = run_mixed_gradients<Softmax, LogSoftmax>;

}  // namespace

const RowKernel backward_ragged_mixed_kernel{"backward_ragged_mixed", refuses, run,
                                             mixed_workspace<GradientState<float>>, true};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
