// What the files of io/ share: texts for messages and the loop around pread and pwrite.
#pragma once

#include "softfold/error.hpp"

#include <sys/types.h>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>

namespace softfold {
inline namespace v0 {
namespace io {

/// `text` in quotes, fit for a terminal: control characters replaced, long texts cut. File contents are not trusted.
std::string quoted(std::string_view text);

/// The message of an errno value.
std::string reason(int error);

/// "float32[3, 4]"-like text of a shape: "[3, 4]".
template <class Shape>
std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

struct Transferred {
  std::size_t done = 0;  ///< bytes
  int error = 0;         ///< errno, or 0; done < bytes without an error means the file ended
};

/// Moves `bytes` by repeated `call(done, left)`, a pread or pwrite that may do less than asked or be interrupted.
template <class Call>
Transferred transfer(std::size_t bytes, Call call) {
  Transferred result;
  while (result.done < bytes) {
    const ssize_t moved = call(result.done, bytes - result.done);
    if (moved > 0) {
      result.done += static_cast<std::size_t>(moved);
    } else if (moved == 0) {
      return result;
    } else if (errno != EINTR) {
      result.error = errno;
      return result;
    }
  }
  return result;
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
