#include "softfold/io/array_output.hpp"

#include "detail.hpp"

namespace softfold {
inline namespace v0 {
namespace io {
namespace {

/// Bytes of an array that is to be written, or a refusal.
std::uint64_t checked_bytes(DType dtype, std::span<const std::int64_t> shape) {
  if (shape.size() > kMaxRank)
    throw Error(Code::shape, "an array of " + std::to_string(shape.size()) + " axes", "at most 8 axes");
  const auto bytes = bytes_of(dtype, shape);
  if (!bytes)
    throw Error(Code::shape, "an array of shape " + text_of(shape), "sizes >= 0 that make at most 2^63 - 1 bytes");
  return *bytes;
}

}  // namespace

void ArrayOutput::write(std::uint64_t byte_offset, std::span<const std::byte> from, std::size_t index) {
  const ArrayHeader& array = arrays_[index];
  if (byte_offset > array.bytes || from.size() > array.bytes - byte_offset)
    throw Error(Code::shape, std::to_string(from.size()) + " bytes written at byte " + std::to_string(byte_offset),
                "bytes of the array, which has " + std::to_string(array.bytes));
  file_.write(array.offset + byte_offset, from);
}

ArrayOutput create_npy(const std::string& destination, DType dtype, std::span<const std::int64_t> shape,
                       std::span<const FileId> inputs) {
  const std::uint64_t bytes = checked_bytes(dtype, shape);
  const std::string head = format_npy_header(dtype, shape);
  OutputFile file(destination, head.size() + bytes, inputs);
  file.write(0, std::as_bytes(std::span(head)));
  std::vector<ArrayHeader> arrays{{dtype, {shape.begin(), shape.end()}, head.size(), bytes}};
  return ArrayOutput(std::move(file), std::move(arrays));
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
