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

/// ds/dz, from s.
template <class T>
SOFTFOLD_HD T soft_cap_slope(T s, T cap) {
  const T t = Scalar<T>::div(s, cap);
  return Scalar<T>::fma(-t, t, T(1));
}

}  // namespace fold
}  // namespace v0
}  // namespace softfold
