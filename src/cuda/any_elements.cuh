// Elements of any dtype but float64, at any stride, wherever they begin: neighbouring lanes read and write neighbours,
// one at a time, or four where all operands' rows can be cut that way. Each operand has its own dtype, asked once a
// tile.
#pragma once

#include "cuda/choose.hpp"
#include "cuda/levels.cuh"
#include "cuda/softmax_rows.cuh"

#include <bit>

namespace softfold {
inline namespace v0 {
namespace cuda {

/// go.operator()<E, whether elements lie side by side>().
template <class Go>
__device__ __forceinline__ void with_elements_of(const Operand& o, const Go& go) {
  const auto by = [&]<class E>() {
    if (o.axis_stride == static_cast<std::int64_t>(sizeof(E))) {
      go.template operator()<E, true>();
    } else {
      go.template operator()<E, false>();
    }
  };
  if (o.dtype == DType::float32) return by.template operator()<float>();
  if (o.dtype == DType::bfloat16) return by.template operator()<fold::BFloat16>();
  by.template operator()<fold::Float16>();
}

/// fill() of any elements.
template <bool kLog>
__device__ __noinline__ void fill_any(DType t, char* y, std::int64_t stride, const char* mask, std::int64_t mask_stride,
                                      int lane, int lanes, int length, int n, Constant constant) {
  for (int i = lane; i < n; i += lanes) {
    const bool there = i < length && (mask == nullptr || mask[i * mask_stride] != 0);
    put(t, y + i * stride, constant.everywhere || there ? constant.value : nothing<kLog>());
  }
}

/// In the layout of lift::WarpFold of kWidth, which is 1 or 4. kWidth elements lie side by side, none across the end of
/// a row, as one aligned word.
template <int kLanes_, int kCount_, int kWidth_>
struct AnyElements {
  static constexpr int kLanes = kLanes_, kCount = kCount_, kWidth = kWidth_, kSlots = kLanes * kCount;
  static constexpr int kVectors = kCount / kWidth;
  static_assert(kCount <= 32 && (kWidth == 1 || kWidth == 4));  // a word says which slots are present
  static constexpr unsigned kAll = 0xFFFFFFFFU >> (32 - kCount);
  /// Elements as they are in memory: those of 16 bit of kWidth 4 in pairs, in the first half.
  using Words = unsigned[kCount];

  int lane;
  DType dtype;
  Words raw;
  Present<kCount> present;

  __device__ __forceinline__ AnyElements(const RowProblem& p, const char*, std::int64_t)
      : lane(static_cast<int>(threadIdx.x) % kLanes), dtype(p[Slot::x].dtype) {}

  /// on_each(j, place) of the vectors that begin in front of n and lie at `first`, of elements of kSize bytes.
  template <bool kSide, int kSize, class Byte, class Visit>
  __device__ __forceinline__ void visit(Byte* first, std::int64_t stride, int n, const Visit& on_each) const {
    const std::int64_t step = kSide || kWidth > 1 ? kSize : stride;
    Byte* own = first + kWidth * lane * step;
    if (n == kSlots) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) on_each(j, own + j * (kWidth * kLanes) * step);
    } else {
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        if (kWidth * (lane + kLanes * j) < n) on_each(j, own + j * (kWidth * kLanes) * step);
    }
  }
  /// The elements in front of n that lie at `first`. No load waits for another.
  __device__ __forceinline__ void fetch(Words& words, const Operand& o, const char* first, int n) const {
#pragma unroll
    for (unsigned& word : words) word = 0U;
    with_elements_of(o, [&]<class E, bool kSide>() {
      constexpr int size = static_cast<int>(sizeof(E));
      visit<kSide, size>(first, o.axis_stride, n, [&](int j, const char* at) {
        if constexpr (kWidth == 1) {
          using Bits = std::conditional_t<size == 4, unsigned, unsigned short>;
          words[j] = *reinterpret_cast<const Bits*>(at);
        } else if constexpr (size == 4) {
          const uint4 four = *reinterpret_cast<const uint4*>(at);
          words[4 * j] = four.x, words[4 * j + 1] = four.y, words[4 * j + 2] = four.z, words[4 * j + 3] = four.w;
        } else {
          const uint2 four = *reinterpret_cast<const uint2*>(at);
          words[2 * j] = four.x, words[2 * j + 1] = four.y;
        }
      });
    });
  }
  static __device__ __forceinline__ void widen(float (&v)[kCount], const Words& words, DType t) {
    const auto each = [&](const auto& of) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = of(i);
    };
    const auto half = [&](int i) {
      return kWidth == 1 ? words[i] : i % 2 == 0 ? words[i / 2] & 0xFFFFU : words[i / 2] >> 16;
    };
    if (t == DType::float32) return each([&](int i) { return __uint_as_float(words[i]); });
    if (t == DType::bfloat16) return each([&](int i) { return __uint_as_float(half(i) << 16); });
    each([&](int i) { return __half2float(__ushort_as_half(static_cast<unsigned short>(half(i)))); });
  }
  /// Which of the elements in front of n the mask shows, if there is one.
  __device__ __forceinline__ void look(const RowProblem& p, const Row& r, std::int64_t begin, int n) {
    unsigned shown = 0;
    const auto those = [&](int j, unsigned bits) {
      if (kWidth > 1) bits &= (1U << min(n - kWidth * (lane + kLanes * j), kWidth)) - 1U;
      shown |= bits << kWidth * j;
    };
    if (r.mask == nullptr) {
      visit<true, 1>(r.x, 1, n, [&](int j, const char*) { those(j, (1U << kWidth) - 1U); });
    } else {
      const std::int64_t stride = p[Slot::mask].axis_stride;
      const char* mask = r.mask + begin * stride;
      const auto show = [&](int j, const char* at) {
        if constexpr (kWidth == 1) {
          those(j, *at != 0 ? 1U : 0U);
        } else {
          those(j, Tile<float, kLanes>::mask_word(at));
        }
      };
      stride == 1 ? visit<true, 1>(mask, 1, n, show) : visit<false, 1>(mask, stride, n, show);
    }
    present.words[0] = shown;
  }
  /// Of elements [begin, begin + n) those in front of begin + `length` that the mask shows.
  __device__ __forceinline__ void load(const RowProblem& p, const Row& r, std::int64_t begin, int length, int) {
    fetch(raw, p[Slot::x], r.x + begin * p[Slot::x].axis_stride, length);
    look(p, r, begin, length);
  }

  /// As MaskedTile has it.
  template <class Fold, bool kLog>
  __device__ __forceinline__ typename Fold::Folded fold(float (&v)[kCount], const lift::Factor& factor) const {
    widen(v, raw, dtype);
    return fold_present<Fold, kLog, kLanes>(v, factor, present, [&] {
      if (__all_sync(lift::kWholeWarp, present.words[0] == kAll)) return lift::extremes_of(v);
      lift::Extremes e{fold::infinity<float>(), -fold::infinity<float>()};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        e.low = lift::least(e.low, present(i) ? v[i] : e.low);
        e.high = lift::most(e.high, present(i) ? v[i] : e.high);
      }
      return e;
    });
  }

  /// Elements [begin, begin + n) of the results. kNan: there may be one among them.
  template <bool kNan = false>
  __device__ __forceinline__ void store(const RowProblem& p, const Row& r, std::int64_t begin, int n,
                                        const float (&v)[kCount]) const {
    const Operand& o = p[Slot::y];
    with_elements_of(o, [&]<class E, bool kSide>() {
      constexpr int size = static_cast<int>(sizeof(E));
      struct alignas(kWidth * size) Vector {
        E of[kWidth];
      };
      visit<kSide, size>(r.y + begin * o.axis_stride, o.axis_stride, n, [&](int j, char* at) {
        Vector vector;
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          vector.of[k] = kNan ? fold::narrow<E>(v[kWidth * j + k]) : Packed<E>::narrow(v[kWidth * j + k]);
        *reinterpret_cast<Vector*>(at) = vector;
      });
    });
  }
  template <bool kLog>
  __device__ __forceinline__ void fill(const RowProblem& p, const Row& r, std::int64_t begin, int length, int n,
                                       Constant constant) const {
    const Operand &o = p[Slot::y], &mask = p[Slot::mask];
    const char* shown = r.mask == nullptr ? nullptr : r.mask + begin * mask.axis_stride;
    fill_any<kLog>(o.dtype, r.y + begin * o.axis_stride, o.axis_stride, shown, mask.axis_stride, lane, kLanes, length,
                   n, constant);
  }
};

inline constexpr int kAnyThreads = 256, kAnyWarps = kAnyThreads / 32;  ///< of blocks that have rows of one tile

/// A grid whose groups of lanes have a row each.
template <class Elements>
Grid grid_of_rows(const RowProblem& p) {
  return {ceil_div(p.rows, kAnyThreads / Elements::kLanes), kAnyThreads};
}

/// Whether vectors leave no lane of a group idle in rows of n that begin on them: those are not for elements one by
/// one.
inline bool fills_groups(std::int64_t n) { return n >= 128 && std::has_single_bit(static_cast<std::uint64_t>(n)); }

/// Whether every row is a row of fours in all of its operands.
inline bool is_of_fours(const RowProblem& p) {
  const auto fours = [&](Slot slot) {
    const Operand& o = p[slot];
    const auto size = static_cast<int>(size_of(o.dtype));
    return !o.given || (o.axis_stride == size && on_vectors(p, o, 4 * size));
  };
  return p.n % 4 == 0 && fours(Slot::x) && fours(Slot::y) && fours(Slot::dy) && fours(Slot::mask);
}

/// Null if tiles of any elements can be of these rows. forward: the rung of softmax and log_softmax.
inline const char* refuses_tiles(const RowProblem& p, Rung forward) {
  if (const char* why = refuses_rung(p.rung, p[Slot::dy].given ? Rung::automatic : forward)) return why;
  if (p[Slot::offsets].given) return "ragged rows have no common length";
  const bool wide = p.is_double() || p[Slot::y].dtype == DType::float64;
  return wide ? "float64 is not among what a tile may be of" : nullptr;
}
inline const char* refuses_any(const RowProblem& p, Rung forward = Rung::fused) {
  return is_across(p) ? "rows lie side by side" : refuses_tiles(p, forward);
}
/// Null if tiles of any elements take these rows, a tile a row, else why not.
inline const char* refuses_any_rows(const RowProblem& p, const Context&) {
  if (p.n > lift::kChunk) return "a row is longer than a warp holds (1024)";
  if (p.rows / kAnyWarps >= 0x7FFFFFFF) return "more rows than a grid has";
  return refuses_any(p);
}
/// The same of a tile a chunk, a cluster a row.
inline const char* refuses_any_cluster(const RowProblem& p, const Context&) {
  const char* why = refuses_any(p);
  return why != nullptr ? why : refuses_one_cluster(p);
}

/// The same of rows that lie side by side, but few together, or few elements in rows over 2048.
inline const char* refuses_any_few(const RowProblem& p, const Context&) {
  if (!lie_few_together(p) && (p.n <= 2 * lift::kChunk || !are_few_across(p))) return "rows do not lie few together";
  if (const char* why = refuses_tiles(p, Rung::fused)) return why;
  if (p.n > lift::kChunk) return refuses_one_cluster(p);
  return p.rows / kAnyWarps >= 0x7FFFFFFF ? "more rows than a grid has" : nullptr;
}

/// go.operator()<AnyElements>() of rows of one tile. With many slots a lane what a group does once is done for more
/// elements, but of elements one at a time each slot asks for a line of memory: those want more lanes.
template <class Go>
void with_any_rows(const RowProblem& p, const Go& go) {
  const bool fours = is_of_fours(p);
  const auto shape = [&]<int kLanes, int kCount, int kWidth>() {
    go.template operator()<AnyElements<kLanes, kCount, kWidth>>();
  };
  const auto either = [&]<int kLanes, int kCount>() {
    fours ? shape.template operator()<kLanes, kCount, 4>() : shape.template operator()<kLanes, kCount, 1>();
  };
  if (p.n <= 8) return either.template operator()<1, 8>();
  if (p.n <= 16) return fours ? shape.template operator()<1, 16, 4>() : shape.template operator()<2, 8, 1>();
  if (p.n <= 32) return fours ? shape.template operator()<2, 16, 4>() : shape.template operator()<4, 8, 1>();
  if (p.n <= 64) return fours ? shape.template operator()<4, 16, 4>() : shape.template operator()<8, 8, 1>();
  if (p.n <= 128) return either.template operator()<8, 16>();
  if (p.n <= 256) return either.template operator()<8, 32>();
  if (p.n <= 512) return either.template operator()<16, 32>();
  either.template operator()<32, 32>();
}
/// go.operator()<AnyElements of a chunk>().
template <class Go>
void with_any_chunks(const RowProblem& p, const Go& go) {
  if (is_of_fours(p)) return go.template operator()<AnyElements<32, 32, 4>>();
  go.template operator()<AnyElements<32, 32, 1>>();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
