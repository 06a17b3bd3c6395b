// One element of an operand of any dtype, read and written.
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/fold/real.hpp"
#include "softfold/tensor.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

template <class T>
__device__ __forceinline__ T element_at(DType t, const char* at) {
  switch (t) {
    case DType::float16: return static_cast<T>(fold::widen(*reinterpret_cast<const fold::Float16*>(at)));
    case DType::bfloat16: return static_cast<T>(fold::widen(*reinterpret_cast<const fold::BFloat16*>(at)));
    case DType::float64: return static_cast<T>(*reinterpret_cast<const double*>(at));
    default: return static_cast<T>(*reinterpret_cast<const float*>(at));
  }
}

template <class T>
__device__ __forceinline__ void put(DType t, char* at, T value) {
  switch (t) {
    case DType::float16: *reinterpret_cast<fold::Float16*>(at) = fold::narrow<fold::Float16>(value); return;
    case DType::bfloat16: *reinterpret_cast<fold::BFloat16*>(at) = fold::narrow<fold::BFloat16>(value); return;
    case DType::float64: *reinterpret_cast<double*>(at) = fold::narrow<double>(value); return;
    default: *reinterpret_cast<float*>(at) = fold::narrow<float>(value); return;
  }
}

__device__ __forceinline__ void put_integer(DType t, char* at, std::int64_t value) {
  if (t == DType::int32) {
    *reinterpret_cast<std::int32_t*>(at) = static_cast<std::int32_t>(value);
  } else {
    *reinterpret_cast<std::int64_t*>(at) = value;
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
