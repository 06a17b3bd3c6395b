// Numbers in error messages. Inner: nothing here is promised to callers.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>

namespace softfold {
inline namespace v0 {
namespace detail {

/// The shortest text that reads back as this number; of a whole one all digits, for it may be a count.
std::string shown(std::floating_point auto a) {
  char buffer[32];
  char* const end = buffer + sizeof buffer;
  const bool whole = std::trunc(a) == a && std::abs(a) < 1e17;
  return {buffer,
          (whole ? std::to_chars(buffer, end, a, std::chars_format::fixed) : std::to_chars(buffer, end, a)).ptr};
}

}  // namespace detail
}  // namespace v0
}  // namespace softfold
