// Nodes of the tree of rows of very many chunks: as one kernel leaves them in global memory for the next.
#pragma once

#include "softfold/lift/nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A state as a node, with the m of one that is lift::kFar.
struct alignas(16) LongNode {
  lift::Node node;
  double m;
  __device__ __forceinline__ fold::LogSumExp<float>::State state() const { return {m, node.d}; }
};
__device__ __forceinline__ LongNode node_of(const fold::LogSumExp<float>::State& s) { return {lift::node_of(s), s.m}; }

inline constexpr int kWarpNodes = 256, kRootWarps = 16, kBlockNodes = kRootWarps * kWarpNodes;

/// The root over `count` <= kWarpNodes nodes given by load(i), which is called again where they lie far apart; every
/// lane of the warp gets it.
template <class Load>
__device__ __forceinline__ LongNode merge_long(const Load& load, int count) {
  const lift::Node near = lift::merge_some([&](int i) { return load(i).node; }, count);
  if (near.z != lift::kFar) return {near, lift::state_of(near).m};
  return node_of(lift::merge_states_wide([load](int i) { return load(i).state(); }, count));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
