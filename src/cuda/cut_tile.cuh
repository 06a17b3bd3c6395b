// A tile of a row that may begin and end inside a 16-byte vector: read and written by whole vectors where they lie
// inside the operand's memory, what is not the row's replaced by selects, and nothing done for vectors that hold
// nothing.
#pragma once

#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// The memory of an operand.
struct Extent {
  const char *begin, *end;
};
/// Of one whose rows' elements lie side by side.
Extent memory_of(const RowProblem& p, const Operand& o);

/// Elements [shift, width) of a vector, of 16 or 32 bits each, to the vector at `at`; 0 < shift.
template <int kSize>
__device__ __forceinline__ void put_high(char* at, const uint4& v, int shift) {
  constexpr int kWidth = 16 / kSize;
  const int count = kWidth - shift;
  if constexpr (kSize == 4) {
    if ((count & 2) != 0) reinterpret_cast<uint2*>(at)[1] = uint2{v.z, v.w};
    if ((count & 1) != 0) reinterpret_cast<unsigned*>(at)[shift] = (count & 2) != 0 ? v.y : v.w;
  } else {
    if ((count & 4) != 0) reinterpret_cast<uint2*>(at)[1] = uint2{v.z, v.w};
    const bool low = (count & 4) != 0;
    if ((count & 2) != 0) reinterpret_cast<unsigned*>(at)[low ? 1 : 3] = low ? v.y : v.w;
    if ((count & 1) != 0) {
      const unsigned word = low ? ((count & 2) != 0 ? v.x : v.y) : ((count & 2) != 0 ? v.z : v.w);
      reinterpret_cast<std::uint16_t*>(at)[shift] = static_cast<std::uint16_t>(word >> 16);
    }
  }
}

/// Elements [0, count) of a vector to the vector at `at`; count < width.
template <int kSize>
__device__ __forceinline__ void put_low(char* at, const uint4& v, int count) {
  if constexpr (kSize == 4) {
    if ((count & 2) != 0) reinterpret_cast<uint2*>(at)[0] = uint2{v.x, v.y};
    if ((count & 1) != 0) reinterpret_cast<unsigned*>(at)[count - 1] = (count & 2) != 0 ? v.z : v.x;
  } else {
    const bool high = (count & 4) != 0;
    if (high) reinterpret_cast<uint2*>(at)[0] = uint2{v.x, v.y};
    if ((count & 2) != 0) reinterpret_cast<unsigned*>(at)[high ? 2 : 0] = high ? v.z : v.x;
    if ((count & 1) != 0) {
      const unsigned word = high ? ((count & 2) != 0 ? v.w : v.z) : ((count & 2) != 0 ? v.y : v.x);
      reinterpret_cast<std::uint16_t*>(at)[count - 1] = static_cast<std::uint16_t>(word);
    }
  }
}

/// Elements [shift, end) of a vector to the vector at `at`.
template <int kSize>
__device__ __forceinline__ void put_middle(char* at, const uint4& v, int shift, int end) {
  const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int k = 0; k < 16 / kSize; ++k) {
    if (k < shift || k >= end) continue;
    if constexpr (kSize == 4) {
      reinterpret_cast<unsigned*>(at)[k] = words[k];
    } else {
      reinterpret_cast<std::uint16_t*>(at)[k] = static_cast<std::uint16_t>(words[k / 2] >> (k % 2 * 16));
    }
  }
}

/// n > 0 elements of a row in the layout of Tile, by a group of kLanes lanes. Groups of less than a warp hold rows that
/// end before the last slot: shift + n <= kSlots.
template <class E, int kLanes>
struct CutTile {
  using Fold = lift::WarpFold<16 / static_cast<int>(sizeof(E)), kLanes>;
  using S = fold::Scalar<float>;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = lift::kPerLane / kWidth;
  static constexpr int kSlots = 32 * kLanes, kRow = kWidth * kLanes;  ///< kRow: slots of the group's j-th vectors
  /// The longest row that may begin anywhere and be a group's.
  static constexpr int kLongest = kLanes == 32 ? kSlots : kSlots - kWidth + 1;

  int lane, shift, n;
  int end;        ///< where the last element ends, counted from the vector that the first one lies in
  int rows;       ///< of vectors that hold something, in any group of the warp
  int first_cut;  ///< the first of them in which some group has slots without an element at its end

  __device__ __forceinline__ CutTile(const char* first, int n_)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        shift(static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16) / kSize),
        n(n_),
        end(shift + n_) {
    rows = min((end + kRow - 1) / kRow, kVectors);
    first_cut = end / kRow;
    if constexpr (kLanes < 32) {
      rows = __reduce_max_sync(lift::kWholeWarp, rows);
      first_cut = __reduce_min_sync(lift::kWholeWarp, first_cut);
    }
  }
  __device__ __forceinline__ int position(int j) const { return kWidth * (lane + kLanes * j); }
  /// Whether the tile is a full chunk of a warp.
  __device__ __forceinline__ bool full() const { return kLanes == 32 && n == kSlots; }
  /// How many elements lie behind the last slot, and belong in the first ones.
  __device__ __forceinline__ int wrapped() const { return kLanes == 32 ? max(end - kSlots, 0) : 0; }
  /// Whether every group's vectors lie in memory whole.
  __device__ __forceinline__ bool inside(const char* first, const Extent& x) const {
    const char* from = first - shift * kSize;
    return __all_sync(lift::kWholeWarp, from >= x.begin && from + (end + kWidth - 1) / kWidth * 16 <= x.end);
  }

  /// The vectors. In slots without an element stands, if kExact, some element of the tile, else anything that lies in
  /// its vectors. Needs inside().
  template <bool kExact>
  __device__ __forceinline__ void gather(uint4 (&raw)[kVectors], const char* first) const {
    const uint4* at = reinterpret_cast<const uint4*>(first - shift * kSize);
    const int last = (end - 1) / kWidth;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (j < rows) raw[j] = at[min(lane + kLanes * j, last)];
    }
    uint4 head = raw[0];
    if (kExact && !full()) {
      const E one = *reinterpret_cast<const E*>(first);
      E ones[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) ones[k] = one;
      const uint4 filler = Packed<E>::join(ones);
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        if (j >= first_cut && j < rows) raw[j] = joined(filler, raw[j], (end - position(j)) * kSize);
      head = filler;
    }
    if (wrapped() > 0) head = joined(head, at[kLanes * kVectors], wrapped() * kSize);
    if ((kExact || wrapped() > 0) && lane == 0) raw[0] = joined(raw[0], head, shift * kSize);
#pragma unroll
    for (int j = 1; j < kVectors; ++j)
      if (j >= rows) raw[j] = raw[0];
  }

  /// The state of each group's tile, from elements that lie close enough together; v becomes the terms, 0 where no
  /// element is, or with kLog the elements. After gather<false> the state's frame may lie above its own: what is d
  /// times what is m is the same, and so are probabilities, for nothing is rounded or flushed. False for the groups
  /// whose elements do not lie so: v and own are then nothing.
  template <bool kLog>
  __device__ __forceinline__ bool fold(float (&v)[lift::kPerLane], typename Fold::Folded& own,
                                       const uint4 (&raw)[kVectors], float c) const {
    constexpr float kMagic = fold::Real<float>::kMagic;
    const lift::Extremes e = Packed<E>::extremes(raw);
    const int high = Fold::largest(__float_as_int(S::fma(c > 0.F ? e.high : e.low, c, kMagic)));
    const int low = Fold::smallest(__float_as_int(S::fma(c > 0.F ? e.low : e.high, c, kMagic)));
    const float top = __int_as_float(high), bottom = __int_as_float(low);
    const bool near = top >= kMagic + fold::Real<float>::kFastLowest &&
                      top <= kMagic + fold::Real<float>::kFastHighest && bottom >= top - 60.F;
    const float m = near ? S::sub(top, kMagic) : 0.F;
    const lift::FrameTerms terms(c, m);
    const int head = lane == 0 && !full() ? shift : 0;
    float t[lift::kPerLane];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) t[j * kWidth + k] = 0.F;
      if (kLog) Packed<E>::unpack(raw[j], v + j * kWidth);
      if (j >= rows) continue;
      if (!kLog) Packed<E>::unpack(raw[j], t + j * kWidth);
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        t[j * kWidth + k] = terms.template term<false>(kLog ? v[j * kWidth + k] : t[j * kWidth + k]);
      if (j == 0) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          if (k < head && k >= wrapped()) t[k] = 0.F;
      }
      if (j < first_cut) continue;
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (k >= end - position(j)) t[j * kWidth + k] = 0.F;
    }
    const float d = lift::add_tree<kWidth, kLanes, float>([&](int j, int k) { return t[j * kWidth + k]; });
    if (!kLog) {
#pragma unroll
      for (int i = 0; i < lift::kPerLane; ++i) v[i] = t[i];
    }
    const float sum = S::mul(d, terms.unit);
    own = {{static_cast<double>(m), sum}, terms.unit, true, {high, sum}};
    return near;
  }

  /// Numbers to the n elements at y, which lies to 16-byte boundaries as x does.
  __device__ __forceinline__ void store(char* y, const float (&v)[lift::kPerLane]) const {
    char* at = y - shift * kSize;
    const uint4 top = Packed<E>::pack(v);
    if (full()) {
      if (lane != 0 || shift == 0) reinterpret_cast<uint4*>(at)[lane] = top;
#pragma unroll
      for (int j = 1; j < kVectors; ++j)
        reinterpret_cast<uint4*>(at)[lane + kLanes * j] = Packed<E>::pack(v + j * kWidth);
      if (lane != 0 || shift == 0) return;
      put_high<kSize>(at, top, shift);
      put_low<kSize>(at + kSlots * kSize, top, shift);
      return;
    }
    uint4 last = top;
    const int last_row = end / kRow;
    if (position(0) >= shift && position(0) + kWidth <= end) reinterpret_cast<uint4*>(at)[lane] = top;
#pragma unroll
    for (int j = 1; j < kVectors; ++j) {
      if (j >= rows) break;
      const uint4 own = Packed<E>::pack(v + j * kWidth);
      if (position(j) + kWidth <= end) reinterpret_cast<uint4*>(at)[lane + kLanes * j] = own;
      if (j == last_row) last = own;
    }
    const int tail = end % kWidth;
    if (shift > 0 && end < kWidth) {  // begins and ends in one vector
      if (lane != 0) return;
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        if (k >= shift && k < end) reinterpret_cast<E*>(at)[k] = Packed<E>::narrow(v[k]);
      return;
    }
    if (lane == 0 && shift > 0) put_high<kSize>(at, top, shift);
    if (tail > 0 && lane == end / kWidth % kLanes) put_low<kSize>(at + (end - tail) * kSize, last, tail);
  }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
