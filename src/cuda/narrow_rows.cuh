// Plain rows of up to 128 bytes that lie end to end and fill no vectors: a lane a row, whatever it holds.
#pragma once

#include "cuda/gradient_vectors.cuh"
#include "cuda/lane_rows.cuh"
#include "cuda/odd_rows.cuh"
#include "cuda/plain_gradient.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Rows of up to so many elements have kernels of their own length: those of 16 bit, and of float32, whose bytes take
/// longer. Longer ones share them with rows of a few elements fewer.
template <class E>
inline constexpr int kNarrowExact = sizeof(E) == 4 ? 7 : 15;
/// What a lane holds.
template <class E>
inline constexpr int kNarrowMost = kLaneVectors * 16 / static_cast<int>(sizeof(E));
/// Of rows of up to kN elements, the fewest that there are.
template <class E, int kN>
inline constexpr int kNarrowFewest = kN <= kNarrowExact<E> ? kN
                                     : kN <= 32            ? kN - 3
                                                           : kN - 7;
/// Rows that a lane has in a set at most.
template <class E, int kN>
inline constexpr int kNarrowEach = kNarrowMost<E> / kN;

/// A lane's row of `n` elements in shared memory. Where all rows have an even number of 16-bit elements, they begin
/// with words.
template <class E, int kN>
struct NarrowRow {
  static constexpr int kCount = kN, kFewest = kNarrowFewest<E, kN>, kSize = static_cast<int>(sizeof(E));
  static constexpr int kWidth = 16 / kSize, kVectors = (kN + kWidth - 1) / kWidth, kEach = 4 / kSize;
  static constexpr bool kExact = kFewest == kN, kWords = kSize == 4 || (kExact && kN % 2 == 0);
  using Fold = lift::WarpFold<1, 1, kN, kFewest>;

  char* at;
  int n;

  __device__ __forceinline__ NarrowRow(char* place, std::int64_t count)
      : at(place), n(kExact ? kN : static_cast<int>(count)) {}
  __device__ __forceinline__ bool has(int i) const { return i < kFewest || i < n; }

  /// The elements, `nothing` where there is none, and the extremes of those that there are.
  __device__ __forceinline__ lift::Extremes take(float (&v)[kN], float nothing) const {
    constexpr int kAll = kVectors * kWidth / kEach;
    unsigned words[kAll];
    take_words(words);
    uint4 raw[kVectors];
    float all[kVectors * kWidth];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      raw[j] = {words[4 * j], words[4 * j + 1], words[4 * j + 2], words[4 * j + 3]};
      Packed<E>::unpack(raw[j], all + j * kWidth);
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = has(i) ? all[i] : nothing;
    return Packed<E>::extremes(raw);
  }
  /// finish(word): of the results in a word, as they are stored.
  template <class Finish>
  __device__ __forceinline__ void put(const float (&v)[kN], const Finish& finish) const {
    auto* halves = reinterpret_cast<unsigned short*>(at);
    auto* whole = reinterpret_cast<unsigned*>(at);
#pragma unroll
    for (int i = 0; i < kN; i += kEach) {
      if constexpr (kSize == 4) {
        if (has(i)) whole[i] = finish(__float_as_uint(v[i]));
      } else {
        const unsigned two = finish(Packed<E>::two(v[i], i + 1 < kN ? v[i + 1] : 0.F));
        if constexpr (kWords) {
          whole[i / 2] = two;
        } else {
          if (has(i)) halves[i] = static_cast<unsigned short>(two);
          if (i + 1 < kN && has(i + 1)) halves[i + 1] = static_cast<unsigned short>(two >> 16);
        }
      }
    }
  }
  __device__ __forceinline__ void put(const float (&v)[kN]) const {
    put(v, [](unsigned word) { return word; });
  }
  __device__ __forceinline__ void fill(float value) const {
    E* to = reinterpret_cast<E*>(at);
    for (int i = 0; i < n; ++i) to[i] = fold::narrow<E>(value);
    asm volatile("" ::: "memory");  // take() reads words
  }

 private:
  /// Words of elements; where there are none others of the row, which change no extremes.
  template <int kAll>
  __device__ __forceinline__ void take_words(unsigned (&words)[kAll]) const {
    constexpr int kOwn = (kN + kEach - 1) / kEach;
    if constexpr (kWords) {
      const auto* from = reinterpret_cast<const unsigned*>(at);
#pragma unroll
      for (int i = 0; i < kAll; ++i) words[i] = i < kOwn ? from[has(i * kEach) ? i : 0] : words[0];
    } else if constexpr (kExact) {
      const auto* halves = reinterpret_cast<const unsigned short*>(at);
      const auto half = [&](int i) { return static_cast<unsigned>(halves[i < kN ? i : 0]); };
#pragma unroll
      for (int i = 0; i < kAll; ++i) words[i] = half(2 * i) | half(2 * i + 1) << 16;
    } else {
      // Of words that the row's ends share with its neighbours, which other lanes write, only what is its own.
      const int odd = reinterpret_cast<std::uintptr_t>(at) % 4 == 0 ? 0 : 1;
      const auto* halves = reinterpret_cast<const unsigned short*>(at);
      const auto* from = reinterpret_cast<const unsigned*>(at - 2 * odd);
      const unsigned last = halves[n - 1];
      unsigned next = 0;
      if (odd != 0) {
        next = static_cast<unsigned>(halves[0]) << 16;
      } else {
        next = from[0];
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const unsigned own = next;
        next = last;
        if (2 * i + 3 < kFewest || 2 * i + 3 - odd < n) next = from[i + 1];
        words[i] = __funnelshift_r(own, next, 16 * odd);
        if (!has(2 * i)) {
          words[i] = words[0];
        } else if (!has(2 * i + 1)) {
          words[i] = __byte_perm(words[i], 0U, 0x1010);
        }
      }
#pragma unroll
      for (int i = kOwn; i < kAll; ++i) words[i] = words[0];
    }
  }
};

/// A warp's sets of rows. memory: the block's.
template <class E>
__device__ __forceinline__ OddSets<E, int> narrow_sets(const PlainRows& p, int each, char* memory) {
  return {p, 32 * each, memory, OddPlace<E>::bytes(p, 32 * each)};
}

template <class E, int kN, bool kLog>
__global__ void __launch_bounds__(32 * kOddWarps, kN > 32 ? 5 : 6)
    softmax_narrow_rows(const __grid_constant__ LaneRows p) {
  begin_in_order();
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto sets = narrow_sets<E>(p.rows, p.each, landing_memory);
  sets.begin(landed[warp]);
  sets.fetch(landed[warp]);
  __syncwarp();  // elements that no copy brings are there
#pragma unroll 1
  for (int set = 0; set < kOddRuns && sets.has(set); ++set) {
    const int count = sets.count(set);
    const auto place = sets.place(set);
    landed[warp][set].wait(0);
#pragma unroll 1
    for (int i = lane; i - lane < count; i += 32) {
      const NarrowRow<E, kN> row(place.row(p.rows, i), p.rows.n);
      // What lies behind the last row goes nowhere, but must not send the others the way of rows of any values.
      if (i >= count) row.fill(0.F);
      put_lane_row<kLog>(p.rows, row);
    }
    place.send(p.rows, p.rows.y + sets.base(set) * p.rows.y_stride, count);
  }
  bulk_drain();
}

/// logsumexp and states.
template <class E, int kN>
__global__ void __launch_bounds__(32 * kOddWarps, kN > 32 ? 5 : 6)
    fold_narrow_rows(const __grid_constant__ LaneRows p, const __grid_constant__ RowResults to) {
  begin_in_order();
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[kOddWarps][kOddRuns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto sets = narrow_sets<E>(p.rows, p.each, landing_memory);
  sets.begin(landed[warp]);
  sets.fetch(landed[warp]);
  __syncwarp();  // elements that no copy brings are there
#pragma unroll 1
  for (int set = 0; set < kOddRuns && sets.has(set); ++set) {
    const int count = sets.count(set);
    const auto place = sets.place(set);
    char* at = to.at(sets.base(set) + lane);
    landed[warp][set].wait(0);
#pragma unroll 1
    for (int i = lane; i - lane < count; i += 32, at += 32 * to.stride) {
      const NarrowRow<E, kN> row(place.row(p.rows, i), p.rows.n);
      if (i >= count) row.fill(0.F);
      float v[kN];
      const float c = p.rows.factor.c;
      const auto state = NarrowRow<E, kN>::Fold::terms(v, c, row.take(v, lift::absent(c))).state;
      if (i < count) to.put_at(at, state);
    }
  }
}

/// Gradients, and the rows that a lane has in a set.
struct NarrowGradient {
  PlainGradient rows;
  int each;
};

template <class E, int kN, template <class> class Gradient>
__global__ void __launch_bounds__(32 * kOddWarps, 3) backward_narrow_rows(const __grid_constant__ NarrowGradient p) {
  begin_in_order();
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ CopyBarrier landed[2][kOddWarps][kOddRuns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto y_sets = narrow_sets<E>(p.rows.y, p.each, landing_memory);
  const auto dy_sets = narrow_sets<E>(p.rows.dy, p.each, landing_memory + kOddRuns * kOddWarps * y_sets.step);
  y_sets.begin(landed[0][warp]), dy_sets.begin(landed[1][warp]);
  y_sets.fetch(landed[0][warp]), dy_sets.fetch(landed[1][warp]);
  __syncwarp();  // elements that no copy brings are there
#pragma unroll 1
  for (int set = 0; set < kOddRuns && y_sets.has(set); ++set) {
    const int count = y_sets.count(set);
    const auto y_place = y_sets.place(set), dy_place = dy_sets.place(set);
    landed[0][warp][set].wait(0), landed[1][warp][set].wait(0);
#pragma unroll 1
    for (int i = lane; i < count; i += 32) {
      const NarrowRow<E, kN> y_row(y_place.row(p.rows.y, i), p.rows.y.n),
          dy_row(dy_place.row(p.rows.dy, i), p.rows.y.n);
      float y[kN], dy[kN];
      y_row.take(y, Gradient<float>::nothing()), dy_row.take(dy, -0.F);
      const Gradient<float> through{
          lift::add_tree<1, 1, float, kN>([&](int j, int) { return Gradient<float>::leaf(y[j], dy[j]); }),
          p.rows.scale};
      bool any = false;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        any |= !(y[j] == Gradient<float>::nothing());
        dy[j] = gradient_value(through, y[j], dy[j]);
        if (sizeof(E) == 4) dy[j] = fold::canonical(dy[j]);
      }
      y_row.put(dy, [&](unsigned word) { return any ? PackedGradients<E>::written(word) : 0U; });
    }
    y_place.send(p.rows.y, p.rows.y.y + y_sets.base(set) * p.rows.y.y_stride, count);
  }
  bulk_drain();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
