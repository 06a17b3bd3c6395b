// Numbers in error messages.
#pragma once

#include <charconv>
#include <string>

namespace softfold {
inline namespace v0 {

/// The shortest text that reads back as this number.
inline std::string shown(double a) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, a).ptr};
}

}  // namespace v0
}  // namespace softfold
