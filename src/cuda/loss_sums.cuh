// Sums over rows, of losses and of their targets' weights: a block adds up a chunk of rows as it comes to them, and
// whoever wants the whole merges the chunks' sums.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/levels.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A sum over rows, and how many of them are in it.
struct RowsSum {
  double sum;
  std::int64_t rows;
};
__device__ __forceinline__ RowsSum shuffle(RowsSum a, int distance) {
  return {shuffle(a.sum, distance), shuffle(a.rows, distance)};
}
struct RowsFold {
  using State = RowsSum;
  static __device__ State identity() { return {fold::Sum<double>::identity(), 0}; }
  static __device__ State merge(const State& a, const State& b) {
    return {fold::Sum<double>::merge(a.sum, b.sum), a.rows + b.rows};
  }
};

/// The sums of chunks of rows, at most kMostChunks; null: nobody asks for the whole.
struct RowsTotal {
  const RowsSum* chunks;
  std::int64_t count;
};
inline constexpr std::int64_t kMostChunks = 1024;

/// Threads of a block that has a chunk of rows, two a thread.
inline constexpr int kRowThreads = lift::kChunk / 2;

/// on_row(row) for every row of the block's chunk.
template <class OnRow>
__device__ __forceinline__ void for_chunk_of_rows(std::int64_t rows, const OnRow& on_row) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * lift::kChunk + threadIdx.x;
#pragma unroll 1
  for (std::int64_t row = first; row < min(first + lift::kChunk, rows); row += kRowThreads) on_row(row);
}

/// The sum of a chunk, of what each thread has of its two rows.
__device__ __forceinline__ void put_chunk(RowsSum* chunks, const RowsSum& own) {
  __shared__ RowsSum all[kRowThreads];
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  all[thread] = own;
#pragma unroll 1
  for (int stride = kRowThreads / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (thread < stride) all[thread] = RowsFold::merge(all[thread], all[thread + stride]);
  }
  if (thread == 0) chunks[blockIdx.x] = all[0];
}

__device__ __forceinline__ RowsSum merge_lanes(RowsSum s) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) s = RowsFold::merge(s, shuffle(s, distance));
  return s;
}
/// The whole, for every thread of a block. All of them see the chunks.
__device__ __forceinline__ RowsSum whole_of(const RowsTotal& total) {
  if (total.count == 1) return total.chunks[0];
  __shared__ RowsSum groups[kMostChunks / 32], whole;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto count = static_cast<int>((total.count + 31) / 32), warps = static_cast<int>(blockDim.x) / 32;
  for (int group = warp; group < count; group += warps) {
    const int i = 32 * group + lane;
    const RowsSum merged = merge_lanes(i < total.count ? total.chunks[i] : RowsFold::identity());
    if (lane == 0) groups[group] = merged;
  }
  __syncthreads();
  if (warp == 0) {
    const RowsSum own = merge_lanes(lane < count ? groups[lane] : RowsFold::identity());
    if (lane == 0) whole = own;
  }
  __syncthreads();
  return whole;
}

/// The chunks' sums that a kernel on this stream left, merged until a block may ask for the whole. line: the rows as
/// elements of one.
inline RowsTotal total_of(const RowProblem& line, RowsSum* chunks, const Stream& stream) {
  const std::int64_t count = lift::chunk_count(line.n);
  if (count <= kMostChunks) return {chunks, count};
  return {merge_levels<RowsFold>(line, chunks, stream), 1};
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
