// logsumexp and states of rows up to 1024 of which a mask, lengths or a causal limit hide elements.
#pragma once

#include "cuda/hidden_fold.cuh"
#include "cuda/in_order.cuh"
#include "cuda/row_results.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The states of a run's rows, of any elements, from where they lie in x.
template <class E, int kLanes>
__device__ __noinline__ void fold_any_hidden(const RowProblem& p, const RowResults& to, std::int64_t base, int count) {
  using Fold = lift::WarpFold<16 / static_cast<int>(sizeof(E)), kLanes>;
  const lift::Factor factor(fold::make_scale<float>(p.scale).c);
#pragma unroll 1
  for (int i = 0; i < count; i += 32 / kLanes) {
    const int own = i + static_cast<int>(threadIdx.x) % 32 / kLanes;
    const Row r = row_at(p, RowPlace(p, base + min(own, count - 1)));
    float v[lift::kPerLane];
    fold::LogSumExp<float>::State state;
    if (p[Slot::mask].given) {
      MaskedTile<E, kLanes, lift::kPerLane> tile(r.x);
      tile.load(r.x, r.mask, 1, static_cast<int>(r.length), static_cast<int>(r.n));
      state = tile.template fold<Fold, true>(v, factor).state;
    } else {
      Tile<E, kLanes>(r.x).load(v, r.x, static_cast<int>(r.length), factor);
      state = Fold::terms(v, factor.c).state;
    }
    if (own < count && threadIdx.x % kLanes == 0) put_result(to, base + own, state);
  }
}

/// A group of lanes a row; results as fold_odd_rows has them.
template <class E, class Tile, int kVectors>
__global__ void __launch_bounds__(32 * kOddWarps, (kVectors > 7 ? 4 : 5))
    fold_hidden_rows(const __grid_constant__ HiddenRows p, const __grid_constant__ RowResults to) {
  begin_in_order();
  using Shown = ShownRow<E, Tile, kVectors, false>;
  using State = fold::LogSumExp<float>::State;
  constexpr int kLanes = Tile::kLanes, kRows = Tile::kRows;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  __shared__ ComingRow coming[kOddWarps][kOddRuns * kRows];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const HiddenSets<E, kRows, 1> sets(p, landing_memory, landed[warp], coming[warp]);
  sets.fetch();
  State kept{0., 0.F};
  std::int64_t kept_row = -1;
#pragma unroll 1
  for (int run = 0; run < kOddRuns && sets.has(run); ++run) {
    const int own = lane / kLanes, count = sets.count(run);
    // Groups without a row of their own take part with the last one and leave nothing.
    const int some = min(own, count - 1);
    const char* x = sets.place(run, p.rows, 0).row(p.rows, some);
    const ComingRow row = sets.coming(run, some);
    const Tile tile(x, static_cast<int>(p.rows.n), some, p.rows.joined);
    const lift::Factor& factor = p.rows.factor;
    sets.wait(run);
    const Shown shown(sets, run, some, row, tile, x, factor.c);
    const bool none = shown.range.none;
    if (!__all_sync(lift::kWholeWarp, factor.plain && (shown.range.near || none))) {
      fold_any_hidden<E, Shown::kAnyLanes>(p.p, to, sets.base(run), count);
      continue;
    }
    float v[Shown::kCount], unit;
    const float d = shown.sum(v, fabsf(factor.c), unit);
    const State state = none ? fold::LogSumExp<float>::identity()
                             : State{static_cast<double>(shown.m()), fold::Scalar<float>::mul(d, unit)};
    if (kLanes == 1 && own < count) {
      put_result(to, sets.base(run) + own, state);
    } else if (lane % kLanes == run && own < count) {
      kept = state, kept_row = sets.base(run) + own;
    }
  }
  if (kept_row >= 0) put_result(to, kept_row, kept);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
