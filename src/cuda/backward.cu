// The gradients of softmax and log_softmax: what the one-read kernels take, and how they are launched.
#include "cuda/backward.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"
#include "cuda/plain_gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;

const char* refuses(const RowProblem& p) {
  if (p.rung != Rung::automatic) return "a gradient has no rungs";
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  if (const char* why = refuses_vectors(p)) return why;
  return refuses_other_vectors(p, Slot::dy, "dy lies differently from y");
}

const char* refuses_warp_rows(const RowProblem& p, const Context&) {
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / 8 >= kMostBlocks) return "more rows than a grid has";
  return refuses(p);
}

const char* refuses_cluster_row(const RowProblem& p, const Context&) {
  const char* why = refuses(p);
  return why != nullptr ? why : refuses_one_cluster(p);
}

template <class E, template <class> class Gradient, int kLanes>
void launch_warp_rows(const RowProblem& p, Stream stream) {
  const int per_block = kThreads / kLanes;
  launch("backward_warp_rows", backward_warp_rows<GradientTile<E, kLanes, Gradient>>,
         Grid{(p.rows + per_block - 1) / per_block, kThreads}, stream, p);
}

template <class E, template <class> class Gradient>
void warp_rows(const RowProblem& p, Stream stream) {
  if (p.n <= 128) return launch_warp_rows<E, Gradient, 4>(p, stream);
  if (p.n <= 256) return launch_warp_rows<E, Gradient, 8>(p, stream);
  if (p.n <= 512) return launch_warp_rows<E, Gradient, 16>(p, stream);
  launch_warp_rows<E, Gradient, 32>(p, stream);
}

void run_warp_rows(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() { warp_rows<E, Gradient>(p, stream_of(context)); });
  });
}

void run_cluster_row(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  // y and dy fill the registers: blocks of 8 warps leave room for another.
  const Grid grid = cluster_grid(p.rows, lift::chunk_count(p.n), traits_of(device.device()), kWarpsPerBlock / 2);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() {
      launch("backward_cluster_row", backward_cluster_row<GradientTile<E, 32, Gradient>>, grid, stream_of(context), p);
    });
  });
}

}  // namespace

PlainGradient plain_gradient(const RowProblem& p) {
  const Operand& dy = p[Slot::dy];
  PlainGradient g{plain_rows(p), plain_rows(p), static_cast<float>(p.scale)};
  g.dy.x = g.dy.x_begin = dy.data;
  g.dy.x_stride = p.outer_rank == 0 ? 0 : dy.strides[0];
  g.dy.x_end = dy.data + (p.rows - 1) * g.dy.x_stride + p.n * static_cast<std::int64_t>(size_of(dy.dtype));
  return g;
}

const char* refuses_plain_gradient(const RowProblem& p) {
  if (p.rung != Rung::automatic) return "a gradient has no rungs";
  if (p.n == 0) return "rows of no elements";
  if (const char* why = refuses_plain(p)) return why;
  if (p.outer_rank == 1 && p.rows > 1 &&
      p[Slot::dy].strides[0] < p.n * static_cast<std::int64_t>(size_of(p[Slot::x].dtype)))
    return "rows of dy overlap or run backwards";
  return refuses_other_vectors(p, Slot::dy, "dy lies differently from y");
}

const RowKernel backward_warp_rows_kernel{"backward_warp_rows", refuses_warp_rows, run_warp_rows, nullptr};
const RowKernel backward_cluster_row_kernel{"backward_cluster_row", refuses_cluster_row, run_cluster_row, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
