// Tiles through the copy engine. cp.async.bulk.tensor (PTX ISA 9.7.9.27.1): one thread names a tensor map, the tile's
// corner and a place in shared memory; the engine moves the box, swizzles it, writes zeros for what lies outside the
// tensor, and counts the bytes on an mbarrier.
#pragma once

#include "cuda/sm90.cuh"

#include <cuda.h>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Fetches the descriptor ahead of its first use (PTX ISA 9.7.9.16, prefetch.tensormap).
__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The map's box with its corner at (column, row, head, batch) to shared memory at `to`; all of the box's bytes are
/// counted on `barrier`, also those that lie outside the tensor. By one thread.
__device__ __forceinline__ void load_tile(unsigned to, const CUtensorMap& map, CopyBarrier& barrier, int column,
                                          int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(shared_address(&barrier.word)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
