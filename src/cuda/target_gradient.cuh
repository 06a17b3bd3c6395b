// The gradient of cross-entropy at rows' targets, by kernels that fold rows and write their gradients in one read.
#pragma once

#include "cuda/packed.cuh"
#include "cuda/plain_rows.cuh"
#include "softfold/fold/cross_entropy.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// By the kLanes lanes of a group, which other groups do not wait for.
template <int kLanes>
__device__ __forceinline__ void sync_lanes() {
  if constexpr (kLanes == 32) {
    __syncwarp();
  } else {
    __syncwarp(((1U << kLanes) - 1U) << (threadIdx.x % 32 / kLanes * kLanes));
  }
}

/// The gradient of a row's target, which stands where the others' formula gives something else.
template <class E>
struct TargetGradient {
  int index;  ///< -1: nowhere
  E value;

  /// x: the row in shared memory; target: RowTarget::index; reciprocal: of state.d, if the row is regular; leads: of
  /// one lane, which leaves the element in memory, and RowTarget::kLeft where this cannot say what the gradient is.
  __device__ __forceinline__ TargetGradient(const PlainRows& p, std::int64_t row, const E* x, int target,
                                            const GradientRow& gradient, const fold::LogSumExp<float>::State& state,
                                            float reciprocal, bool leads) {
    using S = fold::Scalar<float>;
    using Lse = fold::LogSumExp<float>;
    const bool plain = gradient.kind == GradientRow::Kind::regular && Lse::is_fast(state.m);
    const float element = fold::widen(x[max(target, 0)]);
    if (leads && target >= 0) p.targets[row] = {plain ? target : RowTarget::kLeft, element};
    index = plain ? target : -1;
    const lift::FrameTerms terms(p.factor.c, plain ? Lse::narrow(state.m) : 0.F);
    const float y = fold::Normaliser<float>::probability(terms.term<true>(element), S::mul(reciprocal, terms.unit));
    const float others = S::sub(S::mul(gradient.pull, y), S::mul(0.F, gradient.pull));
    value = Packed<E>::narrow(S::mul(S::sub(others, gradient.pull), gradient.factor));
  }
  /// By the lanes of a group behind what they have written to y.
  template <int kLanes>
  __device__ __forceinline__ void put(char* y) const {
    sync_lanes<kLanes>();
    if (threadIdx.x % kLanes == 0 && index >= 0) reinterpret_cast<E*>(y)[index] = value;
  }
};

/// What is known of a row's gradient before the row is there: but for gradients, nothing.
struct KnownGradient {
  const GradientRow* row = nullptr;
  const int* target = nullptr;  ///< RowTarget::index
};
/// The same of a warp's rows, in shared memory.
template <int kSets, int kRows>
struct WarpGradients {
  GradientRow rows[kSets][kRows];
  int targets[kSets][kRows];

  /// By all lanes, before a __syncwarp(). row_of: the i-th of a set; of any set, and one that exists.
  template <class RowOf>
  __device__ __forceinline__ void fetch(const PlainRows& p, const RowOf& row_of) {
    for (int at = static_cast<int>(threadIdx.x) % 32; at < kSets * kRows; at += 32) {
      const int set = at / kRows, i = at % kRows;
      const std::int64_t row = row_of(set, i);
      rows[set][i] = p.gradients[row], targets[set][i] = p.targets[row].index;
    }
  }
  __device__ __forceinline__ KnownGradient at(int set, int i) const { return {&rows[set][i], &targets[set][i]}; }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
