// One chunk to one state, a scalar at a time: the definition that every faster version must equal bit for bit.
#pragma once

#include "softfold/fold/logsumexp.hpp"
#include "softfold/lift/tree.hpp"

namespace softfold {
inline namespace v0 {
namespace lift {

/// What a look at every element of a chunk finds before any arithmetic.
template <class T>
struct ChunkScan {
  T extreme;          ///< the element with the largest scale * x; meaningful if `any`
  bool any = false;   ///< there is a finite element
  bool nan = false;   ///< a NaN, or an infinity under scale 0
  bool plus = false;  ///< scale * x = +inf
};

template <class T>
SOFTFOLD_HD ChunkScan<T> scan_chunk(const T* x, int n, T c, const bool* present = nullptr) {
  ChunkScan<T> r{T(0)};
  for (int i = 0; i < n; ++i) {
    if (present != nullptr && !present[i]) continue;
    const T v = x[i];
    if (fold::is_nan(v)) {
      r.nan = true;
    } else if (::fabs(v) == fold::infinity<T>()) {
      if (c == T(0)) r.nan = true;
      if ((v > T(0)) == (c > T(0))) r.plus = true;
    } else if (!r.any || (c < T(0) ? v < r.extreme : v > r.extreme)) {
      r.extreme = v;
      r.any = true;
    }
  }
  return r;
}

/// The state of x[0..n), 0 < n <= kChunk. `terms` is scratch for kChunk numbers; for a state with a finite m it holds
/// every element's term in the chunk's own frame only until the tree is reduced in place: it is consumed.
/// Elements whose `present` is false are the identity and are not read arithmetically.
template <class T>
SOFTFOLD_HD typename fold::LogSumExp<T>::State reduce_chunk(const T* x, int n, T c, T* terms,
                                                            const bool* present = nullptr) {
  using Lse = fold::LogSumExp<T>;
  const auto scan = scan_chunk(x, n, c, present);
  if (scan.nan) return Lse::not_a_number();
  if (scan.plus) return Lse::plus_infinity();
  if (!scan.any) return Lse::identity();
  const auto frame = Lse::frame(scan.extreme, c);
  for (int i = 0; i < n; ++i) {
    if (present != nullptr && !present[i]) {
      terms[i] = T(0);
    } else {
      terms[i] =
          frame.fast ? fold::term<fold::Scalar<T>>(x[i], c, Lse::narrow(frame.m)) : fold::term_wide(x[i], c, frame.m);
    }
  }
  return {frame.m, halve<fold::Sum<T>>(terms, n)};
}

/// The state of a whole row by the definition: chunks, then the canonical tree.
template <class T>
SOFTFOLD_HD typename fold::LogSumExp<T>::State reduce_row(const T* x, std::int64_t n, T c) {
  TreeBuilder<fold::LogSumExp<T>> tree;
  T terms[kChunk];
  for (std::int64_t i = 0; i < n; i += kChunk)
    tree.push(reduce_chunk(x + i, static_cast<int>(n - i < kChunk ? n - i : kChunk), c, terms));
  return tree.root();
}

}  // namespace lift
}  // namespace v0
}  // namespace softfold
