// backward_long: gradients of plain rows that no cluster holds, with two reads.
#include "cuda/backward_long.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/plain_gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

using State = GradientState<float>;

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_plain_gradient(p)) return why;
  if (p.n <= lift::kChunk || refuses_one_cluster(p) == nullptr) return "a cluster holds a row";
  const auto bytes = p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype));
  for (const Slot slot : {Slot::x, Slot::y, Slot::dy})
    if (p.rows > 1 && p[slot].strides[0] != bytes) return "rows do not lie end to end";
  const bool fits = with_element(p[Slot::x].dtype, [&]<class E>() {
    constexpr int kOfBarriers = 1024;
    return kHeldWarps * GradientPlace<E>::kBytes + kOfBarriers <=
           traits_of(DeviceOf(p[Slot::x].data).device()).shared_bytes;
  });
  return fits ? nullptr : "blocks have too little shared memory";
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(even_workspace<State>(p, context), context);
  Parts parts(scratch.data());
  const auto groups = even_groups<State>(p, parts);
  RowProblem all = p;
  all.ragged_elements = p.rows * p.n;  // how far memory reaches
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() {
      launch_long_gradients<E, Gradient>(all, groups, groups.count(), stream_of(context));
    });
  });
}

}  // namespace

const RowKernel backward_long_kernel{"backward_long", refuses, run, even_workspace<State>};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
