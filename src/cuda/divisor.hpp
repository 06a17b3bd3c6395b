// Division by a number that is known before a kernel is launched.
#pragma once

#include "softfold/fold/real.hpp"

#include <bit>
#include <cstdint>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// By a multiplication (Granlund and Montgomery, Division by invariant integers using multiplication, 1994).
struct Divisor {
  std::uint32_t value = 1, inverse = 1, shift = 0;

  Divisor() = default;
  /// by: 1 to 2^31.
  explicit Divisor(std::uint32_t by)
      : value(by),
        inverse(static_cast<std::uint32_t>((((std::uint64_t{1} << std::bit_width(by - 1)) - by) << 32) / by + 1)),
        shift(static_cast<std::uint32_t>(std::bit_width(by - 1))) {}

#if defined(__CUDACC__)
  /// a / value, of a below 2^31.
  __device__ __forceinline__ std::uint32_t quotient(std::uint32_t a) const {
    return (__umulhi(a, inverse) + a) >> shift;
  }
  /// Of any a from 0 on; from 2^31 on at the cost of a division.
  __device__ __forceinline__ std::int64_t quotient(std::int64_t a) const {
    return a >> 31 == 0 ? std::int64_t{quotient(static_cast<std::uint32_t>(a))} : a / value;
  }
#endif
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
