// One switch over the floating dtypes for the whole command.
#pragma once

#include "blocks.hpp"

#include "softfold/error.hpp"
#include "softfold/fold/float16.hpp"
#include "softfold/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace softfold::cli {

/// Calls f with a value of the type that elements of this dtype have in memory. Throws Error{Code::dtype}.
template <class F>
decltype(auto) with_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float32: return f(float{});
    case DType::float64: return f(double{});
    case DType::float16: return f(fold::Float16{});
    case DType::bfloat16: return f(fold::BFloat16{});
    default:
      throw Error(Code::dtype, "an array of " + std::string(name_of(dtype)), "float32, float64, float16, bfloat16",
                  "convert it to float32");
  }
}

/// How many of `count` elements are NaN.
inline std::int64_t count_nan(const std::byte* elements, DType dtype, std::int64_t count) {
  return with_floating(dtype, [&]<class S>(S) {
    const auto* const from = reinterpret_cast<const S*>(elements);
    return std::int64_t{std::count_if(from, from + count, [](S v) { return std::isnan(fold::widen(v)); })};
  });
}

/// Of the rows that begin in this box of results, how many are NaN: a row is as a whole, so that its first element
/// tells.
inline std::int64_t nan_rows_of(const Box& box, const std::byte* results, DType dtype) {
  std::int64_t nan_rows = 0;
  if (box.column != 0 || box.columns == 0) return 0;
  for (std::int64_t outer = 0; outer < box.outers; ++outer)
    nan_rows += count_nan(results + static_cast<std::size_t>(outer * box.columns * box.inners) * size_of(dtype), dtype,
                          box.inners);
  return nan_rows;
}

}  // namespace softfold::cli
