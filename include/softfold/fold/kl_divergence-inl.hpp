// The divergence of one softmax from another, an element at a time, over any arithmetic A (see exp2-inl.hpp).
// No include guard: kl_divergence.hpp reads it once for scalars, cpu/kl_ops.cc once per SIMD target.

/// (e^-r - 1 + r) / r^2 for |r| <= 1: 1/2 and r times polynomials of degree 6 (float) and 12 (double).
template <class A>
SOFTFOLD_HD typename A::V kl_curve(typename A::V r) {
  using T = typename A::Element;
  if constexpr (sizeof(T) == 4) {
    auto p = A::fma(A::set(-0x1.77ccbcp-19F), r, A::set(0x1.a845p-16F));
    p = A::fma(p, r, A::set(-0x1.a00e1ep-13F));
    p = A::fma(p, r, A::set(0x1.6c0666p-10F));
    p = A::fma(p, r, A::set(-0x1.111118p-7F));
    p = A::fma(p, r, A::set(0x1.555566p-5F));
    p = A::fma(p, r, A::set(-0x1.555556p-3F));
    return A::fma(p, r, A::set(0.5F));
  } else {
    auto p = A::fma(A::set(-0x1.b3abc9d5726c6p-41), r, A::set(0x1.991796f104bc7p-37));
    p = A::fma(p, r, A::set(-0x1.611de666e6f62p-33));
    p = A::fma(p, r, A::set(0x1.1ee6aae315faep-29));
    p = A::fma(p, r, A::set(-0x1.ae645e47b6c91p-26));
    p = A::fma(p, r, A::set(0x1.27e503be9a488p-22));
    p = A::fma(p, r, A::set(-0x1.71de3a50e1a90p-19));
    p = A::fma(p, r, A::set(0x1.a01a0196706bcp-16));
    p = A::fma(p, r, A::set(-0x1.a01a01a01c473p-13));
    p = A::fma(p, r, A::set(0x1.6c16c16c1b969p-10));
    p = A::fma(p, r, A::set(-0x1.111111111110cp-7));
    p = A::fma(p, r, A::set(0x1.555555555553fp-5));
    p = A::fma(p, r, A::set(-0x1.5555555555555p-3));
    return A::fma(p, r, A::set(0.5));
  }
}

/// scale (a - b) - shift of two logits, rounded as if only the result were: scale and shift are pairs, and what a - b
/// lost is found again. Infinite where b alone is -inf; anything where a is.
template <class A, bool kNumbers = false>
SOFTFOLD_HD typename A::V kl_log_ratio(typename A::V a, typename A::V b, typename A::V scale, typename A::V scale_low,
                                       typename A::V shift, typename A::V shift_low) {
  const auto d = A::sub(a, b), back = A::sub(d, a);
  const auto lost = A::sub(A::sub(a, A::sub(d, back)), A::add(b, back));
  const auto r = A::fma(scale, d, A::neg(shift));
  const auto low = A::fma(scale_low, d, A::fma(scale, lost, A::neg(shift_low)));
  if constexpr (kNumbers) return A::add(r, low);
  const auto most = A::set(fold::largest<typename A::Element>());
  return A::if_at_most(r, most, A::add(r, low), r);
}

/// What an element of probabilities p and q adds, r = ln p - ln q: to the divergence p r + q - p, which is never
/// negative and small to second order where r is small; and to the mean ratio p r. kNumbers: p is not 0.
template <class A>
struct KlLeaf {
  typename A::V divergence, ratio;
};
template <class A, bool kNumbers = false>
SOFTFOLD_HD KlLeaf<A> kl_leaf(typename A::V p, typename A::V q, typename A::V r) {
  const auto zero = A::set(0), one = A::set(1), ratio = A::mul(p, r);
  const auto close = A::mul(ratio, A::mul(r, kl_curve<A>(r)));
  const auto apart = A::fma(p, A::sub(r, one), q);
  const auto both = A::if_at_most(A::mul(r, r), one, close, apart);
  if constexpr (kNumbers) return {both, ratio};
  return {A::if_at_most(p, zero, q, both), A::if_at_most(p, zero, zero, ratio)};
}

/// The derivative of the divergence K in p's logit over the scale: p (r - K).
template <class A>
SOFTFOLD_HD typename A::V kl_slope_of_p(typename A::V p, typename A::V r, typename A::V divergence) {
  const auto zero = A::set(0);
  return A::if_at_most(p, zero, zero, A::mul(p, A::sub(r, divergence)));
}
/// In q's: q - p, without the cancellation where they are close.
template <class A>
SOFTFOLD_HD typename A::V kl_slope_of_q(typename A::V p, typename A::V q, typename A::V r) {
  const auto one = A::set(1);
  const auto close = A::mul(A::mul(p, r), A::fma(r, kl_curve<A>(r), A::neg(one)));
  return A::if_at_most(A::mul(r, r), one, close, A::sub(q, p));
}
