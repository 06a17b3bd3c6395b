// Rows that no cluster holds, of any operands but float64: softmax, log_softmax and their gradients, with two reads.
#include "cuda/any_elements.cuh"
#include "cuda/kernels.hpp"
#include "cuda/long_parts.cuh"
#include "cuda/states.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using Elements = RaggedElements<32, 32>;

const char* refuses(const RowProblem& p, const Context&) {
  if (p.n <= lift::kChunk || refuses_one_cluster(p) == nullptr) return "a cluster holds a row";
  if (p[Slot::dy].given && p[Slot::dy].dtype == DType::float64) return "float64 is not among what a part may be of";
  return refuses_any(p, Rung::tiled);
}

template <class State>
EvenGroups<State> groups_of(const RowProblem& p, Parts& parts) {
  EvenGroups<State> groups{nullptr, p.n, p.rows};
  groups.states = parts.take<State>(groups.count());
  return groups;
}
template <class State>
std::size_t workspace_of(const RowProblem& p, const Context&) {
  Parts parts(nullptr);
  (void)groups_of<State>(p, parts);
  return parts.used();
}

template <class Part>
void launch_part(const RowProblem& p, const Context& context) {
  using State = typename Part::State;
  const Scratch scratch(workspace_of<State>(p, context), context);
  Parts parts(scratch.data());
  const auto groups = groups_of<State>(p, parts);
  launch_long_parts<Part>(p, groups, groups.count(), stream_of(context));
}

void run_softmax(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  p.op == Op::softmax ? launch_part<SoftmaxPart<Elements, RaggedLeaves::softmax>>(p, context)
                      : launch_part<SoftmaxPart<Elements, RaggedLeaves::log_softmax>>(p, context);
}
void run_gradient(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  p.op == Op::softmax_backward ? launch_part<GradientPart<Elements, fold::SoftmaxGradient>>(p, context)
                               : launch_part<GradientPart<Elements, fold::LogSoftmaxGradient>>(p, context);
}

}  // namespace

const RowKernel softmax_any_long_kernel{"softmax_any_long", refuses, run_softmax,
                                        workspace_of<fold::LogSumExp<float>::State>};
const RowKernel backward_any_long_kernel{"backward_any_long", refuses, run_gradient,
                                         workspace_of<GradientState<float>>};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
