// Sums over the lanes of a warp, in the order of the lanes.
#pragma once

#include "softfold/lift/warp.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The sum of what the lanes of a group of kLanes have, up to this one. By all lanes of a warp together.
template <int kLanes = 32, class T>
__device__ __forceinline__ T sum_up_to(T own) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const T other = __shfl_up_sync(lift::kWholeWarp, own, distance, kLanes);
    if (lane >= distance) own += other;
  }
  return own;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
