// The arrays of tests/data/io/make.py, computed again.
#pragma once

#include "softfold/tensor.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

namespace softfold_test {

/// float16 bits of ((i % 17) - 8) / 2; all of these values are normal or zero.
inline std::uint16_t half_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  if (value == 0) return static_cast<std::uint16_t>(sign);
  return static_cast<std::uint16_t>(sign | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
}

template <class T>
void append(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

/// The bytes of `count` elements.
inline std::string expected_bytes(softfold::DType dtype, std::int64_t count) {
  using softfold::DType;
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto whole = static_cast<std::int32_t>(i % 17 - 8);
    const float value = static_cast<float>(whole) / 2;
    switch (dtype) {
      case DType::float32: append(bytes, value); break;
      case DType::float64: append(bytes, static_cast<double>(value)); break;
      case DType::float16: append(bytes, half_bits(value)); break;
      case DType::bfloat16: append(bytes, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)); break;
      case DType::boolean: append(bytes, static_cast<char>(i % 3 == 0)); break;
      case DType::int32: append(bytes, whole); break;
      case DType::int64: append(bytes, std::int64_t{whole}); break;
    }
  }
  return bytes;
}

inline constexpr softfold::DType kAllDTypes[] = {
    softfold::DType::float32, softfold::DType::float64, softfold::DType::float16, softfold::DType::bfloat16,
    softfold::DType::boolean, softfold::DType::int32,   softfold::DType::int64};

}  // namespace softfold_test
