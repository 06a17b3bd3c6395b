// A sum, and the logarithm of one, in long double with next to no rounding of their own.
#pragma once

#include <algorithm>
#include <cmath>
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

/// ln of the sum of e^score, of scores of which one at least is finite.
inline long double lse_of(std::size_t n, const std::function<long double(std::size_t)>& score) {
  long double most = -HUGE_VALL;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, score(i));
  return most + std::log(sum_of(n, [&](std::size_t i) { return std::exp(score(i) - most); }));
}

}  // namespace softfold_test
