// A frame that one element of a row gives.
#pragma once

#include "softfold/lift/warp.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// An even frame, which lies kLead binades or up to two more under the element that gives it.
struct LedFrame {
  using S = fold::Scalar<float>;
  static constexpr int kLead = 16;

  float c, s;

  __device__ __forceinline__ LedFrame(float first, float c_) : c(c_) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    s = S::sub(S::sub(__int_as_float(__float_as_int(S::fma(first, c, kMagic)) & ~1), kMagic), kLead);
  }
  __device__ __forceinline__ lift::FrameTerms terms() const { return lift::FrameTerms::in_even_frame(c, magic()); }
  /// An element's n over the frame, rounded as the definition's; of what has none a number far outside. (Below -kMagic
  /// bits are negative, and their difference would wrap.)
  __device__ __forceinline__ int n(float x) const {
    return max(__float_as_int(S::fma(x, c, magic())), 0) - __float_as_int(fold::Real<float>::kMagic);
  }
  /// Whether the probability of an element of this n may be below kSmallest, where d is the row's sum.
  static __device__ __forceinline__ bool may_vanish(int n, float d) {
    static_assert(fold::Real<float>::kSmallest == 0x1p-124F);
    return n - ((__float_as_int(d) >> 23) - 127) < -121;
  }

 private:
  __device__ __forceinline__ float magic() const { return S::sub(fold::Real<float>::kMagic, s); }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
