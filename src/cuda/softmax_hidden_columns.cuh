// softmax and log_softmax of rows that lie side by side and of which something is hidden, or with scales of their own,
// or to another dtype: by columns, as softmax_across_columns.
#pragma once

#include "cuda/hidden_columns.cuh"
#include "cuda/reciprocal.cuh"
#include "cuda/softmax_columns.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct SoftmaxHiddenColumns {
  SoftmaxColumns of;
  HiddenColumns hidden;
};

/// A lane's elements of its rows.
template <class E, class Y, bool kLog, int kRows>
struct SoftmaxHiddenColumn {
  using S = fold::Scalar<float>;
  using Frame = AcrossFrame;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Part = AcrossPart<kRows, kLog>;
  static constexpr int kCount = terms_of_lane(kRows) / kRows;
  using Shown = ShownColumn<kRows, kCount>;

  Word raw[kCount];
  float v[kRows][kCount];
  float c[kRows], magic[kRows];

  __device__ __forceinline__ void load(const char* x, std::int64_t step, int reach) {
#pragma unroll
    for (int j = 0; j < kCount; ++j, x += step) {
      raw[j] = Word{};
      if (j < reach) raw[j] = *reinterpret_cast<const Word*>(x);
    }
  }
  /// The frames. first: the rows' first elements.
  __device__ __forceinline__ void guess(const Word& first, const HiddenColumns& h, const ColumnPlace& at) {
    float x[kRows];
    Words::unpack(first, x);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const std::int64_t of_inner = std::int64_t{at.column} * kRows + row;
      c[row] = fold::make_scale<float>(h.scale_of(at.outer, of_inner)).c;
      magic[row] = guess_of_hidden(x[row], c[row], h.hides(at.outer, of_inner, 0));
    }
  }
  /// A row's sum is 0 if all of it is hidden.
  __device__ __forceinline__ void fold(Part& part, const Shown& shown) {
    // What is hidden among the highest: log_softmax asks for the highest of what is shown.
    constexpr int kNone = kLog ? 0 : Frame::kFrame;
    int high[kRows], low[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) high[row] = kNone, low[row] = Frame::kFrame;
    add_strided<kCount>(part.sum, [&](int i, int j, float(&s)[kRows], float(&t)[kRows]) {
      Words::unpack(raw[i], s), Words::unpack(raw[j], t);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const bool has_i = shown(row, i), has_j = shown(row, j);
        const float za = S::fma(s[row], c[row], magic[row]), zb = S::fma(t[row], c[row], magic[row]);
        const int a = __float_as_int(za), b = __float_as_int(zb);
        high[row] = __vimax3_s32(high[row], has_i ? a : kNone, has_j ? b : kNone);
        low[row] = __vimin3_s32(low[row], has_i ? a : Frame::kFrame, has_j ? b : Frame::kFrame);
        v[row][i] = s[row] = shown.kept(row, i, Frame::term(s[row], za, magic[row], c[row]));
        v[row][j] = t[row] = shown.kept(row, j, Frame::term(t[row], zb, magic[row], c[row]));
      }
    });
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if constexpr (kLog) part.high[row] = high[row];
      if (!Frame::is_close(high[row], low[row]) || !is_plain_factor(c[row]))
        part.sum[row] = fold::canonical_nan<float>();
    }
  }
  __device__ __forceinline__ void write(char* y, std::int64_t step, int there, const Part& part, const Shown& shown,
                                        const SoftmaxHiddenColumns& p, const ColumnPlace& at) {
    if constexpr (kLog) unpack_column<E>(v, raw);
    bool all_nan = false;  // whether some row is
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const bool any = part.sum[row] > 0.F;
      fold::LogSumExp<float>::State state{0., any ? part.sum[row] : 1.F};
      if constexpr (kLog)
        if (any) state = Frame::state(part.sum[row], part.high[row], magic[row]);
      finish<kLog, kCount>(
          v[row], true, any ? reciprocal_of_normal(state.d) : 0.F,
          [&] {
            const double scale = p.hidden.scale_of(at.outer, std::int64_t{at.column} * kRows + row);
            return fold::LogNormaliser<float>(state, fold::make_scale<float>(scale));
          },
          [](int) {});
      all_nan = all_nan || (!any && p.of.empty == Empty::nan);
#pragma unroll
      for (int j = 0; j < kCount && kLog; ++j)
        if (!shown(row, j)) v[row][j] = nothing<kLog>();
    }
    if (all_nan) return write_any(y, step, there, part);
    put_column<Y>(y, step, there, v);
  }

 private:
  /// The same where rows of which all is hidden are to be NaN.
  __device__ __forceinline__ void write_any(char* y, std::int64_t step, int there, const Part& part) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j, y += step) {
      if (j >= there) continue;
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        reinterpret_cast<Y*>(y)[row] = fold::narrow<Y>(part.sum[row] > 0.F ? v[row][j] : fold::canonical_nan<float>());
    }
  }
};

template <class E, class Y, bool kLog, int kRows>
__global__ void __launch_bounds__(kSoftmaxColumnWarps * 32, kRows == 4               ? 2
                                                            : kRows * sizeof(E) == 2 ? 4
                                                                                     : 3)
    softmax_across_hidden(const __grid_constant__ SoftmaxHiddenColumns p) {
  begin_in_order();
  constexpr int kWarps = kSoftmaxColumnWarps, kSize = static_cast<int>(sizeof(E)), kSizeY = static_cast<int>(sizeof(Y));
  using Column = SoftmaxHiddenColumn<E, Y, kLog, kRows>;
  using Word = typename Column::Word;
  using Part = typename Column::Part;
  extern __shared__ __align__(16) char softmax_shares[];
  __shared__ Part parts[kWarps][32];
  __shared__ ColumnMail mail;
  auto* shares = reinterpret_cast<Part(*)[32]>(softmax_shares);  // of the cluster's blocks
  const SoftmaxColumns& of = p.of;
  const HiddenColumns& hidden = p.hidden;
  const ColumnPlace at(of.share, kWarps);
  mail.begin(at.blocks);
  const char* x = of.x + at.outer * of.x_outer + std::int64_t{at.column} * (kRows * kSize);
  Column own;
  typename Column::Shown shown(hidden, at);
  const Word first = *reinterpret_cast<const Word*>(x);
  own.load(x + at.begin * of.x_axis, of.x_axis << at.residue_bits, shown.reach);
  shown.hide(hidden, at);
  own.guess(first, hidden, at);
  Part part;
  own.fold(part, shown);
  part = meet<kWarps>(part, parts, shares, mail, at);
  bool close = true;
#pragma unroll
  for (int row = 0; row < kRows; ++row) close = close && !fold::is_nan(part.sum[row]);
  const bool exists = at.asked < of.share.words;
  if (exists && close)
    own.write(of.y + at.outer * of.y_outer + at.begin * of.y_axis + std::int64_t{at.column} * (kRows * kSizeY),
              of.y_axis << at.residue_bits, at.there, part, shown, p, at);
  take_others<kRows>(__ballot_sync(lift::kWholeWarp, exists && !close), at, of.share.across,
                     [&](unsigned outer, unsigned column, int row_of_word) {
                       const std::int64_t row = std::int64_t{column} * kRows + row_of_word;
                       const OneColumn alone{of.x + outer * of.x_outer + row * kSize,
                                             of.y + outer * of.y_outer + row * kSizeY,
                                             of.x_axis,
                                             of.y_axis,
                                             of.share.n,
                                             of.empty,
                                             fold::make_scale<float>(hidden.scale_of(outer, row))};
                       softmax_column_any<E, Y, kLog>(alone, ShownOfOne(hidden, outer, row, 0));
                     });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
