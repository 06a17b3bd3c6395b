// Matrices in memory in every layout that operands may have.
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/tensor.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace softfold_test {

namespace fold = softfold::fold;
using softfold::DType;
using softfold::View;

inline constexpr DType kFloating[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};

/// Calls f with a value of the type that t is stored as.
template <class F>
auto with_dtype(DType t, F&& f) {
  switch (t) {
    case DType::float64: return f(double{});
    case DType::float16: return f(fold::Float16{});
    case DType::bfloat16: return f(fold::BFloat16{});
    default: return f(float{});
  }
}

/// A matrix in memory, rows x n, in one of several layouts, with bytes around it that must not change.
struct Tensor {
  DType dtype;
  std::vector<std::int64_t> shape, strides;
  std::vector<unsigned char> bytes;
  std::size_t offset;

  View view() { return View(bytes.data() + offset, dtype, shape, strides); }
  unsigned char* at(std::int64_t r, std::int64_t i) {
    return bytes.data() + offset + (r * strides[0] + i * strides[1]) * static_cast<std::int64_t>(size_of(dtype));
  }
};

enum class Layout { contiguous, padded, every_second, transposed, reversed };
inline constexpr Layout kLayouts[] = {Layout::contiguous, Layout::padded, Layout::every_second, Layout::transposed,
                                      Layout::reversed};

inline Tensor make_tensor(DType t, std::int64_t rows, std::int64_t n, Layout layout) {
  Tensor m{t, {rows, n}, {}, {}, 64};
  const auto size = static_cast<std::int64_t>(size_of(t));
  std::int64_t elements = rows * n;
  switch (layout) {
    case Layout::contiguous: m.strides = {n, 1}; break;
    case Layout::padded:
      m.strides = {n + 3, 1}, elements = rows * (n + 3), m.offset += static_cast<std::size_t>(size);
      break;
    case Layout::every_second: m.strides = {2 * n, 2}, elements = 2 * rows * n; break;
    case Layout::transposed: m.strides = {1, rows}; break;
    case Layout::reversed:
      m.strides = {n, -1};
      m.offset += static_cast<std::size_t>(std::max<std::int64_t>(0, (n - 1) * size));
      break;
  }
  m.bytes.assign(static_cast<std::size_t>(elements * size + 256), 0xA5);
  return m;
}

}  // namespace softfold_test
