// Boxes of tensors of four axes through the copy engine, there (cp.async.bulk.tensor, PTX ISA 9.7.9.27.1) and back.
#pragma once

#include "cuda/sm90.cuh"

#include <cuda.h>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A box of a tensor of four axes. By one thread.
__device__ __forceinline__ void fetch_box(void* to, const CUtensorMap& map, CopyBarrier& barrier, int column, int part,
                                          int row, int outer) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier.word)), "r"(column), "r"(part), "r"(row), "r"(outer)
      : "memory");
}

/// The same way back; commit() ends what it has begun.
__device__ __forceinline__ void store_box(const CUtensorMap& map, const void* from, int column, int part, int row,
                                          int outer) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(from)), "r"(column), "r"(part), "r"(row), "r"(outer)
               : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all commits but the last have read shared memory.
__device__ __forceinline__ void wait_but_last() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
