// Terms of bfloat16 elements from a table: there are few different ones, and looking one up costs less than half of
// computing it. A block's shared memory holds the terms of all elements up to a power of two, in the frame 0.
#pragma once

#include "softfold/lift/warp.cuh"

#include <cuda_bf16.h>

#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Elements of either sign, each where its bits say once it has been multiplied by a power of two that makes the
/// table's largest binade the 33rd: what lies below these becomes subnormal, and its terms are 1.
class TermTable {
 public:
  /// In this frame an element is at most so far from 0, or the row is folded again: the terms of a chunk then add up
  /// to normal numbers, the largest of them at most kSpan binades above the smallest.
  static constexpr float kFurthest = 92.F, kSpan = 120.F;
  /// Bytes of one sign's terms, and from the positive elements' to the negative ones': what lies between is free.
  static constexpr int kBytes = 34 * 128 * 4, kNegative = 0x8000 * 4;

  /// Whether terms of x*c can be looked up: then the powers of two are numbers.
  static bool fits(float c) { return std::fabs(c) >= 0x1p-24F && std::fabs(c) <= 0x1p24F; }

  __device__ __forceinline__ TermTable(const char* memory, float c) : memory_(memory) {
    const auto one = static_cast<unsigned>(127 - 93 - reach(c)) << 7;
    shrink_ = one << 16 | one;
  }
  /// By the whole block; a barrier later the terms are there.
  static __device__ __forceinline__ void fill(char* memory, float c) {
    const float grow = __int_as_float((127 + 93 + reach(c)) << 23);
    const lift::FrameTerms terms(c, 0.F);
    for (int i = static_cast<int>(threadIdx.x); i < kBytes / 4; i += static_cast<int>(blockDim.x)) {
      const float x = i < 128 ? 0.F : fold::Scalar<float>::mul(__int_as_float(i << 16), grow);
      const auto at = 4 * spread(static_cast<unsigned>(i));
      *reinterpret_cast<float*>(memory + at) = terms.term<false>(x);
      *reinterpret_cast<float*>(memory + kNegative + at) = terms.term<false>(-x);
    }
  }

  /// The terms of two packed elements; of elements beyond the table any numbers.
  __device__ __forceinline__ void look_up(unsigned pair, float& low, float& high) const {
    const __nv_bfloat162 places =
        __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), *reinterpret_cast<const __nv_bfloat162*>(&shrink_));
    const unsigned at = spread(*reinterpret_cast<const unsigned*>(&places));
    constexpr unsigned mask = 0x9FFFU * 4;  // nothing outside the block's memory is read
    low = *reinterpret_cast<const float*>(memory_ + (at << 2 & mask));
    high = *reinterpret_cast<const float*>(memory_ + (at >> 14 & mask));
  }

 private:
  /// Of two packed places, or one: numbers of few bits, whose last ones are 0, are to lie in different banks, too.
  static __device__ __forceinline__ unsigned spread(unsigned at) { return at ^ (at >> 5 & 0x001F001FU); }
  /// Every |x| up to kFurthest / |c|, rounded up, is below 2^reach.
  static __device__ __forceinline__ int reach(float c) {
    const float most = fold::Scalar<float>::div(kFurthest + 1.F, fabsf(c));
    return (__float_as_int(most) >> 23) - 127 + 1;
  }

  const char* memory_;
  unsigned shrink_;  ///< the power of two, twice
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
