// backward_hidden_blocks: what it takes, and how it is launched.
#include "cuda/backward_hidden_blocks.cuh"

#include "cuda/choose.hpp"
#include "cuda/elements.hpp"
#include "cuda/kernels.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {
namespace {

/// Blocks of a row's cluster. Measured: float32 to 64 chunks by blocks of 4 warps, of which a processor's registers
/// hold five, 16 bit to 128 by blocks of 8, four of them; longer rows by blocks of 10, then of 16. Clusters find their
/// places in groups of 16 or 18 processors, of which 9 or 11 to 13 large blocks leave many idle.
int blocks_of(int chunks, bool wide) {
  const int warps = wide ? 4 : 8;
  if (chunks <= (wide ? 5 : 10)) return 1;
  if (chunks <= (wide ? 64 : 16)) return (chunks + warps - 1) / warps;
  const int most = wide || chunks > 128 ? 10 : 8;
  for (const int blocks : {4, 5, 6, 7, 8, 10, 14, 15, 16})
    if (blocks * most >= chunks) return blocks;
  return 16;
}

Grid grid_of(const RowProblem& p, bool wide, const DeviceTraits& traits) {
  const auto chunks = static_cast<int>(lift::chunk_count(p.n));
  const int blocks = std::min(blocks_of(chunks, wide), std::max(traits.largest_cluster, 1));
  const int warps = std::min((chunks + blocks - 1) / blocks, kHiddenWarps);
  if (p.rows * blocks < traits.processors) return cluster_grid(p.rows, chunks, traits, warps);
  // Of 16 blocks the last may have nothing; of 14 it may, too, as 13 find fewer places.
  const int some = blocks == 16 ? (chunks + warps - 1) / warps : blocks;
  return {p.rows * some, 32 * warps, some};
}

const char* refuses(const RowProblem& p, const Context&) {
  if (p.n <= lift::kChunk) return "a row fits a warp";
  if (p.rung != Rung::automatic) return "a gradient has no rungs";
  if (const char* why = refuses_hidden_problem(p)) return why;
  if (const char* why = refuses_one_cluster(p)) return why;
  const DeviceTraits& traits = traits_of(DeviceOf(p[Slot::x].data).device());
  const bool wide = size_of(p[Slot::x].dtype) == 4;
  // As if there were a mask.
  const int room = wide ? kHiddenRoom<float, true> : kHiddenRoom<fold::BFloat16, true>;
  const int bytes = grid_of(p, wide, traits).threads / 32 * room + static_cast<int>(sizeof(HiddenSums)) + 256;
  return bytes > traits.shared_bytes ? "a block's chunks do not fit the device's shared memory" : nullptr;
}

template <class E, template <class> class Gradient, bool kMask>
void launch_blocks(const RowProblem& p, const DeviceTraits& traits, Stream stream) {
  Grid grid = grid_of(p, sizeof(E) == 4, traits);
  grid.shares_processors = p.rows * grid.cluster >= 8 * traits.processors;
  grid.shared_bytes = grid.threads / 32 * kHiddenRoom<E, kMask>;
  launch("backward_hidden_blocks", backward_hidden_blocks<E, Gradient, kMask>, grid, stream, hidden_problem(p));
}

void run(const RowProblem& p, const Context& context) {
  const DeviceOf device(p[Slot::x].data);
  const DeviceTraits& traits = traits_of(device.device());
  with_element(p[Slot::x].dtype, [&]<class E>() {
    with_gradient(p.op, [&]<template <class> class Gradient>() {
      p[Slot::mask].given ? launch_blocks<E, Gradient, true>(p, traits, stream_of(context))
                          : launch_blocks<E, Gradient, false>(p, traits, stream_of(context));
    });
  });
}

}  // namespace

const RowKernel backward_hidden_blocks_kernel{"backward_hidden_blocks", refuses, run, nullptr};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
