// The two precisions a fold is computed in, and the constants that fix their bits (docs/one-answer.md).
#pragma once

#include "softfold/config.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace softfold {
inline namespace v0 {
namespace fold {

inline constexpr double kLog2E = 0x1.71547652b82fep+0;
inline constexpr double kLog2ELow = 0x1.777d0ffda0d24p-56;
inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;
inline constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;

template <class T>
struct Real;

template <>
struct Real<float> {
  using Bits = std::uint32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr float kMagic = 0x1.8p23F;        ///< x*c + kMagic rounds x*c to the nearest integer
  static constexpr float kFastLowest = -4194048.F;  ///< the fast split is exact for kFastLowest <= m <= kFastHighest
  static constexpr float kFastHighest = 4194303.F;
  static constexpr float kFlush = -125.F;        ///< a term 2^f * 2^k is 0 exactly when k < kFlush
  static constexpr float kSmallest = 0x1p-124F;  ///< a probability below this leaves as +0
  static constexpr double kUnit = 1;             ///< State::m counts kUnit powers of two
  static constexpr Bits kCanonicalNaN = 0x7FC00000U;
  static constexpr Bits kInfinity = 0x7F800000U;
  static constexpr int kDigits = 24;
};

template <>
struct Real<double> {
  using Bits = std::uint64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr double kMagic = 0x1.8p52;
  static constexpr double kFastLowest = -2251799813683200.;  // -2^51 + 2048
  static constexpr double kFastHighest = 2251799813685247.;  //  2^51 - 1
  static constexpr double kFlush = -1021.;
  static constexpr double kSmallest = 0x1p-1020;
  static constexpr double kUnit = 2;  // m is held halved, so that t = DBL_MAX * log2(e) has an m
  static constexpr Bits kCanonicalNaN = 0x7FF8000000000000ULL;
  static constexpr Bits kInfinity = 0x7FF0000000000000ULL;
  static constexpr int kDigits = 53;
};

/// The bits of `a` read as a `To` of the same size (std::bit_cast, also in device code).
template <class To, class From>
SOFTFOLD_HD To bits_as(From a) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  memcpy(&r, &a, sizeof(To));
  return r;
}

template <class T>
SOFTFOLD_HD T infinity() {
  return bits_as<T>(typename Real<T>::Bits{Real<T>::kInfinity});
}

template <class T>
SOFTFOLD_HD T largest() {
  return bits_as<T>(static_cast<typename Real<T>::Bits>(Real<T>::kInfinity - 1));
}

/// The one NaN that is ever written.
template <class T>
SOFTFOLD_HD T canonical_nan() {
  return bits_as<T>(typename Real<T>::Bits{Real<T>::kCanonicalNaN});
}

template <class T>
SOFTFOLD_HD bool is_nan(T a) {
  return a != a;
}

/// `a`, with every NaN replaced by the canonical one.
template <class T>
SOFTFOLD_HD T canonical(T a) {
  return is_nan(a) ? canonical_nan<T>() : a;
}

/// An integral k >= kFlush as what is added to an exponent. Above -kFlush lies only what a given state does not cover:
/// a number that its caller discards, but conversions end here, where a GPU's go on.
template <class T, class K>
SOFTFOLD_HD typename Real<T>::Bits exponent_step(K k) {
#if !defined(__CUDA_ARCH__)
  constexpr auto most = static_cast<K>(-Real<T>::kFlush);
  if (k > most) k = most;
#endif
  return static_cast<typename Real<T>::Bits>(static_cast<std::int64_t>(k));
}

/// The scalar arithmetic under exp2-inl.hpp: one rounding per call, whatever the compiler's contraction flags.
/// lift/lanes.hpp has the same names for SIMD vectors.
template <class T>
struct Scalar {
  using Element = T;
  using V = T;

  SOFTFOLD_HD static V set(T a) { return a; }
  SOFTFOLD_HD static V neg(V a) { return -a; }
  SOFTFOLD_HD static V sub(V a, V b) { return add(a, -b); }
  /// The nearest integer, ties to even.
  SOFTFOLD_HD static V round(V a) { return static_cast<V>(::rint(a)); }
  /// k <= limit ? a : b, so b for a NaN k.
  SOFTFOLD_HD static V if_at_most(V k, V limit, V a, V b) { return k <= limit ? a : b; }

#if defined(__CUDA_ARCH__)
  SOFTFOLD_HD static float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  SOFTFOLD_HD static double fma(double a, double b, double c) { return __fma_rn(a, b, c); }
  SOFTFOLD_HD static float add(float a, float b) { return __fadd_rn(a, b); }
  SOFTFOLD_HD static double add(double a, double b) { return __dadd_rn(a, b); }
  SOFTFOLD_HD static float mul(float a, float b) { return __fmul_rn(a, b); }
  SOFTFOLD_HD static double mul(double a, double b) { return __dmul_rn(a, b); }
  SOFTFOLD_HD static float div(float a, float b) { return __fdiv_rn(a, b); }
  SOFTFOLD_HD static double div(double a, double b) { return __ddiv_rn(a, b); }
#else
  SOFTFOLD_HD static V fma(V a, V b, V c) { return std::fma(a, b, c); }
  SOFTFOLD_HD static V add(V a, V b) { return a + b; }
  SOFTFOLD_HD static V div(V a, V b) { return a / b; }
  SOFTFOLD_HD static V mul(V a, V b) {
    V p = a * b;
    // Keeps a user's own -ffp-contract=fast from joining this product with a later sum.
#if defined(__x86_64__)
    asm("" : "+x"(p));
#elif defined(__aarch64__)
    asm("" : "+w"(p));
#else
    asm("" : "+m"(p));
#endif
    return p;
  }
#endif

  /// a * 2^k for an integral k in [kFlush, -kFlush], `a` and the result normal; +0 when k < kFlush or k is NaN.
  SOFTFOLD_HD static V times_power_of_two(V a, V k) {
    using Bits = typename Real<T>::Bits;
    if (!(k >= Real<T>::kFlush)) return T(0);
    const auto shift = static_cast<Bits>(exponent_step<T>(k) << Real<T>::kMantissaBits);
    return bits_as<T>(static_cast<Bits>(bits_as<Bits>(a) + shift));
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
