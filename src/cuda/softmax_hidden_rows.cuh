// softmax and log_softmax of rows up to 1024 of which a mask, lengths or a causal limit hide elements, or that have
// scales of their own.
#pragma once

#include "cuda/hidden_fold.cuh"
#include "cuda/in_order.cuh"
#include "cuda/reciprocal.cuh"
#include "cuda/softmax_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Rows of a run of which one holds elements far apart, +inf or NaN, has a scale that is 0 or not
/// finite, or nothing where that is to become NaN; from where they lie in x: none has been written.
template <class E, int kLanes, bool kLog>
__device__ __noinline__ void put_any_hidden(const RowProblem& p, std::int64_t base, int count) {
  constexpr int kAtOnce = 32 / kLanes;
#pragma unroll 1
  for (int i = 0; i < count; i += kAtOnce) {
    const int own = i + static_cast<int>(threadIdx.x) % 32 / kLanes;
    const Row r = row_at(p, RowPlace(p, base + min(own, count - 1)));
    if (p[Slot::mask].given) {
      softmax_group<VectorElements<E, kLanes, lift::kPerLane>, kLog>(p, r, own < count);
    } else {
      short_rows_of_any<E, kLanes>(p, r.x, r.y, static_cast<int>(r.length), r.scale, own < count);
    }
  }
}

/// A group of lanes a row.
template <class E, class Tile, int kVectors, bool kLog>
__global__ void __launch_bounds__(32 * kOddWarps, (kVectors > (kLog ? 6 : 7) ? 4 : 5))
    softmax_hidden_rows(const __grid_constant__ HiddenRows p) {
  begin_in_order();
  using Shown = ShownRow<E, Tile, kVectors, kLog>;
  constexpr int kRows = Tile::kRows;
  using S = fold::Scalar<float>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  __shared__ ComingRow coming[kOddWarps][kOddRuns * kRows];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const HiddenSets<E, kRows, 1> sets(p, landing_memory, landed[warp], coming[warp]);
  sets.fetch();
  const bool own_scales = p.p[Slot::scales].given;
#pragma unroll 1
  for (int run = 0; run < kOddRuns && sets.has(run); ++run) {
    const int own = lane / Tile::kLanes, count = sets.count(run);
    // Groups without a row of their own take part with the last one and write nothing.
    const int some = min(own, count - 1);
    const char* x = sets.place(run, p.rows, 0).row(p.rows, some);
    const ComingRow row = sets.coming(run, some);
    const Tile tile(x, static_cast<int>(p.rows.n), some, p.rows.joined);
    const auto scale = own_scales ? fold::make_scale<float>(row.scale) : p.rows.scale;
    const auto factor = own_scales ? lift::Factor(scale.c) : p.rows.factor;
    sets.wait(run);
    const Shown shown(sets, run, some, row, tile, x, factor.c);
    const bool hidden = shown.range.none && p.rows.empty == Empty::zero;  // all of it
    if (!__all_sync(lift::kWholeWarp, factor.plain && (shown.range.near || hidden))) {
      put_any_hidden<E, Shown::kAnyLanes, kLog>(p.p, sets.base(run), count);
      continue;
    }
    float v[Shown::kCount], unit;
    const float d = shown.sum(v, fabsf(factor.c), unit);
    // A row that is hidden is nothing times any state.
    const fold::LogSumExp<float>::State state{static_cast<double>(shown.m()), hidden ? 1.F : S::mul(d, unit)};
    finish<kLog, Shown::kCount>(
        v, true, S::mul(reciprocal_of_normal(state.d), unit),
        [&] {
          auto of = own_scales ? fold::LogNormaliser<float>(state, scale) : p.rows.log_normaliser(state);
          of.set_c(fabsf(factor.c));
          return of;
        },
        [](int) {});
    sets.put(run, tile, [&](int j) { return Packed<E>::pack(v + j * Shown::kWidth); });
  }
  bulk_drain();
}

/// p's rows, of elements E.
template <class E>
void launch_softmax_hidden_rows(const RowProblem& p, Stream stream);
extern template void launch_softmax_hidden_rows<fold::BFloat16>(const RowProblem&, Stream);
extern template void launch_softmax_hidden_rows<fold::Float16>(const RowProblem&, Stream);

template <class E>
void launch_softmax_hidden_rows(const RowProblem& p, Stream stream) {
  launch_hidden_rows<E, 1, 8>(p, [&]<class Tile, int kVectors>(const HiddenRows& rows, const Grid& grid) {
    p.op == Op::log_softmax
        ? launch("softmax_hidden_rows", softmax_hidden_rows<E, Tile, kVectors, true>, grid, stream, rows)
        : launch("softmax_hidden_rows", softmax_hidden_rows<E, Tile, kVectors, false>, grid, stream, rows);
  });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
