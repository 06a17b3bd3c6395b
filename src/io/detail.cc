#include "detail.hpp"

#include "softfold/io/header.hpp"

#include <bit>
#include <system_error>

namespace softfold {
inline namespace v0 {
namespace io {

static_assert(std::endian::native == std::endian::little, "the files hold little-endian data, read as it is");
static_assert(sizeof(off_t) == 8, "files larger than 2 GiB need 64-bit offsets");

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  return "'" + printable(text.substr(0, kLongest)) + (text.size() > kLongest ? "...'" : "'");
}

std::string reason(int error) { return std::error_code(error, std::generic_category()).message(); }

const char* fix_of(int error, const char* otherwise) {
  return error == EMFILE         ? "raise the limit on open files: ulimit -n"
         : error == ENFILE       ? "raise the system's limit on open files: sysctl fs.file-max"
         : error == ENAMETOOLONG ? "give it a shorter name"
                                 : otherwise;
}

std::optional<std::uint64_t> bytes_of(std::size_t element_bytes, std::span<const std::int64_t> shape) {
  auto product = static_cast<std::int64_t>(element_bytes);
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(product);
}

std::optional<std::uint64_t> bytes_of(DType dtype, std::span<const std::int64_t> shape) {
  return bytes_of(size_of(dtype), shape);
}

std::uint64_t checked_bytes(DType dtype, std::span<const std::int64_t> shape) {
  if (shape.size() > kMaxRank)
    throw Error(Code::shape, "an array of " + std::to_string(shape.size()) + " axes", "at most 8 axes",
                "join neighbouring axes: x.reshape in NumPy");
  const auto bytes = bytes_of(dtype, shape);
  if (!bytes)
    throw Error(Code::shape, "an array of shape " + text_of(shape), "sizes >= 0 that make at most 2^63 - 1 bytes");
  return *bytes;
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
