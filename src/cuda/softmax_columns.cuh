// softmax and log_softmax of plain rows that lie side by side, by columns: straight from memory to registers and back.
#pragma once

#include "cuda/across_frame.cuh"
#include "cuda/across_tiles.hpp"
#include "cuda/columns.cuh"
#include "cuda/in_order.cuh"
#include "cuda/softmax_rows.cuh"
#include "softfold/lift/tree.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct SoftmaxColumns {
  const char* x;
  char* y;
  std::int64_t x_axis, x_outer, y_axis, y_outer;  ///< bytes between neighbours
  ColumnShare share;
  Empty empty;
  fold::Scale<float> scale;
  float two_kappa;  ///< of fold::LogNormaliser

  SoftmaxColumns(const RowProblem& p, const ColumnShare& share_)
      : x(p[Slot::x].data),
        y(p[Slot::y].data),
        x_axis(p[Slot::x].axis_stride),
        x_outer(outer_stride(p, p[Slot::x])),
        y_axis(p[Slot::y].axis_stride),
        y_outer(outer_stride(p, p[Slot::y])),
        share(share_),
        empty(p.empty),
        scale(fold::make_scale<float>(p.scale)),
        two_kappa(fold::LogNormaliser<float>::two_kappa_of(scale)) {}
};

/// A lane's words as numbers of each row, and back: the first `there`, `step` bytes apart, to y.
template <class E, int kRows, int kCount>
__device__ __forceinline__ void unpack_column(float (&v)[kRows][kCount],
                                              const typename AcrossWord<E, kRows>::Word (&words)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    float x[kRows];
    AcrossWord<E, kRows>::unpack(words[j], x);
#pragma unroll
    for (int row = 0; row < kRows; ++row) v[row][j] = x[row];
  }
}
template <class Y, int kRows, int kCount>
__device__ __forceinline__ void put_column(char* y, std::int64_t step, int there, const float (&v)[kRows][kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j, y += step) {
    float word[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) word[row] = v[row][j];
    if (j < there) *reinterpret_cast<typename AcrossWord<Y, kRows>::Word*>(y) = AcrossWord<Y, kRows>::pack(word);
  }
}

/// A lane's elements of its rows.
template <class E, bool kLog, int kRows>
struct SoftmaxColumn {
  using S = fold::Scalar<float>;
  using Frame = AcrossFrame;
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Part = AcrossPart<kRows, kLog>;  ///< a sum is NaN if its row has elements that do not lie close to its frame
  static constexpr int kCount = terms_of_lane(kRows) / kRows;

  Word raw[kCount];
  float v[kRows][kCount];  ///< terms; elements, when they are written (log_softmax)
  float magic[kRows];      ///< kMagic less the rows' even frames

  __device__ __forceinline__ void load(const char* x, std::int64_t step, int there) {
#pragma unroll
    for (int j = 0; j < kCount; ++j, x += step)
      if (j < there) raw[j] = *reinterpret_cast<const Word*>(x);
  }
  /// first: of the rows, from which frames are guessed.
  __device__ __forceinline__ void fold(Part& part, const Word& first, int there, float c) {
    Words::unpack(first, magic);
    int high[kRows], low[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      magic[row] = Frame::guess(magic[row], c);
      high[row] = low[row] = Frame::kFrame;
    }
    if (there == kCount) {
      fold_words<true>(part, there, c, high, low);
    } else {
      fold_words<false>(part, there, c, high, low);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if constexpr (kLog) part.high[row] = high[row];
      if (!Frame::is_close(high[row], low[row])) part.sum[row] = fold::canonical_nan<float>();
    }
  }
  __device__ __forceinline__ void write(char* y, std::int64_t step, int there, const Part& part,
                                        const SoftmaxColumns& p) {
    if constexpr (kLog) unpack_column<E>(v, raw);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      fold::LogSumExp<float>::State state{0., part.sum[row]};
      if constexpr (kLog) state = Frame::state(part.sum[row], part.high[row], magic[row]);
      finish<kLog, kCount>(
          v[row], true, S::div(1.F, state.d),
          [&] {
            fold::LogNormaliser<float> norm(state, p.scale);
            norm.two_kappa = p.two_kappa;
            return norm;
          },
          [](int) {});
    }
    put_column<E>(y, step, there, v);
  }

 private:
  template <bool kWhole>
  __device__ __forceinline__ void fold_words(Part& part, int there, float c, int (&high)[kRows], int (&low)[kRows]) {
    add_strided<kCount>(part.sum, [&](int i, int j, float(&s)[kRows], float(&t)[kRows]) {
      const bool both = kWhole || j < there;
#pragma unroll
      for (int row = 0; row < kRows; ++row) s[row] = t[row] = v[row][i] = v[row][j] = 0.F;
      if (!kWhole && i >= there) return;
      Word other = raw[i];
      if (both) other = raw[j];
      Words::unpack(raw[i], s), Words::unpack(other, t);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float za = S::fma(s[row], c, magic[row]), zb = S::fma(t[row], c, magic[row]);
        high[row] = __vimax3_s32(high[row], __float_as_int(za), __float_as_int(zb));
        low[row] = __vimin3_s32(low[row], __float_as_int(za), __float_as_int(zb));
        v[row][i] = s[row] = Frame::term(s[row], za, magic[row], c);
        v[row][j] = t[row] = both ? Frame::term(t[row], zb, magic[row], c) : 0.F;
      }
    });
  }
};

template <bool kNeighbours, int kMost, class Part>
__device__ __forceinline__ Part joined(const Part (*parts)[32], int count, int lane) {
  Part all[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) all[i] = i < count ? parts[i][lane] : Part{};
  join_parts<kNeighbours>(all, count, [](Part a, const Part& b) {
    a.join(b);
    return a;
  });
  return all[0];
}

/// What all warps of a tile, and all blocks of its cluster, know of the lane's rows. parts: of the block's warps;
/// shares: of the cluster's blocks.
template <int kWarps, class Part>
__device__ __forceinline__ Part meet(Part part, Part (*parts)[32], Part (*shares)[32], ColumnMail& mail,
                                     const ColumnPlace& at) {
  using Cluster = lift::Cluster;
  if (at.classes > 1) {
    parts[at.warp][at.lane] = part;
    __syncthreads();
    part = joined<false, kWarps>(parts + at.warp - at.own, at.classes, at.lane);
  }
  if (at.blocks > 1) {
    mail.expect(static_cast<int>(at.blocks * 32 * sizeof(Part)));
    std::uint64_t words[sizeof(Part) / 8];
    __builtin_memcpy(words, &part, sizeof(Part));
    for (unsigned to = static_cast<unsigned>(at.warp); to < at.blocks; to += kWarps) {
      const unsigned place = Cluster::map(&shares[at.rank][at.lane], to), barrier = Cluster::map(&mail.arrived, to);
#pragma unroll
      for (unsigned i = 0; i < sizeof(Part) / 8; ++i) send_word(place + 8 * i, barrier, words[i]);
    }
    mail.wait();
    const auto blocks = static_cast<int>(at.blocks);
    part =
        blocks <= 4 ? joined<true, 4>(shares, blocks, at.lane) : joined<true, kColumnBlocks>(shares, blocks, at.lane);
  }
  return part;
}

/// go(outer, column, row) of the lanes' words that are `others`, for each row of a word, columns in words: they are
/// known to all of a tile's warps, which take one after another.
template <int kRows, class Go>
__device__ __forceinline__ void take_others(unsigned others, const ColumnPlace& at, unsigned across, const Go& go) {
  const unsigned takers = at.blocks * static_cast<unsigned>(at.classes);
  unsigned turn = at.rank * static_cast<unsigned>(at.classes) + static_cast<unsigned>(at.own);
#pragma unroll 1
  for (; others != 0; others &= others - 1) {
    const unsigned word =
        at.asked - static_cast<unsigned>(at.lane) + static_cast<unsigned>(__ffs(static_cast<int>(others)) - 1);
    const unsigned outer = word / across;
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      if (turn == 0) go(outer, word - outer * across, row);
      turn = turn == 0 ? takers - 1 : turn - 1;
    }
  }
}

/// A row that a warp takes alone.
struct OneColumn {
  const char* x;
  char* y;
  std::int64_t x_axis, y_axis;
  int n;
  Empty empty;
  fold::Scale<float> scale;
};
/// Rows of which nothing is hidden, of a scale that is not 0.
struct AllShown {
  static constexpr bool kHides = false;
  __device__ __forceinline__ bool operator()(int) const { return true; }
};

/// A row whose elements are special or lie far apart, by the general fold: a whole warp. shown(i): whether the i-th
/// element is.
template <class E, class Y, bool kLog, class Shown>
__device__ __noinline__ void softmax_column_any(const OneColumn& row, const Shown& shown) {
  using Fold = lift::WarpFold<1>;
  using Lse = fold::LogSumExp<float>;
  constexpr int kCount = lift::kPerLane;
  const lift::Factor factor(row.scale.c);
  const int lane = static_cast<int>(threadIdx.x) % 32, n = row.n;
  float v[kCount];
  const auto load = [&](int begin) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int i = begin + lane + 32 * j;
      v[j] =
          i < n && shown(i) ? fold::widen(*reinterpret_cast<const E*>(row.x + i * row.x_axis)) : lift::absent(factor.c);
      if (Shown::kHides && !factor.plain && i < n && shown(i)) v[j] *= factor.times;
    }
  };
  lift::TreeBuilder<Lse> tree;
#pragma unroll 1
  for (int begin = 0; begin < n; begin += lift::kChunk) load(begin), tree.push(Fold::reduce(v, factor.c).state);
  const auto state = tree.root();
  const fold::Normaliser<float> norm(state);
  const Constant constant = constant_of<kLog>(state, row.empty);
#pragma unroll 1
  for (int begin = 0; begin < n; begin += lift::kChunk) {
    load(begin);
    if (norm.regular) {
      float multiplier = 0.F;
      bool dense = false;
      if constexpr (!kLog) {
        const auto own = Fold::terms(v, factor.c);
        multiplier = fold::Scalar<float>::mul(norm.multiplier(own.state.m), own.unit), dense = own.dense;
      }
      finish<kLog>(v, dense, factor, multiplier, state, row.scale);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int i = begin + lane + 32 * j;
      if (i >= n) continue;
      const float special = constant.everywhere || shown(i) ? constant.value : nothing<kLog>();
      *reinterpret_cast<Y*>(row.y + i * row.y_axis) = norm.regular ? Packed<Y>::narrow(v[j]) : fold::narrow<Y>(special);
    }
  }
}

template <class E, bool kLog, int kRows>
__global__ void __launch_bounds__(kSoftmaxColumnWarps * 32, kRows == 4               ? 2
                                                            : kRows * sizeof(E) == 2 ? 4
                                                                                     : 3)
    softmax_across_columns(const __grid_constant__ SoftmaxColumns p) {
  begin_in_order();
  constexpr int kWarps = kSoftmaxColumnWarps, kSize = static_cast<int>(sizeof(E));
  using Column = SoftmaxColumn<E, kLog, kRows>;
  using Word = typename Column::Word;
  using Part = typename Column::Part;
  extern __shared__ __align__(16) char softmax_shares[];
  __shared__ Part parts[kWarps][32];
  __shared__ ColumnMail mail;
  auto* shares = reinterpret_cast<Part(*)[32]>(softmax_shares);  // of the cluster's blocks
  const ColumnPlace at(p.share, kWarps);
  mail.begin(at.blocks);
  const std::int64_t column = std::int64_t{at.column} * static_cast<int>(sizeof(Word));
  const char* x = p.x + at.outer * p.x_outer + column;
  Column own;
  const Word first = *reinterpret_cast<const Word*>(x);
  own.load(x + at.begin * p.x_axis, p.x_axis << at.residue_bits, at.there);
  Part part;
  own.fold(part, first, at.there, p.scale.c);
  part = meet<kWarps>(part, parts, shares, mail, at);
  bool close = true;
#pragma unroll
  for (int row = 0; row < kRows; ++row) close = close && !fold::is_nan(part.sum[row]);
  const bool exists = at.asked < p.share.words;
  if (exists && close)
    own.write(p.y + at.outer * p.y_outer + at.begin * p.y_axis + column, p.y_axis << at.residue_bits, at.there, part,
              p);
  take_others<kRows>(__ballot_sync(lift::kWholeWarp, exists && !close), at, p.share.across,
                     [&](unsigned outer, unsigned of, int row) {
                       const std::int64_t place = std::int64_t{of} * static_cast<int>(sizeof(Word)) + row * kSize;
                       const OneColumn alone{p.x + outer * p.x_outer + place,
                                             p.y + outer * p.y_outer + place,
                                             p.x_axis,
                                             p.y_axis,
                                             p.share.n,
                                             p.empty,
                                             p.scale};
                       softmax_column_any<E, E, kLog>(alone, AllShown{});
                     });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
