// topk of short plain rows: a warp takes one or several, all in registers. The k-th of the maxima of runs of 16
// elements bounds the k-th of all, so few elements are left to be ranked against each other.
#pragma once

#include "cuda/topk_row.cuh"
#include "cuda/topk_select.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kWarpTopkWarps = 8, kMostWarpK = 32, kCandidates = 96;

/// A group of kLanes lanes with up to 32 * kLanes elements of one row, in the layout of Tile.
template <class E, int kLanes>
struct GroupTopk {
  using Elements = Tile<E, kLanes>;
  const Elements& tile;
  int n, k;
  unsigned group;  ///< the group's lanes

  __device__ __forceinline__ GroupTopk(const Elements& tile_, int n_, int k_)
      : tile(tile_),
        n(n_),
        k(k_),
        group(kLanes == 32 ? lift::kWholeWarp : ((1U << (kLanes % 32)) - 1U) << (threadIdx.x % 32 / kLanes * kLanes)) {}

  __device__ __forceinline__ int element(int i) const {
    return tile.element(i / Elements::kWidth, i % Elements::kWidth);
  }
  __device__ __forceinline__ Entry entry(const float (&v)[lift::kPerLane], int i) const {
    return entry_of(v[i], static_cast<std::uint32_t>(element(i)));
  }

  /// A key that at least k elements reach, or the smallest of all.
  __device__ __forceinline__ std::uint32_t bound(const float (&v)[lift::kPerLane]) const {
    constexpr int kBits = 18;  // of the key; what is below changes little
    float most[2] = {v[0], v[lift::kPerLane / 2]};
#pragma unroll
    for (int i = 1; i < lift::kPerLane / 2; ++i)
      most[0] = lift::most(most[0], v[i]), most[1] = lift::most(most[1], v[i + lift::kPerLane / 2]);
    // A run without elements has the smallest key there is, which only a bound that lets all pass counts.
    const std::uint32_t a = fold::Ranked<float>::of(most[0], 0).key, b = fold::Ranked<float>::of(most[1], 0).key;
    std::uint32_t least = 0;
#pragma unroll 1
    for (int bit = 31; bit > 31 - kBits; --bit) {
      const std::uint32_t trial = least | 1U << bit;
      const int reached = __popc(__ballot_sync(lift::kWholeWarp, a >= trial) & group) +
                          __popc(__ballot_sync(lift::kWholeWarp, b >= trial) & group);
      if (reached >= k) least = trial;
    }
    return least;
  }

  /// The elements that reach the bound, in `to`; how many there are, or more than kCandidates: then `to` is left alone.
  __device__ __forceinline__ int collect(const float (&v)[lift::kPerLane], const char* x, std::uint32_t key,
                                         Entry* to) const {
    const float least = fold::Ranked<float>{key, 0}.value();
    unsigned which = 0;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) which |= v[i] < least ? 0U : 1U << i;
    if (n != Elements::kSlots) {
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i) which &= element(i) < n ? ~0U : ~(1U << i);
    }
    const int own = __popc(which);
    int before = own;
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const int other = __shfl_up_sync(lift::kWholeWarp, before, distance, kLanes);
      if (tile.lane >= distance) before += other;
    }
    const int all = __shfl_sync(lift::kWholeWarp, before, kLanes - 1, kLanes);
    if (all > kCandidates) return all;
    to += before - own;
    // From memory: registers have no index.
#pragma unroll 1
    for (; which != 0; which &= which - 1) {
      const int at = element(__ffs(static_cast<int>(which)) - 1);
      *to++ = entry_of(fold::widen(reinterpret_cast<const E*>(x)[at]), static_cast<std::uint32_t>(at));
    }
    return all;
  }

  /// The k best of `count` candidates, best first.
  __device__ __forceinline__ void rank(const Entry* candidates, int count, Entry* best) const {
#pragma unroll 1
    for (int i = tile.lane; i < count; i += kLanes) {
      const Entry e = candidates[i];
      int above = 0;
#pragma unroll 4
      for (int j = 0; j < count; ++j) above += candidates[j] > e ? 1 : 0;
      if (above < k) best[above] = e;
    }
  }

  /// The k best, one after the other: for rows with so many equal elements that the bound leaves too many.
  __device__ __forceinline__ void extract(const float (&v)[lift::kPerLane], Entry* best) const {
    Entry last = ~Entry{0};
#pragma unroll 1
    for (int j = 0; j < k; ++j) {
      Entry top = 0;
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i) {
        const Entry e = element(i) < n ? entry(v, i) : 0;
        if ((j == 0 || e < last) && e > top) top = e;
      }
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2)
        top = max(top, __shfl_xor_sync(lift::kWholeWarp, top, distance));
      if (tile.lane == 0) best[j] = top;
      last = top;
    }
  }
};

template <class E, int kLanes>
__global__ void __launch_bounds__(kWarpTopkWarps * 32, 3)
    topk_warp_rows(const __grid_constant__ TopkProblem p, bool with_states, lift::Factor factor) {
  using Elements = Tile<E, kLanes>;
  constexpr int kGroups = 32 / kLanes;
  __shared__ Entry candidates[kWarpTopkWarps * kGroups][kCandidates], best[kWarpTopkWarps * kGroups][kMostWarpK];
  const int place = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t own = static_cast<std::int64_t>(blockIdx.x) * (kWarpTopkWarps * kGroups) + place;
  // Lanes without a row of their own take part with the last row and write nothing.
  const std::int64_t row = min(own, p.rows - 1);
  const int n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const char* x = p[Slot::x].data + (p.outer_rank == 0 ? 0 : row * p[Slot::x].strides[0]);
  const Elements tile(x);
  uint4 raw[Elements::kVectors];
  float v[lift::kPerLane];
  tile.gather(raw, x, n, lift::absent(factor.c));
  const auto extremes = tile.unpack(v, raw, n, factor);
  const GroupTopk<E, kLanes> group(tile, n, k);
  const int count = group.collect(v, x, group.bound(v), candidates[place]);
  __syncwarp();
  if (__any_sync(lift::kWholeWarp, count > kCandidates)) {
    group.extract(v, best[place]);
  } else {
    group.rank(candidates[place], count, best[place]);
  }
  auto state = fold::LogSumExp<float>::identity();
  if (with_states) state = lift::WarpFold<Elements::kWidth, kLanes>::terms(v, factor.c, extremes).state;
  __syncwarp();
  if (own >= p.rows) return;
  const TopkRow<float> result(p, row, state);
  for (int j = tile.lane; j < k; j += kLanes) {
    const std::uint32_t index = index_of(best[place][j]);
    int to = j;
    if (!p.sorted) {  // by ascending index
      to = 0;
      for (int i = 0; i < k; ++i) to += index_of(best[place][i]) < index ? 1 : 0;
    }
    result.put_element(to, index);
  }
  if (tile.lane == 0) result.put_lse();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
