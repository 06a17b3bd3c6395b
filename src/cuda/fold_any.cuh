// The states of rows that are not plain but whose elements lie side by side: with masks, lengths, a causal limit,
// scales of their own, or at more than one stride. A group of lanes a chunk.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/in_order.cuh"
#include "cuda/masked.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// kLanes: 32, or of rows of up to 32 kLanes elements. kMasked: there is a mask.
template <class E, int kLanes, bool kMasked>
__global__ void __launch_bounds__(256, sizeof(E) == 4 ? 3 : 4)
    fold_any_chunks(const __grid_constant__ RowProblem p, std::int64_t items, fold::LogSumExp<float>::State* states) {
  begin_in_order();
  using Fold = lift::WarpFold<16 / static_cast<int>(sizeof(E)), kLanes>;
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  // Groups without a chunk of their own take part with the last one and write nothing.
  const std::int64_t item = min(group, items - 1), chunks = kLanes == 32 ? (p.n + lift::kChunk - 1) / lift::kChunk : 1;
  const std::int64_t row = chunks == 1 ? item : item / chunks, begin = (item - row * chunks) * lift::kChunk;
  const Row r = row_at(p, RowPlace(p, row));
  const lift::Factor factor(fold::make_scale<float>(r.scale).c);
  const int n = static_cast<int>(clamp(r.n - begin, lift::kChunk));
  const int length = static_cast<int>(clamp(r.length - begin, lift::kChunk));
  const char* x = r.x + begin * static_cast<int>(sizeof(E));
  float v[lift::kPerLane];
  typename Fold::Folded own;
  if constexpr (kMasked) {
    const std::int64_t stride = p[Slot::mask].axis_stride;
    MaskedTile<E, kLanes, lift::kPerLane> tile(x);
    tile.load(x, r.mask + begin * stride, stride, length, n);
    own = tile.template fold<Fold, false>(v, factor);
  } else {
    Tile<E, kLanes>(x).load(v, x, length, factor);
    own = Fold::terms(v, factor.c);
  }
  if (group < items && threadIdx.x % kLanes == 0) states[item] = own.state;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
