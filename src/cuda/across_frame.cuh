// Terms of rows that lie side by side, in frames that are guessed from one element of each row.
#pragma once

#include "cuda/rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// An even frame as kMagic less it; z = fma(x, c, magic) has kFrame's bits where n is the frame. z orders by its bits:
/// NaN and +inf lie above all that is close, and negative numbers below.
struct AcrossFrame {
  using S = fold::Scalar<float>;
  static constexpr int kFrame = 0x4B400000;  ///< the bits of kMagic
  /// How far n may lie from the frame: sums of 2^14 chunks stay within float32, and no result is below 2^-124.
  static constexpr int kFar = 54;

  static __device__ __forceinline__ float guess(float x, float c) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    const int n = static_cast<int>(S::sub(S::fma(x, c, kMagic), kMagic));
    // Outside the fast range there is no frame: NaN lies far from everything.
    constexpr int kMost = static_cast<int>(fold::Real<float>::kFastHighest) - 256;
    const bool is_fast = n <= kMost && n >= -kMost;
    return is_fast ? S::sub(kMagic, static_cast<float>(n & ~1)) : fold::canonical_nan<float>();
  }
  static __device__ __forceinline__ float term(float x, float z, float magic, float c) {
    const float p = fold::exp2_fraction<S>(S::fma(x, c, -S::sub(z, magic)));
    return __int_as_float(__float_as_int(p) + (__float_as_int(z) << 23));
  }
  /// Whether elements whose z have these extremes are all close to the frame.
  static __device__ __forceinline__ bool is_close(int high, int low) {
    return high <= kFrame + kFar && low >= kFrame - kFar;
  }
  /// A row's state in its own frame, which is that of its highest z.
  static __device__ __forceinline__ fold::LogSumExp<float>::State state(float sum, int high, float magic) {
    const float d = __int_as_float(__float_as_int(sum) - ((high - kFrame) << 23));
    return {static_cast<double>(S::sub(__int_as_float(high), magic)), d};
  }
};

/// What is known of kRows rows from some of their elements. The terms are in an even frame that all threads of a row
/// share; log_softmax needs the row's own, which follows from the highest n.
template <int kRows, bool kLog>
struct alignas(8) AcrossPart {
  float sum[kRows];
  __device__ __forceinline__ void join(const AcrossPart& other) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) sum[row] = fold::Scalar<float>::add(sum[row], other.sum[row]);
  }
};
template <int kRows>
struct alignas(8) AcrossPart<kRows, true> {
  float sum[kRows];
  int high[kRows];
  __device__ __forceinline__ void join(const AcrossPart& other) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      sum[row] = fold::Scalar<float>::add(sum[row], other.sum[row]);
      high[row] = max(high[row], other.high[row]);
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
