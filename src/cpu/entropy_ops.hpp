// What a SIMD target offers for the entropy: operations on contiguous runs of elements.
#pragma once

#include "cpu/chunk_ops.hpp"
#include "softfold/fold/entropy.hpp"

#include <array>

namespace softfold {
inline namespace v0 {
namespace cpu {

template <class T>
struct EntropyOps {
  /// The sum of p lp over x[0..n), 0 < n <= kChunk. `room`: kChunk numbers, aligned to 64 bytes.
  using SumOf = T (*)(const void* x, int n, const fold::Entropy<T>& row, T* room);
  /// dx of a run of x, n <= kChunk. dx may be x.
  using Gradient = void (*)(const void* x, int n, const fold::Entropy<T>& row, T entropy, T factor, void* dx,
                            bool stream);

  std::array<SumOf, 4> sum;                         ///< by x's dtype
  std::array<std::array<Gradient, 4>, 4> gradient;  ///< by x's dtype and dx's
};

/// The table of the chosen target (targets.hpp).
template <class T>
const EntropyOps<T>& entropy_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
