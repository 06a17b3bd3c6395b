// A chunk of a row across the lanes of a warp, for use inside anyone's own kernel: the canonical tree's bits.
//
// A group of kLanes neighbouring lanes holds up to kLanes * 32 elements, 32 a lane, as kPerLane / kWidth vectors of
// kWidth neighbours: lane g, vector j, component k is slot kWidth * (g + kLanes * j) + k. Two facts make this fast:
// * Every stride of the tree above kWidth pairs equal components of two vectors, so it is an addition inside a lane or
//   one exchange between two lanes.
// * The tree pairs residue classes (i with i + 512 modulo 1024, ...), so it does not change when all slots are rotated.
//   A row that begins inside a 16-byte vector is read with aligned vectors: slot (i + shift) modulo the group's size
//   holds element i.
#pragma once

#include "softfold/fold/entropy.hpp"
#include "softfold/lift/nodes.cuh"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace lift {

inline constexpr int kPerLane = 32;

/// What stands in a slot that holds no element. `c` is never 0 here: see WarpFold.
SOFTFOLD_HD float absent(float c) { return c < 0.F ? fold::infinity<float>() : -fold::infinity<float>(); }

/// Which lanes of its warp are of the thread's group of kLanes, a bit each.
template <int kLanes>
__device__ __forceinline__ unsigned lanes_of_group() {
  return (kWholeWarp >> (32 - kLanes)) << (threadIdx.x % 32 / kLanes * kLanes);
}

/// The smallest and the largest of some elements; both NaN if one of them is.
struct Extremes {
  float low, high;
};

__device__ __forceinline__ float least(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float most(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

template <int kCount>
__device__ __forceinline__ Extremes extremes_of(const float (&v)[kCount]) {
  Extremes e{v[0], v[0]};
#pragma unroll
  for (int i = 1; i < kCount; ++i) e = {least(e.low, v[i]), most(e.high, v[i])};
  return e;
}

/// Adds over the lanes of a group and over the kWidth components that each holds, in the tree's order; every lane of
/// the group gets the sum. The first exchanges hand over half of the components instead of all of them.
template <int kWidth, int kLanes, class T>
__device__ __forceinline__ T add_across(T (&s)[kWidth]) {
  using S = fold::Scalar<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int count = kWidth;
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    if (count > 1) {
      const bool upper = (lane & distance) != 0;
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        if (i >= count / 2) continue;
        const T give = upper ? s[i] : s[i + count / 2];
        const T keep = upper ? s[i + count / 2] : s[i];
        s[i] = S::add(keep, __shfl_xor_sync(kWholeWarp, give, distance));
      }
      count /= 2;
    } else {
      s[0] = S::add(s[0], __shfl_xor_sync(kWholeWarp, s[0], distance));
    }
  }
  // What is left are the strides below kWidth: those whose components went to other lanes, then those still here.
#pragma unroll
  for (int distance = kLanes / 2, stride = kWidth / 2; distance > 0 && stride > 0; distance /= 2, stride /= 2) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (i < count) s[i] = S::add(s[i], __shfl_xor_sync(kWholeWarp, s[i], distance));
  }
  if constexpr (kWidth > kLanes) {
#pragma unroll
    for (int stride = kWidth / kLanes / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        if (i < stride) s[i] = S::add(s[i], s[i + stride]);
    }
  }
  return s[0];
}

/// The whole tree over a group's slots, given as a function of (vector, component). Vectors that a tree of a power of
/// two of them would have beyond kCount hold nothing.
template <int kWidth, int kLanes, class T, int kCount = kPerLane, class At>
__device__ __forceinline__ T add_tree(const At& at) {
  constexpr int kVectors = kCount / kWidth;
  T s[kWidth];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    T column[kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) column[j] = at(j, k);
#pragma unroll
    for (int stride = static_cast<int>(std::bit_ceil(static_cast<unsigned>(kVectors))) / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        if (j < stride && j + stride < kVectors) column[j] = fold::Scalar<T>::add(column[j], column[j + stride]);
    }
    s[k] = column[0];
  }
  return add_across<kWidth, kLanes>(s);
}

/// Terms 2^t of elements in the even frame s = m or m - 1 of a fast frame m, by an addition to the exponent instead of
/// a conversion. kMagic - s has the parity of kMagic, so the rounding of n is the one of the definition, and the low
/// bits of z are n - s, ready to be shifted.
struct FrameTerms {
  using S = fold::Scalar<float>;
  float c, magic, lowest;
  float unit;  ///< terms times unit are in the frame m; 1/2 or 1

  /// m: a fast frame; of others the terms are nothing.
  __device__ __forceinline__ FrameTerms(float c_, float m) : c(c_) {
    const int even = static_cast<int>(m) & ~1;
    magic = S::sub(fold::Real<float>::kMagic, static_cast<float>(even));
    lowest = S::add(S::add(magic, m), fold::Real<float>::kFlush);
    unit = static_cast<float>(even) == m ? 1.F : 0.5F;
  }
  /// In an even frame s: magic is kMagic - s, unit 1.
  static __device__ __forceinline__ FrameTerms in_even_frame(float c, float magic) {
    return {c, magic, fold::Real<float>::kMagic + fold::Real<float>::kFlush, 1.F};
  }
  /// kFlush: what lies too far below the frame, and an absent element, is 0; without it no element may.
  template <bool kFlush>
  __device__ __forceinline__ float term(float x) const {
    const float z = S::fma(x, c, magic);
    const float n = S::sub(z, magic);
    const float p = fold::exp2_fraction<S>(S::fma(x, c, -n));
    const float t = __int_as_float(__float_as_int(p) + (__float_as_int(z) << 23));
    return kFlush && !(z >= lowest) ? 0.F : t;
  }
  /// Half of it, and 0 of -inf, for c > 0: there the polynomial is NaN, of which saturation makes 0, and z's low bits
  /// are 0. Halves of all coefficients make halves of all that is rounded in between.
  __device__ __forceinline__ float half_term(float x) const {
    struct Halves : S {
      static __device__ __forceinline__ float set(double a) { return S::set(a) * 0.5F; }
    };
    const float z = S::fma(x, c, magic);
    const float f = S::fma(x, c, -S::sub(z, magic));
    float p;
    asm("fma.rn.sat.f32 %0, %1, %2, 0f3F000000;" : "=f"(p) : "f"(fold::exp2_slope<Halves>(f)), "f"(f));
    return __int_as_float(__float_as_int(p) + (__float_as_int(z) << 23));
  }

 private:
  __device__ __forceinline__ FrameTerms(float c_, float magic_, float lowest_, float unit_)
      : c(c_), magic(magic_), lowest(lowest_), unit(unit_) {}
};

/// The log-sum-exp of a chunk held by a group of lanes. kWidth is the vector's width (4 for float, 8 for 16 bit),
/// kLanes a power of two. All lanes of the warp call it together, whether or not their group has a row.
///
/// Slots without an element hold absent(c). A scale of 0 is the caller's to resolve: multiply the elements by 0 and
/// use c = 1 (lift::Factor does). Who brings extremes that leave such slots out says where they begin: from a lane's
/// kFull-th slot on they may be anywhere.
template <int kWidth, int kLanes = 32, int kCount = kPerLane, int kFull = kCount>
struct WarpFold {
  using Lse = fold::LogSumExp<float>;
  using S = fold::Scalar<float>;
  static constexpr int kVectors = kCount / kWidth;
  static constexpr int kElements = kCount * kLanes;
  /// Groups that hold a whole chunk each are chunks of one row: they share a frame where it makes no difference.
  static constexpr bool kOneRow = kLanes < 32 && kElements == kChunk;

  struct Folded {
    Lse::State state;
    float unit;  ///< terms times unit are in the frame state.m; 1/2 or 1
    bool dense;  ///< every element's term is at least 2^-62
    Node node;   ///< the state again
  };

  /// The state of v; v becomes the terms. Who knows the extremes of the lane's own elements already brings them.
  static __device__ __forceinline__ Folded terms(float (&v)[kCount], float c) { return terms(v, c, extremes_of(v)); }
  static __device__ __forceinline__ Folded terms(float (&v)[kCount], float c, Extremes own) {
    return fold<Left::terms>(v, c, own);
  }
  /// The state of v; v becomes what fold::EntropySum adds up, whose sum times unit is in the frame state.m.
  static __device__ __forceinline__ Folded depths(float (&v)[kCount], float c, Extremes own) {
    return fold<Left::depths>(v, c, own);
  }
  /// The state of v; v stays.
  static __device__ __forceinline__ Folded reduce(float (&v)[kCount], float c) { return reduce(v, c, extremes_of(v)); }
  static __device__ __forceinline__ Folded reduce(float (&v)[kCount], float c, Extremes own) {
    return fold<Left::elements>(v, c, own);
  }

  /// The sum of v's terms in a frame that holds them; v becomes the terms. kFlush: what lies too far below the frame,
  /// and an absent element, is 0.
  template <bool kFlush>
  static __device__ __forceinline__ float terms_in(const FrameTerms& frame, float (&v)[kCount]) {
    return add_tree<kWidth, kLanes, float, kCount>([&](int j, int k) {
      float& at = v[j * kWidth + k];
      return at = frame.term<kFlush>(at);
    });
  }

  /// Over the lanes of a group.
  static __device__ __forceinline__ int largest(int a) {
    if constexpr (kLanes == 32) {
      return __reduce_max_sync(kWholeWarp, a);
    } else {
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) a = max(a, __shfl_xor_sync(kWholeWarp, a, distance));
      return a;
    }
  }
  static __device__ __forceinline__ int smallest(int a) {
    if constexpr (kLanes == 32) {
      return __reduce_min_sync(kWholeWarp, a);
    } else {
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) a = min(a, __shfl_xor_sync(kWholeWarp, a, distance));
      return a;
    }
  }

 private:
  /// What v holds afterwards.
  enum class Left { elements, terms, depths };
  /// That of an element.
  template <Left kLeft, bool kFlush>
  static __device__ __forceinline__ float left(float x, float term, float c, float above) {
    if (kLeft == Left::elements) return x;
    if (kLeft == Left::terms) return term;
    const float depth = S::fma(x, -c, above);
    return S::mul(term, kFlush ? fminf(depth, fold::EntropySum<float>::kDeepest) : depth);
  }

  /// The frame and its range come from the extremes: z = x*c + kMagic, rounded, is monotone in x, and n = z - kMagic.
  /// Positive floats order as integers do, NaN and +inf lie above all of them, and negative ones are far below the fast
  /// range, so integer maxima serve.
  template <Left kLeft>
  static __device__ __forceinline__ Folded fold(float (&v)[kCount], float c, Extremes own) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    const int high = __float_as_int(S::fma(c > 0.F ? own.high : own.low, c, kMagic));
    const int low = __float_as_int(S::fma(c > 0.F ? own.low : own.high, c, kMagic));
    const bool has_none = (c > 0.F ? own.high : own.low) == absent(c);
    if constexpr (kOneRow) {
      const float top = __int_as_float(__reduce_max_sync(kWholeWarp, high));
      const float bottom = __int_as_float(__reduce_min_sync(kWholeWarp, low));
      if (is_fast(top) && bottom >= top - 60.F) return fold_fast<kLeft, false>(v, c, top);
      return fold_sparse<kLeft>(v, c, __int_as_float(largest(high)), has_none);
    } else {
      const float top = __int_as_float(largest(high));
      const float bottom = __int_as_float(smallest(low));
      if (__all_sync(kWholeWarp, is_fast(top) && bottom >= top - 60.F)) return fold_fast<kLeft, false>(v, c, top);
      return fold_sparse<kLeft>(v, c, top, has_none);
    }
  }
  static __device__ __forceinline__ bool is_fast(float top) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    return top >= kMagic + fold::Real<float>::kFastLowest && top <= kMagic + fold::Real<float>::kFastHighest;
  }

  /// Each group in its own frame, with elements that may be far below it, or in none at all: has_none of all its lanes.
  template <Left kLeft>
  static __device__ __forceinline__ Folded fold_sparse(float (&v)[kCount], float c, float top, bool has_none) {
    const unsigned nones = __ballot_sync(kWholeWarp, has_none) >> (threadIdx.x % 32 / kLanes * kLanes);
    const bool none = (~nones & (kWholeWarp >> (32 - kLanes))) == 0;
    if (!__all_sync(kWholeWarp, none || is_fast(top))) return fold_wide<kLeft>(v, c);
    Folded r = fold_fast<kLeft, true>(v, c, none ? fold::Real<float>::kMagic : top);
    if (none) r.state = Lse::identity(), r.node = {kNone, 0.F};
    return r;
  }

  template <Left kLeft, bool kFlush>
  static __device__ __forceinline__ Folded fold_fast(float (&v)[kCount], float c, float top) {
    const float m = S::sub(top, fold::Real<float>::kMagic);
    const FrameTerms terms(c, m);
    const float above = S::add(m, 1.F);
    const float d = add_tree<kWidth, kLanes, float, kCount>([&](int j, int k) {
      float& at = v[j * kWidth + k];
      const bool flush = kFlush || j * kWidth + k >= kFull;
      const float t = flush ? terms.term<true>(at) : terms.term<false>(at);
      at = flush ? left<kLeft, true>(at, t, c, above) : left<kLeft, false>(at, t, c, above);
      return t;
    });
    const float sum = S::mul(d, terms.unit);
    return {{static_cast<double>(m), sum}, terms.unit, !kFlush, {__float_as_int(top), sum}};
  }

  /// NaN, infinities, empty chunks and frames outside the fast range: by the definition, an element at a time. The
  /// loop turns the register array by one place a step, which keeps it in registers without unrolling the body.
  template <Left kLeft>
  static __device__ __forceinline__ Folded fold_wide(float (&v)[kCount], float c) {
    ChunkSpecials found;
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      found.look(v[0], c);
      turn(v, v[0]);
    }
    found.template share<kLanes>(c);
    const auto frame = Lse::frame(found.extreme, c);
    float saved[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) saved[i] = v[i];
#pragma unroll 1
    for (int i = 0; i < kCount; ++i)
      turn(v, frame.fast ? fold::term<S>(v[0], c, Lse::narrow(frame.m)) : fold::term_wide(v[0], c, frame.m));
    const float d = add_tree<kWidth, kLanes, float, kCount>([&](int j, int k) { return v[j * kWidth + k]; });
    if (kLeft == Left::depths) {
#pragma unroll 1
      for (int i = 0; i < kCount; ++i) {
        const float leaf = fold::EntropySum<float>::leaf(v[0], saved[0], c, frame.m);
        turn(v, leaf), turn(saved, 0.F);
      }
    } else if (kLeft == Left::elements) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = saved[i];
    }
    if (found.nan) return {Lse::not_a_number(), 1.F, false, {kFar, 0.F}};
    if (found.plus) return {Lse::plus_infinity(), 1.F, false, {kFar, 0.F}};
    if (!found.any) return {Lse::identity(), 1.F, false, {kNone, 0.F}};
    return {{frame.m, d}, 1.F, false, node_of({frame.m, d})};
  }

  static __device__ __forceinline__ void turn(float (&v)[kCount], float last) {
#pragma unroll
    for (int i = 0; i + 1 < kCount; ++i) v[i] = v[i + 1];
    v[kCount - 1] = last;
  }

  /// lift::ChunkScan across a group of lanes.
  struct ChunkSpecials {
    float extreme = 0.F;
    bool any = false, nan = false, plus = false;

    __device__ __forceinline__ void look(float x, float c) {
      if (fold::is_nan(x)) {
        nan = true;
      } else if (fabsf(x) == fold::infinity<float>()) {
        if ((x > 0.F) == (c > 0.F)) plus = true;
      } else if (!any || (c < 0.F ? x < extreme : x > extreme)) {
        extreme = x;
        any = true;
      }
    }
    template <int kGroup>
    __device__ __forceinline__ void share(float c) {
#pragma unroll
      for (int distance = kGroup / 2; distance > 0; distance /= 2) {
        const int other = __shfl_xor_sync(kWholeWarp, (nan ? 1 : 0) | (plus ? 2 : 0) | (any ? 4 : 0), distance);
        const float far = __shfl_xor_sync(kWholeWarp, extreme, distance);
        nan |= (other & 1) != 0;
        plus |= (other & 2) != 0;
        if ((other & 4) != 0 && (!any || (c < 0.F ? far < extreme : far > extreme))) extreme = far;
        any |= (other & 4) != 0;
      }
    }
  };
};

/// The scale as the kernels apply it. A scale of 0 makes every finite element 0 and every other one NaN, which x * 0
/// does; a scale that is not finite makes the row NaN.
struct Factor {
  float c;      ///< finite, not 0
  float times;  ///< what the elements are multiplied by first, unless `plain`
  bool plain;

  SOFTFOLD_HD explicit Factor(float c_) : c(c_), times(1.F), plain(c_ != 0.F && ::fabs(c_) < fold::infinity<float>()) {
    if (plain) return;
    c = 1.F;
    times = c_ == 0.F ? 0.F : fold::canonical_nan<float>();
  }
};

}  // namespace lift
}  // namespace v0
}  // namespace softfold
