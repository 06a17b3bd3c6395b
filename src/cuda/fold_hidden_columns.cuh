// The states of rows that lie side by side and of which something is hidden, or with scales of their own: by columns,
// as fold_across_columns.
#pragma once

#include "cuda/fold_columns.cuh"
#include "cuda/hidden_columns.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct FoldHiddenColumns {
  FoldColumns of;
  HiddenColumns hidden;
};

/// As ColumnFold.
template <class E, int kRows>
struct HiddenColumnFold {
  using S = fold::Scalar<float>;
  using Frame = AcrossFrame;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Problem = FoldHiddenColumns;
  static constexpr bool kHides = true;
  static constexpr int kRun = column_run(kRows);

  static __device__ __forceinline__ const FoldColumns& columns_of(const Problem& p) { return p.of; }

  HiddenWord<kRows> rows;
  float c[kRows], magic[kRows];
  int high[kRows], low[kRows];

  __device__ __forceinline__ HiddenColumnFold(const Problem& p, const ItemPlace& place, unsigned outer, unsigned column,
                                              const Word& first)
      : rows(p.hidden, outer, column, place.begin()) {
    Words::unpack(first, magic);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const std::int64_t of_inner = std::int64_t{column} * kRows + row;
      c[row] = fold::make_scale<float>(p.hidden.scale_of(outer, of_inner)).c;
      magic[row] = guess_of_hidden(magic[row], c[row], p.hidden.hides(outer, of_inner, place.begin()));
      high[row] = 0, low[row] = Frame::kFrame;
    }
  }
  __device__ __forceinline__ void fold(float (&sums)[kRows], const FoldColumns& f, const ItemPlace& place,
                                       const char* x) {
    const int bits = f.share.residue_bits;
    const std::int64_t step = f.axis << bits;
    add_runs<kRun>(sums, f.share, place, [&](int run, int there, float(&s)[kRows]) {
      Word raw[kRun];
      const auto shown = rows.template run<kRun>(run, bits, there, [&](int reach) {
        const char* at = x + run * f.axis;
#pragma unroll
        for (int j = 0; j < kRun; ++j, at += step) {
          raw[j] = Word{};
          if (j < reach) raw[j] = *reinterpret_cast<const Word*>(at);
        }
      });
      add_strided<kRun>(s, [&](int i, int j, float(&a)[kRows], float(&b)[kRows]) {
        take(a, raw[i], i, shown), take(b, raw[j], j, shown);
      });
    });
  }
  __device__ __forceinline__ bool is_close() const {
    bool close = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      close = close && Frame::is_close(high[row], low[row]) && is_plain_factor(c[row]);
    return close;
  }
  static __device__ __forceinline__ fold::LogSumExp<float>::State alone(const Problem& p, const ItemPlace& place,
                                                                        unsigned outer, unsigned column, int row,
                                                                        const char* x) {
    const std::int64_t of_inner = std::int64_t{column} * kRows + row;
    const ShownOfOne shown(p.hidden, outer, of_inner, place.begin());
    return fold_column<E, true>(x, p.of.axis, place.n, fold::make_scale<float>(p.hidden.scale_of(outer, of_inner)).c,
                                shown);
  }

 private:
  __device__ __forceinline__ void take(float (&s)[kRows], const Word& raw, int j,
                                       const ShownColumn<kRows, kRun>& shown) {
    Words::unpack(raw, s);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float z = S::fma(s[row], c[row], magic[row]);
      const int bits = __float_as_int(z);
      high[row] = max(high[row], shown(row, j) ? bits : 0);
      low[row] = min(low[row], shown(row, j) ? bits : Frame::kFrame);
      s[row] = shown.kept(row, j, Frame::term(s[row], z, magic[row], c[row]));
    }
  }
};

template <class E, int kRows>
__global__ void __launch_bounds__(kColumnWarps * 32, kRows * sizeof(E) == 8 ? 2 : 3)
    fold_across_hidden(const __grid_constant__ FoldHiddenColumns p) {
  begin_in_order();
  fold_columns<E, kRows, HiddenColumnFold<E, kRows>>(p);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
