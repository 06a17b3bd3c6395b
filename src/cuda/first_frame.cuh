// Rows in the frame that their first element gives: no maximum to wait for, and no tree of nodes, only sums.
#pragma once

#include "cuda/reciprocal.cuh"
#include "cuda/vector_masks.cuh"

#include <type_traits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// 16 bytes of shared memory that nobody writes any more.
__device__ __forceinline__ uint4 shared_vector(unsigned at) {
  uint4 r;
  asm("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(at));
  return r;
}

/// A value that is found where it is written down, not again behind each predicate that guards its use.
template <class T>
__device__ __forceinline__ T settled(T a) {
  if constexpr (sizeof(T) == 8) {
    asm("" : "+l"(a));
  } else {
    asm("" : "+r"(a));
  }
  return a;
}

/// The extremes of vectors, one after another; both NaN if an element is.
template <class E>
class VectorExtremes {
 public:
  /// Of `first` alone, an element in all places of a word.
  __device__ __forceinline__ explicit VectorExtremes(unsigned first) : low_(word(first)), high_(low_) {}
  __device__ __forceinline__ void see(const uint4& raw) { see(raw.x), see(raw.y), see(raw.z), see(raw.w); }
  __device__ __forceinline__ lift::Extremes all() const {
    if constexpr (sizeof(E) == 4) {
      return {low_, high_};
    } else {
      return {static_cast<float>(__hmin_nan(low_.x, low_.y)), static_cast<float>(__hmax_nan(high_.x, high_.y))};
    }
  }

 private:
  using Word = std::conditional_t<sizeof(E) == 4, float,
                                  std::conditional_t<std::is_same_v<E, fold::Float16>, __half2, __nv_bfloat162>>;
  static __device__ __forceinline__ Word word(unsigned bits) { return *reinterpret_cast<const Word*>(&bits); }
  __device__ __forceinline__ void see(unsigned bits) {
    if constexpr (sizeof(E) == 4) {
      low_ = lift::least(low_, word(bits)), high_ = lift::most(high_, word(bits));
    } else {
      low_ = __hmin2_nan(low_, word(bits)), high_ = __hmax2_nan(high_, word(bits));
    }
  }
  Word low_, high_;
};

/// The frame that a row's first element gives.
template <class E>
struct FirstFrame {
  using S = fold::Scalar<float>;
  /// |t - s| of all elements t in the frame s up to which no term, sum or probability leaves the normal numbers: 112
  /// binades between terms and 11 more for a sum make 2^-123 the least probability.
  static constexpr float kFarthest = 56.F;
  static constexpr float kLargest = 0x1p21F;  ///< frame: within it the split of every such t is exact

  unsigned filler;  ///< the first element, in all places of a word
  float c, s;

  __device__ __forceinline__ FirstFrame(unsigned first_word, float c_) : filler(first_word), c(c_) {
    if (sizeof(E) == 2) filler = __byte_perm(first_word, 0, 0x1010);
    float first[16 / sizeof(E)];
    Packed<E>::unpack({filler, filler, filler, filler}, first);
    constexpr float kMagic = fold::Real<float>::kMagic;
    s = S::sub(__int_as_float(__float_as_int(S::fma(first[0], c, kMagic)) & ~1), kMagic);
  }
  __device__ __forceinline__ lift::FrameTerms terms() const {
    return lift::FrameTerms::in_even_frame(c, S::sub(fold::Real<float>::kMagic, s));
  }
  /// Leaves the bits of a vector that the mask has; the others become the first element's.
  __device__ __forceinline__ void fill(uint4& raw, const uint4& mask) const {
    raw = chosen(mask, raw, {filler, filler, filler, filler});
  }
  __device__ __forceinline__ bool holds(const lift::Extremes& e) const {
    const float far = lift::most(fabsf(S::fma(e.high, c, -s)), fabsf(S::fma(e.low, c, -s)));
    return (far <= kFarthest) & (fabsf(s) <= kLargest);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
