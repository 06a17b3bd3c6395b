// Nodes of the tree that cross between blocks by global memory: each is one word, which is there whole or not at all.
#pragma once

#include "softfold/lift/nodes.cuh"

#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kMissing = 0;  ///< the z of no node: what stands where none has been put

__device__ __forceinline__ void put_word(lift::Node* to, const lift::Node& node) {
  const auto word = fold::bits_as<std::uint64_t>(node);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ lift::Node look_for_word(const lift::Node* at) {
  std::uint64_t word = 0;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return fold::bits_as<lift::Node>(word);
}
/// Two neighbours, the first on 16 bytes.
__device__ __forceinline__ void look_for_words(const lift::Node* at, lift::Node& a, lift::Node& b) {
  std::uint64_t first = 0, second = 0;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(at) : "memory");
  a = fold::bits_as<lift::Node>(first), b = fold::bits_as<lift::Node>(second);
}

/// States that blocks give each other: a word each, and the m of those whose node is kFar.
struct NodeBoard {
  lift::Node* nodes;
  double* far;

  /// By one thread.
  __device__ __forceinline__ void put(int i, const lift::Node& node, double m) const {
    if (node.z == lift::kFar) {
      far[i] = m;
      __threadfence();
    }
    put_word(nodes + i, node);
  }
  /// The state of a node that has been seen there.
  __device__ __forceinline__ fold::LogSumExp<float>::State state(int i, const lift::Node& node) const {
    if (node.z != lift::kFar) return lift::state_of(node);
    __threadfence();
    return {*static_cast<const volatile double*>(far + i), node.d};
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
