// Gradients of the softmax family, an element at a time, over any arithmetic A (see exp2-inl.hpp).
// No include guard: gradient.hpp reads it once for scalars and CUDA, cpu/gradient-inl.hpp once per SIMD target.

/// Through softmax: y (dy - s) * scale with s = sum y dy, every step rounded.
template <class A>
SOFTFOLD_HD typename A::V softmax_gradient(typename A::V y, typename A::V dy, typename A::V s, typename A::V scale) {
  return A::mul(A::mul(y, A::sub(dy, s)), scale);
}

/// Through log_softmax: (dy - exp(y) s) * scale with s = sum dy. A NaN y gives NaN, and so does one above 2^6 (2^9),
/// which is no log-probability.
template <class A>
SOFTFOLD_HD typename A::V log_softmax_gradient(typename A::V y, typename A::V dy, typename A::V s,
                                               typename A::V scale) {
  using T = typename A::Element;
  const auto most = A::set(static_cast<T>(sizeof(T) == 4 ? 0x1p6 : 0x1p9)), top = A::set(-fold::Real<T>::kFlush);
  const auto part = split<A>(y, A::set(static_cast<T>(fold::kLog2E)));
  const auto p = A::times_power_of_two(exp2_fraction<A>(part.f), A::if_at_most(part.n, top, part.n, top));
  const auto dx = A::mul(A::sub(dy, A::mul(p, s)), scale);
  return A::if_at_most(y, most, dx, A::set(fold::canonical_nan<T>()));
}

/// Through logsumexp: dlse p * scale with p the probability of x in a row of frame m, which is fast. What cannot be in
/// that row (a NaN, a term above the frame) gives NaN.
template <class A>
SOFTFOLD_HD typename A::V logsumexp_gradient(typename A::V x, typename A::V c, typename A::V m,
                                             typename A::V multiplier, typename A::V dlse, typename A::V scale) {
  using T = typename A::Element;
  const auto zero = A::set(T(0)), least = A::set(fold::Real<T>::kSmallest);
  const auto part = split<A>(x, c);
  const auto k = A::sub(part.n, m);
  const auto t = A::mul(A::times_power_of_two(exp2_fraction<A>(part.f), A::if_at_most(k, zero, k, zero)), multiplier);
  const auto dx = A::mul(A::mul(dlse, A::if_at_most(least, t, t, zero)), scale);
  return A::if_at_most(k, zero, dx, A::set(fold::canonical_nan<T>()));
}

/// The probability of x in a row of frame m, which is fast; NaN for what cannot be in that row.
template <class A>
SOFTFOLD_HD typename A::V row_probability(typename A::V x, typename A::V c, typename A::V m, typename A::V multiplier) {
  using T = typename A::Element;
  const auto zero = A::set(T(0)), least = A::set(fold::Real<T>::kSmallest);
  const auto part = split<A>(x, c);
  const auto k = A::sub(part.n, m);
  const auto p = A::mul(A::times_power_of_two(exp2_fraction<A>(part.f), A::if_at_most(k, zero, k, zero)), multiplier);
  return A::if_at_most(k, zero, A::if_at_most(least, p, p, zero), A::set(fold::canonical_nan<T>()));
}

/// Through cross-entropy, for a class of weight w that is not the target: (pull p - spread w) * factor.
template <class A>
SOFTFOLD_HD typename A::V cross_entropy_gradient(typename A::V p, typename A::V w, typename A::V pull,
                                                 typename A::V spread, typename A::V factor) {
  return A::mul(A::sub(A::mul(pull, p), A::mul(spread, w)), factor);
}
