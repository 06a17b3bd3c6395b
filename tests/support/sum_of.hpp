// A sum in long double with next to no rounding of its own.
#pragma once

#include <cstddef>
#include <functional>

namespace softfold_test {

/// Compensated: for float64 a plain sum in long double is not far enough below the bounds.
inline long double sum_of(std::size_t n, const std::function<long double(std::size_t)>& leaf) {
  long double sum = 0, carry = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const long double y = leaf(i) - carry, next = sum + y;
    carry = (next - sum) - y;
    sum = next;
  }
  return sum;
}

}  // namespace softfold_test
