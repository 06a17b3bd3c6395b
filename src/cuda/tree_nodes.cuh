// Nodes of the canonical tree in device memory: how lanes exchange the states of each fold, and the kernels that merge
// them. levels.cuh says which kernel takes which level.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/rows.cuh"
#include "softfold/fold/gradient.hpp"
#include "softfold/fold/kl_divergence.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What the tree adds up in a backward pass: the sum, and whether the row has anything in it.
template <class T>
struct GradientState {
  T sum;
  unsigned any;
};
template <class T>
struct GradientFold {
  using State = GradientState<T>;
  static __device__ State identity() { return {fold::Sum<T>::identity(), 0}; }
  static __device__ State merge(const State& a, const State& b) {
    return {fold::Sum<T>::merge(a.sum, b.sum), a.any | b.any};
  }
};

template <class T>
__device__ __forceinline__ T shuffle(T a, int distance) {
  return __shfl_xor_sync(lift::kWholeWarp, a, distance);
}
template <class T>
__device__ __forceinline__ GradientState<T> shuffle(GradientState<T> a, int distance) {
  return {shuffle(a.sum, distance), shuffle(a.any, distance)};
}
__device__ __forceinline__ fold::LogSumExp<float>::State shuffle(fold::LogSumExp<float>::State a, int distance) {
  return {shuffle(a.m, distance), shuffle(a.d, distance)};
}
__device__ __forceinline__ fold::LogSumExp<double>::State shuffle(fold::LogSumExp<double>::State a, int distance) {
  return {shuffle(a.m, distance), shuffle(a.d, distance)};
}
template <class T>
__device__ __forceinline__ fold::EntropyState<T> shuffle(fold::EntropyState<T> a, int distance) {
  return {shuffle(a.m, distance), shuffle(a.d, distance), shuffle(a.w, distance)};
}
template <class T>
__device__ __forceinline__ fold::KlState<T> shuffle(const fold::KlState<T>& a, int distance) {
  return {{shuffle(a.ratio.high, distance), shuffle(a.ratio.low, distance)},
          shuffle(a.p_m, distance),
          shuffle(a.q_m, distance),
          shuffle(a.p_d, distance),
          shuffle(a.q_d, distance),
          shuffle(a.divergence, distance)};
}

/// 32 nodes of each row to one: one step up the tree, a warp a node.
template <class F>
__global__ void __launch_bounds__(128) merge_nodes(const typename F::State* from, std::int64_t from_count,
                                                   typename F::State* to, std::int64_t to_count, std::int64_t items) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = item / to_count, at = item % to_count * 32 + lane;
  auto s = at < from_count ? from[row * from_count + at] : F::identity();
#pragma unroll 1
  for (int distance = 1; distance < 32; distance *= 2) {
    const auto other = shuffle(s, distance);
    s = (lane & distance) == 0 ? F::merge(s, other) : F::merge(other, s);
  }
  if (lane == 0) to[item] = s;
}

/// The root over count <= kMost nodes, given by load(i), by one thread.
inline constexpr int kFewNodes = 8;
template <class F, int kMost = kFewNodes, class Load>
__device__ __forceinline__ typename F::State merge_few(const Load& load, int count) {
  typename F::State s[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) s[i] = i < count ? load(i) : F::identity();
#pragma unroll
  for (int stride = 1; stride < kMost; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kMost; i += 2 * stride) s[i] = F::merge(s[i], s[i + stride]);
  }
  return s[0];
}

/// Rows of few nodes to one each, a thread a row.
template <class F>
__global__ void __launch_bounds__(128)
    merge_few_nodes(const typename F::State* from, int count, typename F::State* to, std::int64_t rows) {
  begin_in_order();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < rows) to[row] = merge_few<F>([&](int i) { return from[row * count + i]; }, count);
}

/// kRun nodes of each row to one, a thread a node: where nodes are many and a merge is long. A warp whose lanes meet
/// merges 160 times for 32 nodes.
inline constexpr int kRun = 4;
template <class F>
__global__ void __launch_bounds__(128) merge_runs(const typename F::State* from, std::int64_t from_count,
                                                  typename F::State* to, std::int64_t to_count, std::int64_t items) {
  begin_in_order();
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= items) return;
  const std::int64_t row = item / to_count, at = item % to_count * kRun;
  to[item] = merge_few<F, kRun>([&](int i) { return from[row * from_count + at + i]; },
                                static_cast<int>(clamp(from_count - at, kRun)));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
