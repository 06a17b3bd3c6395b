// Chunks of 16-bit elements to states, at reading speed: two chunks a warp, straight from the packed vectors, in a
// frame that is guessed, so that the first elements are folded while the last are on their way.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/softmax_long.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template <class E>
struct HalfChunk {
  static constexpr int kCount = 64, kLanes = 16, kVectors = kCount / 8;
  static constexpr int kAll = kVectors * kLanes, kSize = static_cast<int>(sizeof(E));  ///< kAll: vectors of a chunk
  using Elements = Tile<E, kLanes, kCount>;
  using Fold = lift::WarpFold<8, kLanes, kCount>;
  using S = fold::Scalar<float>;
  using State = fold::LogSumExp<float>::State;

  static __device__ __forceinline__ float element(const uint4& raw, int k) {
    float v[8];
    Packed<E>::unpack(raw, v);
    return v[k];
  }

  /// The state of the group's full chunk.
  static __device__ __forceinline__ State fold(const char* first, const PlainRows& p) {
    uint4 raw[kVectors];
    gather_full(raw, first, p);
    return fold_guessed(
        raw, p.factor.c, [](int, int) { return true; },
        [&] {
          uint4 copy[kVectors];  // what the call takes the address of does not stay in registers
#pragma unroll
          for (int j = 0; j < kVectors; ++j) copy[j] = raw[j];
          return fold_exactly(copy, p.factor.c);
        });
  }

  /// The same where a chunk of the warp is cut short by its row's end, n elements of this one left: a function of its
  /// own, so that full chunks do not pay for it.
  static __device__ __noinline__ State fold_cut(const char* first, int n, const PlainRows& p) {
    const Elements tile(first);
    uint4 raw[kVectors];
    gather_cut(tile, raw, first, n, p);
    const auto is_element = [&](int j, int k) {
      const int i = tile.first_of(j) + k;
      return (j == 0 && i < 0 ? i + Elements::kSlots : i) < n;
    };
    return fold_guessed(raw, p.factor.c, is_element, [&] {
      uint4 again[kVectors];
      tile.gather(again, first, n, lift::absent(p.factor.c));
      return fold_exactly(again, p.factor.c);
    });
  }

 private:
  /// The guess is the frame of the warp's first element: any frame in which nothing is rounded or flushed has the same
  /// bits, and none is if no element lies further than 2^60 from it; else the state is exactly()'s. Slots that are no
  /// elements hold the chunk's first one. `c` is plain.
  template <class IsElement, class Exactly>
  static __device__ __forceinline__ State fold_guessed(const uint4 (&raw)[kVectors], float c,
                                                       const IsElement& is_element, const Exactly& exactly) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    constexpr float kFurthest = 60.F;
    const float first = __shfl_sync(lift::kWholeWarp, element(raw[0], 0), 0);
    const float guess = S::sub(S::fma(first, c, kMagic), kMagic);
    const bool sound = fabsf(guess) < -fold::Real<float>::kFastLowest - 2.F * kFurthest;
    const lift::FrameTerms terms(c, sound ? guess : 0.F);
    const float frame = terms.unit == 1.F ? guess : S::sub(guess, 1.F);  // the even one
    const float d = lift::add_tree<8, kLanes, float, kCount>([&](int j, int k) {
      const float term = terms.template term<false>(element(raw[j], k));
      return is_element(j, k) ? term : 0.F;
    });
    const lift::Extremes own = Packed<E>::extremes(raw);
    lift::Extremes all{S::fma(c > 0.F ? own.low : own.high, c, kMagic),
                       S::fma(c > 0.F ? own.high : own.low, c, kMagic)};
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      all = {lift::least(all.low, __shfl_xor_sync(lift::kWholeWarp, all.low, distance)),
             lift::most(all.high, __shfl_xor_sync(lift::kWholeWarp, all.high, distance))};
    const float top = S::sub(all.high, kMagic), bottom = S::sub(all.low, kMagic);
    const bool right = sound && top - frame <= kFurthest && bottom - frame >= -kFurthest;
    if (!__all_sync(lift::kWholeWarp, right)) return exactly();
    const int down = static_cast<int>(frame - top);
    return {static_cast<double>(top), __int_as_float(__float_as_int(d) + (down << 23))};
  }

  static __device__ __noinline__ State fold_exactly(const uint4 (&raw)[kVectors], float c) {
    float v[kCount];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + 8 * j);
    return Fold::terms(v, c, Packed<E>::extremes(raw)).state;
  }

  /// Tile::gather() of a full chunk. One that begins inside a vector is read as whole vectors, where all of them lie in
  /// x's memory: what the last holds of it belongs before the first element.
  static __device__ __forceinline__ void gather_full(uint4 (&raw)[kVectors], const char* first, const PlainRows& p) {
    const Elements tile(first);
    const int before = tile.shift * kSize;
    const char* from = first - before;
    if (before == 0 || from < p.x_begin || from + (kAll + 1) * 16 > p.x_end)
      return tile.gather(raw, first, Elements::kSlots, 0.F);
    const uint4* at = reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = at[tile.lane + kLanes * j];
    if (tile.lane == 0) raw[0] = joined(raw[0], at[kAll], before);
  }

  /// Likewise of a chunk of n > 0 elements, other slots filled with its first one.
  static __device__ __forceinline__ void gather_cut(const Elements& tile, uint4 (&raw)[kVectors], const char* first,
                                                    int n, const PlainRows& p) {
    const int before = tile.shift * kSize, end = n + tile.shift;  // end: in elements from the first vector
    const char* from = first - before;
    const E one = *reinterpret_cast<const E*>(first);
    if (from < p.x_begin || from + (end + 7) / 8 * 16 > p.x_end) return tile.gather(raw, first, n, fold::widen(one));
    const E eight[8] = {one, one, one, one, one, one, one, one};
    const uint4 filler = Packed<E>::join(eight);
    const uint4* at = reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      raw[j] = {};  // not the filler yet: that would wait for its own load
      if (8 * (tile.lane + kLanes * j) < end) raw[j] = at[tile.lane + kLanes * j];
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int here = end - 8 * (tile.lane + kLanes * j);
      if (here < 8) raw[j] = joined(filler, raw[j], here * kSize);
    }
    if (tile.lane != 0 || before == 0) return;
    const uint4 behind = end > 8 * kAll ? joined(filler, at[kAll], (end - 8 * kAll) * kSize) : filler;
    raw[0] = joined(raw[0], behind, before);
  }
};

inline constexpr int kHalfThreads = 128, kHalfChunks = kHalfThreads / 16;  ///< chunks of a block

/// As fold_tiles, for 16-bit elements and a plain factor.
template <class E>
__global__ void __launch_bounds__(kHalfThreads, 8)
    fold_half_tiles(const __grid_constant__ PlainRows p, std::int64_t chunks, fold::LogSumExp<float>::State* states) {
  begin_in_order();
  using Half = HalfChunk<E>;
  const std::int64_t own = static_cast<std::int64_t>(blockIdx.x) * kHalfChunks + threadIdx.x / Half::kLanes;
  const std::int64_t item = min(own, p.rows * chunks - 1);
  const ChunkOf<E> chunk(p, item, chunks);
  const bool full = __all_sync(lift::kWholeWarp, chunk.n == lift::kChunk);
  const auto state = full ? Half::fold(chunk.first, p) : Half::fold_cut(chunk.first, chunk.n, p);
  if (threadIdx.x % Half::kLanes == 0 && own == item) states[item] = state;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
