// What a result of x's shape holds where no ragged row is, written by all blocks of a grid.
#pragma once

#include "cuda/rows.cuh"
#include "front/outside.hpp"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Elements of type S, which is unsigned and of their size. What lies on vectors is written as such.
template <class S>
class Fill {
 public:
  __device__ Fill(const Operand& y, S bits) : y_(y), bits_(bits) {}

  __device__ void operator()(std::int64_t from, std::int64_t to) const {
    if (y_.axis_stride != sizeof(S)) return elements(from, to, first(), step());
    const std::int64_t head = min(to, from + to_vector(from)), vectors = (to - head) / kWidth;
    if (blockIdx.x == 0) {
      elements(from, head, threadIdx.x, blockDim.x);
      elements(head + vectors * kWidth, to, threadIdx.x, blockDim.x);
    }
    auto* const at = reinterpret_cast<uint4*>(y_.data + head * sizeof(S));
    for (std::int64_t i = first(); i < vectors; i += step()) at[i] = vector();
  }

 private:
  static constexpr std::int64_t kWidth = 16 / sizeof(S);
  static __device__ std::int64_t first() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
  static __device__ std::int64_t step() { return std::int64_t{gridDim.x} * blockDim.x; }
  __device__ uint4 vector() const {
    const unsigned low = sizeof(S) == 2 ? static_cast<unsigned>(bits_) * 0x10001U : static_cast<unsigned>(bits_);
    const unsigned high = sizeof(S) == 8 ? static_cast<unsigned>(std::uint64_t{bits_} >> 32) : low;
    return {low, high, low, high};
  }
  /// Elements from there to the next 16-byte boundary.
  __device__ std::int64_t to_vector(std::int64_t from) const {
    const auto over = (reinterpret_cast<std::uintptr_t>(y_.data) + static_cast<std::uintptr_t>(from) * sizeof(S)) % 16;
    return static_cast<std::int64_t>((16 - over) % 16 / sizeof(S));
  }
  __device__ void elements(std::int64_t from, std::int64_t to, std::int64_t first, std::int64_t step) const {
    for (std::int64_t i = from + first; i < to; i += step) *reinterpret_cast<S*>(y_.data + i * y_.axis_stride) = bits_;
  }

  const Operand& y_;
  S bits_;
};

/// Before any row is written: where offsets lie, rows may reach here.
template <class S>
__device__ __forceinline__ void fill_outside_rows(const RowProblem& p, S bits) {
  const Operand& o = p[Slot::offsets];
  const std::int64_t begin = clamp(integer_at(o.dtype, o.data), p.ragged_elements),
                     end = clamp(integer_at(o.dtype, o.data + p.rows * o.strides[0]), p.ragged_elements);
  const Fill<S> fill(p[Slot::y], bits);
  fill(0, begin);
  fill(end, p.ragged_elements);
}

/// Calls f with the bits of outside_value() as an element of y's.
template <class F>
void with_outside_bits(const RowProblem& p, F&& f) {
  const double value = outside_value(p.op);
  switch (p[Slot::y].dtype) {
    case DType::float64: return f(std::bit_cast<std::uint64_t>(value));
    case DType::float32: return f(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    case DType::float16: return f(std::bit_cast<std::uint16_t>(fold::narrow<fold::Float16>(value)));
    default: return f(std::bit_cast<std::uint16_t>(fold::narrow<fold::BFloat16>(value)));
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
