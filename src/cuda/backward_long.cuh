// Gradients of rows that are too long for a block, or a cluster: all blocks share the groups of their chunks, for the
// sums, and once more for the results.
#pragma once

#include "cuda/backward_ragged_blocks.cuh"
#include "cuda/even_groups.cuh"
#include "cuda/ragged_chunks.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where the group's row is: of a list's.
template <class State>
__device__ __forceinline__ RaggedRow row_of(const RowProblem& p, const RaggedListOf<State>&, std::int64_t row) {
  return ragged_row(p, row);
}
/// Of rows that lie end to end.
template <class State>
__device__ __forceinline__ RaggedRow row_of(const RowProblem&, const EvenGroups<State>& all, std::int64_t row) {
  return {row, row * all.n, all.n};
}

/// A group of chunks of a row from the list, or of all; of none no chunks.
template <class List>
struct GradientGroup {
  RaggedRow r{-1, 0, 0};
  std::int64_t first = 0;  ///< of its chunks
  int count = 0;

  __device__ __forceinline__ GradientGroup(const RowProblem& p, const List& list, long long at) {
    if (at < 0 || at >= list.count()) return;
    const auto its = list.group(at);
    if (its.row < 0) return;
    r = row_of(p, list, its.row);
    const auto chunks = List::chunks_of(its.first, at, r.n);
    first = chunks.first, count = chunks.count;
  }
  __device__ __forceinline__ GradientChunk chunk(int i) const {
    return i >= 0 && i < count ? GradientChunk(r, static_cast<int>(first) + i) : GradientChunk();
  }
};

/// A group's sum.
template <class E, template <class> class Gradient, class List>
__global__ void __launch_bounds__(32 * kHeldWarps, 1)
    backward_long_sum(const __grid_constant__ RowProblem p, const __grid_constant__ List list) {
  begin_in_order();
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kHeldWarps];
  __shared__ lift::SumNode sums[List::kGroup];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const RaggedGradient<E> of{p};
  GradientWarp<E, Gradient> own(of, landed[warp], landing_memory);
  GradientGroup<List> group(p, list, blockIdx.x);
  own.fetch(group.chunk(warp));
#pragma unroll 1
  for (long long at = blockIdx.x; at < list.count(); at += gridDim.x) {
    const GradientGroup<List> behind(p, list, at + gridDim.x);
    if (warp >= group.count) own.fetch(behind.chunk(warp));
#pragma unroll 1
    for (int i = warp; i < group.count; i += kHeldWarps) {
      own.take(group.chunk(i));
      own.fetch(i + kHeldWarps < group.count ? group.chunk(i + kHeldWarps) : behind.chunk(warp));
      const lift::SumNode sum = own.sum();
      if (threadIdx.x % 32 == 0) sums[i] = sum;
    }
    __syncthreads();
    if (warp == 0) {
      const lift::SumNode all = lift::sum_run<1>([&](int i) { return sums[i]; }, group.count);
      if (threadIdx.x == 0) list.states[at] = {all.sum, all.any};
    }
    __syncthreads();
    group = behind;
  }
}

/// From the end: what the first read has left in the caches is that.
template <class E, template <class> class Gradient, class List>
__global__ void __launch_bounds__(32 * kHeldWarps, 1)
    backward_long_write(const __grid_constant__ RowProblem p, const __grid_constant__ List list) {
  begin_in_order();
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kHeldWarps];
  __shared__ lift::SumNode row;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const RaggedGradient<E> of{p};
  GradientWarp<E, Gradient> own(of, landed[warp], landing_memory);
  const long long last = list.count() - 1 - blockIdx.x;
  GradientGroup<List> group(p, list, last);
  own.fetch(group.chunk(group.count - 1 - warp));
  std::int64_t known = -1;  // whose sum is in `row`
#pragma unroll 1
  for (long long at = last; at >= 0; at -= gridDim.x) {
    const GradientGroup<List> behind(p, list, at - gridDim.x);
    if (group.count > 0 && group.r.index != known) {
      __syncthreads();
      if (warp == 0) {
        const auto* states = list.states + (at - (group.first >> List::kLevel));
        const auto all = merge_by_lanes<GradientFold<float>>(states, List::groups_of(group.r.n));
        if (threadIdx.x == 0) row = {all.sum, all.any};
      }
      __syncthreads();
      known = group.r.index;
    }
    const int next = behind.count - 1 - warp;
    if (warp >= group.count) own.fetch(behind.chunk(next));
#pragma unroll 1
    for (int i = group.count - 1 - warp; i >= 0; i -= kHeldWarps) {
      own.take(group.chunk(i));
      own.fetch(i >= kHeldWarps ? group.chunk(i - kHeldWarps) : behind.chunk(next));
      own.write(group.chunk(i), row);
    }
    group = behind;
  }
}

/// Both kernels.
template <class E, template <class> class Gradient, class List>
void launch_long_gradients(const RowProblem& p, const List& list, std::int64_t groups, Stream stream) {
  const int processors = traits_of(DeviceOf(p[Slot::x].data).device()).processors;
  const Grid grid{std::min<std::int64_t>(groups, processors), 32 * kHeldWarps, 1,
                  kHeldWarps * GradientPlace<E>::kBytes};
  launch("backward_long_sum", backward_long_sum<E, Gradient, List>, grid, stream, p, list);
  launch("backward_long_write", backward_long_write<E, Gradient, List>, grid, stream.following(), p, list);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
