// What one warp-group holds of its 64 rows, scores to terms, and the two products.
#pragma once

#include "cuda/attention_sm90.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A thread has columns 8i + 2(lane%4) + {0, 1} of rows lane/4 and lane/4 + 8 of its warp's 16. Scores are the
/// accumulator of q k; terms, packed to 16 bit, are the operand of p v.
template <class C>
struct AttentionRows {
  using Terms = std::uint32_t[C::kKeys / 4];
  float scores[C::kKeys / 2], out[C::kDv / 2];
  float m[2], d[2];  ///< the shift (an integer), the sum of this thread's columns
  float factor[2];   ///< what `out` is still to be multiplied by: a power of two
};

constexpr float kExactShift = 0x1p24F;  ///< larger shifts are not exact to 1

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 2^k for an integer k <= 0; below the normal numbers, and for the NaN of two empty folds, 0.
__device__ __forceinline__ float power_of_two(float k) {
  return __int_as_float((static_cast<int>(fmaxf(k, -127.F)) + 127) << 23);
}

template <class E>
__device__ __forceinline__ std::uint32_t pack_two(float low, float high) {
  std::uint32_t r;
  if constexpr (std::is_same_v<E, fold::BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}

/// -inf for every score of a key that its row does not see. `key` is that of this thread's first column.
template <class C>
__device__ __forceinline__ void hide(const AttentionCut& cut, const AttentionWork& w, AttentionRows<C>& rows, int row,
                                     int key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int low = first_key(cut, w, row + 8 * r) - key, high = last_key(cut, w, row + 8 * r) - key;
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i)
      if (i / 2 * 8 + i % 2 >= high) rows.scores[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
    if (low <= 0) continue;
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i)
      if (i / 2 * 8 + i % 2 < low) rows.scores[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
  }
}

/// Scores to tanh(scores * scale / cap) within 2e-7: a polynomial near 0, else 1 - 2 / (e^2x + 1). Which formula an
/// element gets is its own affair; a warp without large ones skips the dearer.
template <class C>
__device__ __forceinline__ void soft_cap(const SoftCap& cap, AttentionRows<C>& rows) {
  const auto near = [&](float s) {
    const float square = s * s;
    return s * __fmaf_rn(__fmaf_rn(__fmaf_rn(cap.c7, square, cap.c5), square, cap.c3), square, cap.c1);
  };
  const auto far = [&](float s) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(exp2_fast(s * cap.c1 * 2.88539008F) + 1.F));
    return __fmaf_rn(-2.F, inverse, 1.F);
  };
  float largest[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < C::kKeys / 2; ++i) largest[i % 4] = fmaxf(largest[i % 4], fabsf(rows.scores[i]));
  if (__any_sync(~0U, fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])) > cap.near)) {
#pragma unroll
    for (float& s : rows.scores) s = fabsf(s) > cap.near ? far(s) : near(s);
  } else {
#pragma unroll
    for (float& s : rows.scores) s = near(s);
  }
}

/// Terms 2^(score * scale + shift), and their sums over this thread's columns. Packed, or, where registers are short,
/// in place of the scores.
template <class C>
__device__ __forceinline__ void make_terms(AttentionRows<C>& rows, const float (&scale)[2], const float (&shift)[2],
                                           typename AttentionRows<C>::Terms& terms, float (&sum)[2]) {
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i) {
    const int r = i % 2;
    const float low = exp2_fast(__fmaf_rn(rows.scores[2 * i], scale[r], shift[r])),
                high = exp2_fast(__fmaf_rn(rows.scores[2 * i + 1], scale[r], shift[r]));
    sum[r] += low;
    sum[r] += high;
    if constexpr (C::kKeepsScores) {
      terms[i] = pack_two<typename C::E>(low, high);
    } else {
      rows.scores[2 * i] = low, rows.scores[2 * i + 1] = high;
    }
  }
}

template <class C>
__device__ __forceinline__ void pack(const AttentionRows<C>& rows, typename AttentionRows<C>::Terms& terms) {
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i) terms[i] = pack_two<typename C::E>(rows.scores[2 * i], rows.scores[2 * i + 1]);
}

/// The largest of this thread's scores of row r; four chains: one would wait for each of its links.
template <class C>
__device__ __forceinline__ float largest_score(const AttentionRows<C>& rows, int r) {
  float tops[4];
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i) {
    const float score = rows.scores[4 * (i / 2) + 2 * r + i % 2];
    tops[i % 4] = i < 4 ? score : fmaxf(tops[i % 4], score);
  }
  return fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
}

/// Scores to terms with new shifts for the rows of which some thread `wants` one; true if some row of the warp has one.
template <class C>
__device__ __forceinline__ bool shift_anew(float scale, AttentionRows<C>& rows, const bool (&wants)[2],
                                           typename AttentionRows<C>::Terms& terms) {
  float scales[2] = {scale, scale}, shift[2], sum[2], top[2] = {largest_score<C>(rows, 0), largest_score<C>(rows, 1)};
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
    for (float& t : top) t = fmaxf(t, __shfl_xor_sync(~0U, t, distance));
  bool moved = false, huge = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool wanted = __ballot_sync(~0U, wants[r]) >> (threadIdx.x & 28) & 15;
    const float m = wanted ? fmaxf(rows.m[r], rintf(top[r] * scale)) : rows.m[r];
    moved |= m > rows.m[r];
    rows.factor[r] = power_of_two(rows.m[r] - m);
    rows.m[r] = m;
    shift[r] = m == -INFINITY ? 0.F : -m;
    huge |= fabsf(shift[r]) > kExactShift;
  }
  // m is rint of a rounded product. Where that is coarser than 1, the terms' exponents are of rounded products too.
  if (__any_sync(~0U, huge)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (fabsf(shift[r]) > kExactShift) scales[r] = 1;
#pragma unroll
      for (int i = r; i < C::kKeys / 4; i += 2)
        if (scales[r] != scale) rows.scores[2 * i] *= scale, rows.scores[2 * i + 1] *= scale;
    }
  }
  make_terms<C>(rows, scales, shift, terms, sum);
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.d[r] = __fmaf_rn(rows.d[r], rows.factor[r], sum[r]);
  return __any_sync(~0U, moved);
}

/// What is added to exponents while a row keeps its shift; infinity, which makes every sum too large, for a row that
/// has none yet or one of too few digits.
template <class C>
__device__ __forceinline__ void kept_shift(const AttentionRows<C>& rows, float (&shift)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) shift[r] = fabsf(rows.m[r]) <= kExactShift ? -rows.m[r] : INFINITY;
}

/// Whether all rows of the warp may keep their shifts, and which of this thread's want another. While nothing over- or
/// underflows another shift changes no bit of a row's result, so a row keeps the one of its first block until a sum of
/// terms grows large: no maximum is looked for. A comparison with NaN says no, too.
__device__ __forceinline__ bool keeps_shift(const float (&sum)[2], bool (&wants)[2]) {
  constexpr float kLargestSum = 0x1p15F;  // below float16's largest
#pragma unroll
  for (int r = 0; r < 2; ++r) wants[r] = !(sum[r] < kLargestSum);
  return !__any_sync(~0U, wants[0] || wants[1]);
}

/// Scores to terms; true if some row of the warp has a new shift.
template <class C>
__device__ __forceinline__ bool exponentiate(float scale, AttentionRows<C>& rows, bool fresh,
                                             typename AttentionRows<C>::Terms& terms) {
  bool wants[2] = {true, true};
  if (C::kKeepsScores && !fresh) {
    const float scales[2] = {scale, scale};
    float shift[2], sum[2];
    kept_shift<C>(rows, shift);
    make_terms<C>(rows, scales, shift, terms, sum);
    if (keeps_shift(sum, wants)) {
      rows.d[0] += sum[0], rows.d[1] += sum[1];
      return false;
    }
  }
  return shift_anew<C>(scale, rows, wants, terms);
}

template <class C>
__device__ __forceinline__ void issue_scores(AttentionRows<C>& rows, unsigned q, unsigned k) {
  const std::uint64_t a = tile_descriptor(q, 0), b = tile_descriptor(k, 0);
#pragma unroll
  for (int i = 0; i < C::kDk / 16; ++i)
    Product<typename C::E, C::kKeys / 2>::multiply(rows.scores, a + ((i / 4 * C::kQPanel + i % 4 * 32) >> 4),
                                                   b + ((i / 4 * C::kKVPanel + i % 4 * 32) >> 4), i > 0);
}

template <class C>
__device__ __forceinline__ void issue_out(AttentionRows<C>& rows, const typename AttentionRows<C>::Terms& terms,
                                          unsigned v) {
  const std::uint64_t b = tile_descriptor(v, C::kKVPanel);
#pragma unroll
  for (int i = 0; i < C::kKeys / 16; ++i)
    Product<typename C::E, C::kDv / 2>::multiply_add(rows.out, terms + 4 * i, b + (i * 2048 >> 4));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
