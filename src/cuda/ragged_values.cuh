// Up to 1024 neighbouring elements of ragged rows in a warp's shared memory, as values that become results.
#pragma once

#include "cuda/ragged_team.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The slots count from a 16-byte boundary; of elements behind the last slot the values lie in the first ones.
template <class E>
struct RaggedValues {
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = lift::kPerLane / kWidth;

  float4 vectors[lift::kChunk / 4];

  /// Calls read(vector), where vector(i) is the i-th from x on, of last + 1. Where the first or the last one reaches
  /// out of x's memory, that which is nearest stands for what is not there; they are put together in `edges`.
  template <class Read>
  static __device__ __forceinline__ void vectors_of(const char* x, int last, const Extent& memory, uint4 (&edges)[2],
                                                    const Read& read) {
    const uint4* from = reinterpret_cast<const uint4*>(x);
    if (x >= memory.begin && x + (last + 1) * 16 <= memory.end) return read([&](int i) { return from[i]; });
    const int lane = static_cast<int>(threadIdx.x) % 32, k = lane % kWidth;
    if (lane < 2 * kWidth) {
      const char* own = x + (lane < kWidth ? 0 : last) * 16 + k * kSize;
      const char* end = memory.end - kSize;
      const char* nearest = own < memory.begin ? memory.begin : own > end ? end : own;
      reinterpret_cast<E*>(edges)[lane] = *reinterpret_cast<const E*>(nearest);
    }
    __syncwarp();
    read([&](int i) { return i == 0 ? edges[0] : i == last ? edges[1] : from[i]; });
    __syncwarp();
  }

  /// A lane's vector of elements.
  __device__ __forceinline__ void put(int vector, const float* v) {
#pragma unroll
    for (int h = 0; h < kWidth / 4; ++h)
      vectors[vector * (kWidth / 4) + h] = {v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
  }

  /// The results of what lies in slots [head, end) to y, by all lanes of a warp.
  template <class Result>
  __device__ __forceinline__ void collect(char* y, int head, int end, const Result& result) {
    const int lane = static_cast<int>(threadIdx.x) % 32, first = (head + kWidth - 1) / kWidth, last = end / kWidth;
    const float4* from = vectors + lane * (kWidth / 4);
    uint4* to = reinterpret_cast<uint4*>(y) + lane;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (32 * j >= last) break;
      float v[kWidth];
#pragma unroll
      for (int h = 0; h < kWidth / 4; ++h) {
        const float4 a = from[32 * j * (kWidth / 4) + h];
        v[4 * h] = result(a.x), v[4 * h + 1] = result(a.y), v[4 * h + 2] = result(a.z), v[4 * h + 3] = result(a.w);
      }
      if (32 * j + lane >= first && 32 * j + lane < last) to[32 * j] = Packed<E>::pack(v);
    }
    // What lies in vectors that are a neighbour's, too.
    const int whole = min((head + kWidth - 1) / kWidth * kWidth, end), tail = max(end / kWidth * kWidth, whole);
    const int i = lane < 16 ? head + lane : tail + lane - 16;
    if (i < (lane < 16 ? whole : end)) {
      const float value = reinterpret_cast<const float*>(vectors)[i % lift::kChunk];
      reinterpret_cast<E*>(y)[i] = Packed<E>::narrow(result(value));
    }
  }
};

/// The frame of a warp's elements, as an integer that kMagic is part of, and whether they lie close enough together to
/// be terms in it, and those of any part of them in its own.
struct RaggedFrame {
  float top;
  bool near;

  __device__ __forceinline__ RaggedFrame(const lift::Extremes& e, float c) {
    using S = fold::Scalar<float>;
    using Fold = lift::WarpFold<4>;
    constexpr float kMagic = fold::Real<float>::kMagic;
    top = __int_as_float(Fold::largest(__float_as_int(S::fma(c > 0.F ? e.high : e.low, c, kMagic))));
    const float bottom = __int_as_float(Fold::smallest(__float_as_int(S::fma(c > 0.F ? e.low : e.high, c, kMagic))));
    near = bottom >= kMagic + fold::Real<float>::kFastLowest && top <= kMagic + fold::Real<float>::kFastHighest &&
           bottom >= top - 60.F;
  }
  __device__ __forceinline__ float m() const { return fold::Scalar<float>::sub(top, fold::Real<float>::kMagic); }
};

/// norm.log_probability where norm.fast.
__device__ __forceinline__ float fast_log_probability(const fold::LogNormaliser<float>& norm, float x) {
  using S = fold::Scalar<float>;
  const float lp = S::mul(norm.two_kappa, S::sub(S::fma(x, norm.half_c, -norm.half_frame), norm.half_log2_d));
  return S::add(lp < 0.F ? lp : 0.F, 0.F);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
