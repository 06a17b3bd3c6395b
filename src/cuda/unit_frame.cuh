// The frame that an element of a row gives to all of its units.
#pragma once

#include "softfold/lift/warp.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row's frame, from one of its elements: even, and kLead binades or up to two more under it. It holds a unit of
/// which all elements' n lie between kLowest and kHighest over it, and no two further apart than terms of one chunk may
/// be (fold::Real::kFlush); but for deep ones, which are 0 in every sum of others by definition. All sums of a row are
/// then normal numbers in it, and so is their reciprocal.
struct UnitFrame {
  using S = fold::Scalar<float>;
  static constexpr int kLead = 16, kHighest = 106, kLowest = -100, kDeep = -240;
  static constexpr int kRaised = -112;            ///< where deep ones are put, about: a quotient of numbers below 2^21
  static constexpr float kLeastTerm = 0x1p-101F;  ///< of those that are not deep
  static constexpr int kFlush = static_cast<int>(fold::Real<float>::kFlush);
  static_assert(kDeep < kLowest + kFlush - 2 && kHighest + 1 + 19 <= 126);  // rows have less than 2^19 elements
  static constexpr float kLargest = 0x1p21F;  ///< frame: within it the split of an element's t is exact

  float c, s;

  __device__ __forceinline__ UnitFrame(float first, float c_) : c(c_) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    s = S::sub(S::sub(__int_as_float(__float_as_int(S::fma(first, c, kMagic)) & ~1), kMagic), kLead);
  }
  __device__ __forceinline__ float magic() const { return S::sub(fold::Real<float>::kMagic, s); }
  __device__ __forceinline__ lift::FrameTerms terms() const { return lift::FrameTerms::in_even_frame(c, magic()); }
  /// Of what has no n near the frame a number far outside.
  __device__ __forceinline__ int n(float x) const {
    return max(__float_as_int(S::fma(x, c, magic())), 0) - __float_as_int(fold::Real<float>::kMagic);
  }
  __device__ __forceinline__ bool holds(int low, int high) const {
    return low >= kLowest && high <= kHighest && high - low <= -kFlush && fabsf(s) <= kLargest;
  }
  /// Whether the probability of an element of this n may be below kSmallest, where d is the row's sum.
  static __device__ __forceinline__ bool may_vanish(int n, float d) {
    static_assert(fold::Real<float>::kSmallest == 0x1p-124F);
    return n - ((__float_as_int(d) >> 23) - 127) < -121;
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
