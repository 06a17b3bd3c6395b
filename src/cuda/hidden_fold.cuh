// A group of lanes' row of which a mask, lengths or a causal limit hide elements, or that has a scale of its own, as
// hidden_rows.cuh brings it: what is hidden becomes -inf, and its term nothing.
#pragma once

#include "cuda/hidden_rows.cuh"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where flags' highest bits, a byte an element, show none, elements become -inf; the extremes of the others, +inf and
/// -inf where there are none.
template <class E, int kVectors, int kWords>
__device__ __forceinline__ lift::Extremes hide_elements(uint4 (&raw)[kVectors], const unsigned (&flags)[kWords]) {
  if constexpr (sizeof(E) == 2) {
    using Pair = std::conditional_t<std::is_same_v<E, fold::BFloat16>, __nv_bfloat162, __half2>;
    constexpr unsigned kPlus = std::is_same_v<E, fold::BFloat16> ? 0x7F807F80U : 0x7C007C00U;
    constexpr unsigned kMinus = kPlus | 0x80008000U;
    const auto pair = [](const unsigned& word) { return *reinterpret_cast<const Pair*>(&word); };
    Pair low = pair(kPlus), high = pair(kMinus);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const uint4 shown = shown_by_flags<E>({flags[2 * j], flags[2 * j + 1]});
      const auto hide = [&](unsigned& word, unsigned there) {
        const unsigned above = (word & there) | (kPlus & ~there);
        word = (word & there) | (kMinus & ~there);
        low = __hmin2_nan(low, pair(above)), high = __hmax2_nan(high, pair(word));
      };
      hide(raw[j].x, shown.x), hide(raw[j].y, shown.y), hide(raw[j].z, shown.z), hide(raw[j].w, shown.w);
    }
    return {static_cast<float>(__hmin_nan(low.x, low.y)), static_cast<float>(__hmax_nan(high.x, high.y))};
  } else {
    lift::Extremes e{fold::infinity<float>(), -fold::infinity<float>()};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const auto hide = [&](unsigned& word, int k) {
        const bool there = (flags[j] & 0x80U << 8 * k) != 0;
        const float v = __uint_as_float(word);
        e.low = lift::least(e.low, there ? v : fold::infinity<float>());
        word = there ? word : __float_as_uint(-fold::infinity<float>());
        e.high = lift::most(e.high, __uint_as_float(word));
      };
      hide(raw[j].x, 0), hide(raw[j].y, 1), hide(raw[j].z, 2), hide(raw[j].w, 3);
    }
    return e;
  }
}

/// Elements change their sign.
template <class E, int kVectors>
__device__ __forceinline__ void negate(uint4 (&raw)[kVectors]) {
  constexpr unsigned kSigns = sizeof(E) == 2 ? 0x80008000U : 0x80000000U;
#pragma unroll
  for (uint4& own : raw) own = {own.x ^ kSigns, own.y ^ kSigns, own.z ^ kSigns, own.w ^ kSigns};
}

/// The least element that is not -inf; +inf if there is none.
template <class E, int kVectors>
__device__ __forceinline__ float least_above_none(const uint4 (&raw)[kVectors]) {
  float least = fold::infinity<float>();
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    float v[16 / sizeof(E)];
    Packed<E>::unpack(raw[j], v);
#pragma unroll
    for (const float e : v) least = lift::least(least, e == -fold::infinity<float>() ? fold::infinity<float>() : e);
  }
  return least;
}

/// The group's row in registers. kElements: its elements are wanted again, not its terms.
template <class E, class Tile, int kVectors, bool kElements>
struct ShownRow {
  using S = fold::Scalar<float>;
  static constexpr int kLanes = Tile::kLanes, kWidth = 16 / static_cast<int>(sizeof(E)), kCount = kVectors * kWidth;
  /// Lanes that hold it by lift::kPerLane elements each.
  static constexpr int kAnyLanes =
      std::max(static_cast<int>(std::bit_ceil(static_cast<unsigned>(kLanes * kCount))) / lift::kPerLane, 1);
  using Masked = MaskedFold<lift::WarpFold<kWidth, kLanes, kCount>, false, kLanes, kCount>;

  uint4 raw[kVectors];
  typename Masked::Range range;
  int reach = kVectors;  ///< vectors of a lane that hold something, at most

  /// The `row`-th of a run that has landed, at x. Where c is negative, from here on -c stands for it, and -x for the
  /// elements.
  template <class Sets>
  __device__ __forceinline__ ShownRow(const Sets& sets, int run, int row, const ComingRow& its, const Tile& tile,
                                      const char* x, float c) {
    unsigned flags[kCount / 4];
    tile.gather_any(raw, x);
    if (__any_sync(lift::kWholeWarp, c < 0.F))
      if (c < 0.F) negate<E>(raw);
    sets.find_shown(run, row, its, tile, [&]<bool kMask, int kWhole, bool kCut>(const char* mask, int n) {
      find_shown<E, kLanes, kVectors, kMask, kWhole, kCut>(mask, tile.shift, n, its.length, tile.turn,
                                                           [&](int i, unsigned f) { flags[i] = f; });
    });
    lift::Extremes extremes = hide_elements<E>(raw, flags);
    // An element that is -inf is as good as hidden.
    if (__any_sync(lift::kWholeWarp, extremes.low == -fold::infinity<float>())) extremes.low = least_above_none<E>(raw);
    range = Masked::range(fabsf(c), extremes);
    // Measured: a warp of few rows.
    if (!kElements && kLanes >= 8 && sets.cut_short())
      reach = (__reduce_max_sync(lift::kWholeWarp, its.length + tile.shift) + kWidth * kLanes - 1) / (kWidth * kLanes);
  }
  /// Of elements that are near each other, or of none, for c > 0: v becomes their terms, or themselves;
  /// the sum of the terms, which times `unit` is in the frame m().
  __device__ __forceinline__ float sum(float (&v)[kCount], float c, float& unit) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    const lift::FrameTerms terms(c, m());
    unit = 2.F * terms.unit;
    if constexpr (kElements) {
      return lift::add_tree<kWidth, kLanes, float, kCount>(
          [&](int j, int k) { return terms.half_term(v[j * kWidth + k]); });
    } else {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float* const own = v + j * kWidth;
        if (kLanes >= 8 && j >= reach) {
#pragma unroll
          for (int k = 0; k < kWidth; ++k) own[k] = 0.F;
        } else {
#pragma unroll
          for (int k = 0; k < kWidth; ++k) own[k] = terms.half_term(own[k]);
        }
      }
      return lift::add_tree<kWidth, kLanes, float, kCount>([&](int j, int k) { return v[j * kWidth + k]; });
    }
  }
  __device__ __forceinline__ float m() const { return S::sub(range.top, fold::Real<float>::kMagic); }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
