// entropy of plain rows of up to 512 elements, and its gradient, with one read and one launch: a group of lanes a row,
// several to a warp.
#pragma once

#include "cuda/entropy.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template <class E, int kLanes>
__global__ void __launch_bounds__(128, 4)
    entropy_short_rows(const __grid_constant__ LossProblem p, lift::Factor factor) {
  begin_in_order();
  using Elements = Tile<E, kLanes>;
  using Warp = lift::WarpFold<Elements::kWidth, kLanes>;
  using Fold = fold::EntropySum<float>;
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  if (group - threadIdx.x % 32 / kLanes >= p.rows) return;
  // Groups beyond the last row do it again and write nothing.
  const bool writes = group < p.rows;
  const std::int64_t index = writes ? group : p.rows - 1;
  const PlainPlace place(p, index);
  const char* x = p[Slot::x].data + place.offset(p[Slot::x]);
  const int n = static_cast<int>(p.n);
  const Elements tile(x);
  uint4 raw[Elements::kVectors];
  tile.gather(raw, x, n, lift::absent(factor.c));
  float v[lift::kPerLane];
  const lift::Extremes own = tile.unpack(v, raw, n, factor);
  const auto folded = Warp::depths(v, factor.c, own);
  const float sum =
      lift::add_tree<Elements::kWidth, kLanes, float>([&](int j, int k) { return v[j * Elements::kWidth + k]; });
  const bool gradient = p[Slot::y].given, writes_row = writes && tile.lane == 0;
  if (!gradient && !writes_row) return;
  const bool regular = Fold::Lse::is_regular(folded.state);
  const auto row = finish_entropy_row(
      p, index, Fold::with_sum(folded.state, regular ? fold::Scalar<float>::mul(sum, folded.unit) : 0.F), writes_row);
  if (!gradient || !writes) return;
  tile.unpack(v, raw, n, factor);
  if (row.kind == RowKind::regular) {
    to_gradients(v, own.low, row);
  } else {
#pragma unroll
    for (int i = 0; i < lift::kPerLane; ++i) v[i] = row.kind == RowKind::nan ? fold::canonical_nan<float>() : 0.F;
  }
  tile.store_checked(p[Slot::y].data + place.offset(p[Slot::y]), n, v);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
