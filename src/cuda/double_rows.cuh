// softmax and log_softmax of float64 with one read, or with two where rows are longer than clusters hold well;
// logsumexp.
#pragma once

#include "cuda/double_elements.cuh"
#include "cuda/double_nodes.cuh"
#include "cuda/double_rows.hpp"
#include "cuda/in_order.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row of at most one tile by a group of lanes. Groups whose row is not theirs to write take part.
template <class Elements, bool kLog>
__global__ void __launch_bounds__(kDoubleThreads, Elements::kMinBlocks)
    softmax_double_rows(const __grid_constant__ RowProblem p) {
  begin_in_order();
  const std::int64_t group = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / Elements::kLanes;
  const bool writes = group < p.rows;
  const Row r = row_at(p, RowPlace(p, writes ? group : p.rows - 1));
  Elements tile(p, r.x, 0);
  tile.load(p, r, 0, static_cast<int>(r.length));
  const auto row = tile.template fold<kLog>(RowFactor<double>(r.scale));
  if (writes) tile.template write<kLog>(p, {group, r.y, r.scale}, 0, static_cast<int>(r.n), row, row.m);
}

/// A block or a cluster of blocks a row, a chunk a warp; states cross by shared memory.
template <bool kLog>
__global__ void __launch_bounds__(512, 1) softmax_double_cluster(const __grid_constant__ RowProblem p) {
  begin_in_order();
  using Exchange = ClusterNodes<fold::LogSumExp<double>>;
  __shared__ typename Exchange::Storage storage;
  __shared__ Row row;  // found once: the warps' registers are for elements
  Exchange::begin();
  const std::int64_t index = blockIdx.x / lift::Cluster::size();
  if (threadIdx.x == 0) row = row_at(p, RowPlace(p, index));
  __syncthreads();
  const ChunkOfRow part(row, (lift::Cluster::rank() * blockDim.x + threadIdx.x) / 32);
  DoubleElements<32, lift::kPerLane> tile(p, row.x, part.begin);
  tile.load(p, row, part.begin, part.length);
  const auto own = tile.template fold<kLog>(RowFactor<double>(row.scale));
  Exchange::ready();
  const auto chunks = static_cast<int>(lift::chunk_count(row.length));
  const auto root = Exchange::fold(storage, own, part.chunk, chunks);
  const DoubleResults to{index, row.y, row.scale};
  if (part.n > 0) tile.template write<kLog>(p, to, part.begin, part.n, root, own.m);
}

/// The states of chunks; `states` null: the results of rows of at most one tile.
template <class Elements>
__global__ void __launch_bounds__(kDoubleThreads, Elements::kMinBlocks)
    fold_double_rows(const __grid_constant__ RowProblem p, std::int64_t items, fold::LogSumExp<double>::State* states) {
  begin_in_order();
  const std::int64_t own = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / Elements::kLanes;
  const std::int64_t item = min(own, items - 1), chunks = lift::chunk_count(p.n), index = item / chunks;
  const Row r = row_at(p, RowPlace(p, index));
  const ChunkOfRow part(r, item - index * chunks);
  Elements tile(p, r.x, part.begin);
  tile.load(p, r, part.begin, part.length);
  const auto state = tile.template fold<false>(RowFactor<double>(r.scale));
  if (own >= items || tile.lane != 0) return;
  if (states != nullptr) {
    states[item] = state;
  } else {
    write_row<double>(p, index, state);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
