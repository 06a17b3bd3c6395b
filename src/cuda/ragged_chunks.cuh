// The chunks of ragged rows for the general kernels, one row's behind another's: how many each row has is known on the
// device alone.
#pragma once

#include "cuda/launch.hpp"
#include "cuda/rows.cuh"
#include "cuda/tree_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The last row whose first chunk is not behind `chunk`; `rows` if all rows' chunks are before it. By a warp.
/// first: of each row, and of one behind the last.
__device__ __forceinline__ std::int64_t row_of_chunk(const std::int64_t* first, std::int64_t rows, std::int64_t chunk) {
  if (first[rows] <= chunk) return rows;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::int64_t low = 0, high = rows;  // first[low] <= chunk < first[high]
#pragma unroll 1
  while (high - low > 1) {
    const std::int64_t step = (high - low + 31) / 32, at = low + step * lane;
    const unsigned before = __ballot_sync(lift::kWholeWarp, at < high && first[at] <= chunk);
    low += step * (__popc(before) - 1);
    high = min(low + step, high);
  }
  return low;
}

/// The tree over count nodes from `nodes` on, by one thread.
template <class F>
__device__ __forceinline__ typename F::State merge_in_order(const typename F::State* nodes, std::int64_t count) {
  typename F::State waiting[48];  // of each level the subtree that has no neighbour yet
  auto s = F::identity();
#pragma unroll 1
  for (std::int64_t i = 0; i < count; ++i) {
    s = nodes[i];
    int level = 0;
#pragma unroll 1
    for (; (i >> level & 1) != 0; ++level) s = F::merge(waiting[level], s);
    waiting[level] = s;
  }
  // A subtree without a right neighbour stands for its parent.
  bool any = false;
#pragma unroll 1
  for (int level = 0; level < 48; ++level) {
    if ((count >> level & 1) == 0) continue;
    s = any ? F::merge(waiting[level], s) : waiting[level];
    any = true;
  }
  return s;
}

/// The same by a warp.
template <class F>
__device__ __forceinline__ typename F::State merge_by_lanes(const typename F::State* nodes, std::int64_t count) {
  std::int64_t run = 1;  // nodes a lane
  while (32 * run < count) run *= 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto s = merge_in_order<F>(nodes + lane * run, clamp(count - lane * run, run));
#pragma unroll 1
  for (int distance = 1; distance < 32; distance *= 2) {
    const auto other = shuffle(s, distance);
    s = (lane & distance) == 0 ? F::merge(s, other) : F::merge(other, s);
  }
  return s;
}

/// The roots of ragged rows: a thread a row, and a warp where a row has more than a few chunks. most: nodes that there
/// is room for, which is too few if rows overlap.
template <class F>
__global__ void __launch_bounds__(128) merge_ragged(const typename F::State* nodes, const std::int64_t* first,
                                                    std::int64_t most, typename F::State* roots, std::int64_t rows) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t begin = row < rows ? min(first[row], most) : 0;
  const std::int64_t count = row < rows ? min(first[row + 1], most) - begin : 0;
  if (row < rows && count <= kFewNodes)
    roots[row] = merge_few<F>([&](int i) { return nodes[begin + i]; }, static_cast<int>(count));
  unsigned many = __ballot_sync(lift::kWholeWarp, count > kFewNodes);
#pragma unroll 1
  for (; many != 0; many &= many - 1) {
    const int from = __ffs(static_cast<int>(many)) - 1;
    const std::int64_t own_begin = __shfl_sync(lift::kWholeWarp, begin, from);
    const std::int64_t own_count = __shfl_sync(lift::kWholeWarp, count, from);
    const auto s = merge_by_lanes<F>(nodes + own_begin, own_count);
    if (lane == from) roots[row] = s;
  }
}

/// Chunks that ragged rows have at most, unless they overlap: what lies in none of a row's whole chunks is one more.
inline std::int64_t most_ragged_chunks(const RowProblem& p) { return p.ragged_elements / lift::kChunk + p.rows; }
/// Workspace for where each row's chunks begin.
std::size_t first_chunk_bytes(const RowProblem& p);
/// That, at `memory`, of so many bytes.
const std::int64_t* find_first_chunks(const RowProblem& p, char* memory, std::size_t bytes, Stream stream);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
