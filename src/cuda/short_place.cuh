// Rows on their way to shared memory, and their order by length.
#pragma once

#include "cuda/short_tile.cuh"
#include "cuda/sm90.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// By one lane: sends the `length` elements at `first` on their way to a place in shared memory, where they lie to
/// 16-byte boundaries as they do in x. Vectors that reach beyond x's memory it brings an element at a time.
template <class E>
__device__ __forceinline__ void fetch_run(char* place, CopyBarrier& barrier, const char* first, int length,
                                          const Extent& x) {
  constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize;
  if (length <= 0) return barrier.expect(0);
  const int shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16) / kSize, end = shift + length;
  const char *from = first - shift * kSize, *up_to = from + (end + kWidth - 1) / kWidth * 16;
  const int head = from < x.begin ? 16 : 0, tail = up_to > x.end ? 16 : 0;
  const int bytes = max(static_cast<int>(up_to - from) - head - tail, 0);
  barrier.expect(bytes);
  if (bytes > 0) barrier.copy(place + head, from + head, bytes);
  if ((head | tail) == 0) return;
  E* to = reinterpret_cast<E*>(place);
  const E* elements = reinterpret_cast<const E*>(from);
  if (head != 0)
    for (int i = shift; i < min(end, kWidth); ++i) to[i] = elements[i];
  if (tail != 0)
    for (int i = max(shift, (end - 1) / kWidth * kWidth); i < end; ++i) to[i] = elements[i];
}

/// Rows, one a lane, in order of length.
struct ShortOrder {
  static constexpr int kNone = -1;  ///< the length of what is no row
  int key;                          ///< of the lane-th shortest row: 32 times its length, and the lane that has it

  /// Bitonic, over the warp's lanes.
  static __device__ __forceinline__ ShortOrder sorted(int key) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int size = 2; size <= 32; size *= 2) {
#pragma unroll
      for (int distance = size / 2; distance > 0; distance /= 2) {
        const int other = __shfl_xor_sync(lift::kWholeWarp, key, distance);
        const bool low = ((lane & distance) == 0) == ((lane & size) == 0 || size == 32);
        key = low ? min(key, other) : max(key, other);
      }
    }
    return {key};
  }
  __device__ __forceinline__ int length() const { return key >> 5; }
  __device__ __forceinline__ int owner() const { return key & 31; }
  __device__ __forceinline__ ShortOrder at(int i) const { return {__shfl_sync(lift::kWholeWarp, key, i)}; }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
