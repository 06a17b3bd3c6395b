// The backward passes of the softmax family: what each adds up over a row, and what it writes. The sums are plain, by
// the canonical tree of fold::Sum, so an element that is not there is -0.
//
// A row with nothing in it has the gradient +0 everywhere: one whose probabilities are all 0 (log-probabilities all
// -inf), or whose state is empty. So have, in any row, the elements that are not there.
#pragma once

#include "softfold/fold/logsumexp.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

#include "softfold/fold/gradient-inl.hpp"

/// dx = y (dy - sum y dy) * scale. y as softmax stored it, widened.
template <class T>
struct SoftmaxGradient {
  T sum, scale;

  SOFTFOLD_HD static T leaf(T y, T dy) { return Scalar<T>::mul(y, dy); }
  /// y in a row with nothing in it.
  SOFTFOLD_HD static T nothing() { return T(0); }
  /// Any NaN where it is none.
  SOFTFOLD_HD T value(T y, T dy) const { return softmax_gradient<Scalar<T>>(y, dy, sum, scale); }
  SOFTFOLD_HD T operator()(T y, T dy) const { return canonical(value(y, dy)); }
};

/// dx = (dy - exp(y) sum dy) * scale. y as log_softmax stored it, widened.
template <class T>
struct LogSoftmaxGradient {
  T sum, scale;

  SOFTFOLD_HD static T leaf(T, T dy) { return dy; }
  SOFTFOLD_HD static T nothing() { return -infinity<T>(); }
  SOFTFOLD_HD T operator()(T y, T dy) const { return canonical(log_softmax_gradient<Scalar<T>>(y, dy, sum, scale)); }
};

/// dx = dlse softmax(x) * scale, in a row whose state is regular. c as the row was folded with.
template <class T>
struct LogSumExpGradient {
  Normaliser<T> row;
  T c, dlse, scale;

  SOFTFOLD_HD T operator()(T x) const {
    using A = Scalar<T>;
    const T multiplier = row.multiplier(row.m);
    if (LogSumExp<T>::is_fast(row.m))
      return canonical(logsumexp_gradient<A>(x, c, LogSumExp<T>::narrow(row.m), multiplier, dlse, scale));
    T p = T(0);
    if (A::mul(x, c) != -infinity<T>() || ::fabs(x) != infinity<T>()) {
      if (!(::fabs(x) < infinity<T>()) || LogSumExp<T>::frame(x, c).m > row.m) return canonical_nan<T>();
      p = Normaliser<T>::probability(term_wide(x, c, row.m), multiplier);
    }
    return canonical(A::mul(A::mul(dlse, p), scale));
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
