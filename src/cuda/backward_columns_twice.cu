// backward_across_columns_twice: what it takes, and how it is launched.
#include "cuda/backward_columns_twice.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_columns(p)) return why;
  return p[Slot::dy].dtype != p[Slot::x].dtype ? "y and dy have different dtypes" : nullptr;
}

std::size_t workspace(const RowProblem& p, const Context&) { return state_bytes<GradientState<float>>(p); }

template <class E, template <class> class Gradient, int kRows>
void launch_columns(const RowProblem& p, int processors, char* memory, Stream stream) {
  auto* states = reinterpret_cast<GradientState<float>*>(memory);
  constexpr int kRun = gradient_run(kRows * static_cast<int>(sizeof(E)));
  const ColumnItems share = column_items(p, kRows, kRun, kTwiceWarps, processors);
  const GradientSums sums{GradientColumns(p), share, states};
  launch("add_across_columns", add_across_columns<E, Gradient, kRows>,
         {blocks_of(share, kTwiceWarps), kTwiceWarps * 32}, stream, sums);
  const auto* roots = merge_levels<GradientFold<float>>(p, states, stream);
  launch("write_across_columns", write_across_columns<E, Gradient, kRows>,
         {span_blocks(share, kTwiceWarps), kTwiceWarps * 32}, stream.following(), sums, roots);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  const Scratch scratch(workspace(p, context), context);
  const int processors = traits_of(device.device()).processors;
  const bool pairs = lies_in_words(p, 2);  // of 16 bit, too: four rows a lane take more registers than it has
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() {
      pairs ? launch_columns<E, Gradient, 2>(p, processors, scratch.data(), stream_of(context))
            : launch_columns<E, Gradient, 1>(p, processors, scratch.data(), stream_of(context));
    });
  });
}

}  // namespace

const RowKernel backward_across_columns_twice_kernel{"backward_across_columns_twice", refuses, run, workspace};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
