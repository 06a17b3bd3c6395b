// backward_across_columns: what it takes, and how it is launched.
#include "cuda/backward_columns.cuh"

#include "cuda/across_tiles.hpp"
#include "cuda/elements.hpp"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (const char* why = refuses_across(p)) return why;
  if (p[Slot::dy].dtype != p[Slot::x].dtype) return "y and dy have different dtypes";
  return gradient_cut(p).rows == 0 ? "a row is longer than a cluster's shared memory holds" : nullptr;
}

template <class E, template <class> class Gradient, int kRows, int kWarps>
void launch_columns(const RowProblem& p, const ColumnCut& cut, Stream stream) {
  const BackwardColumns columns{.of = GradientColumns(p), .share = cut.share, .slots = cut.slots};
  launch("backward_across_columns", backward_across_columns<E, Gradient, kRows, kWarps>,
         {blocks_of(cut), kWarps * 32, cut.blocks, gradient_bytes<E, kRows, kWarps>(cut)}, stream, columns);
}

template <class E, template <class> class Gradient>
void launch_cut(const RowProblem& p, Stream stream) {
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(E));
  const ColumnCut cut = gradient_cut(p);
  if constexpr (kOfWord == 2)
    if (cut.rows == 1) return launch_columns<E, Gradient, 1, 8>(p, cut, stream);
  if (cut.rows == kOfWord) return launch_columns<E, Gradient, kOfWord, 8>(p, cut, stream);
  cut.warps == 4 ? launch_columns<E, Gradient, 2 * kOfWord, 4>(p, cut, stream)
                 : launch_columns<E, Gradient, 2 * kOfWord, 8>(p, cut, stream);
}

void run(const RowProblem& p, const Context& context) {
  if (p.rows == 0) return;
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() { launch_cut<E, Gradient>(p, stream_of(context)); });
  });
}

}  // namespace

const RowKernel backward_across_columns_kernel{"backward_across_columns", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
