// From a run-time dtype to an element type of the vector tiles.
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/tensor.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Calls f.template operator()<E>() for a dtype that has vector tiles.
template <class F>
auto with_element(DType t, F&& f) {
  switch (t) {
    case DType::bfloat16: return f.template operator()<fold::BFloat16>();
    case DType::float16: return f.template operator()<fold::Float16>();
    default: return f.template operator()<float>();
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
