// Rows that no cluster holds, of any operands but float64: softmax, log_softmax and their gradients, with two reads.
#include "cuda/any_elements.cuh"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/long_parts.cuh"

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

void run_softmax(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  p.op == Op::softmax ? launch_even_parts<SoftmaxPart<Elements, RaggedLeaves::softmax>>(p, context)
                      : launch_even_parts<SoftmaxPart<Elements, RaggedLeaves::log_softmax>>(p, context);
}
void run_gradient(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  with_gradient(p.op, [&]<template <class> class Gradient>() {
    launch_even_parts<GradientPart<Elements, Gradient>>(p, context);
  });
}

}  // namespace

const RowKernel softmax_any_long_kernel{"softmax_any_long", refuses, run_softmax,
                                        even_workspace<fold::LogSumExp<float>::State>};
const RowKernel backward_any_long_kernel{"backward_any_long", refuses, run_gradient,
                                         even_workspace<GradientState<float>>};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
