// What the files of io/ share: texts for messages and the loop around pread and pwrite.
#pragma once

#include "softfold/error.hpp"
#include "softfold/tensor.hpp"

#include <sys/types.h>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace softfold {
inline namespace v0 {
namespace io {

/// `text` fit for a terminal: control characters replaced. Names of files and what they hold are not trusted.
std::string printable(std::string_view text);
/// The same in quotes, long texts cut.
std::string in_quotes(std::string_view text);

/// The message of an errno value.
std::string reason(int error);
/// What to try where a file could not be opened: `otherwise`, unless the limit on open files is what it met.
const char* fix_of(int error, const char* otherwise);

/// "float32[3, 4]"-like text of a shape: "[3, 4]".
template <class Shape>
std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

/// Bytes of a C-contiguous array of elements of `element_bytes`; nothing where bytes_of of header.hpp gives nothing.
std::optional<std::uint64_t> bytes_of(std::size_t element_bytes, std::span<const std::int64_t> shape);

/// Bytes of an array that is to be written. Throws Error{Code::shape} where it cannot be.
std::uint64_t checked_bytes(DType dtype, std::span<const std::int64_t> shape);

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
