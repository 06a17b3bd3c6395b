// What a SIMD target offers for cross-entropy: operations on contiguous runs of elements.
#pragma once

#include "cpu/chunk_ops.hpp"
#include "softfold/fold/cross_entropy.hpp"

#include <array>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cpu {

template <class T>
struct LossOps {
  /// The sum of weight * log-probability over x[0..n), 0 < n <= kChunk. `room`: kChunk numbers, aligned to 64 bytes.
  using SumLog = T (*)(const void* x, int n, const fold::LogNormaliser<T>& row, const T* weight, T* room);
  /// dx of a run of x, no element of which is the target, n <= kChunk. dx may be x. No weights: no smoothing.
  using Gradient = void (*)(const void* x, int n, const fold::CrossEntropyGradient<T>& row, const T* weight, void* dx,
                            bool stream);

  std::array<SumLog, 4> sum_log;                    ///< by x's dtype
  std::array<std::array<Gradient, 4>, 4> gradient;  ///< by x's dtype and dx's
};

/// The table of the chosen target (targets.hpp).
template <class T>
const LossOps<T>& loss_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
