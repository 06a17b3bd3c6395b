// The dtypes of .safetensors: their names there, ours, and their bytes.
#pragma once

#include "softfold/tensor.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

namespace softfold {
inline namespace v0 {
namespace io {

inline constexpr std::pair<std::string_view, DType> kSafetensorsDTypes[] = {
    {"F64", DType::float64},  {"F32", DType::float32}, {"F16", DType::float16}, {"BF16", DType::bfloat16},
    {"BOOL", DType::boolean}, {"I32", DType::int32},   {"I64", DType::int64}};

/// Dtypes that softfold does not compute with, but that may stand in a file beside those it does.
inline constexpr std::pair<std::string_view, std::size_t> kOtherSafetensorsDTypes[] = {
    {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
    {"U16", 2}, {"I16", 2}, {"U32", 4},     {"U64", 8},     {"C64", 8}};

constexpr std::optional<DType> safetensors_dtype(std::string_view name) {
  for (const auto& [known, dtype] : kSafetensorsDTypes)
    if (known == name) return dtype;
  return std::nullopt;
}

/// 0: unknown.
constexpr std::size_t safetensors_element_bytes(std::string_view name) {
  if (const auto dtype = safetensors_dtype(name)) return size_of(*dtype);
  for (const auto& [known, bytes] : kOtherSafetensorsDTypes)
    if (known == name) return bytes;
  return 0;
}

constexpr std::string_view safetensors_name(DType dtype) {
  for (const auto& [name, known] : kSafetensorsDTypes)
    if (known == dtype) return name;
  return "?";
}

}  // namespace io
}  // namespace v0
}  // namespace softfold
