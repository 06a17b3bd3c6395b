// Gradients of rows of float64 by their parts: ragged ones, and rows that no cluster holds.
#include "cuda/double_parts.cuh"
#include "cuda/double_rows.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/ragged_mixed.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

template <int kLanes, int kCount>
using Softmax = DoubleGradientPart<kLanes, kCount, fold::SoftmaxGradient>;
template <int kLanes, int kCount>
using LogSoftmax = DoubleGradientPart<kLanes, kCount, fold::LogSoftmaxGradient>;
using State = GradientState<double>;

constexpr auto run_ragged = run_mixed_gradients<Softmax, LogSoftmax>;

const char* refuses_long(const RowProblem& p, const Context&) {
  if (p.n <= lift::kChunk) return "a group of lanes holds a row";
  return refuses_double_apart(p, Rung::automatic);
}

void run_long(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  p.op == Op::softmax_backward ? launch_even_parts<Softmax<32, 32>>(p, context)
                               : launch_even_parts<LogSoftmax<32, 32>>(p, context);
}

}  // namespace

const RowKernel backward_double_ragged_kernel{"backward_double_ragged", refuses_double_mixed, run_ragged,
                                              mixed_workspace<State>, true};
const RowKernel backward_double_long_kernel{"backward_double_long", refuses_long, run_long, even_workspace<State>};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
