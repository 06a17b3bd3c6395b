// The gradients of softmax and log_softmax of rows up to 1024 of which a mask, lengths or a causal limit hide elements,
// or with scales of their own: y, dy and masks fly to shared memory on their own, a group of lanes a row.
#pragma once

#include "cuda/gradient_hidden.cuh"
#include "cuda/hidden_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Lanes with fewer vectors leave registers for more of them: 16 bit is bound by instructions, not by memory.
template <class E>
inline constexpr int kHiddenVectors = sizeof(E) == 2 ? 4 : 8;
template <class E>
inline constexpr int kHiddenBlocks = sizeof(E) == 2 ? 4 : 3;

/// A group of lanes a row.
template <class E, class Tile, int kVectors, template <class> class Gradient>
__global__ void __launch_bounds__(32 * kOddWarps, kHiddenBlocks<E>)
    backward_hidden_rows(const __grid_constant__ HiddenRows p) {
  begin_in_order();
  constexpr int kLanes = Tile::kLanes, kRows = Tile::kRows;
  using Vectors = HiddenVectors<E, Gradient, kLanes, kVectors>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  __shared__ ComingRow coming[kOddWarps][kOddRuns * kRows];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const HiddenSets<E, kRows, 2> sets(p, landing_memory, landed[warp], coming[warp]);
  sets.fetch();
#pragma unroll 1
  for (int run = 0; run < kOddRuns && sets.has(run); ++run) {
    const int own = lane / kLanes, count = sets.count(run);
    // Groups without a row of their own take part with the last one and write nothing.
    const int some = min(own, count - 1);
    const OddPlace<E> y_place = sets.place(run, p.rows, 0);
    const char *at_y = y_place.row(p.rows, some), *at_dy = sets.place(run, p.dy, 1).row(p.dy, some);
    const ComingRow row = sets.coming(run, some);
    const Tile tile(at_y, static_cast<int>(p.rows.n), some, p.rows.joined);
    sets.wait(run);
    typename Vectors::Vectors y, dy;
    tile.gather_only(y, at_y, Packed<E>::narrow(Gradient<float>::nothing()));
    tile.gather_only(dy, at_dy, Packed<E>::narrow(-0.F));
    typename Vectors::Shown shown;
    sets.find_shown(run, some, row, tile, [&]<bool kMask, int kWhole, bool kCut>(const char* mask, int n) {
      shown.template find<kMask, kWhole, kCut>(mask, tile.shift, n, row.length, tile.turn);
    });
    Vectors::hide(y, dy, shown);
    const lift::SumNode sum = Vectors::sum(y, dy);
    Vectors::stay_packed(y), Vectors::stay_packed(dy);
    constexpr unsigned all_lanes = lift::kWholeWarp >> (32 - kLanes);
    const bool any = (__ballot_sync(lift::kWholeWarp, sum.any != 0) >> (own * kLanes) & all_lanes) != 0;
    Vectors::finish(y, dy, shown, Gradient<float>{sum.sum, static_cast<float>(row.scale)}, any);
    sets.put(run, tile, [&](int j) { return y[j]; });
  }
  bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
