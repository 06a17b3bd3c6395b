// One switch over the floating dtypes for the whole command.
#pragma once

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

}  // namespace softfold::cli
