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
  /// The sums over a[0..n) and b[0..n), 0 < n <= kChunk. `room`: 2 kChunk numbers, aligned to 64 bytes.
  using SumOf = typename fold::KlSum<T>::State (*)(const void* a, const void* b, int n,
                                                   const fold::KlDivergence<T>& rows, T* room);
  /// The gradients of a run, n <= kChunk, in the fold's precision.
  using Gradient = void (*)(const void* a, const void* b, int n, const fold::KlDivergence<T>& rows, T divergence,
                            T factor, T* da, T* db);
  /// to[0..n) = from[0..n), rounded to to's dtype, n <= kChunk.
  using Store = void (*)(const T* from, int n, void* to);

  std::array<SumOf, 4> sum;          ///< by the dtype of both
  std::array<Gradient, 4> gradient;  ///< by the dtype of both
  std::array<Store, 4> store;        ///< by to's dtype
};

/// The table of the chosen target (targets.hpp).
template <class T>
const KlOps<T>& kl_ops();

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
