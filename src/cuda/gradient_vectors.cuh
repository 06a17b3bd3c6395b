// What a row's gradient adds up and writes, of y and dy that wait in registers as vectors.
#pragma once

#include "cuda/rows.cuh"
#include "cuda/sm90.cuh"
#include "softfold/fold/gradient.hpp"
#include "softfold/lift/cluster.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Of shared memory, for a chunk of y or dy that may begin inside a vector.
template <class E>
inline constexpr int kGradientRoom = room_in_sectors(lift::kChunk* static_cast<int>(sizeof(E)) + 16);

/// dx of an element, any NaN where it is none.
__device__ __forceinline__ float gradient_value(const fold::SoftmaxGradient<float>& through, float y, float dy) {
  return through.value(y, dy);
}
/// fold::log_softmax_gradient() by additions to exponents: its conversions to integers cost as much as all else. No y
/// up to 2^6 has an exponent that its clamp would change.
__device__ __forceinline__ float gradient_value(const fold::LogSoftmaxGradient<float>& through, float y, float dy) {
  using S = fold::Scalar<float>;
  const auto terms = lift::FrameTerms::in_even_frame(static_cast<float>(fold::kLog2E), fold::Real<float>::kMagic);
  const float dx = S::mul(S::sub(dy, S::mul(terms.term<true>(y), through.sum)), through.scale);
  return y <= 0x1p6F ? dx : fold::canonical_nan<float>();
}

/// Elements of E in words and vectors.
template <class E>
struct PackedGradients {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E));

  /// A word of elements, all `value`.
  static __device__ __forceinline__ unsigned word_of(float value) {
    if constexpr (sizeof(E) == 4) {
      return __float_as_uint(value);
    } else {
      const unsigned bits = fold::narrow<E>(value).bits;
      return bits | bits << 16;
    }
  }
  /// Results, of which any may be NaN, as they are stored.
  static __device__ __forceinline__ uint4 pack(float (&v)[kWidth]) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if (sizeof(E) == 4) v[k] = fold::canonical(v[k]);
    const uint4 all = Packed<E>::pack(v);
    return {written(all.x), written(all.y), written(all.z), written(all.w)};
  }
  /// A word of results as it is stored: conversions to 16 bit leave other NaNs than the one that is written.
  static __device__ __forceinline__ unsigned written(unsigned word) {
    if constexpr (std::is_same_v<E, fold::BFloat16>) {
      const __nv_bfloat162 pair = *reinterpret_cast<const __nv_bfloat162*>(&word);
      const unsigned nan = __hneu2_mask(pair, pair);
      return (word & ~nan) | (word_of(fold::canonical_nan<float>()) & nan);
    } else if constexpr (std::is_same_v<E, fold::Float16>) {
      const __half2 pair = *reinterpret_cast<const __half2*>(&word);
      const unsigned nan = __hneu2_mask(pair, pair);
      return (word & ~nan) | (word_of(fold::canonical_nan<float>()) & nan);
    }
    return word;
  }
};

/// kVectors vectors of each of kLanes lanes, in the layout of Tile. What is not there is Gradient::nothing() in y and
/// -0 in dy: its leaf is -0.
template <class E, template <class> class Gradient, int kLanes, int kVectors>
struct GradientVectors {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E));
  using Vectors = uint4[kVectors];

  /// The tree over the slots; `any` is of the lane's own elements.
  static __device__ __forceinline__ lift::SumNode sum(const Vectors& y, const Vectors& dy) {
    const float sum = lift::add_tree<kWidth, kLanes, float, kVectors * kWidth>([&](int j, int k) {
      float a[kWidth], b[kWidth];
      Packed<E>::unpack(y[j], a);
      Packed<E>::unpack(dy[j], b);
      return Gradient<float>::leaf(a[k], b[k]);
    });
    return {sum, holds(y) ? 1U : 0U};
  }

  /// Between the sum and the results: or the compiler keeps twice as many registers, of numbers that it had unpacked.
  static __device__ __forceinline__ void stay_packed(Vectors& v) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) asm volatile("" : "+r"(v[j].x), "+r"(v[j].y), "+r"(v[j].z), "+r"(v[j].w));
  }

  /// A vector of dx. any: whether the row has anything in it.
  static __device__ __forceinline__ uint4 result(const Gradient<float>& through, bool any, const uint4& y,
                                                 const uint4& dy) {
    float a[kWidth], b[kWidth];
    Packed<E>::unpack(y, a);
    Packed<E>::unpack(dy, b);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      b[k] = gradient_value(through, a[k], b[k]);
      if (sizeof(E) == 4) b[k] = fold::canonical(b[k]);
    }
    // Not by pack(): a row with nothing in it asks for no NaN, and the compiler has other code for that (measured so).
    const uint4 all = Packed<E>::pack(b);
    const auto written = [](unsigned word) { return PackedGradients<E>::written(word); };
    return any ? uint4{written(all.x), written(all.y), written(all.z), written(all.w)} : uint4{0U, 0U, 0U, 0U};
  }

 private:
  /// Whether some element of y is not nothing, which is 0 of either sign, or -inf.
  static __device__ __forceinline__ bool holds(const Vectors& y) {
    const float nothing = Gradient<float>::nothing();
    const unsigned none = PackedGradients<E>::word_of(nothing);
    unsigned other = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) other |= (y[j].x ^ none) | (y[j].y ^ none) | (y[j].z ^ none) | (y[j].w ^ none);
    return (nothing == 0.F ? other & ~PackedGradients<E>::word_of(-0.F) : other) != 0;
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
