// backward_across_hidden_twice: what it takes, and how it is launched.
#include "cuda/backward_hidden_columns.cuh"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (p[Slot::dy].dtype != p[Slot::x].dtype) return "y and dy have different dtypes";
  if (!may_be_apart(p[Slot::x].dtype, p[Slot::y].dtype)) return "no kernel for these dtypes";
  return refuses_hidden_columns(p);
}

std::size_t workspace(const RowProblem& p, const Context&) { return state_bytes<GradientState<float>>(p); }

template <class E, class Y, template <class> class Gradient, int kRows>
void launch_columns(const RowProblem& p, int processors, char* memory, Stream stream) {
  auto* states = reinterpret_cast<GradientState<float>*>(memory);
  constexpr int kRun = gradient_run(kRows * static_cast<int>(sizeof(E)));
  const ColumnItems share = column_items(p, kRows, kRun, kTwiceWarps, processors);
  const HiddenSums sums{{GradientColumns(p), share, states}, HiddenColumns(p, kRows)};
  launch("add_across_hidden", add_across_hidden<E, Gradient, kRows>, {blocks_of(share, kTwiceWarps), kTwiceWarps * 32},
         stream, sums);
  const auto* roots = merge_levels<GradientFold<float>>(p, states, stream);
  launch("write_gradient_hidden", write_gradient_hidden<E, Y, Gradient, kRows>,
         {span_blocks(share, kTwiceWarps), kTwiceWarps * 32}, stream.following(), sums, roots);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  const int processors = traits_of(device.device()).processors;
  const bool pairs = lies_in_words(p, 2);
  with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class E, class Y>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() {
      pairs ? launch_columns<E, Y, Gradient, 2>(p, processors, scratch.data(), stream_of(context))
            : launch_columns<E, Y, Gradient, 1>(p, processors, scratch.data(), stream_of(context));
    });
  });
}

}  // namespace

const RowKernel backward_across_hidden_twice_kernel{"backward_across_hidden_twice", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
