// What linear_cross_entropy does to its logits beside the matrix products and the loss.
#pragma once

#include "cuda/generic.cuh"
#include "front/linear_problem.hpp"
#include "softfold/fold/softcap.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A block's share of a matrix of `rows` lines of n elements, `stride` apart: a run of one line.
struct Run {
  static constexpr int kThreads = 256, kEach = 8, kElements = kThreads * kEach;
  std::int64_t at, column;  ///< of the thread's first element; the next ones are kThreads further
  std::int64_t n;

  __device__ Run(std::int64_t n_, std::int64_t stride) : n(n_) {
    const std::int64_t across = (n + kElements - 1) / kElements, row = blockIdx.x / across;
    column = (blockIdx.x - row * across) * kElements + threadIdx.x;
    at = row * stride + column;
  }
  static std::int64_t blocks(std::int64_t rows, std::int64_t n) { return rows * ((n + kElements - 1) / kElements); }
  template <class F>
  __device__ void each(const F& f) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (column + i * kThreads < n) f(at + i * kThreads, column + i * kThreads);
  }
};

/// z = z + bias, then within the cap.
template <class E, class T = fold::FoldType<E>>
__global__ void __launch_bounds__(Run::kThreads)
    finish_logits(E* logits, std::int64_t n, std::int64_t stride, const Operand bias, T cap) {
  Run(n, stride).each([&](std::int64_t at, std::int64_t column) {
    T z = fold::widen(logits[at]);
    if (bias.given) z = fold::Scalar<T>::add(z, element_at<T>(bias.dtype, bias.data + column * bias.axis_stride));
    if (cap > T(0)) z = fold::soft_capped(z, cap);
    logits[at] = fold::narrow<E>(z);
  });
}

/// Gradients of what the cap gave to gradients of what it took.
template <class E, class T = fold::FoldType<E>>
__global__ void __launch_bounds__(Run::kThreads)
    uncap(const E* logits, E* gradients, std::int64_t n, std::int64_t stride, T cap) {
  Run(n, stride).each([&](std::int64_t at, std::int64_t) {
    const T slope = fold::soft_cap_slope<T>(fold::widen(logits[at]), cap);
    gradients[at] = fold::narrow<E>(fold::Scalar<T>::mul(fold::widen(gradients[at]), slope));
  });
}

/// The sums of columns, a thread each, in the order of the rows.
template <class E>
__global__ void __launch_bounds__(256)
    sum_columns(const E* gradients, std::int64_t rows, std::int64_t n, std::int64_t stride, const Operand sums) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= n) return;
  double sum = 0;
#pragma unroll 8
  for (std::int64_t r = 0; r < rows; ++r)
    sum = __dadd_rn(sum, static_cast<double>(fold::widen(gradients[r * stride + column])));
  put(sums.dtype, sums.data + column * sums.axis_stride, sum);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
