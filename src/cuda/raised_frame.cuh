// Rows in a frame that their first element gives, or another, with elements of -inf, or as good as that, among them.
#pragma once

#include "cuda/first_frame.cuh"
#include "cuda/led_frame.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row's frame, from its first element (or some other). It holds a part of a row
/// of which all elements' n lie between kLowest and kHighest over it, and no two further apart than terms of one chunk
/// may be (fold::Real::kFlush): terms and sums are normal numbers then, and the canonical tree's bits. -inf, and what
/// else is lower than `floor`, is raised to that: terms so small that no sum with another of kSeen or more in it sees
/// them, and whose probabilities are 0 by definition, as are those of raised elements. (A warp of raised ones alone may
/// meet one whose sum lies below kSeen and which has none; the row's sum, in which the first element is, is the same
/// after the few levels of a tree over 16 chunks.)
template <class E>
struct RaisedFrame : LedFrame {
  static constexpr int kWidth = 16 / static_cast<int>(sizeof(E));
  static constexpr int kHighest = 108, kLowest = -100, kSeen = -56;
  static constexpr float kHidden = 118.F, kRounded = 6.F;  ///< how far `floor` is under the frame, and rounded

  unsigned filler, floor;  ///< elements in all places of a word: the one that gives the frame, and the floor
  bool has_floor;          ///< else it is -inf, and raises nothing

  __device__ __forceinline__ RaisedFrame(float first, float c_, float inverse) : LedFrame(first, c_) {
    filler = word_of(first);
    floor = word_of(S::mul(S::sub(s, kHidden), inverse));
    const float low = element(floor);
    has_floor = fabsf(S::fma(low, c, S::sub(kHidden, s))) <= kRounded;
    if (!has_floor) floor = word_of(-fold::infinity<float>());
  }
  __device__ __forceinline__ uint4 raised(const uint4& raw) const {
    return {raised(raw.x), raised(raw.y), raised(raw.z), raised(raw.w)};
  }
  /// The same, seen.
  __device__ __forceinline__ uint4 raised(const uint4& raw, VectorExtremes<E>& extremes) const {
    const uint4 r = raised(raw);
    extremes.see(r);
    return r;
  }
  __device__ __forceinline__ int n_of_floor() const { return n(element(floor)); }
  /// Whether AboveFloor can tell what lies above the floor.
  __device__ __forceinline__ bool has_negative_floor() const { return has_floor && element(floor) < 0.F; }
  /// How far a part reaches: the largest and the least n of its raised elements, of which each lane knows the extremes.
  struct Reach {
    int high, low;
  };
  __device__ __forceinline__ Reach reach(const lift::Extremes& e) const {
    return {__reduce_max_sync(lift::kWholeWarp, n(e.high)), __reduce_min_sync(lift::kWholeWarp, n(e.low))};
  }
  static __device__ __forceinline__ bool is_near(int high, int low) {
    return high - low <= -static_cast<int>(fold::Real<float>::kFlush);
  }
  /// Of raised vectors, one after another, the lowest element above the floor, which is negative. (Where it is not, as
  /// where a row's first element lies far above 0, its rows with raised ones are not held.)
  class AboveFloor {
   public:
    __device__ __forceinline__ explicit AboveFloor(const RaisedFrame& frame) : past_(0U - frame.floor) {
      if (sizeof(E) == 2) past_ = (0x10000U - (frame.floor & 0xFFFFU)) * 0x10001U;
    }
    // As unsigned integers negative numbers order by size; what is added makes 0 of the floor, which is above them.
    __device__ __forceinline__ void see(const uint4& raw) { see(raw.x), see(raw.y), see(raw.z), see(raw.w); }
    /// 0 if no negative number has been seen.
    __device__ __forceinline__ float lowest() const {
      if constexpr (sizeof(E) == 2) {
        const unsigned largest = max(most_ & 0xFFFFU, most_ >> 16), own = past_ & 0xFFFFU;
        return largest >= 0x8000U + own ? element((largest - own) & 0xFFFFU) : 0.F;
      } else {
        return most_ >= 0x80000000U + past_ ? element(most_ - past_) : 0.F;
      }
    }

   private:
    __device__ __forceinline__ void see(unsigned word) {
      if constexpr (sizeof(E) == 2) {
        most_ = __viaddmax_u16x2(word, past_, most_);
      } else {
        most_ = __viaddmax_u32(word, past_, most_);
      }
    }
    unsigned past_, most_ = 0;
  };

 private:
  static __device__ __forceinline__ unsigned word_of(float a) {
    E all[kWidth];
#pragma unroll
    for (E& e : all) e = Packed<E>::narrow(a);
    return Packed<E>::join(all).x;
  }
  static __device__ __forceinline__ float element(unsigned word) {
    float v[kWidth];
    Packed<E>::unpack({word, word, word, word}, v);
    return v[0];
  }
  __device__ __forceinline__ unsigned raised(unsigned word) const {
    if constexpr (sizeof(E) == 4) {
      return __float_as_uint(lift::most(__uint_as_float(word), __uint_as_float(floor)));
    } else {
      using Word = std::conditional_t<std::is_same_v<E, fold::Float16>, __half2, __nv_bfloat162>;
      const Word r = __hmax2_nan(*reinterpret_cast<const Word*>(&word), *reinterpret_cast<const Word*>(&floor));
      return *reinterpret_cast<const unsigned*>(&r);
    }
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
