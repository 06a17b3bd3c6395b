// 16 bytes of elements as they lie in memory, and the same numbers as floats.
#pragma once

#include "softfold/fold/float16.hpp"
#include "softfold/lift/warp.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// 16 bytes of elements of type E and the same numbers as floats. Numbers only: a NaN is written by fold::narrow.
template <class E>
struct Packed;

template <>
struct Packed<float> {
  static __device__ __forceinline__ void unpack(uint4 raw, float* v) {
    v[0] = __uint_as_float(raw.x), v[1] = __uint_as_float(raw.y);
    v[2] = __uint_as_float(raw.z), v[3] = __uint_as_float(raw.w);
  }
  template <int kVectors>
  static __device__ __forceinline__ lift::Extremes extremes(const uint4 (&raw)[kVectors]) {
    float v[4];
    unpack(raw[0], v);
    lift::Extremes e{v[0], v[0]};
#pragma unroll
    for (int i = 1; i < 4 * kVectors; ++i) {
      unpack(raw[i / 4], v);
      e = {lift::least(e.low, v[i % 4]), lift::most(e.high, v[i % 4])};
    }
    return e;
  }
  static __device__ __forceinline__ uint4 pack(const float* v) {
    return {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])};
  }
  static __device__ __forceinline__ uint4 join(const float (&e)[4]) { return pack(e); }
  static __device__ __forceinline__ float narrow(float a) { return a; }
};

/// What the two 16-bit types have in common. Pair: the device's own type for two of them.
template <class E, class Pair>
struct PackedPairs {
  static __device__ __forceinline__ uint4 join(const E (&e)[8]) {
    const auto join = [&](int i) {
      return static_cast<unsigned>(e[i].bits) | static_cast<unsigned>(e[i + 1].bits) << 16;
    };
    return {join(0), join(2), join(4), join(6)};
  }
  /// A pair at a time.
  template <int kVectors>
  static __device__ __forceinline__ lift::Extremes extremes(const uint4 (&raw)[kVectors]) {
    const auto at = [&](int i) {
      const unsigned words[4] = {raw[i / 4].x, raw[i / 4].y, raw[i / 4].z, raw[i / 4].w};
      return *reinterpret_cast<const Pair*>(&words[i % 4]);
    };
    Pair low = at(0), high = at(0);
#pragma unroll
    for (int i = 1; i < 4 * kVectors; ++i) low = __hmin2_nan(low, at(i)), high = __hmax2_nan(high, at(i));
    return {static_cast<float>(__hmin_nan(low.x, low.y)), static_cast<float>(__hmax_nan(high.x, high.y))};
  }
  static __device__ __forceinline__ uint4 pack(const float* v) {
    using P = Packed<E>;
    return {P::two(v[0], v[1]), P::two(v[2], v[3]), P::two(v[4], v[5]), P::two(v[6], v[7])};
  }
  static __device__ __forceinline__ E narrow(float a) {
    return {static_cast<std::uint16_t>(Packed<E>::two(a, 0.F) & 0xFFFFU)};
  }
};

template <>
struct Packed<fold::BFloat16> : PackedPairs<fold::BFloat16, __nv_bfloat162> {
  static __device__ __forceinline__ void unpack(uint4 raw, float* v) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(words[i] << 16);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
  }
  static __device__ __forceinline__ unsigned two(float a, float b) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&h);
  }
};

template <>
struct Packed<fold::Float16> : PackedPairs<fold::Float16, __half2> {
  static __device__ __forceinline__ void unpack(uint4 raw, float* v) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
  }
  static __device__ __forceinline__ unsigned two(float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&h);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
