// The entropy of a row's softmax, H = -sum p lp, from its state: what is added up, and the gradient of an element. p is
// what softmax gives in the fold's precision, lp what log_softmax gives.
#pragma once

#include "softfold/fold/gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// In a row whose state is regular; c as the row was folded with.
template <class T>
struct Entropy {
  Normaliser<T> row;
  LogNormaliser<T> log_row;
  T c;

  SOFTFOLD_HD T probability(T x) const {
    if (::fabs(x) == infinity<T>()) return T(0);
    const T term_of_x =
        LogSumExp<T>::is_fast(row.m) ? term<Scalar<T>>(x, c, LogSumExp<T>::narrow(row.m)) : term_wide(x, c, row.m);
    return Normaliser<T>::probability(term_of_x, row.multiplier(row.m));
  }
  /// p lp; 0 where p is, whatever its logarithm.
  SOFTFOLD_HD T leaf(T x) const {
    const T p = probability(x);
    return p > T(0) ? Scalar<T>::mul(p, log_row.log_probability(x)) : T(0);
  }
  /// p (lp + H) * factor.
  SOFTFOLD_HD T gradient(T x, T entropy, T factor) const {
    using A = Scalar<T>;
    const T p = probability(x);
    return p > T(0) ? A::mul(A::mul(p, A::add(log_row.log_probability(x), entropy)), factor) : T(0);
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
