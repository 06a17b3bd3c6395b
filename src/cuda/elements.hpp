// From a run-time dtype to an element type of the vector tiles, and from a row's length to the lanes that hold it.
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/fold/gradient.hpp"
#include "softfold/options.hpp"
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

/// Whether with_apart knows both dtypes together.
inline bool may_be_apart(DType x, DType y) {
  return x != DType::float64 && y != DType::float64 && (x == y || size_of(x) != size_of(y));
}
/// Calls f.template operator()<E, O>() for elements of 16 bit with results in float32, or the other way, or of one
/// dtype.
template <class F>
void with_apart(DType x, DType y, F&& f) {
  if (x == y) return with_element(x, [&]<class E>() { f.template operator()<E, E>(); });
  if (x == DType::float32) {
    if (y == DType::bfloat16) return f.template operator()<float, fold::BFloat16>();
    return f.template operator()<float, fold::Float16>();
  }
  if (x == DType::bfloat16) return f.template operator()<fold::BFloat16, float>();
  f.template operator()<fold::Float16, float>();
}

/// Calls f.template operator()<Gradient>() for softmax_backward or log_softmax_backward.
template <class F>
void with_gradient(Op op, F&& f) {
  op == Op::softmax_backward ? f.template operator()<fold::SoftmaxGradient>()
                             : f.template operator()<fold::LogSoftmaxGradient>();
}

/// Calls f with how many neighbouring rows a lane has as a word: 1, 2, or of 16-bit elements 4.
template <class E, class F>
void with_word_rows(int rows, F&& f) {
  if constexpr (sizeof(E) == 2)
    if (rows == 4) return f.template operator()<4>();
  rows == 2 ? f.template operator()<2>() : f.template operator()<1>();
}

/// Calls f with how many lanes hold a row of n <= kGroupElements elements, 32 a lane.
inline constexpr std::int64_t kGroupElements = 512;
template <class F>
void with_group_lanes(std::int64_t n, F&& f) {
  if (n <= 64) return f.template operator()<2>();
  if (n <= 128) return f.template operator()<4>();
  if (n <= 256) return f.template operator()<8>();
  f.template operator()<16>();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
