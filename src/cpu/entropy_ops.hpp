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
  /// The state of x[0..n), 0 < n <= kChunk, for a finite c > 0; -inf is an element that is not there. `terms` and
  /// `room`: scratch as ChunkOps<T>::Reduce asks for, and kChunk numbers, aligned to 64 bytes. `far`: as there.
  using FoldChunk = fold::EntropyState<T> (*)(const void* x, int n, T c, T* terms, T* room, lift::Guess<T>& guess,
                                              bool far);
  /// dx of a run of x, n <= kChunk. dx may be x.
  using Gradient = void (*)(const void* x, int n, const fold::Entropy<T>& row, T entropy, T factor, void* dx,
                            bool stream);

  std::array<FoldChunk, 4> fold;                    ///< by x's dtype
  std::array<std::array<Gradient, 4>, 4> gradient;  ///< by x's dtype and dx's
  T (*finish)(const fold::EntropyState<T>&);
};

/// The table of the chosen target (targets.hpp).
template <class T>
const EntropyOps<T>& entropy_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
