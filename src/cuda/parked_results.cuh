// Results that do not lie in y as elements do in x, or have another dtype: they meet in shared memory as they are to
// lie, and leave by the copy engine.
#pragma once

#include "cuda/rows.cuh"
#include "cuda/sm90.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Results that lie side by side in y. place: of bytes() in shared memory, on 16.
template <class O>
struct ParkedRun {
  static constexpr int kSize = static_cast<int>(sizeof(O)), kWidth = 16 / kSize;
  using Four = std::conditional_t<kSize == 4, uint4, uint2>;

  char *place, *y;

  static constexpr SOFTFOLD_HD int bytes(int count) { return (count * kSize + 15) / 16 * 16 + 16; }

  /// The results of a tile, of which it has n, at i. kNan: there may be one among them, which Packed does not write;
  /// kWhole: all slots have one, and the first vector none before it.
  template <bool kNan, bool kWhole = false, class E, int kLanes, int kCount>
  __device__ __forceinline__ void park(const Tile<E, kLanes, kCount>& tile, int i, int n,
                                       const float (&v)[kCount]) const {
    using Elements = Tile<E, kLanes, kCount>;
    O* to = at(i);
    const auto begin = static_cast<int>(reinterpret_cast<std::uintptr_t>(to) / kSize) - tile.shift;
    const bool on_fours = begin % 4 == 0;
#pragma unroll
    for (int j = 0; j < Elements::kVectors; ++j) {
      const float* own = v + j * Elements::kWidth;
      const int first = kWhole ? Elements::kWidth * (tile.lane + kLanes * j) : tile.first_of(j);
      if (on_fours && (kWhole || Elements::whole(first, n))) {
#pragma unroll
        for (int k = 0; k < Elements::kWidth; k += 4) *reinterpret_cast<Four*>(to + first + k) = four<kNan>(own + k);
      } else if (first < n) {
#pragma unroll
        for (int k = 0; k < Elements::kWidth; ++k) {
          const int element = tile.element(j, k);
          if (element < n) to[element] = narrow<kNan>(own[k]);
        }
      }
    }
  }
  /// All `count` results to y, by `lanes` neighbouring ones; by all lanes of the warp, once all have parked. Call
  /// bulk_drain() before the block ends.
  __device__ __forceinline__ void send(int count, int lane, int lanes) const {
    fence_for_copy();
    __syncwarp();
    const int head = min(count, (kWidth - shift()) % kWidth);
    const int tail = max(head, (count + shift()) / kWidth * kWidth - shift());
    O* to = reinterpret_cast<O*>(y);
    if (lane == 0 && tail > head) bulk_store(to + head, at(head), (tail - head) * kSize);
    for (int i = lane; i < head; i += lanes) to[i] = *at(i);
    for (int i = tail + lane; i < count; i += lanes) to[i] = *at(i);
  }

 private:
  __device__ __forceinline__ int shift() const {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % 16) / kSize;
  }
  __device__ __forceinline__ O* at(int i) const { return reinterpret_cast<O*>(place) + shift() + i; }
  template <bool kNan>
  static __device__ __forceinline__ O narrow(float v) {
    return kNan ? fold::narrow<O>(v) : Packed<O>::narrow(v);
  }
  template <bool kNan>
  static __device__ __forceinline__ Four four(const float* v) {
    if constexpr (kSize == 4) {
      return Packed<O>::pack(v);
    } else if constexpr (!kNan) {
      return {Packed<O>::two(v[0], v[1]), Packed<O>::two(v[2], v[3])};
    } else {
      const auto two = [&](int k) {
        return static_cast<unsigned>(narrow<true>(v[k]).bits) | static_cast<unsigned>(narrow<true>(v[k + 1]).bits)
                                                                    << 16;
      };
      return {two(0), two(2)};
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
