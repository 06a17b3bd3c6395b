// Logits kept within (-cap, cap): s = cap tanh(z / cap).
#pragma once

#include "softfold/fold/exp2.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

template <class T>
SOFTFOLD_HD T soft_capped(T z, T cap) {
  return Scalar<T>::mul(cap, tanh<Scalar<T>>(Scalar<T>::div(z, cap)));
}

/// dL/dz from g = dL/ds. 0 where g is 0, whatever s holds: a row that takes no part may be NaN.
template <class T>
SOFTFOLD_HD T soft_cap_gradient(T g, T s, T cap) {
  const T t = Scalar<T>::div(s, cap);
  return g == T(0) ? g : Scalar<T>::mul(g, Scalar<T>::fma(-t, t, T(1)));
}

}  // namespace fold
}  // namespace v0
}  // namespace softfold
