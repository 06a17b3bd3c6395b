// topk of short plain rows: a warp takes one or several, in registers and, to be looked up, in shared memory. The k-th
// of the maxima of runs of 16 elements bounds the k-th of all, so few elements are left to be ranked against each
// other.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/topk_row.cuh"
#include "cuda/topk_select.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kWarpTopkWarps = 4, kMostWarpK = 32;

/// What a group of kLanes lanes keeps of a row in shared memory: its elements, as registers have no index, and those
/// that may be among the k best.
template <class E, int kLanes>
struct alignas(16) TopkCandidates {
  static constexpr int kRoom = kLanes == 8 ? 48 : kLanes == 16 ? 64 : 96;
  E row[32 * kLanes];         ///< by Tile's slots
  std::uint32_t keys[kRoom];  ///< they order as the elements do; beyond the last one, up to a multiple of 4, 0
  float values[kRoom];
  std::uint16_t places[kRoom], best[kMostWarpK];  ///< best: by rank, where among these
};

/// A group of kLanes lanes with up to 32 * kLanes elements of one row, in the layout of Tile; k <= kLanes.
template <class E, int kLanes>
struct GroupTopk {
  using Elements = Tile<E, kLanes>;
  using Candidates = TopkCandidates<E, kLanes>;
  static constexpr bool kIsHalf = sizeof(E) == 2;
  const Elements& tile;
  int n, k;
  Candidates& own;

  /// Of the lane's i-th element, in Tile's terms.
  __device__ __forceinline__ unsigned slot(unsigned i) const {
    const unsigned vector = i / Elements::kWidth * kLanes + static_cast<unsigned>(tile.lane);
    return vector * Elements::kWidth + i % Elements::kWidth;
  }
  __device__ __forceinline__ int element(unsigned i) const {
    return tile.element(static_cast<int>(i / Elements::kWidth), static_cast<int>(i % Elements::kWidth));
  }
  static __device__ __forceinline__ std::uint32_t key_of(float x) { return fold::Ranked<float>::of(x, 0).key; }

  /// An exchange with the lane that differs in `bits`: the lower one gets the larger key.
  static __device__ __forceinline__ std::uint32_t exchange(std::uint32_t a, int bits, bool lower) {
    const std::uint32_t other = __shfl_xor_sync(lift::kWholeWarp, a, bits);
    return (a > other) == lower ? a : other;
  }
  /// The k-th of two keys a lane, one for each run of 16 elements: a key that at least k elements reach. A run without
  /// elements has that of -inf, or of what stands for it, which only a bound that lets all pass counts.
  __device__ __forceinline__ std::uint32_t bound(std::uint32_t a, std::uint32_t b) const {
    // Both sorted, the largest key in the first lane.
#pragma unroll
    for (int size = 1; size < kLanes; size *= 2) {
      const bool first = (tile.lane & size) == 0;
      a = exchange(a, 2 * size - 1, first), b = exchange(b, 2 * size - 1, first);
#pragma unroll
      for (int distance = size / 2; distance > 0; distance /= 2) {
        const bool lower = (tile.lane & distance) == 0;
        a = exchange(a, distance, lower), b = exchange(b, distance, lower);
      }
    }
    // The larger half of both, which rises and then falls.
    a = max(a, __shfl_xor_sync(lift::kWholeWarp, b, kLanes - 1));
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) a = exchange(a, distance, (tile.lane & distance) == 0);
    return __shfl_sync(lift::kWholeWarp, a, k - 1, kLanes);
  }

  /// A bit for each of the lane's elements that reaches the bound.
  __device__ __forceinline__ unsigned reach(const float (&v)[lift::kPerLane], std::uint32_t key) const {
    const float least = fold::Ranked<float>{key, 0}.value();  // NaN: all do
    unsigned which = 0;
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) which |= v[i] < least ? 0U : 1U << i;
    if (n != Elements::kSlots) {
#pragma unroll
      for (unsigned i = 0; i < lift::kPerLane; ++i) which &= element(i) < n ? ~0U : ~(1U << i);
    }
    return which;
  }

  /// Those elements as candidates; how many there are, or more than kRoom: then nothing is written.
  __device__ __forceinline__ int collect(unsigned which) const {
    const int mine = __popc(which);
    const int before = sum_up_to<kLanes>(mine);
    const int all = __shfl_sync(lift::kWholeWarp, before, kLanes - 1, kLanes);
    if (all <= Candidates::kRoom) {
      std::uint16_t* to = own.places + before - mine;
#pragma unroll 1
      for (; which != 0; which &= which - 1) {
        const auto i = static_cast<unsigned>(__ffs(static_cast<int>(which)) - 1);
        *to++ = static_cast<std::uint16_t>(slot(i));
      }
    }
    __syncwarp();
    if (all <= Candidates::kRoom) {
#pragma unroll 1
      for (int t = tile.lane; t < all; t += kLanes) {
        const int from = own.places[t];
        const std::uint32_t at = static_cast<std::uint32_t>(from - tile.shift) % Elements::kSlots;
        const E raw = own.row[from];
        const float value = fold::widen(raw);
        own.places[t] = static_cast<std::uint16_t>(at);
        own.values[t] = value;
        own.keys[t] = kIsHalf ? half_key(raw, value, at) : key_of(value);
      }
      if (tile.lane < 3 && all + tile.lane < Candidates::kRoom) own.keys[all + tile.lane] = 0;
    }
    __syncwarp();
    return all;
  }
  /// The element and its place in one number, as an Entry of 32 bits.
  template <class T>
  static __device__ __forceinline__ std::uint32_t half_key(T raw, float value, std::uint32_t at) {
    std::uint32_t key = 0xFFFFU;
    if constexpr (kIsHalf) {
      const std::uint32_t bits = value == 0.F ? 0U : raw.bits;
      if (!fold::is_nan(value)) key = (bits & 0x8000U) != 0 ? ~bits & 0xFFFFU : bits | 0x8000U;
    }
    return key << 16 | (0xFFFFU - at);
  }

  /// Two instructions, of which the compiler makes three or four.
  static __device__ __forceinline__ void count_if_above(int& count, std::uint32_t a, std::uint32_t b) {
    asm("{\n.reg .pred above;\nsetp.gt.u32 above, %1, %2;\n@above add.s32 %0, %0, 1;\n}"
        : "+r"(count)
        : "r"(a), "r"(b));
  }
  /// The candidates' ranks by their keys; false where two of the k best may have the same: both are then written to one
  /// place, which racecheck reports and nobody reads.
  __device__ __forceinline__ bool rank(int count) const {
    int ranked = 0;  // in the upper half how many, in the lower the sum of their ranks
#pragma unroll 1
    for (int t = tile.lane; t < count; t += 2 * kLanes) {
      const std::uint32_t key = own.keys[t], next = t + kLanes < count ? own.keys[t + kLanes] : 0;
      int above = 0, above_next = 0;
#pragma unroll 1
      for (int j = 0; j < count; j += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(own.keys + j);
        count_if_above(above, four.x, key), count_if_above(above_next, four.x, next);
        count_if_above(above, four.y, key), count_if_above(above_next, four.y, next);
        count_if_above(above, four.z, key), count_if_above(above_next, four.z, next);
        count_if_above(above, four.w, key), count_if_above(above_next, four.w, next);
      }
      if (above < k) own.best[above] = static_cast<std::uint16_t>(t), ranked += 0x10000 + above;
      if (above_next < k && next != 0)
        own.best[above_next] = static_cast<std::uint16_t>(t + kLanes), ranked += 0x10000 + above_next;
    }
    __syncwarp();
    if constexpr (!kIsHalf) {
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2)
        ranked += __shfl_xor_sync(lift::kWholeWarp, ranked, distance);
    }
    return kIsHalf || ranked == k * 0x10000 + k * (k - 1) / 2;
  }

  /// The same, of equal elements the one of the lowest index first.
  __device__ __forceinline__ void rank_exactly(int count) const {
    const auto entry = [&](int t) { return entry_of(own.values[t], own.places[t]); };
#pragma unroll 1
    for (int t = tile.lane; t < count; t += kLanes) {
      const Entry e = entry(t);
      int above = 0;
#pragma unroll 1
      for (int j = 0; j < count; ++j) above += entry(j) > e ? 1 : 0;
      if (above < k) own.best[above] = static_cast<std::uint16_t>(t);
    }
    __syncwarp();
  }

  /// The k best, one after the other: for rows with so many equal elements that the bound leaves too many. The
  /// elements are read again.
  static __device__ __noinline__ void extract(const char* x, int n, int k, Candidates& own) {
    const Elements tile(x);
    const GroupTopk group{tile, n, k, own};
    uint4 raw[Elements::kVectors];
    tile.gather(raw, x, n, 0.F);
    float v[lift::kPerLane];
#pragma unroll
    for (int j = 0; j < Elements::kVectors; ++j) Packed<E>::unpack(raw[j], v + j * Elements::kWidth);
    Entry last = ~Entry{0};
#pragma unroll 1
    for (int j = 0; j < k; ++j) {
      Entry top = 0;
#pragma unroll
      for (unsigned i = 0; i < lift::kPerLane; ++i) {
        const int place = group.element(i);
        const Entry e = place < n ? entry_of(v[i], static_cast<std::uint32_t>(place)) : 0;
        if ((j == 0 || e < last) && e > top) top = e;
      }
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2)
        top = max(top, __shfl_xor_sync(lift::kWholeWarp, top, distance));
      if (tile.lane == 0) {
        own.places[j] = static_cast<std::uint16_t>(index_of(top));
        own.values[j] = fold::widen(reinterpret_cast<const E*>(x)[index_of(top)]);
        own.best[j] = static_cast<std::uint16_t>(j);
      }
      last = top;
    }
    __syncwarp();
  }
};

/// kStates: more than the elements and their indices is asked for.
template <class E, int kLanes, bool kStates>
__global__ void __launch_bounds__(kWarpTopkWarps * 32, 8)
    topk_warp_rows(const __grid_constant__ TopkProblem p, float c) {
  begin_in_order();
  using Elements = Tile<E, kLanes>;
  constexpr int kGroups = kWarpTopkWarps * 32 / kLanes, kHalf = Elements::kVectors / 2;
  __shared__ TopkCandidates<E, kLanes> candidates[kGroups];
  const int place = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t wanted = static_cast<std::int64_t>(blockIdx.x) * kGroups + place;
  // Lanes without a row of their own take part with the last row and write nothing.
  const std::int64_t row = min(wanted, p.rows - 1);
  const int n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const char* x = p[Slot::x].data + (p.outer_rank == 0 ? 0 : row * p[Slot::x].strides[0]);
  const Elements tile(x);
  uint4 raw[Elements::kVectors], runs[2][kHalf];
  tile.gather(raw, x, n, lift::absent(c));
  float v[lift::kPerLane];
#pragma unroll
  for (int j = 0; j < Elements::kVectors; ++j) {
    reinterpret_cast<uint4*>(candidates[place].row)[tile.lane + kLanes * j] = raw[j];
    runs[j % 2][j / 2] = raw[j];  // neighbours in the tile in different runs, for rows that do not fill it
    Packed<E>::unpack(raw[j], v + j * Elements::kWidth);
  }
  const lift::Extremes a = Packed<E>::extremes(runs[0]), b = Packed<E>::extremes(runs[1]);
  const GroupTopk<E, kLanes> group{tile, n, k, candidates[place]};
  const unsigned which = group.reach(v, group.bound(group.key_of(a.high), group.key_of(b.high)));
  auto state = fold::LogSumExp<float>::identity();  // now: what follows needs the elements' registers
  if constexpr (kStates)
    state =
        lift::WarpFold<Elements::kWidth, kLanes>::terms(v, c, {lift::least(a.low, b.low), lift::most(a.high, b.high)})
            .state;
  const int count = group.collect(which);
  if (__any_sync(lift::kWholeWarp, count > TopkCandidates<E, kLanes>::kRoom)) {
    group.extract(x, n, k, candidates[place]);
  } else if (!__all_sync(lift::kWholeWarp, group.rank(count))) {
    group.rank_exactly(count);
  }
  if (wanted >= p.rows) return;
  const TopkRow<float, PlainPlace> result(p, row, state);
  const auto& own = candidates[place];
  const auto each = [&](const auto& put) {
    for (int j = tile.lane; j < k; j += kLanes) {
      const int at = own.best[j], index = own.places[at];
      int to = j;
      if (!p.sorted) {  // by ascending index
        to = 0;
        for (int i = 0; i < k; ++i) to += own.places[own.best[i]] < index ? 1 : 0;
      }
      put(to, index, own.values[at]);
    }
  };
  if constexpr (kStates) {
    const bool probabilities = p[TopkSlot::probabilities].given;
    each([&](int j, int index, float element) {
      result.put_pair(j, index, element);
      if (probabilities) result.put_probability(j, index, element);
    });
    if (p[TopkSlot::log_probabilities].given)
      each([&](int j, int index, float element) { result.put_log_probability(j, index, element); });
    if (tile.lane == 0) result.put_lse();
  } else {
    each([&](int j, int index, float element) { result.put_pair(j, index, element); });
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
