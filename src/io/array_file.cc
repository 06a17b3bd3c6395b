#include "softfold/io/array_file.hpp"

#include "detail.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

std::vector<std::byte> read_head(const InputFile& file, std::uint64_t bytes) {
  std::vector<std::byte> head(static_cast<std::size_t>(std::min(bytes, file.size())));
  file.read(0, head);
  return head;
}

ArrayHeader read_header(const InputFile& file, std::optional<DType> as) {
  const auto head = read_head(file, npy_header_bytes(read_head(file, kNpyPreambleBytes)));
  return parse_npy_header(head, file.size(), as);
}

}  // namespace

ArrayFile open_array(const std::string& path, std::optional<DType> as) {
  InputFile file(path);
  try {
    ArrayHeader header = read_header(file, as);
    return ArrayFile(std::move(file), std::move(header));
  } catch (const Error& error) {
    throw Error(error.code, quoted(path) + ": " + error.got, error.allowed, error.fix);
  }
}

void ArrayFile::read(std::uint64_t byte_offset, std::span<std::byte> into) const {
  if (byte_offset > bytes() || into.size() > bytes() - byte_offset)
    throw Error(Code::shape, std::to_string(into.size()) + " bytes from byte " + std::to_string(byte_offset) + " on",
                "bytes of the array, which has " + std::to_string(bytes()));
  file_.read(offset() + byte_offset, into);
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
