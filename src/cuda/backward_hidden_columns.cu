// backward_across_hidden: what it takes, and how it is launched.
#include "cuda/backward_hidden_columns.cuh"

#include "cuda/elements.hpp"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_side_by_side(p)) return why;
  if (p[Slot::dy].dtype != p[Slot::x].dtype) return "y and dy have different dtypes";
  if (!may_be_apart(p[Slot::x].dtype, p[Slot::y].dtype)) return "no kernel for these dtypes";
  return gradient_cut(p).rows == 0 ? "a row is longer than a cluster's shared memory holds" : nullptr;
}

template <class E, class Y, template <class> class Gradient, int kRows, int kWarps>
void launch_columns(const RowProblem& p, const ColumnCut& cut, Stream stream) {
  const BackwardHiddenColumns columns{.of = {.of = GradientColumns(p), .share = cut.share, .slots = cut.slots},
                                      .hidden = HiddenColumns(p, kRows)};
  launch("backward_across_hidden", backward_across_hidden<E, Y, Gradient, kRows, kWarps>,
         {blocks_of(cut), kWarps * 32, cut.blocks, gradient_bytes<E, kRows, kWarps>(cut)}, stream, columns);
}

template <class E, class Y, template <class> class Gradient>
void launch_cut(const RowProblem& p, Stream stream) {
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(E));
  const ColumnCut cut = gradient_cut(p);
  if constexpr (kOfWord == 2)
    if (cut.rows == 1) return launch_columns<E, Y, Gradient, 1, 8>(p, cut, stream);
  if constexpr (2 * kOfWord * sizeof(Y) <= 8) {
    if (cut.rows == 2 * kOfWord)
      return cut.warps == 4 ? launch_columns<E, Y, Gradient, 2 * kOfWord, 4>(p, cut, stream)
                            : launch_columns<E, Y, Gradient, 2 * kOfWord, 8>(p, cut, stream);
  }
  launch_columns<E, Y, Gradient, kOfWord, 8>(p, cut, stream);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  with_apart(p[Slot::x].dtype, p[Slot::y].dtype, [&]<class E, class Y>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() { launch_cut<E, Y, Gradient>(p, stream_of(context)); });
  });
}

}  // namespace

const RowKernel backward_across_hidden_kernel{"backward_across_hidden", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
