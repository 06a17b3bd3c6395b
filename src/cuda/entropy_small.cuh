// entropy of plain rows of a few elements, and its gradient, in one launch: lanes have as few of them as in
// small_rows.cuh, and what all rows have in common comes with the launch.
#pragma once

#include "cuda/entropy.cuh"
#include "cuda/small_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// LossRow, but for what all rows have in common.
struct SmallEntropyRow {
  const LossProblem& p;
  const SmallRows& rows;
  PlainPlace place;
  fold::LogSumExp<float>::State state;

  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser() const { return rows.log_normaliser(state); }
  __device__ __forceinline__ float c() const { return rows.factor.c; }
  __device__ __forceinline__ double scale() const { return p.scale; }
  __device__ __forceinline__ void put_number(const LossProblem&, LossSlot slot, double value) const {
    const Operand& o = p[slot];
    if (o.given) put(o.dtype, o.data + place.offset(o), value);
  }
};

template <class E, int kLanes, int kCount>
__global__ void __launch_bounds__(kSmallThreads)
    entropy_small_rows(const __grid_constant__ LossProblem p, const __grid_constant__ SmallRows rows) {
  begin_in_order();
  using Fold = fold::EntropySum<float>;
  using Row = SmallRow<PlainAccess<E>, kLanes, kCount>;
  const Row row(rows);
  ScaledElements<PlainAccess<E>, kLanes, kCount> own(row, rows.x, rows.mask, rows.factor);
  float v[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) v[j] = own.v[j];
  const auto folded = lift::WarpFold<1, kLanes, kCount>::depths(v, rows.factor.c, lift::extremes_of(v));
  const float sum = lift::add_tree<1, kLanes, float, kCount>([&](int j, int) { return v[j]; });
  const bool gradient = p[Slot::y].given, regular = Fold::Lse::is_regular(folded.state);
  const bool writes = row.writes && row.lane == 0;
  if (!gradient && !writes) return;
  const auto state = Fold::with_sum(folded.state, regular ? fold::Scalar<float>::mul(sum, folded.unit) : 0.F);
  const SmallEntropyRow r{p, rows, PlainPlace(p, row.inner), state.row()};
  const auto result = finish_entropy_row<float>(p, r, state, writes);
  if (!gradient) return;
  if (result.kind == RowKind::regular) {
    to_gradients(own.v, 0.F, result);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) own.v[j] = result.kind == RowKind::nan ? fold::canonical_nan<float>() : 0.F;
  }
  row.template store<true>(rows.y, own.v);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
