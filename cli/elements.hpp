// One switch over the floating dtypes for the whole command.
#pragma once

#include "softfold/error.hpp"
#include "softfold/fold/float16.hpp"
#include "softfold/tensor.hpp"

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

}  // namespace softfold::cli
