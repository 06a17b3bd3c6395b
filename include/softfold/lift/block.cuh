// A row across the warps of a block: one chunk a warp, then the canonical tree over the chunks.
#pragma once

#include "softfold/lift/warp.cuh"

namespace softfold {
inline namespace v0 {
namespace lift {

/// Every warp brings the state of its chunk; every thread gets the row's. All threads of the block call it.
/// A second call on the same storage needs a __syncthreads() before it.
template <int kMaxChunks>
struct BlockFold {
  static_assert(kMaxChunks <= 256);
  using State = fold::LogSumExp<float>::State;
  struct Storage {
    State states[kMaxChunks];
  };

  static __device__ __forceinline__ State fold(Storage& storage, const State& own, int chunk, int chunks) {
    if (threadIdx.x % 32 == 0 && chunk < chunks) storage.states[chunk] = own;
    __syncthreads();
    return merge_states([&](int i) { return storage.states[i]; }, chunks);
  }
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
