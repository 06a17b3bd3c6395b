// softmax and log_softmax of float32 rows up to 1024 of which a mask, lengths or a causal limit hide elements.
#pragma once

#include "cuda/hidden_rows.cuh"
#include "cuda/in_order.cuh"
#include "cuda/softmax_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A group of lanes a row.
template <class Tile, int kVectors, bool kLog>
__global__ void __launch_bounds__(32 * kOddWarps, 4) softmax_hidden_rows(const __grid_constant__ HiddenRows p) {
  begin_in_order();
  using E = float;
  constexpr int kLanes = Tile::kLanes, kRows = Tile::kRows, kWidth = 4, kCount = kVectors * kWidth;
  using Fold = lift::WarpFold<kWidth, kLanes, kCount>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  __shared__ ComingRow coming[kOddWarps][kOddRuns * kRows];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const HiddenSets<E, kRows, 1> sets(p, landing_memory, landed[warp], coming[warp]);
  sets.fetch();
  const bool own_scales = p.p[Slot::scales].given;
#pragma unroll 1
  for (int run = 0; run < kOddRuns && sets.has(run); ++run) {
    const int own = lane / kLanes, count = sets.count(run);
    // Groups without a row of their own take part with the last one and write nothing.
    const int some = min(own, count - 1);
    const OddPlace<E> place = sets.place(run, p.rows, 0);
    const char* x = place.row(p.rows, some);
    const ComingRow row = sets.coming(run, some);
    const Tile tile(x, static_cast<int>(p.rows.n), some, p.rows.joined);
    const auto scale = own_scales ? fold::make_scale<float>(row.scale) : p.rows.scale;
    const auto factor = own_scales ? lift::Factor(scale.c) : p.rows.factor;
    sets.wait(run);
    MaskedTile<E, kLanes, kCount> elements(x);
    tile.gather_only(elements.raw, x, Packed<E>::narrow(0.F));
    const auto put = [&](int i, unsigned flags) { elements.flags[i] = flags; };
    if (sets.masked()) {
      find_shown<E, kLanes, kVectors, true>(sets.mask(run, some, row.mask), tile.shift, row.length, tile.turn, put);
    } else {
      find_shown<E, kLanes, kVectors, false>(nullptr, tile.shift, row.length, tile.turn, put);
    }
    float v[kCount];
    const auto folded = elements.template fold<Fold, kLog>(v, factor);
    const fold::Normaliser<float> norm(folded.state);
    if (norm.regular) {
      const auto log_norm = [&] {
        if (!own_scales) return p.rows.log_normaliser(folded.state);
        fold::LogNormaliser<float> of(folded.state, scale);
        of.set_c(factor.c);
        return of;
      };
      finish<kLog, kCount>(v, folded.dense, fold::Scalar<float>::mul(norm.reciprocal, folded.unit), log_norm,
                           [](int) {});
    } else {
      const Constant constant = constant_of<kLog>(folded.state, p.rows.empty);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool shown = (elements.flags[i / 4] & 0x80U << 8 * (i % 4)) != 0;
        v[i] = constant.everywhere || shown ? constant.value : nothing<kLog>();
      }
    }
    sets.put(run, tile, [&](int j) { return Packed<E>::pack(v + j * kWidth); });
  }
  bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
