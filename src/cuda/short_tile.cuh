// Rows that a length or a causal limit cuts short: what of their tiles exists is read and folded, the rest is written.
#pragma once

#include "cuda/cut_tile.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A problem, and what is the same for all of its rows.
struct ShortRows {
  RowProblem p;
  Extent x;
  fold::Scale<float> scale;  ///< of rows without one of their own
  lift::Factor factor;       ///< of scale.c

  __device__ __forceinline__ fold::Scale<float> scale_of(double own) const {
    return p[Slot::scales].given ? fold::make_scale<float>(own) : scale;
  }
  __device__ __forceinline__ lift::Factor factor_of(double own) const {
    return p[Slot::scales].given ? lift::Factor(scale_of(own).c) : factor;
  }
};

ShortRows short_rows(const RowProblem& p);

/// The first n > 0 elements of a group's kCount * kLanes slots, in the layout of Tile: whole vectors are read, which
/// lie in memory or in shared memory, and what in them is not the row's is replaced. Groups of less than a warp hold
/// rows that end before the last slot: shift + n <= kSlots. Nothing here branches by a lane's own slots: terms stay in
/// registers. kFull: of the vectors of each lane the first so many hold nothing but elements of the row, whoever's the
/// first is; all of them: rows begin and end with vectors, and fill the slots.
template <class E, int kLanes, int kCount = lift::kPerLane, int kFull = 0>
struct ShortTile {
  using Fold = lift::WarpFold<16 / static_cast<int>(sizeof(E)), kLanes, kCount>;
  using S = fold::Scalar<float>;
  static constexpr int kSize = static_cast<int>(sizeof(E)), kWidth = 16 / kSize, kVectors = kCount / kWidth;
  static constexpr int kSlots = kCount * kLanes;
  static constexpr bool kWraps = kSlots == lift::kChunk;

  int lane, shift, n;
  int end;  ///< where the last element ends, counted from the vector that the first one lies in

  __device__ __forceinline__ ShortTile(const char* first, int n_)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        shift(kFull == kVectors ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % 16) / kSize),
        n(n_),
        end(shift + n_) {}

  __device__ __forceinline__ bool whole() const { return kFull == kVectors || (kWraps && n == kSlots); }
  /// Whether slot (j, k) is empty.
  __device__ __forceinline__ bool beyond(int j, int k) const { return kWidth * kLanes * j + k >= end - kWidth * lane; }
  /// How many elements lie behind the last slot, and belong in the first ones.
  __device__ __forceinline__ int wrapped() const { return kWraps ? max(end - kSlots, 0) : 0; }
  __device__ __forceinline__ bool inside(const char* first, const Extent& x) const {
    const char* from = first - shift * kSize;
    return from >= x.begin && from + (end + kWidth - 1) / kWidth * 16 <= x.end;
  }

  /// The vectors; in slots without an element stands some element of the row.
  __device__ __forceinline__ void gather(uint4 (&raw)[kVectors], const char* first) const {
    gather(raw, first, *reinterpret_cast<const E*>(first));
  }
  /// The same, but there stands `nothing`.
  __device__ __forceinline__ void gather_only(uint4 (&raw)[kVectors], const char* first, E nothing) const {
    gather(raw, first, nothing);
    if (whole()) return;
    const uint4 none = filled(nothing);
#pragma unroll
    for (int j = kFull; j < kVectors; ++j)
      if (kWidth * (lane + kLanes * j) >= end) raw[j] = none;
  }

 private:
  static __device__ __forceinline__ uint4 filled(E one) {
    E ones[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) ones[k] = one;
    return Packed<E>::join(ones);
  }
  /// one: in slots of a vector that holds the row's last element; vectors beyond it show that one.
  __device__ __forceinline__ void gather(uint4 (&raw)[kVectors], const char* first, E one) const {
    const uint4* at = reinterpret_cast<const uint4*>(first - shift * kSize);
    if (whole()) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) raw[j] = at[lane + kLanes * j];
      if (shift != 0 && lane == 0) raw[0] = joined(raw[0], at[kLanes * kVectors], shift * kSize);
      return;
    }
    const int last = max(end - 1, 0) / kWidth;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) raw[j] = at[j < kFull ? lane + kLanes * j : min(lane + kLanes * j, last)];
    const uint4 filler = filled(one);
    // Whoever has the last vector, its own or in place of one beyond it, leaves what it holds of the row.
    const uint4 all{0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU}, none{};
    const uint4 of_row = joined(none, all, (end - last * kWidth) * kSize);
#pragma unroll
    for (int j = kFull; j < kVectors; ++j) {
      const bool is_last = lane + kLanes * j >= last;
      const auto pick = [&](unsigned own, unsigned other, unsigned mask) {
        return is_last ? (own & mask) | (other & ~mask) : own;
      };
      raw[j] = {pick(raw[j].x, filler.x, of_row.x), pick(raw[j].y, filler.y, of_row.y),
                pick(raw[j].z, filler.z, of_row.z), pick(raw[j].w, filler.w, of_row.w)};
    }
    if (shift == 0) return;
    if (last == 0) {  // others have the first vector, too
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        if (lane + kLanes * j > 0) raw[j] = filler;
    }
    if (lane != 0) return;
    uint4 head = filler;
    if (wrapped() > 0) head = joined(head, at[kLanes * kVectors], wrapped() * kSize);
    raw[0] = joined(raw[0], head, shift * kSize);
  }

 public:
  /// The state of each group's tile, from elements that lie close enough together: false for the groups whose elements
  /// do not. v becomes the terms, 0 where no element is; with kLog the elements.
  template <bool kLog>
  __device__ __forceinline__ bool fold(float (&v)[kCount], typename Fold::Folded& own, const uint4 (&raw)[kVectors],
                                       float c) const {
    constexpr float kMagic = fold::Real<float>::kMagic;
    const lift::Extremes e = Packed<E>::extremes(raw);
    const int high = Fold::largest(__float_as_int(S::fma(c > 0.F ? e.high : e.low, c, kMagic)));
    const int low = Fold::smallest(__float_as_int(S::fma(c > 0.F ? e.low : e.high, c, kMagic)));
    const float top = __int_as_float(high), bottom = __int_as_float(low);
    const bool near = top >= kMagic + fold::Real<float>::kFastLowest &&
                      top <= kMagic + fold::Real<float>::kFastHighest && bottom >= top - 60.F;
    const float m = S::sub(top, kMagic);
    const lift::FrameTerms terms(c, near ? m : 0.F);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    float d;
    if (whole()) {
      d = lift::add_tree<kWidth, kLanes, float, kCount>([&](int j, int k) {
        const float t = terms.template term<false>(v[j * kWidth + k]);
        if (!kLog) v[j * kWidth + k] = t;
        return t;
      });
    } else {
      const int head = lane == 0 ? shift : 0;
      d = lift::add_tree<kWidth, kLanes, float, kCount>([&](int j, int k) {
        float t = terms.template term<false>(v[j * kWidth + k]);
        if (j >= kFull && beyond(j, k)) t = 0.F;
        if (j == 0 && k < head && k >= wrapped()) t = 0.F;
        if (!kLog) v[j * kWidth + k] = t;
        return t;
      });
    }
    const float sum = S::mul(d, terms.unit);
    own = {{static_cast<double>(m), sum}, terms.unit, true, {high, sum}};
    return near;
  }

  /// Results of the row's first `of` elements, of which those beyond the n-th are nothing. y lies to 16-byte boundaries
  /// as x does; `of` may be more than the slots.
  template <bool kLog>
  __device__ __forceinline__ void put(char* y, int of, float (&v)[kCount]) const {
    const float none = nothing<kLog>();
    const bool aligned = shift == 0 && of % kWidth == 0;
    if (kLog && !whole()) {
      const int head = lane == 0 ? shift : 0;
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          if (beyond(j, k) || (j == 0 && k < head && k >= wrapped())) v[j * kWidth + k] = none;
    }
    if (!aligned) return put_unaligned(y, of, v, none);
    put_vectors<kLog>(y, of, v);
  }
  /// The same where y's elements fill vectors and v is nothing beyond the n-th.
  template <bool kLog>
  __device__ __forceinline__ void put_vectors(char* y, int of, const float (&v)[kCount]) const {
    uint4* to = reinterpret_cast<uint4*>(y) + lane;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (kWidth * (lane + kLanes * j) < of) to[kLanes * j] = Packed<E>::pack(v + j * kWidth);
    hide<kLog>(y, kSlots + kWidth * lane, of);
  }
  /// Results to shared memory where the first element lies at x, and where gather() may have read. The group's lanes
  /// together.
  __device__ __forceinline__ void park(char* x, const float (&v)[kCount]) const {
    const unsigned group = (lift::kWholeWarp >> (32 - kLanes)) << (threadIdx.x % 32 / kLanes * kLanes);
    __syncwarp(group);  // lanes gather others' elements, too: all have; a vote in between orders no memory
    uint4* at = reinterpret_cast<uint4*>(x - shift * kSize);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) at[lane + kLanes * j] = Packed<E>::pack(v + j * kWidth);
    __syncwarp(group);
    E* e = reinterpret_cast<E*>(at);
    for (int k = lane; k < wrapped(); k += kLanes) e[kSlots + k] = e[k];
    __syncwarp(group);
  }
  /// Nothing in elements [from, of) of an aligned row, by the vectors from each lane's own one on.
  template <bool kLog>
  __device__ __forceinline__ void hide(char* y, int from, int of) const {
    float nones[kWidth];
#pragma unroll
    for (float& one : nones) one = nothing<kLog>();
    const uint4 hidden = Packed<E>::pack(nones);
#pragma unroll 1
    for (; from < of; from += kWidth * kLanes) *reinterpret_cast<uint4*>(y + from * kSize) = hidden;
  }

 private:
  __device__ __forceinline__ void put_unaligned(char* y, int of, float (&v)[kCount], float none) const {
    const Tile<E, kLanes, kCount> tile(y);
    if (of == kSlots) return tile.store(y, of, v);
    const int here = kWraps ? of : min(of, kSlots - shift);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) tile.store_vector(y, here, j, v + j * kWidth);
    for (int i = here + lane; i < of; i += kLanes) reinterpret_cast<E*>(y)[i] = fold::narrow<E>(none);
  }
};

/// Terms and state of a tile of any elements, in registers that those who do not need it do not pay for.
template <class E, int kLanes>
__device__ __noinline__ typename lift::WarpFold<16 / static_cast<int>(sizeof(E)), kLanes>::Folded terms_of_any(
    float (&v)[lift::kPerLane], const char* x, int length, const lift::Factor& factor) {
  using Fold = lift::WarpFold<16 / static_cast<int>(sizeof(E)), kLanes>;
  Tile<E, kLanes>(x).load(v, x, length, factor);
  return Fold::terms(v, factor.c);
}

/// Rows of any values, which lie at x. All lanes of a warp together; `writes`: of the group's row.
template <class E, int kLanes>
__device__ __noinline__ void short_rows_of_any(const RowProblem& p, const char* x, char* y, int length,
                                               double own_scale, bool writes) {
  const auto scale = fold::make_scale<float>(own_scale);
  const lift::Factor factor(scale.c);
  const int n = static_cast<int>(p.n);
  float v[lift::kPerLane];
  const Tile<E, kLanes> tile(x);
  tile.load(v, x, length, factor);
  const auto folded = lift::WarpFold<16 / static_cast<int>(sizeof(E)), kLanes>::terms(v, factor.c);
  if (!writes) return;
  const bool log = p.op == Op::log_softmax;
  const fold::Normaliser<float> norm(folded.state);
  if (!norm.regular) {
    if (log)
      return fill<E, true>(y, nullptr, 0, tile.lane, kLanes, length, n, constant_of<true>(folded.state, p.empty));
    return fill<E, false>(y, nullptr, 0, tile.lane, kLanes, length, n, constant_of<false>(folded.state, p.empty));
  }
  if (log) {
    tile.load(v, x, length, factor);
    finish<true>(v, folded.dense, factor, 1.F, folded.state, scale);
  } else {
    finish<false>(v, folded.dense, factor, fold::Scalar<float>::mul(norm.reciprocal, folded.unit), folded.state, scale);
  }
  tile.store(y, n, v);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
