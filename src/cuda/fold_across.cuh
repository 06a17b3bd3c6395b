// The states of rows along an outer axis: a block some tiles of one chunk of the rows.
#pragma once

#include "cuda/across.cuh"
#include "cuda/in_order.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// kPlain: all rows are whole and alike, and a thread has kRows of them beside each other.
template <class E, int kRows, bool kPlain>
__global__ void __launch_bounds__(kAcrossThreads, 2)
    fold_across_chunks(const __grid_constant__ RowProblem p, const __grid_constant__ AcrossShare share, int chunks,
                       fold::LogSumExp<float>::State* states) {
  begin_in_order();
  using Rows = AcrossRows<E, false, kRows, kPlain>;
  __shared__ typename Rows::Storage storage;
  const int size = share.columns * share.classes, chunk_index = static_cast<int>(blockIdx.x % chunks);
  const std::int64_t tile =
      static_cast<std::int64_t>(blockIdx.x / chunks) * (kAcrossThreads / size) + static_cast<int>(threadIdx.x) / size;
  const std::int64_t row = (tile * share.columns + static_cast<int>(threadIdx.x) % share.columns) * kRows;
  // Threads without a row of their own take part with the last one and write nothing.
  Row r = row_at(p, RowPlace(p, min(row, p.rows - kRows)));
  if (row >= p.rows) r.n = r.length = 0;
  const Rows rows(p, share, storage, r);
  typename Rows::Chunk chunk;
  const std::int64_t begin = std::int64_t{chunk_index} * lift::kChunk;
  if constexpr (kPlain) {
    typename Rows::Word raw[Rows::kCount];
    const int there = rows.load_words(raw, r.x, p[Slot::x].axis_stride, begin);
    lift::Extremes e[kRows];
    rows.unpack(chunk.v, e, raw, there);
    rows.fold_chunk(chunk, e, there);
  } else {
    rows.fold_chunk(chunk, begin);
  }
  if (rows.first != 0 || row >= p.rows) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i) states[(row + i) * chunks + chunk_index] = chunk.states[i];
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
