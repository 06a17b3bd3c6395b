// What kernels share that keep a ring of tiles in shared memory: how a tile is folded, and how its results are found
// again from its elements once its row's state is known. No registers wait for that.
#pragma once

#include "cuda/plain_chunk.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

using RingState = fold::LogSumExp<float>::State;

/// Elements of the longest row.
inline constexpr int kRingLongest = 8192 * lift::kChunk;

/// What the results of most rows need; of others `plain()` is false.
template <bool kLog>
struct RingRow {
  PlainProbability norm;
  int top;  ///< z of the row's node
  /// Tiles whose top is no further below: whose elements lie near each other then have no probability that leaves as 0.
  static constexpr int kNear = 39;
  static_assert(60 + kNear + 1 + 24 <= 124 && kRingLongest / 2 * 3 < 1 << 24);  // kSmallest is 2^-124, d below 2^24

  __device__ __forceinline__ RingRow(const PlainRows&, const RingState& state, int z)
      : RingRow(fold::Normaliser<float>(state), z) {}
  __device__ __forceinline__ bool plain() const { return top != lift::kFar; }

 private:
  __device__ __forceinline__ RingRow(const fold::Normaliser<float>& row, int z)
      : norm(row), top(row.regular ? z : lift::kFar) {}
};
template <>
struct RingRow<true> {
  float half_c, half_frame, half_log2_d;  ///< LogNormaliser's
  bool is_plain;
  __device__ __forceinline__ RingRow(const PlainRows& p, const RingState& state, int) {
    const auto norm = p.log_normaliser(state);
    half_c = norm.half_c, half_frame = norm.half_frame, half_log2_d = norm.half_log2_d,
    is_plain = norm.regular && norm.fast;
  }
  __device__ __forceinline__ bool plain() const { return is_plain; }
};

/// Places of 4 KB: a chunk of float32, two of 16 bit.
template <class E, bool kLog>
struct RingTile {
  static constexpr int kCount = sizeof(E) == 2 ? 64 : 32, kLanes = lift::kChunk / kCount;
  static constexpr int kElements = 32 * kCount, kChunks = kElements / lift::kChunk;
  static constexpr int kBytes =
      kElements * static_cast<int>(sizeof(E));  ///< 16 more where a row begins inside a vector
  using Part = WarpPart<E, kLanes, kCount>;
  using Fold = lift::WarpFold<Part::kWidth, kLanes, kCount>;
  static constexpr int kVectors = Part::kVectors, kWidth = Part::kWidth;

  /// The tile-th of a row that begins at `row`.
  static __device__ __forceinline__ Part part(const PlainRows& p, char* place, const char* row, int tile) {
    const int begin = tile * kElements, n = min(static_cast<int>(p.n) - begin, kElements);
    return {place, row + static_cast<std::int64_t>(begin) * Part::kSize, n, (n + lift::kChunk - 1) / lift::kChunk};
  }

  /// The states of a tile's chunks, a group of kLanes lanes each, once it has landed.
  static __device__ __forceinline__ typename Fold::Folded fold(const PlainRows& p, const Part& of) {
    uint4 raw[kVectors];
    of.read_filled(raw, p.x_begin, p.x_end);
    auto extremes = extremes_by_integers<E>(raw);
    float v[kCount];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    if (of.n < kElements) hide_rest(p.factor.c, of, v, extremes);
    return Fold::reduce(v, p.factor.c, extremes);
  }
  /// z (lift::Node) of a tile whose elements lie near each other, else lift::kNone.
  static __device__ __forceinline__ int top_of(const typename Fold::Folded& own) {
    return own.dense ? own.node.z : lift::kNone;
  }

  /// Results of a plain row, in place of its elements.
  static __device__ __forceinline__ void finish_plain(const PlainRows& p, uint4 (&raw)[kVectors],
                                                      const RingRow<kLog>& row, int top) {
    using S = fold::Scalar<float>;
    const auto each = [&](const auto& result) {
      float v[kCount];
#pragma unroll
      for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = result(v[i]);
#pragma unroll
      for (int j = 0; j < kVectors; ++j) raw[j] = Packed<E>::pack(v + j * kWidth);
    };
    if constexpr (kLog) {
      const auto log_probability = [&](float x) {
        return S::mul(p.two_kappa, S::sub(S::fma(x, row.half_c, -row.half_frame), row.half_log2_d));
      };
      // The largest element has t - m <= 1/2: where log2 d is above 1 all results are below 0.
      if (row.half_log2_d > 0.5F) return each(log_probability);
      each([&](float x) {
        const float lp = log_probability(x);
        return S::add(lp < 0.F ? lp : 0.F, 0.F);  // as fold::LogNormaliser has it
      });
    } else {
      if (top >= row.top - RingRow<kLog>::kNear) return each([&](float x) { return row.norm.near(x, p.factor.c); });
      each([&](float x) { return row.norm(x, p.factor.c); });
    }
  }
  /// Results of any row, by the definition, to y.
  static __device__ __noinline__ void write_any(const PlainRows& p, uint4 (&raw)[kVectors], const RingState& state,
                                                char* y, int count) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const fold::Normaliser<float> norm(state);
    if (!norm.regular)
      return fill<E, kLog>(y, nullptr, 0, lane % kLanes, kLanes, count, count, constant_of<kLog>(state, p.empty));
    float v[kCount];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    float multiplier = 0.F;
    if constexpr (!kLog) multiplier = fold::Scalar<float>::mul(norm.reciprocal, terms_in_frame(v, p.factor.c, state.m));
    finish<kLog, kWidth>(
        v, false, multiplier, [&] { return p.log_normaliser(state); },
        [&](int j) { raw[j] = Packed<E>::pack(v + j * kWidth); });
    write_vectors<E, kLanes, kVectors>(y, count, [&](int j) { return raw[j]; });
  }
  /// The results of a tile to y. state() is its row's. free(0) is called when another tile may be fetched to its place,
  /// that 0 being known when the elements are in registers (WarpPart::loaded), or with kLate have been used.
  template <bool kLate, class StateOf, class Free>
  static __device__ __forceinline__ void write(const PlainRows& p, const Part& of, const RingRow<kLog>& row, int top,
                                               char* y, const StateOf& state, const Free& free) {
    const int group = static_cast<int>(threadIdx.x) % 32 / kLanes, count = of.count(group);
    uint4 raw[kVectors];
    of.read_again(raw);
    if constexpr (!kLate) free(Part::loaded(raw));
    y += group * (lift::kChunk * Part::kSize);
    if (row.plain()) {
      finish_plain(p, raw, row, top);
      if constexpr (kLate) free(Part::loaded(raw));
      return write_vectors<E, kLanes, kVectors>(y, count, [&](int j) { return raw[j]; });
    }
    uint4 copy[kVectors];  // raw itself would be in memory wherever it is used
#pragma unroll
    for (int j = 0; j < kVectors; ++j) copy[j] = raw[j];
    write_any(p, copy, state(), y, count);
    if constexpr (kLate) free(Part::loaded(raw));
  }

 private:
  /// What stands in a cut tile's slots without an element. Where its elements lie near each other, a number whose term
  /// is below 2^-120, which no sum of theirs sees: so the tile takes the code of whole ones, which is in the cache of
  /// instructions already. Else lift::absent.
  static __device__ __forceinline__ void hide_rest(float c, const Part& of, float (&v)[kCount], lift::Extremes& e) {
    using R = fold::Real<float>;
    using S = fold::Scalar<float>;
    const float none = lift::absent(c);
    const int high = __float_as_int(S::fma(c > 0.F ? e.high : e.low, c, R::kMagic));
    const int low = __float_as_int(S::fma(c > 0.F ? e.low : e.high, c, R::kMagic));
    const float top = __int_as_float(__reduce_max_sync(lift::kWholeWarp, high));
    const float bottom = __int_as_float(__reduce_min_sync(lift::kWholeWarp, low));
    const float faint = S::div(S::sub(S::sub(top, R::kMagic), 123.F), c);
    const bool near = top >= R::kMagic + R::kFastLowest && top <= R::kMagic + R::kFastHighest && bottom >= top - 60.F &&
                      fabsf(faint) < fold::infinity<float>();
    const int lane = lane_index(), n = of.count(lane / kLanes), first = kWidth * (lane % kLanes) - of.shift();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = first + i / kWidth * (kWidth * kLanes) + i % kWidth;
      if ((i < kWidth && at < 0 ? at + lift::kChunk : at) >= n) v[i] = near ? faint : none;
    }
    if (!near) e = lift::extremes_of(v);  // of two chunks each counts for itself
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
