// The states of rows along an outer axis that are not plain: a block some tiles of one chunk of the rows.
#pragma once

#include "cuda/across.cuh"
#include "cuda/in_order.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template <class E>
__global__ void __launch_bounds__(kAcrossThreads, 2)
    fold_across_chunks(const __grid_constant__ RowProblem p, const __grid_constant__ AcrossShare share, int chunks,
                       fold::LogSumExp<float>::State* states) {
  begin_in_order();
  using Rows = AcrossRows<E, false>;
  __shared__ AcrossStorage storage;
  const int size = share.columns * share.classes, chunk_index = static_cast<int>(blockIdx.x % chunks);
  const std::int64_t tile =
      static_cast<std::int64_t>(blockIdx.x / chunks) * (kAcrossThreads / size) + static_cast<int>(threadIdx.x) / size;
  const std::int64_t row = tile * share.columns + static_cast<int>(threadIdx.x) % share.columns;
  // Threads without a row of their own take part with the last one and write nothing.
  Row r = row_at(p, RowPlace(p, min(row, p.rows - 1)));
  if (row >= p.rows) r.n = r.length = 0;
  const Rows rows(p, share, storage, r);
  typename Rows::Chunk chunk;
  rows.fold_chunk(chunk, std::int64_t{chunk_index} * lift::kChunk);
  if (rows.first == 0 && row < p.rows) states[row * chunks + chunk_index] = chunk.state;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
