// What is written of rows of float64 whose states are known: those that were given, or that the kernel before left.
#pragma once

#include "cuda/double_elements.cuh"
#include "cuda/double_rows.hpp"
#include "cuda/in_order.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

__device__ __noinline__ inline void write_gradients_one_by_one(const RowProblem& p, Share share,
                                                               fold::LogSumExp<double>::State row, double dlse) {
  const Row r = row_at(p, RowPlace(p, share.row));
  write_share<double>(p, r, share, LseGradientOf<double>(row, r.scale, dlse));
}

/// Rows of at most one tile, or a chunk a warp; states: as of row_state().
template <class Elements, Given kWhat>
__global__ void __launch_bounds__(kDoubleThreads, Elements::kMinBlocks)
    write_double_rows(const __grid_constant__ RowProblem p, std::int64_t items,
                      const fold::LogSumExp<double>::State* states) {
  begin_in_order();
  constexpr bool kLog = kWhat == Given::log_softmax;
  const std::int64_t own = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / Elements::kLanes;
  const std::int64_t item = min(own, items - 1), chunks = lift::chunk_count(p.n), index = item / chunks;
  const RowPlace place(p, index);
  const Row r = row_at(p, place);
  const ChunkOfRow part(r, item - index * chunks);
  const auto row = row_state<double>(p, place, r, index, states);
  Elements tile(p, r.x, part.begin);
  tile.load(p, r, part.begin, part.length);
  const bool near = tile.template fold_in<kLog>(RowFactor<double>(r.scale), row.m);
  if (own >= items) return;
  const DoubleResults to{index, r.y, r.scale};
  if constexpr (kWhat == Given::gradient) {
    const Operand& o = p[Slot::row];
    const double dlse = fold::narrow<double>(element_at<double>(o.dtype, o.data + place.offset(o)));
    if (!near || !fold::Normaliser<double>(row).regular)
      return write_gradients_one_by_one(p, tile.share(index, part.begin), row, dlse);
    tile.write_gradients(p, to, part.begin, part.n, row, dlse);
  } else {
    if (!near) return write_one_by_one<kLog>(p, tile.share(index, part.begin), row, states == nullptr);
    tile.template write<kLog>(p, to, part.begin, part.n, row, row.m, states == nullptr);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
