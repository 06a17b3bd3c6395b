// Tiles of rows of which a mask, and perhaps a length, hides something: which slots hold an element is found four
// at a time, and hidden slots are left out of the extremes and of the sum instead of holding -inf, which would make
// every chunk a sparse one.
#pragma once

#include "cuda/rows.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The highest bit of every byte that is not 0.
__device__ __forceinline__ unsigned flags_of(unsigned bytes) {
  return (((bytes & 0x7F7F7F7FU) + 0x7F7F7F7FU) | bytes) & 0x80808080U;
}
/// A byte whose highest bit is set for each of the lowest four bits.
__device__ __forceinline__ unsigned flags_of_bits(unsigned bits) { return (bits & 0xFU) * 0x10204080U & 0x80808080U; }
/// Bytes of all ones or zeros by flags' highest bits, in the order of the selector's digits less 8.
template <unsigned kSelector>
__device__ __forceinline__ unsigned spread(unsigned flags) {
  unsigned r;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(flags), "n"(kSelector));
  return r;
}

/// Bytes of a mask, of the elements of one vector of E.
template <class E>
using MaskBytes = std::conditional_t<sizeof(E) == 2, uint2, unsigned>;

/// All bits of the elements of a vector whose bytes have their highest bit.
template <class E>
__device__ __forceinline__ uint4 shown_by_flags(const MaskBytes<E>& flags) {
  if constexpr (sizeof(E) == 2) {
    return {spread<0x9988>(flags.x), spread<0xBBAA>(flags.x), spread<0x9988>(flags.y), spread<0xBBAA>(flags.y)};
  } else {
    return {spread<0x8888>(flags), spread<0x9999>(flags), spread<0xAAAA>(flags), spread<0xBBBB>(flags)};
  }
}
/// The same of those whose bytes are not 0.
template <class E>
__device__ __forceinline__ uint4 shown_by(const MaskBytes<E>& bytes) {
  if constexpr (sizeof(E) == 2) {
    return shown_by_flags<E>({flags_of(bytes.x), flags_of(bytes.y)});
  } else {
    return shown_by_flags<E>(flags_of(bytes));
  }
}
/// The first `count` bytes of `first`, the others of `rest`.
__device__ __forceinline__ uint2 joined_bytes(const uint2& first, const uint2& rest, int count) {
  const std::uint64_t those = (std::uint64_t{1} << 8 * count) - 1U;
  const auto low = static_cast<unsigned>(those), high = static_cast<unsigned>(those >> 32);
  return {(first.x & low) | (rest.x & ~low), (first.y & high) | (rest.y & ~high)};
}
__device__ __forceinline__ unsigned joined_bytes(unsigned first, unsigned rest, int count) {
  const unsigned those = (1U << 8 * count) - 1U;
  return (first & those) | (rest & ~those);
}

/// A bit a slot of a lane, from the lowest: slots whose bit is 0 may hold anything.
template <int kCount>
struct Present {
  unsigned words[(kCount + 31) / 32];
  __device__ __forceinline__ bool operator()(int i) const { return (words[i / 32] & (1U << i % 32)) != 0; }
};

/// lift::WarpFold of the slots that are present. kReduce: v stays, and becomes lift::absent where nothing is; else it
/// becomes the terms, 0 where nothing is.
template <class Fold, bool kReduce, int kLanes, int kCount>
struct MaskedFold {
  using S = fold::Scalar<float>;
  using Folded = typename Fold::Folded;
  using Lse = fold::LogSumExp<float>;
  static constexpr int kWidth = kCount / Fold::kVectors;

  /// Between which z a group's elements lie.
  struct Range {
    float top;        ///< kMagic where there are none
    bool none, near;  ///< there are none; they are so near each other that no term is nothing
  };
  /// own: the extremes of what is present, +inf and -inf where nothing is.
  static __device__ __forceinline__ Range range(float c, lift::Extremes own) {
    constexpr float kMagic = fold::Real<float>::kMagic;
    // As integers positive floats order by value, and what is negative or NaN is not in the fast range: see WarpFold.
    const float top = __int_as_float(Fold::largest(__float_as_int(S::fma(c > 0.F ? own.high : own.low, c, kMagic))));
    const float bottom =
        __int_as_float(Fold::smallest(__float_as_int(S::fma(c > 0.F ? own.low : own.high, c, kMagic))));
    const bool fast = top >= kMagic + fold::Real<float>::kFastLowest && top <= kMagic + fold::Real<float>::kFastHighest;
    const bool none = top == -fold::infinity<float>() && bottom == fold::infinity<float>();
    return {none ? kMagic : top, none, fast && bottom >= top - 60.F};
  }
  /// own: as above.
  static __device__ __forceinline__ Folded fold(float (&v)[kCount], float c, lift::Extremes own,
                                                const Present<kCount>& present) {
    const Range all = range(c, own);
    if (__all_sync(lift::kWholeWarp, all.none || all.near)) return fold_dense(v, c, all.top, all.none, present);
    hide(v, c, present);
    return kReduce ? Fold::reduce(v, c) : Fold::terms(v, c);
  }

 private:
  static __device__ __forceinline__ void hide(float (&v)[kCount], float c, const Present<kCount>& present) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (!present(i)) v[i] = lift::absent(c);
  }
  static __device__ __forceinline__ Folded fold_dense(float (&v)[kCount], float c, float top, bool none,
                                                      const Present<kCount>& present) {
    const float m = S::sub(top, fold::Real<float>::kMagic);
    const lift::FrameTerms terms(c, m);
    const float d = lift::add_tree<kWidth, kLanes, float, kCount>([&](int j, int k) {
      const int i = j * kWidth + k;
      const float t = terms.term<false>(v[i]), there = present(i) ? t : 0.F;
      if (!kReduce) v[i] = there;
      return there;
    });
    if (kReduce) hide(v, c, present);
    if (none) return {Lse::identity(), 1.F, true, {lift::kNone, 0.F}};
    const float sum = S::mul(d, terms.unit);
    return {{static_cast<double>(m), sum}, terms.unit, true, {__float_as_int(top), sum}};
  }
};

/// A tile's elements, times the factor where it is not plain, and the state of the group's. extremes(): of what is
/// present. kLog: v stays.
template <class Fold, bool kLog, int kLanes, int kCount, class OfExtremes>
__device__ __forceinline__ typename Fold::Folded fold_present(float (&v)[kCount], const lift::Factor& factor,
                                                              const Present<kCount>& present,
                                                              const OfExtremes& extremes) {
  // Rows of a warp may have scales of their own: all lanes go one way.
  if (__all_sync(lift::kWholeWarp, factor.plain))
    return MaskedFold<Fold, kLog, kLanes, kCount>::fold(v, factor.c, extremes(), present);
  const float missing = lift::absent(factor.c), times = factor.plain ? 1.F : factor.times;
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = present(i) ? v[i] * times : missing;
  return kLog ? Fold::reduce(v, factor.c) : Fold::terms(v, factor.c);
}

/// A tile's elements as they lie in memory, and the flags of those that exist.
template <class E, int kLanes, int kCount>
struct MaskedTile : Tile<E, kLanes, kCount> {
  using Base = Tile<E, kLanes, kCount>;
  using Base::kSlots, Base::kVectors, Base::kWidth;
  static constexpr int kWords = kWidth / 4;  ///< of flags, a vector

  uint4 raw[kVectors];
  unsigned flags[kVectors * kWords];

  using Base::Base;

  /// Of a row of n elements from x on, those in front of `length` that the mask shows.
  __device__ __forceinline__ void load(const char* x, const char* mask, std::int64_t mask_stride, int length, int n) {
    const E* e = reinterpret_cast<const E*>(x);
    // A vector's mask bytes lie as its elements do: side by side, and in one aligned word or two.
    const bool words =
        mask_stride == 1 && (reinterpret_cast<std::uintptr_t>(mask) - static_cast<unsigned>(this->shift)) % kWidth == 0;
    if (words && this->shift == 0 && length == kSlots) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) raw[j] = reinterpret_cast<const uint4*>(e)[this->lane + kLanes * j];
#pragma unroll
      for (int j = 0; j < kVectors; ++j) load_flags(j, mask);
      return;
    }
    // A vector of the row is read whole even where the length ends inside it.
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      raw[j] = uint4{};
      if (is_whole(j, length, n)) raw[j] = *reinterpret_cast<const uint4*>(e + this->first_of(j));
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      set_flags(j, 0U);
      if (words && is_whole(j, length, n)) {
        load_flags(j, mask);
        const int there = length - this->first_of(j);
        if (there < kWidth) cut_flags(j, there);
      }
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (this->first_of(j) >= length || (words && is_whole(j, length, n))) continue;
      load_single(j, e, mask, mask_stride, length, !is_whole(j, length, n));
    }
  }

  /// The lane's elements, times the factor where it is not plain, and the state of the group's.
  template <class Fold, bool kLog>
  __device__ __forceinline__ typename Fold::Folded fold(float (&v)[kCount], const lift::Factor& factor) {
    Present<kCount> present{};
    gather_bits(present);
    const lift::Extremes own = extremes();
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    return fold_present<Fold, kLog, kLanes>(v, factor, present, [&] { return own; });
  }

 private:
  __device__ __forceinline__ bool is_whole(int j, int length, int n) const {
    return this->first_of(j) < length && Base::whole(this->first_of(j), n);
  }
  __device__ __forceinline__ void set_flags(int j, unsigned to) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) flags[j * kWords + w] = to;
  }
  /// The flags of vector j, whose mask bytes lie in words.
  __device__ __forceinline__ void load_flags(int j, const char* mask) {
    const char* at = mask + this->first_of(j);
    if constexpr (kWords == 1) {
      flags[j] = flags_of(*reinterpret_cast<const unsigned*>(at));
    } else {
      const uint2 bytes = *reinterpret_cast<const uint2*>(at);
      flags[2 * j] = flags_of(bytes.x), flags[2 * j + 1] = flags_of(bytes.y);
    }
  }
  /// Leaves the first `there` of vector j.
  __device__ __forceinline__ void cut_flags(int j, int there) {
    const unsigned bits = (1U << there) - 1U;
#pragma unroll
    for (int w = 0; w < kWords; ++w) flags[j * kWords + w] &= flags_of_bits(bits >> 4 * w);
  }
  /// Vector j an element at a time: its elements unless they are there already, and their flags.
  __device__ __forceinline__ void load_single(int j, const E* e, const char* mask, std::int64_t mask_stride, int length,
                                              bool elements) {
    E part[kWidth];
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const int i = this->element(j, k);
      part[k] = E{};
      if (i >= length) continue;
      if (elements) part[k] = e[i];
      if (mask[i * mask_stride] != 0) bits |= 1U << k;
    }
    if (elements) raw[j] = Packed<E>::join(part);
#pragma unroll
    for (int w = 0; w < kWords; ++w) flags[j * kWords + w] = flags_of_bits(bits >> 4 * w);
  }

  __device__ __forceinline__ void gather_bits(Present<kCount>& present) const {
#pragma unroll
    for (int i = kVectors * kWords - 1; i >= 0; --i) {
      // The product's four highest bits are the flags; no two of its other summands meet.
      unsigned& word = present.words[i / 8];
      word = __funnelshift_l(flags[i] * 0x00204081U, word, 4);
    }
  }

  __device__ __forceinline__ lift::Extremes extremes() const {
    if constexpr (sizeof(E) == 2) {
      using Pair = std::conditional_t<std::is_same_v<E, fold::BFloat16>, __nv_bfloat162, __half2>;
      constexpr unsigned kPlus = std::is_same_v<E, fold::BFloat16> ? 0x7F807F80U : 0x7C007C00U;
      constexpr unsigned kMinus = kPlus | 0x80008000U;
      const auto pair = [](const unsigned& word) { return *reinterpret_cast<const Pair*>(&word); };
      unsigned low_word = kPlus, high_word = kMinus;
      Pair low = pair(low_word), high = pair(high_word);
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const unsigned words[4] = {raw[j].x, raw[j].y, raw[j].z, raw[j].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const unsigned f = flags[2 * j + w / 2];
          const unsigned there = w % 2 == 0 ? spread<0x9988>(f) : spread<0xBBAA>(f);
          low_word = (words[w] & there) | (kPlus & ~there);
          high_word = (words[w] & there) | (kMinus & ~there);
          low = __hmin2_nan(low, pair(low_word)), high = __hmax2_nan(high, pair(high_word));
        }
      }
      return {static_cast<float>(__hmin_nan(low.x, low.y)), static_cast<float>(__hmax_nan(high.x, high.y))};
    } else {
      lift::Extremes e{fold::infinity<float>(), -fold::infinity<float>()};
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        float v[kWidth];
        Packed<E>::unpack(raw[j], v);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const bool there = (flags[j] & 0x80U << 8 * k) != 0;
          e.low = there ? lift::least(e.low, v[k]) : e.low;
          e.high = there ? lift::most(e.high, v[k]) : e.high;
        }
      }
      return e;
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
