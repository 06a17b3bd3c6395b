// Rows that a block holds in shared memory, and a warp's part of one: a chunk by 32 lanes, no more of it than there is.
#pragma once

#include "cuda/cut_tile.cuh"
#include "cuda/raised_frame.cuh"
#include "cuda/stay_rows.cuh"

#include <limits>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A block has at most so many rows.
inline constexpr int kPairRuns = 4;

/// Where a row lands in shared memory, its elements to 16-byte boundaries as they lie in x.
template <class E>
struct PairPlace {
  static constexpr int kSize = static_cast<int>(sizeof(E));
  /// Up to the end of the quarter of a chunk that the row ends in, wherever it begins, and a vector behind it.
  static SOFTFOLD_HD int bytes(std::int64_t n) {
    constexpr int kQuarter = lift::kChunk / 4;
    return room_in_sectors((static_cast<int>(n) + 16 / kSize - 1 + kQuarter - 1) / kQuarter * kQuarter * kSize + 16);
  }
};

/// Of so many rows a block, a power of two, no more than leave blocks to fill the device, by so many warps a row.
inline int runs_that_fill(int runs, std::int64_t rows, int warps, int processors) {
  while (runs > 1 && rows * warps < static_cast<std::int64_t>(runs) * 16 * processors) runs /= 2;
  return runs;
}

/// What a function that has the last word on vectors does without one.
struct AsItIs {
  __device__ __forceinline__ uint4 operator()(int, int, const uint4& own) const { return own; }
};

/// A warp's part of a row in shared memory: full chunks, then one that may be cut short. A chunk's elements are slots
/// shift, shift + 1, ... of the lanes' vectors, as they lie in memory; what lies behind the last slot is in the first
/// ones. kOnVectors: rows begin and end with vectors.
template <class E, bool kOnVectors>
struct ChunkPart {
  using S = fold::Scalar<float>;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = lift::kPerLane / kWidth;
  static constexpr int kBytes = lift::kChunk * kSize,
                       kNext = 32 * 16;  ///< kNext: bytes from a lane's vector to its next
  /// A lane's elements of a chunk in four steps, which are left out where the row does not reach so far.
  static constexpr int kSteps = 4, kEach = lift::kPerLane / kSteps, kOfStep = kVectors / kSteps, kElements = 32 * kEach;
  using Chunk = float[lift::kPerLane];

  const char* at;  ///< the lane's first vector
  int lane;
  int shift;  ///< elements before the first one in its vector
  int end;    ///< where the last chunk's last element ends, counted from the vector that its first one lies in

  /// x: where the row's first element landed. Chunks from `first` on, of which `full` are full.
  __device__ __forceinline__ ChunkPart(const char* x, int n, int first, int full) : lane(lane_index()) {
    shift = kOnVectors ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(x) % 16) / kSize;
    at = x + (first * kBytes - shift * kSize + 16 * lane);
    end = shift + min(n - (first + full) * lift::kChunk, lift::kChunk);
  }
  static __device__ __forceinline__ int wrapped(int end) { return kOnVectors ? 0 : max(end - lift::kChunk, 0); }
  __device__ __forceinline__ bool is_shifted() const { return !kOnVectors && shift != 0; }

  using Vectors = uint4[kVectors];

  /// The vectors of a full chunk.
  __device__ __forceinline__ void gather_full(int chunk, Vectors& raw) const {
    const char* from = at + chunk * kBytes;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = vector(from, j);
    if (is_shifted() && lane == 0) raw[0] = joined(raw[0], vector(from, kVectors), shift * kSize);
  }
  /// The same of a chunk that ends at `end`; `filler`, in all places of a word, stands where no element is. mask_at:
  /// the address of VectorMasks.
  __device__ __forceinline__ void gather(int chunk, int end, Vectors& raw, unsigned filler, unsigned mask_at) const {
    const char* from = at + chunk * kBytes;
    const uint4 none{filler, filler, filler, filler};
    const int here = end - kWidth * lane;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      raw[j] = none;
      if (end > j / kOfStep * kElements) raw[j] = chosen(mask_of(here, j, mask_at), vector(from, j), none);
    }
    if (is_shifted() && lane == 0) raw[0] = joined(raw[0], head_of(from, end, none), shift * kSize);
  }
  /// The terms of a full chunk, and their sum. take(chunk, j, vector) is given the lane's j-th vector, and makes
  /// of it that whose terms are found.
  template <class Take>
  __device__ __forceinline__ float fold_full(int chunk, Chunk& v, const lift::FrameTerms& terms,
                                             const Take& take) const {
    Vectors raw;
    gather_full(chunk, raw);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(take(chunk, j, raw[j]), v + j * kWidth);
    return lift::add_tree<kWidth, 32, float>([&](int j, int k) {
      float& own = v[j * kWidth + k];
      return own = terms.template term<false>(own);
    });
  }
  /// The terms of a chunk that ends at `end`; 0 where no element is. `one` is some element, in all places of a word.
  template <class Take>
  __device__ __forceinline__ void find_terms(int chunk, int end, Chunk& v, unsigned one, const lift::FrameTerms& terms,
                                             unsigned mask_at, const Take& take) const {
    const char* from = at + chunk * kBytes;
    const uint4 filler{one, one, one, one};
    const int here = end - kWidth * lane;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float* const own = v + step * kEach;
      if (end <= step * kElements) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) own[i] = 0.F;
        continue;
      }
      const bool is_cut = end < (step + 1) * kElements;
#pragma unroll
      for (int j = step * kOfStep; j < (step + 1) * kOfStep; ++j) {
        uint4 raw = vector(from, j);
        if (is_cut) raw = chosen(mask_of(here, j, mask_at), raw, filler);
        if (j == 0 && is_shifted() && lane == 0) raw = joined(raw, head_of(from, end, filler), shift * kSize);
        Packed<E>::unpack(take(chunk, j, raw), v + j * kWidth);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) own[i] = terms.template term<false>(own[i]);
      if (is_cut) {
#pragma unroll
        for (int i = step * kEach; i < (step + 1) * kEach; ++i)
          if (i % kWidth >= here - kWidth * 32 * (i / kWidth)) v[i] = 0.F;
      }
      if (step == 0 && is_shifted()) {
        const int head = lane == 0 ? shift : 0;
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          if (k < head && k >= wrapped(end)) v[k] = 0.F;
      }
    }
  }
  static __device__ __forceinline__ float sum_of(const Chunk& v) {
    return lift::add_tree<kWidth, 32, float>([&](int j, int k) { return v[j * kWidth + k]; });
  }
  /// Terms to probabilities. may_vanish: some may be below kSmallest. kFloor: those of a frame's floor, which are below
  /// the normal numbers, are 0.
  template <bool kFloor = false>
  static __device__ __forceinline__ void to_results(Chunk& v, float multiplier, bool may_vanish) {
#pragma unroll
    for (float& e : v) {
      if constexpr (kFloor) {
        asm("mul.rn.ftz.f32 %0, %0, %1;" : "+f"(e) : "f"(multiplier));
      } else {
        e = S::mul(e, multiplier);
      }
    }
    if (!may_vanish) return;
#pragma unroll
    for (float& e : v) e = e < fold::Real<float>::kSmallest ? 0.F : e;
  }
  /// The elements of a full chunk.
  __device__ __forceinline__ void read_full(int chunk, Chunk& v) const {
    Vectors raw;
    gather_full(chunk, raw);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
  }
  /// The same of a chunk that ends at `end`; in slots without one stands anything.
  __device__ __forceinline__ void read(int chunk, int end, Chunk& v) const {
    const char* from = at + chunk * kBytes;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (end <= j / kOfStep * kElements) break;
      uint4 raw = vector(from, j);
      if (j == 0 && wrapped(end) != 0 && lane == 0) raw = joined(raw, vector(from, kVectors), wrapped(end) * kSize);
      Packed<E>::unpack(raw, v + j * kWidth);
    }
  }

  /// Results of a full chunk to y, where the part's first one goes, which lies to 16-byte boundaries as x does. A
  /// vector that two chunks share is written with the second: `before` is the lane's first one of the chunk before, and
  /// then of this. final(chunk, j, vector) makes what is written of the lane's j-th vector.
  template <class Final = AsItIs>
  __device__ __forceinline__ void write_full(int chunk, char* y, const Chunk& v, uint4& before,
                                             const Final& final = {}) const {
    char* to = place(chunk, y);
    const uint4 first = final(chunk, 0, Packed<E>::pack(v));
    if (is_shifted() && lane == 0 && chunk == 0) {
      put_high<kSize>(to, first, shift);
    } else {
      *reinterpret_cast<uint4*>(to) = is_shifted() && lane == 0 ? joined(first, before, shift * kSize) : first;
    }
#pragma unroll
    for (int j = 1; j < kVectors; ++j)
      *reinterpret_cast<uint4*>(to + kNext * j) = final(chunk, j, Packed<E>::pack(v + j * kWidth));
    before = first;
  }
  /// The same of a chunk that ends at `end`. is_last: of the part.
  template <class Final = AsItIs>
  __device__ __forceinline__ void write(int chunk, int end, bool is_last, char* y, const Chunk& v, uint4& before,
                                        const Final& final = {}) const {
    char* to = place(chunk, y);
    const uint4 first = final(chunk, 0, Packed<E>::pack(v));
    if (is_last && wrapped(end) != 0 && lane == 0) put_low<kSize>(to + kBytes, first, wrapped(end));
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (end <= j / kOfStep * kElements) break;
      uint4 own = j == 0 ? first : final(chunk, j, Packed<E>::pack(v + j * kWidth));
      const int here = end - kWidth * (lane + 32 * j);
      if (j == 0 && is_shifted() && lane == 0) {
        if (chunk == 0) {
          put_from(to, own, here);
          continue;
        }
        own = joined(own, before, shift * kSize);
      }
      if (here >= kWidth) {
        *reinterpret_cast<uint4*>(to + kNext * j) = own;
      } else if (!kOnVectors && here > 0) {
        put_low<kSize>(to + kNext * j, own, here);
      }
    }
    before = first;
  }

  /// A lane's j-th vector of a chunk that ends at `end`, with `none`, in all places of a word, where no element is.
  __device__ __forceinline__ uint4 cut(int j, int end, const uint4& own, unsigned none, unsigned mask_at) const {
    const uint4 nones{none, none, none, none};
    const uint4 there = chosen(mask_of(end - kWidth * lane, j, mask_at), own, nones);
    if (j != 0 || !is_shifted() || lane != 0) return there;
    return joined(there, joined(nones, own, wrapped(end) * kSize), shift * kSize);
  }

 private:
  /// Which elements of the lane's j-th vector are before `here`.
  static __device__ __forceinline__ uint4 mask_of(int here, int j, unsigned mask_at) {
    return shared_vector(mask_at + 16 * max(0, min(here - kWidth * 32 * j, kWidth)));
  }
  /// What stands before a chunk's first element in its vector.
  __device__ __forceinline__ uint4 head_of(const char* from, int end, const uint4& none) const {
    return wrapped(end) != 0 ? joined(none, vector(from, kVectors), wrapped(end) * kSize) : none;
  }
  /// The j-th vector from the lane's first one on.
  static __device__ __forceinline__ uint4 vector(const char* from, int j) {
    return *reinterpret_cast<const uint4*>(from + kNext * j);
  }
  __device__ __forceinline__ char* place(int chunk, char* y) const {
    return y + (chunk * kBytes - shift * kSize + 16 * lane);
  }
  /// Elements [shift, up_to) of a vector.
  __device__ __forceinline__ void put_from(char* to, const uint4& own, int up_to) const {
    if (up_to >= kWidth) return put_high<kSize>(to, own, shift);
    float v[kWidth];
    Packed<E>::unpack(own, v);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if (k >= shift && k < up_to) reinterpret_cast<E*>(to)[k] = Packed<E>::narrow(v[k]);
  }
};

/// The sum of chunks that the row's frame does not hold, and an element whose frame holds nothing: NaN.
inline constexpr float kNotHeld = std::numeric_limits<float>::quiet_NaN();

/// Whether the frame holds a warp's part that reaches so far. By all lanes of a warp.
template <class E, bool kOnVectors>
__device__ __forceinline__ bool holds_part(const typename RaisedFrame<E>::Reach& reach,
                                           const ChunkPart<E, kOnVectors>& part, int full, const RaisedFrame<E>& frame,
                                           unsigned mask_at) {
  using Frame = RaisedFrame<E>;
  if (reach.high > Frame::kHighest || fabsf(frame.s) > FirstFrame<E>::kLargest) return false;
  if (reach.low >= Frame::kLowest) return Frame::is_near(reach.high, reach.low);
  if (!frame.has_negative_floor() || reach.low != frame.n_of_floor()) return false;
  // Others may lie between the floor and what has to be seen.
  typename Frame::AboveFloor others(frame);
#pragma unroll 1
  for (int chunk = 0; chunk <= full; ++chunk) {
    typename ChunkPart<E, kOnVectors>::Vectors raw;
    part.gather(chunk, chunk < full ? part.shift + lift::kChunk : part.end, raw, frame.filler, mask_at);
#pragma unroll
    for (const uint4& vector : raw) others.see(frame.raised(vector));
  }
  const int lowest = __reduce_min_sync(lift::kWholeWarp, frame.n(others.lowest()));
  return lowest >= Frame::kSeen && Frame::is_near(reach.high, lowest);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
