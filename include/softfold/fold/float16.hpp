// The two 16-bit formats as they lie in memory, and their conversions: integer arithmetic, so neither the machine nor
// the floating-point environment has a say; a GPU, whose instructions know no environment, has one for each. Widening
// is exact; narrowing rounds once, to nearest, ties to even.
#pragma once

#include "softfold/fold/real.hpp"

#include <concepts>

namespace softfold {
inline namespace v0 {
namespace fold {

/// IEEE binary16. Storage only: arithmetic is done in float.
struct Float16 {
  std::uint16_t bits;
  static constexpr int kMantissaBits = 10;
  static constexpr int kBias = 15;
  static constexpr std::uint16_t kInfinity = 0x7C00;
  static constexpr std::uint16_t kCanonicalNaN = 0x7E00;
};

/// The upper half of a binary32. Storage only.
struct BFloat16 {
  std::uint16_t bits;
  static constexpr int kMantissaBits = 7;
  static constexpr int kBias = 127;
  static constexpr std::uint16_t kInfinity = 0x7F80;
  static constexpr std::uint16_t kCanonicalNaN = 0x7FC0;
};

template <class S>
concept Half = std::same_as<S, Float16> || std::same_as<S, BFloat16>;

/// The precision that elements of type S are folded in.
template <class S>
struct FoldOf {
  using Type = float;
};
template <>
struct FoldOf<double> {
  using Type = double;
};
template <class S>
using FoldType = typename FoldOf<S>::Type;

SOFTFOLD_HD float widen(BFloat16 h) { return bits_as<float>(static_cast<std::uint32_t>(h.bits) << 16); }

SOFTFOLD_HD float widen(Float16 h) {
#if defined(__CUDA_ARCH__)
  float a;
  asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(h.bits));
  return a;
#else
  const std::uint32_t magnitude = h.bits & 0x7FFFU;
  const std::uint32_t sign = static_cast<std::uint32_t>(h.bits & 0x8000U) << 16;
  if (magnitude >= 0x7C00U) return bits_as<float>(sign | 0x7F800000U | (magnitude & 0x03FFU) << 13);
  if (magnitude >= 0x0400U) return bits_as<float>(sign | ((magnitude << 13) + (112U << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;  // a normal float: exact under any DAZ
  return bits_as<float>(sign | bits_as<std::uint32_t>(subnormal));
#endif
}

SOFTFOLD_HD float widen(float a) { return a; }
SOFTFOLD_HD double widen(double a) { return a; }

/// `a` (float or double) rounded once to the 16-bit format S; beyond the largest number to infinity, below the normal
/// numbers to a subnormal one, any NaN to the canonical one.
template <Half S, class T>
SOFTFOLD_HD S round_to_half(T a) {
  using Bits = typename Real<T>::Bits;
  constexpr int source_bias = sizeof(T) == 4 ? 127 : 1023;
  constexpr int drop = Real<T>::kMantissaBits - S::kMantissaBits;
  constexpr Bits hidden = Bits{1} << Real<T>::kMantissaBits;
  constexpr Bits infinity_bits = Real<T>::kInfinity;
  const Bits all = bits_as<Bits>(a);
  const auto magnitude = static_cast<Bits>(all & static_cast<Bits>(~Bits{0} >> 1));
  const auto sign = static_cast<std::uint16_t>(static_cast<unsigned>(all >> (8 * sizeof(T) - 1)) << 15);
  if (magnitude > infinity_bits) return {S::kCanonicalNaN};

  const int biased = static_cast<int>(magnitude >> Real<T>::kMantissaBits);
  const int exponent = (biased == 0 ? 1 : biased) - source_bias + S::kBias;
  Bits mantissa;  // with its exponent above it, counted in units of 2^-shift of the result's last place
  int shift;
  if (exponent >= 1) {
    mantissa = static_cast<Bits>(magnitude - (static_cast<Bits>(source_bias - S::kBias) << Real<T>::kMantissaBits));
    shift = drop;
  } else {
    mantissa = static_cast<Bits>((magnitude & (hidden - 1)) | (biased == 0 ? Bits{0} : hidden));
    shift = drop + 1 - exponent;
    if (shift > Real<T>::kMantissaBits + 1) return {sign};  // below half of the smallest subnormal
  }
  const Bits odd = (mantissa >> shift) & 1;
  const Bits rounded = static_cast<Bits>(mantissa + (Bits{1} << (shift - 1)) - 1 + odd) >> shift;
  const auto bits = rounded >= S::kInfinity ? S::kInfinity : static_cast<std::uint16_t>(rounded);
  return {static_cast<std::uint16_t>(sign | bits)};
}

#if defined(__CUDA_ARCH__)
/// round_to_half() by one instruction, but for NaN.
template <Half S>
SOFTFOLD_HD S convert_to_half(float a) {
  S h;
  if constexpr (std::same_as<S, Float16>) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(a));
  } else {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(a));
  }
  return h;
}
#endif

/// `a` rounded once to what is stored as S, every NaN canonical.
template <class S, class T>
SOFTFOLD_HD S narrow(T a) {
#if defined(__CUDA_ARCH__)
  if constexpr (Half<S> && sizeof(T) == 4) return is_nan(a) ? S{S::kCanonicalNaN} : convert_to_half<S>(a);
#endif
  if constexpr (Half<S>) {
    return round_to_half<S>(a);
  } else {
    return canonical(static_cast<S>(a));
  }
}

}  // namespace fold
}  // namespace v0
}  // namespace softfold
