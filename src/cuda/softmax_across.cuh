// softmax_across_rows: what blocks and clusters do with their tiles.
#pragma once

#include "cuda/across.cuh"
#include "cuda/in_order.cuh"
#include "softfold/lift/cluster.cuh"

#include <new>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Rows of more chunks than a cluster has blocks: a block's chunks to one state, and after the exchange again.
template <class Rows>
__device__ __forceinline__ void run_twice(const Rows& rows, std::int64_t begin) {
  const RowProblem& p = rows.p;
  typename Rows::Chunk chunk;
  const std::int64_t end = min(begin + std::int64_t{rows.share.chunks} * lift::kChunk, p.n);
  auto& tree = rows.storage.tree(rows.column);
#pragma unroll 1
  for (std::int64_t at = begin; at < end; at += lift::kChunk) {
    rows.fold_chunk(chunk, at);
    if (rows.first != 0) continue;
    if (at == begin) new (&tree) AcrossStorage::Tree;
    tree.push(chunk.state);
  }
  __syncthreads();
  const auto state = rows.over_blocks(begin < end ? tree.root() : Rows::Lse::identity());
  const bool regular = state.m < fold::infinity<double>() && state.d > 0.F;
#pragma unroll 1
  for (std::int64_t at = end > begin ? (end - 1) / lift::kChunk * lift::kChunk : -1; at >= begin; at -= lift::kChunk) {
    rows.load(chunk.v, at);
    chunk.dense = false, chunk.state.m = state.m, chunk.unit = 1.F;
    if (!Rows::kLogarithms && regular) rows.fold_any(chunk.v, {state.m, true}, chunk.unit);
    rows.write(chunk, at, state);
  }
}

/// Any rows: a block some tiles, rows of more than 1024 elements by a cluster of up to 16 blocks, which reads those of
/// up to 16 chunks once.
template <class E, bool kLog>
__global__ void __launch_bounds__(kAcrossThreads, 2)
    softmax_across_rows(const __grid_constant__ RowProblem p, const __grid_constant__ AcrossShare share) {
  begin_in_order();
  using Rows = AcrossRows<E, kLog>;
  __shared__ AcrossStorage storage;
  const int tiles = kAcrossThreads / (share.columns * share.classes);
  const unsigned blocks = lift::Cluster::size();
  if (blocks > 1) lift::Cluster::arrive_relaxed();
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x / blocks) * tiles +
                            static_cast<int>(threadIdx.x) / (share.columns * share.classes);
  const std::int64_t row = tile * share.columns + static_cast<int>(threadIdx.x) % share.columns;
  // Threads without a row of their own take part with the last row and write nothing.
  Row r = row_at(p, RowPlace(p, min(row, p.rows - 1)));
  if (row >= p.rows) r.n = r.length = 0;
  const Rows rows(p, share, storage, r);
  const std::int64_t begin = std::int64_t{lift::Cluster::rank()} * share.chunks * lift::kChunk;
  if (blocks > 1) lift::Cluster::wait();
  if (share.chunks > 1) return run_twice(rows, begin);
  typename Rows::Chunk chunk;
  rows.fold_chunk(chunk, begin);
  rows.write(chunk, begin, blocks > 1 ? rows.over_blocks(chunk.state) : chunk.state);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
