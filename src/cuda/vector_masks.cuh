// Masks for the first elements of a vector, looked up where choosing word by word would cost more.
#pragma once

#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Which bits of a vector belong to its first 0, 1, ... elements: in shared memory, made by all threads of a block.
template <class E>
struct VectorMasks {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E));
  uint4 of_first[kWidth + 1];
  __device__ __forceinline__ void make() {
    const int i = static_cast<int>(threadIdx.x);
    const uint4 all{0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU};
    if (i <= kWidth) of_first[i] = joined({}, all, i * static_cast<int>(sizeof(E)));
  }
};

/// The bits of `a` that the mask has, else those of `b`.
__device__ __forceinline__ uint4 chosen(const uint4& mask, const uint4& a, const uint4& b) {
  const auto pick = [](unsigned m, unsigned x, unsigned y) { return (x & m) | (y & ~m); };
  return {pick(mask.x, a.x, b.x), pick(mask.y, a.y, b.y), pick(mask.z, a.z, b.z), pick(mask.w, a.w, b.w)};
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
