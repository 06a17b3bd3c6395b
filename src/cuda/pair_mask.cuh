// A row's mask beside a row in shared memory, for a warp that folds chunks of it.
#pragma once

#include "cuda/chunk_part.cuh"
#include "cuda/masked_part.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A row's mask in shared memory: each vector's bytes lie together, as many of them as a vector has elements.
template <class E, bool kOnVectors>
class PairMask {
  using Part = ChunkPart<E, kOnVectors>;
  using Bytes = MaskBytes<E>;
  const char* at_;  ///< the bytes of the lane's first vector
  int lane_, shift_;
  int wrapping_;  ///< chunks of which something lies behind the last slot

 public:
  /// first: of the row's first element, of n, which is the shift-th of its vector.
  __device__ __forceinline__ PairMask(const char* first, int shift, int n)
      : at_(first - shift + Part::kWidth * lane_index()),
        lane_(lane_index()),
        shift_(shift),
        wrapping_(shift == 0 ? 0 : (shift + n - 1) / lift::kChunk) {}

  /// All bits of the elements that are shown, of a chunk's j-th vector.
  __device__ __forceinline__ uint4 shown(int chunk, int j) const {
    Bytes bytes = *of(chunk, j);
    if (!kOnVectors && j == 0 && chunk < wrapping_ && lane_ == 0)
      bytes = joined_bytes(*of(chunk, Part::kVectors), bytes, shift_);
    return shown_by<E>(bytes);
  }
  /// The first element that is shown, of n, else n. By all lanes of the warp.
  __device__ __forceinline__ int first_shown(int n) const {
    const char* first = first_byte();
    const auto skew = static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 4);
#pragma unroll 1
    for (int base = -skew; base < n; base += 128) {
      const int own = base + 4 * lane_;
      unsigned flags = own < n ? flags_of(*reinterpret_cast<const unsigned*>(first + own)) : 0U;
      if (own < 0) flags &= 0xFFFFFFFFU << 8 * -own;
      if (n - own < 4) flags &= (1U << 8 * max(n - own, 0)) - 1U;
      const unsigned some = __ballot_sync(lift::kWholeWarp, flags != 0);
      if (some == 0) continue;
      const int where = __ffs(static_cast<int>(some)) - 1;
      return base + 4 * where + (__ffs(static_cast<int>(__shfl_sync(lift::kWholeWarp, flags, where))) - 1) / 8;
    }
    return n;
  }

 private:
  __device__ __forceinline__ const char* first_byte() const { return at_ - Part::kWidth * lane_ + shift_; }
  __device__ __forceinline__ const Bytes* of(int chunk, int j) const {
    return reinterpret_cast<const Bytes*>(at_ + chunk * lift::kChunk + 32 * Part::kWidth * j);
  }
};

/// As holds_part, of a row whose mask hides something: what is hidden becomes the frame's floor, and nothing else may
/// lie below what has to be seen.
template <class E>
__device__ __forceinline__ bool holds_shown(const typename RaisedFrame<E>::Reach& reach, const RaisedFrame<E>& frame) {
  using Frame = RaisedFrame<E>;
  return frame.has_floor && reach.high <= Frame::kHighest && reach.low >= Frame::kSeen &&
         Frame::is_near(reach.high, reach.low) && fabsf(frame.s) <= FirstFrame<E>::kLargest;
}

/// A word in all places of a vector.
__device__ __forceinline__ uint4 all_of(unsigned word) { return {word, word, word, word}; }

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
