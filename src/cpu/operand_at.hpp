// One element of an operand, of whatever dtype it is stored as.
#pragma once

#include "cpu/chunk_ops.hpp"
#include "front/problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

inline double number_at(const Operand& o, const char* at) {
  return with_dtype(o.dtype,
                    [&]<class S>(S) { return static_cast<double>(fold::widen(*reinterpret_cast<const S*>(at))); });
}
inline void put_number(const Operand& o, char* at, double value) {
  with_dtype(o.dtype, [&]<class S>(S) { *reinterpret_cast<S*>(at) = fold::narrow<S>(value); });
}
inline std::int64_t integer_at(const Operand& o, const char* at) {
  return o.dtype == DType::int32 ? *reinterpret_cast<const std::int32_t*>(at)
                                 : *reinterpret_cast<const std::int64_t*>(at);
}
inline void put_integer(const Operand& o, char* at, std::int64_t value) {
  if (o.dtype == DType::int32) {
    *reinterpret_cast<std::int32_t*>(at) = static_cast<std::int32_t>(value);
  } else {
    *reinterpret_cast<std::int64_t*>(at) = value;
  }
}

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
