// The arithmetic of the portable exp2, over any arithmetic A (fold::Scalar, or a SIMD target's lanes).
// No include guard: exp2.hpp reads it once for scalars and CUDA; lift/lanes.hpp reads it once inside each
// SIMD target's namespace, because a function compiled without a target's attribute cannot inline its operations.

/// t = x*c as an integer and a rest: t = n + f.
template <class A>
struct Split {
  typename A::V n, f;
};

/// n = the integer nearest the exact product x*c, f = x*c - n with one rounding. Meaningful wherever the term can
/// count: for every t within 2^22 (double: 2^51) of 0. Below that, n is still far under any frame of the fast range
/// and f may be anything; times_power_of_two then gives the 0 that is right. A NaN gives 0 too: look for it apart.
template <class A>
SOFTFOLD_HD Split<A> split(typename A::V x, typename A::V c) {
  const auto magic = A::set(fold::Real<typename A::Element>::kMagic);
  const auto n = A::sub(A::fma(x, c, magic), magic);
  return {n, A::fma(x, c, A::neg(n))};
}

/// The same of a t that is a number already: exact for every finite t.
template <class A>
SOFTFOLD_HD Split<A> split(typename A::V t) {
  const auto n = A::round(t);
  return {n, A::sub(t, n)};
}

/// (2^f - 1) / f for |f| <= 1/2: minimax polynomials of degree 4 (float) and 10 (double), Horner in FMAs.
template <class A>
SOFTFOLD_HD typename A::V exp2_slope(typename A::V f) {
  using T = typename A::Element;
  if constexpr (sizeof(T) == 4) {
    auto p = A::fma(A::set(0x1.5bda40p-10F), f, A::set(0x1.3ce8acp-7F));
    p = A::fma(p, f, A::set(0x1.c6b6d8p-5F));
    p = A::fma(p, f, A::set(0x1.ebf9c2p-3F));
    return A::fma(p, f, A::set(0x1.62e42ap-1F));
  } else {
    auto p = A::fma(A::set(0x1.e80eecb9eb2a3p-32), f, A::set(0x1.e611a04becd06p-28));
    p = A::fma(p, f, A::set(0x1.b5260d9b85ed0p-24));
    p = A::fma(p, f, A::set(0x1.62bfcdde7193bp-20));
    p = A::fma(p, f, A::set(0x1.ffcbfbf8c96a7p-17));
    p = A::fma(p, f, A::set(0x1.4309130c01225p-13));
    p = A::fma(p, f, A::set(0x1.5d87fe78b3b97p-10));
    p = A::fma(p, f, A::set(0x1.3b2ab6fba11f5p-7));
    p = A::fma(p, f, A::set(0x1.c6b08d704a0d4p-5));
    p = A::fma(p, f, A::set(0x1.ebfbdff82c59cp-3));
    return A::fma(p, f, A::set(0x1.62e42fefa39efp-1));
  }
}

/// 2^f for |f| <= 1/2. P(1/2) == 2 P(-1/2) exactly: which of two equally near integers n is does not matter.
template <class A>
SOFTFOLD_HD typename A::V exp2_fraction(typename A::V f) {
  return A::fma(exp2_slope<A>(f), f, A::set(1));
}

/// tanh(x) = (e^2x - 1) / (e^2x + 1), e^2x - 1 taken from the polynomial without its 1: relative error <= 8 u.
template <class A>
SOFTFOLD_HD typename A::V tanh(typename A::V x) {
  const auto zero = A::set(0), most = A::set(20), size = A::if_at_most(zero, x, x, A::neg(x));
  const auto s = split<A>(
      A::mul(A::if_at_most(most, size, most, size), A::set(static_cast<typename A::Element>(2 * fold::kLog2E))));
  const auto power = A::times_power_of_two(A::set(1), s.n);
  const auto e = A::fma(power, A::mul(exp2_slope<A>(s.f), s.f), A::sub(power, A::set(1)));
  const auto y = A::div(e, A::add(e, A::set(2)));
  return A::if_at_most(zero, x, y, A::neg(y));
}

/// One term of the sum in the frame m: 2^f * 2^(n - m); exactly 0 when n - m < kFlush.
template <class A>
SOFTFOLD_HD typename A::V term(typename A::V x, typename A::V c, typename A::V m) {
  const auto s = split<A>(x, c);
  return A::times_power_of_two(exp2_fraction<A>(s.f), A::sub(s.n, m));
}
