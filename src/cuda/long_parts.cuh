// Rows by their parts (ragged_parts.cuh) that are too long for a block, or for a cluster: all blocks share the groups
// of their chunks, for the states, and once more for the results.
#pragma once

#include "cuda/even_groups.cuh"
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"
#include "cuda/levels.cuh"
#include "cuda/ragged_parts.cuh"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kMixedThreads = 256,
                     kMixedWarps = kMixedThreads / 32;  ///< of blocks whose warps have rows or parts

/// Where a list's row lies.
template <class State>
__device__ __forceinline__ PartedRow parted_row(const RowProblem& p, const RaggedListOf<State>&, std::int64_t row) {
  return {p, ragged_row(p, row)};
}
template <class State>
__device__ __forceinline__ PartedRow parted_row(const RowProblem& p, const EvenGroups<State>&, std::int64_t row) {
  return {p, row};
}

/// A group of chunks of a row from the list, or of all.
template <class List>
struct PartedGroup {
  PartedRow r;
  typename List::Chunks chunks;

  __device__ __forceinline__ PartedGroup(const RowProblem& p, const List& list, long long at)
      : r(parted_row(p, list, list.group(at).row)), chunks(List::chunks_of(list.group(at).first, at, r.n)) {}
  __device__ __forceinline__ std::int64_t begin(int i) const { return (chunks.first + i) * lift::kChunk; }
  /// Elements of a chunk, and how many of them exist.
  __device__ __forceinline__ int n(int i) const { return static_cast<int>(clamp(r.n - begin(i), lift::kChunk)); }
  __device__ __forceinline__ int length(int i) const {
    return static_cast<int>(clamp(r.length - begin(i), lift::kChunk));
  }
  /// Chunks with elements that exist, or one.
  __device__ __forceinline__ int filled() const {
    return max(static_cast<int>(min(lift::chunk_count(r.length) - chunks.first, std::int64_t{chunks.count})), 1);
  }
};

/// From elements to the states of groups.
template <class Part, class List>
__global__ void __launch_bounds__(kMixedThreads, Part::kThreads / kMixedThreads)
    fold_long_parts(const __grid_constant__ RowProblem p, const __grid_constant__ List list) {
  begin_in_order();
  using State = typename Part::State;
  __shared__ State states[List::kGroup];
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (long long at = blockIdx.x; at < list.count(); at += gridDim.x) {
    if (list.group(at).row < 0) continue;
    const PartedGroup<List> group(p, list, at);
    const int filled = group.filled();
    Part part(p, group.r);
#pragma unroll 1
    for (int i = warp; i < filled; i += kMixedWarps) {
      part.load(p, group.r, group.begin(i), group.length(i));
      if (threadIdx.x % 32 == 0) states[i] = part.state();
    }
    __syncthreads();
    if (warp == 0) {
      const State all = Part::merge([&](int i) { return states[i]; }, filled);
      if (threadIdx.x == 0) list.states[at] = all;
    }
    __syncthreads();
  }
}

/// From the states to results, from the end.
template <class Part, class List>
__global__ void __launch_bounds__(kMixedThreads, Part::kThreads / kMixedThreads)
    write_long_parts(const __grid_constant__ RowProblem p, const __grid_constant__ List list) {
  begin_in_order();
  using State = typename Part::State;
  __shared__ State row;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::int64_t known = -1;  // whose state is in `row`
#pragma unroll 1
  for (long long at = list.count() - 1 - blockIdx.x; at >= 0; at -= gridDim.x) {
    const auto its = list.group(at);
    if (its.row < 0 || (Part::kOfRow && at != its.first)) continue;
    const PartedGroup<List> group(p, list, at);
    if (its.row != known) {
      __syncthreads();
      if (warp == 0) {
        const State all = Part::merge_groups(list.states + its.first, List::groups_of(group.r.n));
        if (threadIdx.x == 0) row = all;
      }
      __syncthreads();
      known = its.row;
    }
    if constexpr (Part::kOfRow) {
      if (threadIdx.x == 0) write_row<typename Part::Real>(p, its.row, row);
    } else {
      Part part(p, group.r);
#pragma unroll 1
      for (int i = group.chunks.count - 1 - warp; i >= 0; i -= kMixedWarps)
        part.rewrite(p, group.r, group.begin(i), group.length(i), group.n(i), row);
    }
  }
}

/// Both kernels, of at most so many groups.
template <class Part, class List>
void launch_long_parts(const RowProblem& p, const List& list, std::int64_t groups, Stream stream) {
  const int processors = traits_of(DeviceOf(p[Slot::x].data).device()).processors;
  const Grid grid{std::min<std::int64_t>(groups, Part::kThreads / kMixedThreads * processors), kMixedThreads};
  launch("fold_long_parts", fold_long_parts<Part, List>, grid, stream, p, list);
  launch("write_long_parts", write_long_parts<Part, List>, grid, stream.following(), p, list);
}
/// The same of rows of one length, in a workspace of even_workspace().
template <class Part>
void launch_even_parts(const RowProblem& p, const Context& context) {
  using State = typename Part::State;
  const Scratch scratch(even_workspace<State>(p, context), context);
  Parts parts(scratch.data());
  const auto groups = even_groups<State>(p, parts);
  launch_long_parts<Part>(p, groups, groups.count(), stream_of(context));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
