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
  static __device__ __forceinline__ float widen(float a) { return a; }
  static __device__ __forceinline__ float narrow(float a) { return a; }
};

/// The extremes of 16-bit numbers, a pair at a time.
template <class Pair, int kVectors>
__device__ __forceinline__ float2 pair_extremes(const uint4 (&raw)[kVectors]) {
  const auto at = [&](int i) {
    const unsigned words[4] = {raw[i / 4].x, raw[i / 4].y, raw[i / 4].z, raw[i / 4].w};
    return *reinterpret_cast<const Pair*>(&words[i % 4]);
  };
  Pair low = at(0), high = at(0);
#pragma unroll
  for (int i = 1; i < 4 * kVectors; ++i) low = __hmin2_nan(low, at(i)), high = __hmax2_nan(high, at(i));
  return {static_cast<float>(__hmin_nan(low.x, low.y)), static_cast<float>(__hmax_nan(high.x, high.y))};
}

/// Eight 16-bit elements as a vector.
template <class E>
__device__ __forceinline__ uint4 join_halves(const E (&e)[8]) {
  const auto two = [&](int i) { return static_cast<unsigned>(e[i].bits) | static_cast<unsigned>(e[i + 1].bits) << 16; };
  return {two(0), two(2), two(4), two(6)};
}

template <>
struct Packed<fold::BFloat16> {
  static __device__ __forceinline__ uint4 join(const fold::BFloat16 (&e)[8]) { return join_halves(e); }
  template <int kVectors>
  static __device__ __forceinline__ lift::Extremes extremes(const uint4 (&raw)[kVectors]) {
    const float2 e = pair_extremes<__nv_bfloat162>(raw);
    return {e.x, e.y};
  }
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
  static __device__ __forceinline__ uint4 pack(const float* v) {
    return {two(v[0], v[1]), two(v[2], v[3]), two(v[4], v[5]), two(v[6], v[7])};
  }
  static __device__ __forceinline__ float widen(fold::BFloat16 e) { return fold::widen(e); }
  static __device__ __forceinline__ fold::BFloat16 narrow(float a) {
    return {static_cast<std::uint16_t>(two(a, 0.F) & 0xFFFFU)};
  }
};

template <>
struct Packed<fold::Float16> {
  static __device__ __forceinline__ uint4 join(const fold::Float16 (&e)[8]) { return join_halves(e); }
  template <int kVectors>
  static __device__ __forceinline__ lift::Extremes extremes(const uint4 (&raw)[kVectors]) {
    const float2 e = pair_extremes<__half2>(raw);
    return {e.x, e.y};
  }
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
  static __device__ __forceinline__ uint4 pack(const float* v) {
    return {two(v[0], v[1]), two(v[2], v[3]), two(v[4], v[5]), two(v[6], v[7])};
  }
  static __device__ __forceinline__ float widen(fold::Float16 e) { return __half2float(__ushort_as_half(e.bits)); }
  static __device__ __forceinline__ fold::Float16 narrow(float a) { return {__half_as_ushort(__float2half_rn(a))}; }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
