// Whatever stands in an .npy file, its header is parsed or refused with an Error; what is parsed keeps its word.
#include "softfold/error.hpp"
#include "softfold/io/header.hpp"

#include <cstdlib>

namespace {

using namespace softfold;

void require(bool truth) {
  if (!truth) std::abort();
}

void check(std::span<const std::byte> file, std::optional<DType> as) {
  io::ArrayHeader header;
  try {
    header = io::parse_npy_header(file, file.size(), as);
  } catch (const Error&) {
    return;
  }
  require(header.shape.size() <= kMaxRank);
  require(header.offset <= file.size() && header.bytes == file.size() - header.offset);
  require(io::bytes_of(header.dtype, header.shape) == header.bytes);

  const std::string again = io::format_npy_header(header.dtype, header.shape);
  const auto parsed = io::parse_npy_header(std::as_bytes(std::span(again)), again.size() + header.bytes, header.dtype);
  require(parsed.dtype == header.dtype && parsed.shape == header.shape && parsed.bytes == header.bytes);
}

/// The input with its header's length made true, so that the dict is reached more often than by chance.
std::string with_true_length(std::string text) {
  const std::size_t end = text.rfind('}');
  const std::size_t start = text.size() > 6 && text[6] == 1 ? 10 : 12;
  if (end == std::string::npos || end < start) return text;
  const std::size_t length = end + 1 - start;
  for (std::size_t i = 8; i < start; ++i) text[i] = static_cast<char>(length >> (8 * (i - 8)) & 0xff);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& file : {text, with_true_length(text)}) {
    check(std::as_bytes(std::span(file)), std::nullopt);
    check(std::as_bytes(std::span(file)), DType::bfloat16);
  }
  return 0;
}
