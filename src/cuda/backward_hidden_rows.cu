// backward_hidden_rows: what it takes, and how it is launched.
#include "cuda/backward_hidden_rows.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

const char* refuses(const RowProblem& p, const Context&) {
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= 0x7FFFFFFF) return "more rows than a grid has";
  if (p.rung != Rung::automatic) return "a gradient has no rungs";
  return refuses_hidden_problem(p);
}

template <class E, template <class> class Gradient>
void launch_rows(const RowProblem& p, Stream stream) {
  launch_hidden_rows<E, 2, kHiddenVectors<E>>(
      p, [&]<class Tile, int kVectors>(const HiddenRows& rows, const Grid& grid) {
        launch("backward_hidden_rows", backward_hidden_rows<E, Tile, kVectors, Gradient>, grid, stream, rows);
      });
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() { launch_rows<E, Gradient>(p, stream_of(context)); });
  });
}

}  // namespace

const RowKernel backward_hidden_rows_kernel{"backward_hidden_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
