// What a SIMD target offers for the divergence: operations on contiguous runs of elements of two rows.
#pragma once

#include "cpu/chunk_ops.hpp"
#include "softfold/fold/kl_divergence.hpp"

#include <array>

namespace softfold {
inline namespace v0 {
namespace cpu {

template <class T>
struct KlOps {
  /// What a thread works in, and what it expects of the next chunks.
  struct Room {
    alignas(64) T terms[ChunkOps<T>::kTermsRoom];
    alignas(64) T pairs[2 * lift::kChunk];  ///< leaves, or gradients
    lift::Guess<T> p, q;
  };
  /// The state of a[0..n) and b[0..n), 0 < n <= kChunk, of a finite c > 0.
  using Fold = fold::KlState<T> (*)(const void* a, const void* b, int n, const fold::Scale<T>& by,
                                    const fold::KlScale<T>& split, T c, Room& room, bool far);
  using Merge = fold::KlState<T> (*)(const fold::KlState<T>& a, const fold::KlState<T>& b);
  /// The gradients of a run, n <= kChunk, in the fold's precision.
  using Gradient = void (*)(const void* a, const void* b, int n, const fold::KlDivergence<T>& rows, T divergence,
                            T factor, T* da, T* db);
  /// to[0..n) = from[0..n), rounded to to's dtype, n <= kChunk.
  using Store = void (*)(const T* from, int n, void* to);

  std::array<Fold, 4> fold;          ///< by the dtype of both
  Merge merge;                       ///< fold::KlSum's
  std::array<Gradient, 4> gradient;  ///< by the dtype of both
  std::array<Store, 4> store;        ///< by to's dtype
};

/// The table of the chosen target (targets.hpp).
template <class T>
const KlOps<T>& kl_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
