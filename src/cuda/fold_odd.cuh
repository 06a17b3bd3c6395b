// logsumexp and states of plain short rows as odd_rows.cuh has them.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/odd_rows.cuh"
#include "cuda/row_results.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The states of a warp's first `count` rows, of any elements, which lie in shared memory.
template <class E, int kSlots>
__device__ __noinline__ void fold_any_rows(const PlainRows& p, const RowResults& to, OddPlace<E> place,
                                           std::int64_t base, int count) {
  constexpr int kPower = static_cast<int>(std::bit_ceil(static_cast<unsigned>(kSlots)));
  constexpr int kLanes = kPower > lift::kPerLane ? kPower / lift::kPerLane : 1, kAtOnce = 32 / kLanes;
  using Elements = Tile<E, kLanes>;
#pragma unroll 1
  for (int i = 0; i < count; i += kAtOnce) {
    const int own = i + static_cast<int>(threadIdx.x) % 32 / kLanes, row = min(own, count - 1);
    const char* x = place.row(p, row);
    const Elements tile(x);
    float v[lift::kPerLane];
    tile.load(v, x, static_cast<int>(p.n), p.factor);
    const auto state = lift::WarpFold<Elements::kWidth, kLanes>::terms(v, p.factor.c).state;
    if (own < count && tile.lane == 0) put_result(to, base + row, state);
  }
}

/// A group of lanes a row. A result costs as much as ten elements of a lane, so those of all runs wait, each in a lane
/// of its own.
template <class E, int kLanes, int kVectors, int kFull>
__global__ void __launch_bounds__(32 * kOddWarps, (kOddBlocks<E, kVectors>))
    fold_odd_rows(const __grid_constant__ PlainRows p, const __grid_constant__ RowResults to) {
  begin_in_order();
  using Row = OddTile<E, kLanes, kVectors, kFull>;
  using Place = OddPlace<E>;
  constexpr int kRows = Row::kRows;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const OddSets<E, Fixed<kRows>> sets{p, {}, landing_memory, Place::bytes(p, kRows)};
  sets.begin(landed[warp]);
  sets.fetch(landed[warp]);
  __syncwarp();  // elements that no copy brings are there
  fold::LogSumExp<float>::State kept{0., 0.F};
  std::int64_t kept_row = -1;
#pragma unroll 1
  for (int set = 0; set < kOddRuns && sets.has(set); ++set) {
    const int own = lane / kLanes, count = sets.count(set);
    const char* x = sets.place(set).row(p, min(own, count - 1));
    const Row tile(x, static_cast<int>(p.n));
    landed[warp][set].wait(0);
    float v[Row::kCount];
    uint4 raw[kVectors];
    typename Row::Fold::Folded folded;
    tile.gather(raw, x);
    const bool near = tile.template fold<false>(v, folded, raw, p.factor.c);
    if (!__all_sync(lift::kWholeWarp, near)) {
      fold_any_rows<E, Row::kSlots>(p, to, sets.place(set), sets.base(set), count);
    } else if (kLanes == 1 && own < count) {
      put_result(to, sets.base(set) + own, folded.state);
    } else if (lane % kLanes == set && own < count) {
      kept = folded.state, kept_row = sets.base(set) + own;
    }
  }
  if (kept_row >= 0) put_result(to, kept_row, kept);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
