// A tensor as softfold sees it: a view that owns nothing. Sizes and strides are 64-bit and count elements.
#pragma once

#include "softfold/config.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace softfold {
inline namespace v0 {

enum class DType : std::uint8_t { float32, float64, float16, bfloat16, boolean, int32, int64 };

/// Bytes of one element.
constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::float64:
    case DType::int64: return 8;
    case DType::float32:
    case DType::int32: return 4;
    case DType::float16:
    case DType::bfloat16: return 2;
    case DType::boolean: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::float32: return "float32";
    case DType::float64: return "float64";
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::boolean: return "bool";
    case DType::int32: return "int32";
    case DType::int64: return "int64";
  }
  return "?";
}

constexpr bool is_floating(DType t) { return t <= DType::bfloat16; }

/// Where data lives. The values are DLPack's.
enum class DeviceKind : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::int32_t id = 0;
  friend constexpr bool operator==(Device, Device) = default;
};

/// The highest rank a view may have.
inline constexpr int kMaxRank = 8;

/// A view of a tensor. `strides` empty means C-contiguous. A view with `data == nullptr` and an empty shape is
/// "not given" (the default of every optional operand); `given()` tells.
struct View {
  void* data = nullptr;
  DType dtype = DType::float32;
  Device device{};
  std::span<const std::int64_t> shape{};
  std::span<const std::int64_t> strides{};
  bool is_given = false;

  View() = default;
  View(void* data_, DType dtype_, std::span<const std::int64_t> shape_, std::span<const std::int64_t> strides_ = {},
       Device device_ = {})
      : data(data_), dtype(dtype_), device(device_), shape(shape_), strides(strides_), is_given(true) {}
  /// A tensor that is only read. The library never writes through an input view.
  View(const void* data_, DType dtype_, std::span<const std::int64_t> shape_,
       std::span<const std::int64_t> strides_ = {}, Device device_ = {})
      : View(const_cast<void*>(data_), dtype_, shape_, strides_, device_) {}

  bool given() const { return is_given; }
  int rank() const { return static_cast<int>(shape.size()); }
};

}  // namespace v0
}  // namespace softfold
