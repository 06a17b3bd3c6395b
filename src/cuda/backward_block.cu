// backward_block_rows: what it takes, and how it is launched.
#include "cuda/backward_block.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Measured: chunks of the longest row that is faster by blocks than by clusters, which stay where there are many rows
/// and whose warps take two chunks of 16 bit each.
std::int64_t longest(const RowProblem& p) {
  const bool wide = size_of(p[Slot::x].dtype) == 4, whole = p.n % lift::kChunk == 0, on_vectors = plain_rows(p).joined;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  if (traits.largest_cluster < 16 || are_fewer_chunks(p, fewest_to_stay(p))) return kGradientWarps;
  if (wide) return kMostBlockChunks;
  if (p.op == Op::softmax_backward) return whole ? 8 : 6;
  return p.n == 4 * lift::kChunk && on_vectors ? 3 : 6;
}

const char* refuses(const RowProblem& p, const Context&) {
  const std::int64_t chunks = lift::chunk_count(p.n);
  if (chunks < 2) return "a row fits a warp";
  if (chunks > kGradientWarps) return "a row is longer than a block holds (16384)";
  if (p.rows >= 0x7FFFFFFF) return "more rows than a grid has";
  if (const char* why = refuses_plain_gradient(p)) return why;
  if (size_of(p[Slot::x].dtype) == 4 && chunks > 8 && p.rows < 64) return "so few rows are faster by clusters";
  return chunks > longest(p) ? "clusters of blocks are faster" : nullptr;
}

template <class E, template <class> class Gradient>
void launch_blocks(const RowProblem& p, Stream stream) {
  const int warps = static_cast<int>(lift::chunk_count(p.n));
  const Grid grid{p.rows, 32 * warps, 1, warps * 2 * kGradientRoom<E>};
  launch("backward_block_rows", backward_block_rows<E, Gradient>, grid, stream, plain_gradient(p));
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() { launch_blocks<E, Gradient>(p, stream_of(context)); });
  });
}

}  // namespace

const RowKernel backward_block_rows_kernel{"backward_block_rows", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
