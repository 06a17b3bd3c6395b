// Nodes of the canonical tree across the lanes of a warp: how states travel between warps, and how one warp merges
// them.
#pragma once

#include "softfold/fold/logsumexp.hpp"
#include "softfold/lift/tree.hpp"

namespace softfold {
inline namespace v0 {
namespace lift {

inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

/// Merges that stay in float: for states whose m is in the fast range, or -inf.
struct NearState {
  float m, d;
};

__device__ __forceinline__ NearState merge_near(NearState a, NearState b) {
  using S = fold::Scalar<float>;
  const float m = fmaxf(a.m, b.m);
  // For two empty states a.m - m is NaN, which times_power_of_two makes 0.
  return {m, S::add(S::mul(a.d, S::times_power_of_two(1.F, S::sub(a.m, m))),
                    S::mul(b.d, S::times_power_of_two(1.F, S::sub(b.m, m))))};
}

__device__ __forceinline__ bool is_near(const fold::LogSumExp<float>::State& s) {
  return fold::LogSumExp<float>::is_fast(s.m) || s.m == -fold::infinity<double>();
}

/// A node of the tree as warps hand it to each other: z, the bits of m + kMagic as a float, orders as m does.
struct alignas(8) Node {
  int z;    ///< kNone for the empty state, kFar where m is special or outside the fast range
  float d;  ///< in the frame m
};
inline constexpr int kNone = -0x800000;  ///< the bits of -inf, which is also -inf + kMagic
inline constexpr int kFar = 0x7FFFFFFF;

__device__ __forceinline__ Node node_of(const fold::LogSumExp<float>::State& s) {
  if (s.d == 0.F) return {kNone, 0.F};
  if (!fold::LogSumExp<float>::is_fast(s.m)) return {kFar, s.d};
  return {__float_as_int(fold::Scalar<float>::add(static_cast<float>(s.m), fold::Real<float>::kMagic)), s.d};
}
/// The state of a node that is not kFar.
__device__ __forceinline__ fold::LogSumExp<float>::State state_of(const Node& a) {
  return {static_cast<double>(fold::Scalar<float>::sub(__int_as_float(a.z), fold::Real<float>::kMagic)), a.d};
}

/// The state of a row, or of a run of its chunks: a node, or where that is kFar, `far`.
struct Root {
  Node node;
  fold::LogSumExp<float>::State far;
  __device__ __forceinline__ fold::LogSumExp<float>::State state() const {
    return node.z == kFar ? far : state_of(node);
  }
};

/// rn(1/d) of a row's state times 2^(m of a chunk - m of the row), which the row's merge found to be at least 2^-60: an
/// exact product, as an addition to the exponent. Neither is kNone or kFar.
__device__ __forceinline__ float near_multiplier(const Node& row, const Node& chunk) {
  const float reciprocal = fold::Scalar<float>::div(1.F, row.d);
  return __int_as_float(__float_as_int(reciprocal) + ((chunk.z - row.z) << 23));
}

/// One butterfly over the warp's lanes, neighbours first; kGroup: over groups of so many lanes, which have a state
/// each.
template <int kGroup = 1>
__device__ __forceinline__ NearState merge_lanes(NearState a) {
#pragma unroll
  for (int distance = kGroup; distance < 32; distance *= 2)
    a = merge_near(a, {__shfl_xor_sync(kWholeWarp, a.m, distance), __shfl_xor_sync(kWholeWarp, a.d, distance)});
  return a;
}

template <int kGroup = 1>
__device__ __forceinline__ fold::LogSumExp<float>::State merge_lanes(fold::LogSumExp<float>::State a) {
#pragma unroll 1
  for (int distance = kGroup; distance < 32; distance *= 2)
    a = fold::LogSumExp<float>::merge(
        a, {__shfl_xor_sync(kWholeWarp, a.m, distance), __shfl_xor_sync(kWholeWarp, a.d, distance)});
  return a;
}

/// merge_states where some state is special or outside the fast range.
template <class Load>
__device__ __noinline__ fold::LogSumExp<float>::State merge_states_wide(Load load, int count) {
  using Lse = fold::LogSumExp<float>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Lse::State own = Lse::identity();
  for (int block = 0; block * 32 < count; ++block) {
    const int i = block * 32 + lane;
    const auto node = merge_lanes(i < count ? load(i) : Lse::identity());
    if (lane == block) own = node;
  }
  return merge_lanes(own);
}

/// The root over up to 32 * kRun nodes, kRun a lane, in one frame for all, the largest: as long as no node lies far
/// below it, every rescale is exact and the tree is plain additions. A kFar root says that this does not hold.
template <int kRun>
__device__ __forceinline__ Node merge_nodes(const Node (&node)[kRun]) {
  using S = fold::Scalar<float>;
  constexpr int kDeepest = 60;
  int high = node[0].z;
#pragma unroll
  for (int i = 1; i < kRun; ++i) high = max(high, node[i].z);
  high = __reduce_max_sync(kWholeWarp, high);
  bool near = high != kFar;
  float d[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const int below = static_cast<int>(static_cast<unsigned>(high) - static_cast<unsigned>(node[i].z));
    near = near && (below <= kDeepest || node[i].z == kNone);
    d[i] = node[i].z == kNone ? 0.F : __int_as_float(__float_as_int(node[i].d) - (below << 23));
  }
  if (!__all_sync(kWholeWarp, near)) return {kFar, 0.F};
#pragma unroll
  for (int stride = 1; stride < kRun; stride *= 2) {
#pragma unroll
    for (int i = 0; i + stride < kRun; i += 2 * stride) d[i] = S::add(d[i], d[i + stride]);
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) d[0] = S::add(d[0], __shfl_xor_sync(kWholeWarp, d[0], distance));
  return {high, d[0]};
}

/// The root over `count` <= 32 * kRun nodes given by load(i).
template <int kRun, class Load>
__device__ __forceinline__ Node merge_run(const Load& load, int count) {
  const int first = static_cast<int>(threadIdx.x) % 32 * kRun;
  Node node[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) node[i] = first + i < count ? load(first + i) : Node{kNone, 0.F};
  return merge_nodes(node);
}
/// The same for count <= 256.
template <class Load>
__device__ __forceinline__ Node merge_some(const Load& load, int count) {
  if (count <= 32) return merge_run<1>(load, count);
  if (count <= 64) return merge_run<2>(load, count);
  if (count <= 128) return merge_run<4>(load, count);
  return merge_run<8>(load, count);
}

/// The same for up to 1024 nodes, 32 at a time, in few registers.
template <class Load>
__device__ __forceinline__ fold::LogSumExp<float>::State merge_blocks(const Load& load, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  NearState own{-fold::infinity<float>(), 0.F};
  bool near = true;
#pragma unroll 1
  for (int block = 0; block * 32 < count; ++block) {
    const int i = block * 32 + lane;
    const auto one = i < count ? load(i) : fold::LogSumExp<float>::identity();
    near = near && is_near(one);
    const NearState node = merge_lanes(NearState{static_cast<float>(one.m), one.d});
    if (lane == block) own = node;
  }
  if (!__all_sync(kWholeWarp, near)) return merge_states_wide(load, count);
  own = merge_lanes(own);
  return {static_cast<double>(own.m), own.d};
}

/// The root of the tree over `count` <= 256 neighbouring nodes of one level, node i given by load(i); every lane of the
/// warp gets it.
template <class Load>
__device__ __forceinline__ fold::LogSumExp<float>::State merge_states(const Load& load, int count) {
  const Node root = merge_some([&](int i) { return node_of(load(i)); }, count);
  return root.z == kFar ? merge_states_wide(load, count) : state_of(root);
}

/// A node of a tree of plain sums, and whether there is anything below it.
struct alignas(8) SumNode {
  float sum;
  unsigned any;
};

template <int kRun, class Load>
__device__ __forceinline__ SumNode sum_run(const Load& load, int count) {
  using Sum = fold::Sum<float>;
  const int first = static_cast<int>(threadIdx.x) % 32 * kRun;
  SumNode node[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) node[i] = first + i < count ? load(first + i) : SumNode{Sum::identity(), 0U};
#pragma unroll
  for (int stride = 1; stride < kRun; stride *= 2) {
#pragma unroll
    for (int i = 0; i + stride < kRun; i += 2 * stride)
      node[i] = {Sum::merge(node[i].sum, node[i + stride].sum), node[i].any | node[i + stride].any};
  }
  SumNode& all = node[0];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2)
    all.sum = Sum::merge(all.sum, __shfl_xor_sync(kWholeWarp, all.sum, distance));
  all.any = __any_sync(kWholeWarp, all.any != 0) ? 1U : 0U;
  return all;
}
/// The root over count <= 256 nodes given by load(i); every lane of the warp gets it.
template <class Load>
__device__ __forceinline__ SumNode sum_some(const Load& load, int count) {
  if (count <= 32) return sum_run<1>(load, count);
  if (count <= 64) return sum_run<2>(load, count);
  if (count <= 128) return sum_run<4>(load, count);
  return sum_run<8>(load, count);
}

}  // namespace lift
}  // namespace v0
}  // namespace softfold
