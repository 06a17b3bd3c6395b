// Neighbouring rows' elements as words, for rows that lie side by side.
#pragma once

#include "cuda/rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The node of the canonical tree over a thread's values kFrom, kFrom + kStride, kFrom + 2 kStride, ... of kCount, of
/// each of kRows rows: those kCount / 2 apart first. Depth first, so that few sums wait at a time. pair: two values of
/// each row.
template <int kCount, int kFrom = 0, int kStride = 1, int kRows, class Pair>
__device__ __forceinline__ void add_strided(float (&sums)[kRows], const Pair& pair) {
  float others[kRows];
  if constexpr (2 * kStride < kCount) {
    add_strided<kCount, kFrom, 2 * kStride>(sums, pair);
    add_strided<kCount, kFrom + kStride, 2 * kStride>(others, pair);
  } else {
    pair(kFrom, kFrom + kStride, sums, others);
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) sums[row] = fold::Scalar<float>::add(sums[row], others[row]);
}

/// kRows neighbouring elements as one word.
template <class E, int kRows>
struct AcrossWord;

template <class E>
struct AcrossWord<E, 1> {
  using Word = E;
  static __device__ __forceinline__ void unpack(const E& word, float (&v)[1]) { v[0] = fold::widen(word); }
  static __device__ __forceinline__ E pack(const float (&v)[1]) { return Packed<E>::narrow(v[0]); }
};

template <>
struct AcrossWord<float, 2> {
  using Word = float2;
  static __device__ __forceinline__ void unpack(const float2& word, float (&v)[2]) { v[0] = word.x, v[1] = word.y; }
  static __device__ __forceinline__ float2 pack(const float (&v)[2]) { return {v[0], v[1]}; }
};

/// Two 16-bit elements.
template <class E, class Pair>
struct AcrossHalves {
  using Word = unsigned;
  static __device__ __forceinline__ unsigned pack(const float (&v)[2]) { return Packed<E>::two(v[0], v[1]); }
  /// The least and the most of both rows' elements, from two words more: an instruction each.
  static __device__ __forceinline__ void widen_range(const unsigned& a, const unsigned& b, unsigned& least,
                                                     unsigned& most) {
    const auto pair = [](const unsigned& word) { return *reinterpret_cast<const Pair*>(&word); };
    const Pair low = __hmin2_nan(__hmin2_nan(pair(least), pair(a)), pair(b));
    const Pair high = __hmax2_nan(__hmax2_nan(pair(most), pair(a)), pair(b));
    least = *reinterpret_cast<const unsigned*>(&low), most = *reinterpret_cast<const unsigned*>(&high);
  }
};
template <>
struct AcrossWord<fold::BFloat16, 2> : AcrossHalves<fold::BFloat16, __nv_bfloat162> {
  static __device__ __forceinline__ void unpack(unsigned word, float (&v)[2]) {
    v[0] = __uint_as_float(word << 16), v[1] = __uint_as_float(word & 0xFFFF0000U);
  }
};
template <>
struct AcrossWord<fold::Float16, 2> : AcrossHalves<fold::Float16, __half2> {
  static __device__ __forceinline__ void unpack(unsigned word, float (&v)[2]) {
    const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&word));
    v[0] = f.x, v[1] = f.y;
  }
};

/// Four of these.
template <class E>
requires(sizeof(E) == 2) struct AcrossWord<E, 4> {
  using Pair = AcrossWord<E, 2>;
  using Word = uint2;
  static __device__ __forceinline__ void unpack(const uint2& word, float (&v)[4]) {
    float low[2], high[2];
    Pair::unpack(word.x, low), Pair::unpack(word.y, high);
    v[0] = low[0], v[1] = low[1], v[2] = high[0], v[3] = high[1];
  }
  static __device__ __forceinline__ uint2 pack(const float (&v)[4]) {
    return {Packed<E>::two(v[0], v[1]), Packed<E>::two(v[2], v[3])};
  }
  static __device__ __forceinline__ void widen_range(const uint2& a, const uint2& b, uint2& least, uint2& most) {
    Pair::widen_range(a.x, b.x, least.x, most.x), Pair::widen_range(a.y, b.y, least.y, most.y);
  }
};

/// The least and the most of some words' elements, of each row.
template <class E, int kRows>
struct AcrossRange {
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  static constexpr bool kPacked = kRows > 1 && sizeof(E) == 2;  ///< by pairs

  Word least, most;  ///< kPacked
  float low[kRows], high[kRows];

  __device__ __forceinline__ explicit AcrossRange(const Word& first) : least(first), most(first) {
    Words::unpack(first, low), Words::unpack(first, high);
  }
  __device__ __forceinline__ void add(const Word& a, const Word& b) {
    if constexpr (kPacked) return Words::widen_range(a, b, least, most);
    float of_a[kRows], of_b[kRows];
    Words::unpack(a, of_a), Words::unpack(b, of_b);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      low[row] = lift::least(low[row], lift::least(of_a[row], of_b[row]));
      high[row] = lift::most(high[row], lift::most(of_a[row], of_b[row]));
    }
  }
  /// Once all are added.
  __device__ __forceinline__ void finish() {
    if constexpr (kPacked) Words::unpack(least, low), Words::unpack(most, high);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
