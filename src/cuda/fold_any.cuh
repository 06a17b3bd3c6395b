// The states of rows that are not plain: with masks, lengths, a causal limit, scales of their own, at more than one
// stride, or with elements that lie apart. A group of lanes a chunk.
#pragma once

#include "cuda/any_elements.cuh"
#include "cuda/in_order.cuh"
#include "cuda/row_results.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// VectorElements of rows without a mask.
template <class E, int kLanes_>
struct UnmaskedElements : Tile<E, kLanes_> {
  static constexpr int kLanes = kLanes_, kCount = lift::kPerLane, kSize = static_cast<int>(sizeof(E));
  using Base = Tile<E, kLanes>;

  const char* x = nullptr;
  int length = 0;

  __device__ __forceinline__ UnmaskedElements(const RowProblem&, const char* row, std::int64_t begin)
      : Base(row + begin * kSize) {}
  __device__ __forceinline__ void load(const RowProblem&, const Row& r, std::int64_t begin, int there, int) {
    x = r.x + begin * kSize;
    length = there;
  }
  template <class Fold, bool kLog>
  __device__ __forceinline__ typename Fold::Folded fold(float (&v)[kCount], const lift::Factor& factor) const {
    Base::load(v, x, length, factor);
    return Fold::terms(v, factor.c);
  }
};

/// Elements: of a chunk, or of whole rows that are shorter.
template <class Elements, int kMinBlocks>
__global__ void __launch_bounds__(256, kMinBlocks)
    fold_any_chunks(const __grid_constant__ RowProblem p, std::int64_t items, const __grid_constant__ FoldResults to) {
  begin_in_order();
  constexpr int kLanes = Elements::kLanes, kSlots = kLanes * Elements::kCount;
  using Fold = lift::WarpFold<Elements::kWidth, kLanes, Elements::kCount>;
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  // Groups without a chunk of their own take part with the last one and write nothing.
  const std::int64_t item = min(group, items - 1);
  const std::int64_t chunks = kSlots == lift::kChunk ? (p.n + lift::kChunk - 1) / lift::kChunk : 1;
  const std::int64_t row = chunks == 1 ? item : item / chunks, begin = (item - row * chunks) * lift::kChunk;
  const Row r = row_at(p, RowPlace(p, row));
  const int n = static_cast<int>(clamp(r.n - begin, lift::kChunk));
  const int length = static_cast<int>(clamp(r.length - begin, lift::kChunk));
  Elements tile(p, r.x, begin);
  tile.load(p, r, begin, length, n);
  float v[Elements::kCount];
  const auto own = tile.template fold<Fold, false>(v, lift::Factor(fold::make_scale<float>(r.scale).c));
  if (group < items && threadIdx.x % kLanes == 0) to.put(item, own.state);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
