// Divisions of numbers that most often fit 32 bits.
#pragma once

#include "softfold/fold/real.hpp"

#include <bit>
#include <cassert>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// a / b, both from 0 on. A 64-bit division costs as much as three elements of every lane.
SOFTFOLD_HD std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
}

/// Division by a number that is known before a kernel is launched, by a multiplication (Granlund and Montgomery,
/// Division by invariant integers using multiplication, 1994).
struct Divisor {
  std::uint32_t value = 1, inverse = 1, shift = 0;

  Divisor() = default;
  /// by: 1 to 2^31.
  explicit Divisor(std::int64_t by) : value(static_cast<std::uint32_t>(by)) {
    assert(by > 0 && by <= std::int64_t{1} << 31);
    shift = static_cast<std::uint32_t>(std::bit_width(value - 1));
    inverse = static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - value) << 32) / value + 1);
  }

  /// a / value, of a below 2^31.
  SOFTFOLD_HD std::uint32_t quotient(std::uint32_t a) const { return (high_half(a, inverse) + a) >> shift; }
  /// Of any a from 0 on; from 2^31 on at the cost of a division.
  SOFTFOLD_HD std::int64_t quotient(std::int64_t a) const {
    return a >> 31 == 0 ? std::int64_t{quotient(static_cast<std::uint32_t>(a))} : a / value;
  }

 private:
  /// Of the product.
  static SOFTFOLD_HD std::uint32_t high_half(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
    return __umulhi(a, b);
#else
    return static_cast<std::uint32_t>(std::uint64_t{a} * b >> 32);
#endif
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
