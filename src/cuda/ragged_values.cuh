// Up to 1024 neighbouring elements of ragged rows in a warp's shared memory, as values that become results.
#pragma once

#include "cuda/ragged_team.cuh"
#include "cuda/vector_masks.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The slots count from a 16-byte boundary; of elements behind the last slot the values lie in the first ones. Of
/// 16-bit elements a lane has two vectors of values: in every other group of four lanes they are `swapped`, or lanes
/// four apart would meet in the same banks.
template <class E, bool kSwapped = false>
struct RaggedValues {
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = lift::kPerLane / kWidth;

  float4 vectors[lift::kChunk / 4];

  /// What stands for the first and the last of the vectors from x on, of last + 1, where they reach out of x's memory:
  /// of what is not there, that which is nearest.
  static __device__ __forceinline__ void put_edges(uint4 (&edges)[2], const char* x, int last, const Extent& memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32, k = lane % kWidth;
    if (lane < 2 * kWidth) {
      const char* own = x + (lane < kWidth ? 0 : last) * 16 + k * kSize;
      const char* end = memory.end - kSize;
      const char* nearest = own < memory.begin ? memory.begin : own > end ? end : own;
      reinterpret_cast<E*>(edges)[lane] = *reinterpret_cast<const E*>(nearest);
    }
    __syncwarp();
  }

  /// Where half h of a vector of elements lies, and a slot's value.
  static __device__ __forceinline__ int place(int vector, int h) {
    if constexpr (kSize == 4) return vector;
    return 2 * vector + (kSwapped ? h ^ (vector >> 2 & 1) : h);
  }
  __device__ __forceinline__ float value(int slot) const {
    const auto i = static_cast<unsigned>(slot) % lift::kChunk;
    return reinterpret_cast<const float*>(vectors)[kSwapped && kSize == 2 ? i ^ (i >> 3 & 4U) : i];
  }

  /// A lane's vector of elements, the j-th of the lane.
  __device__ __forceinline__ void put(int j, const float* v) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int h = 0; h < kWidth / 4; ++h)
      (vectors + place(lane, h))[32 * j * (kWidth / 4)] = {v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
  }

  /// The results of what lies in slots [head, end) to y, by all lanes of a warp.
  template <class Result>
  __device__ __forceinline__ void collect(char* y, int head, int end, const Result& result) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto rounded_down = [](int slot) { return slot & ~(kWidth - 1); };
    const int first = rounded_down(head + kWidth - 1) / kWidth, last = rounded_down(end) / kWidth;
    uint4* to = reinterpret_cast<uint4*>(y) + lane;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (32 * j >= last) break;
      float v[kWidth];
#pragma unroll
      for (int h = 0; h < kWidth / 4; ++h) {
        const float4 a = (vectors + place(lane, h))[32 * j * (kWidth / 4)];
        v[4 * h] = result(a.x), v[4 * h + 1] = result(a.y), v[4 * h + 2] = result(a.z), v[4 * h + 3] = result(a.w);
      }
      if (32 * j + lane >= first && 32 * j + lane < last) to[32 * j] = Packed<E>::pack(v);
    }
    // What lies in vectors that are a neighbour's, too.
    const int whole = min(rounded_down(head + kWidth - 1), end), tail = max(rounded_down(end), whole);
    const int i = lane < 16 ? head + lane : tail + lane - 16;
    if (i < (lane < 16 ? whole : end)) {
      reinterpret_cast<E*>(y)[i] = Packed<E>::narrow(result(value(i)));
    }
  }

  /// The same of a row on vectors that has `room` for so many elements, of which those up to `end` exist.
  template <class Result>
  __device__ __forceinline__ void collect_and_hide(char* y, int end, int room, const VectorMasks<E>& masks,
                                                   const uint4& none, const Result& result) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint4* to = reinterpret_cast<uint4*>(y) + lane;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (32 * kWidth * j >= room) break;
      const int rest = end - kWidth * (lane + 32 * j);
      float v[kWidth];
#pragma unroll
      for (int h = 0; h < kWidth / 4; ++h) {
        const float4 a = (vectors + place(lane, h))[32 * j * (kWidth / 4)];
        v[4 * h] = result(a.x), v[4 * h + 1] = result(a.y), v[4 * h + 2] = result(a.z), v[4 * h + 3] = result(a.w);
      }
      const uint4 own = chosen(masks.of_first[max(0, min(rest, kWidth))], Packed<E>::pack(v), none);
      if (kWidth * (lane + 32 * j) < room) to[32 * j] = own;
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
