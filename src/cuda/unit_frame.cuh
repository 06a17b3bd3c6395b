// The frame that an element of a row gives to all of its units.
#pragma once

#include "cuda/led_frame.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row's frame, from one of its elements. It holds a unit of which all elements' n lie between kLowest and kHighest
/// over it, and no two further apart than terms of one chunk may be (fold::Real::kFlush); but for deep ones, which are
/// 0 in every sum of others by definition. All sums of a row are then normal numbers in it, and so is their reciprocal.
struct UnitFrame : LedFrame {
  using LedFrame::LedFrame;
  static constexpr int kHighest = 106, kLowest = -100, kDeep = -240;
  static constexpr int kRaised = -112;            ///< where deep ones are put, about: a quotient of numbers below 2^21
  static constexpr float kLeastTerm = 0x1p-101F;  ///< of those that are not deep
  static constexpr int kFlush = static_cast<int>(fold::Real<float>::kFlush);
  static_assert(kDeep < kLowest + kFlush - 2 && kHighest + 1 + 19 <= 126);  // rows have less than 2^19 elements
  static constexpr float kLargest = 0x1p21F;  ///< frame: within it the split of an element's t is exact

  __device__ __forceinline__ bool holds(int low, int high) const {
    return low >= kLowest && high <= kHighest && high - low <= -kFlush && fabsf(s) <= kLargest;
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
