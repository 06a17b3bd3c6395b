// Chunks of 16-bit elements to states, at reading speed: two chunks a warp, straight from the packed vectors, in a
// frame that is guessed, so that the first elements are folded while the last are on their way.
#pragma once

#include "cuda/softmax_long.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template <class E>
struct HalfChunk {
  static constexpr int kCount = 64, kLanes = 16, kVectors = kCount / 8;
  using Elements = Tile<E, kLanes, kCount>;
  using Fold = lift::WarpFold<8, kLanes, kCount>;
  using S = fold::Scalar<float>;
  using State = fold::LogSumExp<float>::State;

  static __device__ __forceinline__ float element(const uint4& raw, int k) {
    float v[8];
    Packed<E>::unpack(raw, v);
    return v[k];
  }

  /// The state of the group's chunk. The guess is the frame of the warp's first element: any frame in which nothing is
  /// rounded or flushed has the same bits, and none is if no element lies further than 2^60 from it. `c` is plain.
  static __device__ __forceinline__ State fold(const uint4 (&raw)[kVectors], float c) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    constexpr float kFurthest = 60.F;
    const float first = __shfl_sync(lift::kWholeWarp, element(raw[0], 0), 0);
    const float guess = S::sub(S::fma(first, c, kMagic), kMagic);
    const bool sound = fabsf(guess) < -fold::Real<float>::kFastLowest - 2.F * kFurthest;
    const lift::FrameTerms terms(c, sound ? guess : 0.F);
    const float frame = terms.unit == 1.F ? guess : S::sub(guess, 1.F);  // the even one
    const float d = lift::add_tree<8, kLanes, float, kCount>(
        [&](int j, int k) { return terms.template term<false>(element(raw[j], k)); });
    const lift::Extremes own = Packed<E>::extremes(raw);
    lift::Extremes all{S::fma(c > 0.F ? own.low : own.high, c, kMagic),
                       S::fma(c > 0.F ? own.high : own.low, c, kMagic)};
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      all = {lift::least(all.low, __shfl_xor_sync(lift::kWholeWarp, all.low, distance)),
             lift::most(all.high, __shfl_xor_sync(lift::kWholeWarp, all.high, distance))};
    const float top = S::sub(all.high, kMagic), bottom = S::sub(all.low, kMagic);
    const bool right = sound && top - frame <= kFurthest && bottom - frame >= -kFurthest;
    if (!__all_sync(lift::kWholeWarp, right)) {
      uint4 copy[kVectors];  // what the call takes the address of does not stay in registers
#pragma unroll
      for (int j = 0; j < kVectors; ++j) copy[j] = raw[j];
      return fold_exactly(copy, c);
    }
    const int down = static_cast<int>(frame - top);
    return {static_cast<double>(top), __int_as_float(__float_as_int(d) + (down << 23))};
  }

 private:
  static __device__ __noinline__ State fold_exactly(const uint4 (&raw)[kVectors], float c) {
    float v[kCount];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + 8 * j);
    return Fold::terms(v, c, Packed<E>::extremes(raw)).state;
  }
};

/// tile.gather() of a run of x's elements. A full one that begins inside a vector is read as whole vectors, where all
/// of them lie in x's memory: what the last holds of it belongs before the first element.
template <class Elements, int kVectors>
__device__ __forceinline__ void gather_plain(const Elements& tile, uint4 (&raw)[kVectors], const char* first, int n,
                                             float missing, const PlainRows& p) {
  constexpr int kVectorsInAll = Elements::kSlots / Elements::kWidth, kLanes = kVectorsInAll / kVectors;
  const int before = tile.shift * (16 / Elements::kWidth);
  const char* from = first - before;
  if (before == 0 || n < Elements::kSlots || from < p.x_begin || from + (kVectorsInAll + 1) * 16 > p.x_end)
    return tile.gather(raw, first, n, missing);
  const uint4* at = reinterpret_cast<const uint4*>(from);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) raw[j] = at[tile.lane + kLanes * j];
  if (tile.lane == 0) raw[0] = joined(raw[0], at[kVectorsInAll], before);
}

inline constexpr int kHalfThreads = 128, kHalfChunks = kHalfThreads / 16;  ///< chunks of a block

/// As fold_tiles, for 16-bit elements and a plain factor.
template <class E>
__global__ void __launch_bounds__(kHalfThreads, 8)
    fold_half_tiles(const __grid_constant__ PlainRows p, std::int64_t chunks, fold::LogSumExp<float>::State* states) {
  using Half = HalfChunk<E>;
  const std::int64_t own = static_cast<std::int64_t>(blockIdx.x) * kHalfChunks + threadIdx.x / Half::kLanes;
  const std::int64_t item = min(own, p.rows * chunks - 1);
  const ChunkOf<E> chunk(p, item, chunks);
  uint4 raw[Half::kVectors];
  const typename Half::Elements tile(chunk.first);
  gather_plain(tile, raw, chunk.first, chunk.n, lift::absent(p.factor.c), p);
  const auto state = Half::fold(raw, p.factor.c);
  if (tile.lane == 0 && own == item) states[item] = state;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
