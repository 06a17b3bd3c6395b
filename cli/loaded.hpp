// An array in memory.
#pragma once

#include "blocks.hpp"

#include "softfold/io/array_file.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <vector>

namespace softfold::cli {

/// A contiguous array. It may be moved: its views stay.
struct Loaded {
  std::vector<std::int64_t> shape;
  DType dtype;
  Buffer bytes;

  /// Throws Error{Code::shape} where there is no array of that shape.
  Loaded(DType t, std::vector<std::int64_t> s) : shape(std::move(s)), dtype(t), bytes(checked_bytes(t, shape)) {}
  explicit Loaded(const io::ArrayFile& file) : Loaded(file.dtype(), {file.shape().begin(), file.shape().end()}) {
    file.read(0, all());
  }
  std::span<std::byte> all() const { return {bytes.data(), static_cast<std::size_t>(*io::bytes_of(dtype, shape))}; }
  std::int64_t count() const { return static_cast<std::int64_t>(*io::bytes_of(dtype, shape) / size_of(dtype)); }
  View view() const { return View(static_cast<void*>(bytes.data()), dtype, shape); }

 private:
  static std::size_t checked_bytes(DType t, const std::vector<std::int64_t>& shape) {
    if (const auto bytes = io::bytes_of(t, shape)) return static_cast<std::size_t>(*bytes);
    throw Error(Code::shape, fmt::format("operands that ask for a result of shape ({})", fmt::join(shape, ", ")),
                "sizes >= 0 that make at most 2^63 - 1 bytes");
  }
};

/// Element i of a contiguous view of int32 or int64.
inline std::int64_t integer_at(const View& v, std::int64_t i) {
  return v.dtype == DType::int32 ? static_cast<const std::int32_t*>(v.data)[i]
                                 : static_cast<const std::int64_t*>(v.data)[i];
}

}  // namespace softfold::cli
