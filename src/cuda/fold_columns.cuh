// The states of plain rows that lie side by side: a lane has some neighbouring rows, a warp every so-manieth element of
// a chunk of these, straight from memory. Nothing of them is kept, so rows of any length take the same registers.
#pragma once

#include "cuda/across_frame.cuh"
#include "cuda/across_tiles.hpp"
#include "cuda/columns.cuh"
#include "cuda/in_order.cuh"
#include "cuda/row_results.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kColumnWarps = 8;  ///< of a block
/// Elements of each of a lane's rows that are on their way at once.
constexpr int column_run(int rows) { return rows == 4 ? 8 : 16; }

struct FoldColumns {
  const char* x;
  std::int64_t axis, outer;  ///< bytes between neighbours
  ColumnItems share;
  float c;
  fold::LogSumExp<float>::State* states;  ///< of rows' chunks, [rows][chunks]; null: rows have one and go to `results`
  RowResults results;
  std::int64_t to_outer, to_row;  ///< bytes between their neighbours
};

/// A row of a chunk that is special, or whose elements lie far apart, by the general fold: a whole warp. shown(i):
/// whether the i-th element is.
template <class E, bool kHides, class Shown>
__device__ __noinline__ fold::LogSumExp<float>::State fold_column(const char* x, std::int64_t axis, int n, float c_,
                                                                  const Shown& shown) {
  const lift::Factor factor(c_);
  const float c = kHides ? factor.c : c_;
  float v[lift::kPerLane];
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) {
    const int i = static_cast<int>(threadIdx.x) % 32 + 32 * j;
    const bool is_shown = i < n && shown(i);
    v[j] = is_shown ? fold::widen(*reinterpret_cast<const E*>(x + i * axis)) : lift::absent(c);
    if (kHides && !factor.plain && is_shown) v[j] *= factor.times;
  }
  return lift::WarpFold<1>::reduce(v, c).state;
}

/// A lane's rows of one chunk, as far as a warp has them, in frames guessed from the chunk's first elements.
template <class E, int kRows>
struct ColumnFold {
  using S = fold::Scalar<float>;
  using Frame = AcrossFrame;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Problem = FoldColumns;
  static constexpr bool kHides = false;
  static constexpr bool kPacked = kRows > 1 && sizeof(E) == 2;  ///< extremes by pairs
  static constexpr int kRun = column_run(kRows);

  static __device__ __forceinline__ const FoldColumns& columns_of(const Problem& p) { return p; }

  float c;
  float magic[kRows];           ///< kMagic less the rows' even frames
  int high[kRows], low[kRows];  ///< z
  Word least, most;             ///< kPacked: elements, instead

  __device__ __forceinline__ ColumnFold(const Problem& p, const ItemPlace&, unsigned, unsigned, const Word& first)
      : c(p.c), least(first), most(first) {
    Words::unpack(first, magic);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      magic[row] = Frame::guess(magic[row], c);
      high[row] = low[row] = Frame::kFrame;
    }
  }

  /// The sums of a warp's runs of the chunk that begins at x.
  __device__ __forceinline__ void fold(float (&sums)[kRows], const FoldColumns& f, const ItemPlace& place,
                                       const char* x) {
    const std::int64_t step = f.axis << f.share.residue_bits;
    add_runs<kRun>(sums, f.share, place, [&](int run, int there, float(&s)[kRows]) {
      Word raw[kRun];
      const char* at = x + run * f.axis;
#pragma unroll
      for (int j = 0; j < kRun; ++j, at += step)
        if (j < there) raw[j] = *reinterpret_cast<const Word*>(at);
      asm volatile("" : "+r"(there));  // or what was asked of it waits in registers
      if (there == kRun) {
        add_run<true>(s, raw, there);
      } else {
        add_run<false>(s, raw, there);
      }
    });
  }

  /// A row of a word, the row-th, of the chunk whose first element is at x.
  static __device__ __forceinline__ fold::LogSumExp<float>::State alone(const Problem& p, const ItemPlace& place,
                                                                        unsigned, unsigned, int, const char* x) {
    return fold_column<E, false>(x, p.axis, place.n, p.c, [](int) { return true; });
  }

  /// Whether all elements lie close to the frames; `high` is then that of the rows' largest.
  __device__ __forceinline__ bool is_close() {
    if constexpr (kPacked) {
      float a[kRows], b[kRows];
      Words::unpack(least, a), Words::unpack(most, b);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const int za = __float_as_int(z(a[row], row)), zb = __float_as_int(z(b[row], row));
        high[row] = max(za, zb), low[row] = min(za, zb);
      }
    }
    bool close = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row) close = close && Frame::is_close(high[row], low[row]);
    return close;
  }

 private:
  __device__ __forceinline__ float z(float x, int row) const { return S::fma(x, c, magic[row]); }
  /// The terms of a word's elements, which the extremes see.
  __device__ __forceinline__ void take(float (&s)[kRows], const Word& raw) {
    if constexpr (kPacked) Words::widen_range(raw, raw, least, most);
    Words::unpack(raw, s);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float own = z(s[row], row);
      if (!kPacked) high[row] = max(high[row], __float_as_int(own)), low[row] = min(low[row], __float_as_int(own));
      s[row] = Frame::term(s[row], own, magic[row], c);
    }
  }
  /// Of two words: an extreme of three is an instruction.
  __device__ __forceinline__ void take(float (&s)[kRows], float (&t)[kRows], const Word& one, const Word& other) {
    if constexpr (kPacked) Words::widen_range(one, other, least, most);
    Words::unpack(one, s), Words::unpack(other, t);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float za = z(s[row], row), zb = z(t[row], row);
      if (!kPacked) {
        high[row] = __vimax3_s32(high[row], __float_as_int(za), __float_as_int(zb));
        low[row] = __vimin3_s32(low[row], __float_as_int(za), __float_as_int(zb));
      }
      s[row] = Frame::term(s[row], za, magic[row], c);
      t[row] = Frame::term(t[row], zb, magic[row], c);
    }
  }
  /// The sums of a run, of which the first `there` words exist.
  template <bool kWhole>
  __device__ __forceinline__ void add_run(float (&sums)[kRows], const Word (&raw)[kRun], int there) {
    add_strided<kRun>(sums, [&](int i, int j, float(&s)[kRows], float(&t)[kRows]) {
      if constexpr (kWhole) {
        take(s, t, raw[i], raw[j]);
      } else if (j < there) {
        take(s, t, raw[i], raw[j]);
      } else {
#pragma unroll
        for (int row = 0; row < kRows; ++row) s[row] = t[row] = 0.F;
        if (i < there) take(s, raw[i]);
      }
    });
  }
};

/// What the warps of an item tell each other.
template <int kRows>
struct ColumnPart {
  float sum[kRows][32];
  int high[kRows][32];
  unsigned close;  ///< of which lanes all elements lie close to the frames
};

/// A warp's part of an item, by ColumnFold or another of its kind.
template <class E, int kRows, class Fold>
struct ColumnItem {
  using Word = typename Fold::Word;
  using Part = ColumnPart<kRows>;
  using State = fold::LogSumExp<float>::State;
  using Problem = typename Fold::Problem;

  const Problem& p;
  const FoldColumns& f;
  ItemPlace place;

  __device__ __forceinline__ ColumnItem(const Problem& p_, unsigned item, int warp)
      : p(p_), f(Fold::columns_of(p_)), place(f.share, item, warp) {}

  /// The chunk's first element of a word's first row.
  __device__ __forceinline__ const char* first_of(unsigned word) const {
    const unsigned outer = word / f.share.across;
    return f.x + place.begin() * f.axis + outer * f.outer +
           std::int64_t{word - outer * f.share.across} * static_cast<int>(sizeof(Word));
  }

  /// Lanes without rows of their own take part with the last ones.
  __device__ __forceinline__ void fold(Part& part, float (&magic)[kRows]) const {
    const unsigned word = min(place.word(), f.share.words - 1), outer = word / f.share.across;
    const char* column = first_of(word);
    Fold columns(p, place, outer, word - outer * f.share.across, *reinterpret_cast<const Word*>(column));
    float sums[kRows];
    columns.fold(sums, f, place, column);
    const unsigned close = __ballot_sync(lift::kWholeWarp, columns.is_close());
    if (place.lane == 0) part.close = close;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      part.sum[row][place.lane] = sums[row], part.high[row][place.lane] = columns.high[row];
      magic[row] = columns.magic[row];
    }
  }
  /// parts: of the item's warps, each of which finishes every so-manieth row.
  __device__ __forceinline__ void finish(const Part* parts, const float (&magic)[kRows]) const {
    const int lane = place.lane, classes = place.classes, own = place.own;
    const unsigned word = place.word(), words = f.share.words;
    unsigned close = ~0U;
    for (int w = 0; w < classes; ++w) close &= parts[w].close;
    if (word < words && (close >> lane & 1U) != 0) {
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        if (row % classes == own) put(word, row, joined(parts, row, magic[row]));
    }
#pragma unroll 1
    for (unsigned others = ~close; others != 0; others &= others - 1) {
      const unsigned of = place.tile * 32 + static_cast<unsigned>(__ffs(static_cast<int>(others)) - 1);
      if (of >= words) return;
#pragma unroll 1
      for (int row = 0; row < kRows; ++row) {
        if ((of * kRows + static_cast<unsigned>(row)) % static_cast<unsigned>(classes) != static_cast<unsigned>(own))
          continue;
        const unsigned outer = of / f.share.across;
        const State state = Fold::alone(p, place, outer, of - outer * f.share.across, row,
                                        first_of(of) + row * static_cast<int>(sizeof(E)));
        if (lane == 0) put(of, row, state);
      }
    }
  }

 private:
  /// The tree over the item's warps.
  __device__ __forceinline__ State joined(const Part* parts, int row, float magic) const {
    const int lane = place.lane, classes = place.classes;
    float all[kColumnWarps];
    int high = parts[0].high[row][lane];
#pragma unroll
    for (int w = 0; w < kColumnWarps; ++w) {
      all[w] = 0.F;
      if (w >= classes) continue;
      all[w] = parts[w].sum[row][lane];
      high = max(high, parts[w].high[row][lane]);
    }
    join_parts<false>(all, classes, [](float a, float b) { return fold::Scalar<float>::add(a, b); });
    if (Fold::kHides && all[0] == 0.F) return fold::LogSumExp<float>::identity();
    return AcrossFrame::state(all[0], high, magic);
  }
  __device__ __forceinline__ void put(unsigned of, int row, const State& state) const {
    if (f.states != nullptr) {
      f.states[(std::int64_t{of} * kRows + row) * f.share.chunks + place.chunk] = state;
      return;
    }
    const unsigned outer = of / f.share.across;
    const std::int64_t column = std::int64_t{of - outer * f.share.across} * kRows + row;
    f.results.put_at(f.results.to + outer * f.to_outer + column * f.to_row, state);
  }
};

/// What a block does.
template <class E, int kRows, class Fold>
__device__ __forceinline__ void fold_columns(const typename Fold::Problem& p) {
  __shared__ ColumnPart<kRows> parts[kColumnWarps];
  const ColumnItems& share = Fold::columns_of(p).share;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned item = (blockIdx.x * kColumnWarps + static_cast<unsigned>(warp)) >> share.class_bits;
  // Warps without an item of their own take part with the last one and write nothing.
  const ColumnItem<E, kRows, Fold> own(p, min(item, share.items - 1), warp);
  float magic[kRows];
  own.fold(parts[warp], magic);
  __syncthreads();
  if (item < share.items) own.finish(parts + warp - own.place.own, magic);
}

template <class E, int kRows>
__global__ void __launch_bounds__(kColumnWarps * 32, 3) fold_across_columns(const __grid_constant__ FoldColumns f) {
  begin_in_order();
  fold_columns<E, kRows, ColumnFold<E, kRows>>(f);
}

inline FoldColumns columns_of(const RowProblem& p, int rows, int processors, fold::LogSumExp<float>::State* states) {
  const Operand& x = p[Slot::x];
  const RowResults results(p);
  const Operand& to = p[p.op == Op::state ? Slot::states : Slot::row];
  return {.x = x.data,
          .axis = x.axis_stride,
          .outer = outer_stride(p, x),
          .share = column_items(p, rows, column_run(rows), kColumnWarps, processors),
          .c = fold::make_scale<float>(p.scale).c,
          .states = states,
          .results = results,
          .to_outer = outer_stride(p, to),
          .to_row = to.strides[static_cast<std::size_t>(p.outer_rank - 1)]};
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
