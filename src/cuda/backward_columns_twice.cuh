// The gradients of softmax and log_softmax of rows that lie side by side, of any length: one kernel adds up, as
// fold_across_columns does, another one writes.
#pragma once

#include "cuda/gradient_columns.cuh"
#include "cuda/in_order.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kTwiceWarps = 8;  ///< of a block
/// Elements of each of a lane's rows, of y and of dy, that are on their way at once.
constexpr int gradient_run(int bytes_of_word) { return bytes_of_word == 8 ? 8 : 16; }

struct GradientSums {
  GradientColumns of;
  ColumnItems share;
  GradientState<float>* states;  ///< of rows' chunks, [rows][chunks]
};

/// A lane's words of y and dy, kRun of each, of which the first `there` exist.
template <class E, template <class> class Gradient, int kRows, int kRun>
struct GradientRun : GradientColumnWord<E, Gradient, kRows> {
  using Pair = GradientColumnWord<E, Gradient, kRows>;
  using typename Pair::Word;
  using typename Pair::Words;
  static constexpr int kBytes = static_cast<int>(sizeof(Word));

  Word y[kRun], dy[kRun];

  __device__ __forceinline__ void load(const char* y_, std::int64_t y_step, const char* dy_, std::int64_t dy_step,
                                       int there) {
#pragma unroll
    for (int j = 0; j < kRun; ++j, y_ += y_step)
      if (j < there) y[j] = *reinterpret_cast<const Word*>(y_);
#pragma unroll
    for (int j = 0; j < kRun; ++j, dy_ += dy_step)
      if (j < there) dy[j] = *reinterpret_cast<const Word*>(dy_);
  }
  /// shown(row, j): whether the j-th element is; the same below.
  template <class Shown>
  __device__ __forceinline__ void add(float (&sums)[kRows], typename Pair::Seen& seen, int there,
                                      const Shown& shown) const {
    add_strided<kRun>(sums, [&](int i, int j, float(&s)[kRows], float(&t)[kRows]) {
      Pair::absent(s), Pair::absent(t);
      if (i < there) Pair::leaves(y[i], dy[i], s, seen, [&](int row) { return shown(row, i); });
      if (j < there) Pair::leaves(y[j], dy[j], t, seen, [&](int row) { return shown(row, j); });
    });
  }
  /// scale(row): the row's.
  template <class Y, class Scale, class Shown>
  __device__ __forceinline__ void write(char* to, std::int64_t step, int there,
                                        const GradientState<float> (&states)[kRows], const Scale& scale,
                                        const Shown& shown) const {
    bool regular = Pair::all_have_any(states);
    char* at = to;
#pragma unroll
    for (int j = 0; j < kRun; ++j, at += step)
      if (j < there)
        *reinterpret_cast<typename AcrossWord<Y, kRows>::Word*>(at) =
            Pair::template results<Y>(y[j], dy[j], states, scale, regular, [&](int row) { return shown(row, j); });
    if (!regular) write_any<Y>(to, step, there, states, scale, shown);
  }

 private:
  /// Of rows with NaN or nothing in them.
  template <class Y, class Scale, class Shown>
  __device__ __forceinline__ void write_any(char* to, std::int64_t step, int there,
                                            const GradientState<float> (&states)[kRows], const Scale& scale,
                                            const Shown& shown) const {
#pragma unroll
    for (int j = 0; j < kRun; ++j, to += step)
      if (j < there)
        Pair::template write_any<Y>(to, y[j], dy[j], states, scale, [&](int row) { return shown(row, j); });
  }
};

/// The states of rows' chunks. word_of(outer, column, begin): what is shown of a word of rows from an element on, a run
/// at a time.
template <class E, template <class> class Gradient, int kRows, class WordOf>
__device__ __forceinline__ void add_columns(const GradientSums& p, const WordOf& word_of) {
  constexpr int kRun = gradient_run(kRows * static_cast<int>(sizeof(E)));
  using Run = GradientRun<E, Gradient, kRows, kRun>;
  __shared__ GradientPart<kRows> parts[kTwiceWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned item = (blockIdx.x * kTwiceWarps + static_cast<unsigned>(warp)) >> p.share.class_bits;
  // Warps without an item and lanes without rows of their own take part with the last ones and write nothing.
  const ItemPlace at(p.share, min(item, p.share.items - 1), warp);
  const GradientColumns& of = p.of;
  const unsigned word = min(at.word(), p.share.words - 1), outer = word / p.share.across;
  const std::int64_t column = std::int64_t{word - outer * p.share.across} * Run::kBytes;
  const char *y = of.y + outer * of.y_outer + at.begin() * of.y_axis + column,
             *dy = of.dy + outer * of.dy_outer + at.begin() * of.dy_axis + column;
  const auto rows = word_of(outer, word - outer * p.share.across, at.begin());
  float sums[kRows];
  unsigned seen[kRows] = {};
  add_runs<kRun>(sums, p.share, at, [&](int run, int there, float(&s)[kRows]) {
    Run words;
    const auto shown = rows.template run<kRun>(run, p.share.residue_bits, there, [&](int reach) {
      words.load(y + run * of.y_axis, of.y_axis << p.share.residue_bits, dy + run * of.dy_axis,
                 of.dy_axis << p.share.residue_bits, reach);
    });
    words.add(s, seen, there, shown);
  });
  bool own[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) own[row] = Run::has_any(seen[row]);
  parts[warp].put(at.lane, sums, own);
  __syncthreads();
  if (at.own != 0 || item >= p.share.items || at.word() >= p.share.words) return;
  unsigned any[kRows];
  join_gradients<false, kTwiceWarps>(parts + warp, at.classes, at.lane, sums, any);
#pragma unroll
  for (int row = 0; row < kRows; ++row)
    p.states[(std::int64_t{at.word()} * kRows + row) * p.share.chunks + at.chunk] = {sums[row],
                                                                                     any[row] >> at.lane & 1U};
}

/// The gradients, from each row's state. scale(outer, row): a row's.
template <class E, class Y, template <class> class Gradient, int kRows, class WordOf, class Scale>
__device__ __forceinline__ void write_columns(const GradientSums& p, const GradientState<float>* roots,
                                              const WordOf& word_of, const Scale& scale) {
  constexpr int kRun = gradient_run(kRows * static_cast<int>(sizeof(E))) / 2;
  using Run = GradientRun<E, Gradient, kRows, kRun>;
  const SpanPlace at(p.share, kTwiceWarps, true);
  if (at.there == 0) return;
  const GradientColumns& of = p.of;
  const std::int64_t column = std::int64_t{at.column} * Run::kBytes;
  const char *y = of.y + at.outer * of.y_outer + at.begin * of.y_axis + column,
             *dy = of.dy + at.outer * of.dy_outer + at.begin * of.dy_axis + column;
  char* dx = of.dx + at.outer * of.dx_outer + at.begin * of.dx_axis +
             std::int64_t{at.column} * (kRows * static_cast<int>(sizeof(Y)));
  const auto rows = word_of(at.outer, at.column, at.begin);
  GradientState<float> states[kRows];
  float scales[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    states[row] = roots[std::int64_t{at.word} * kRows + row];
    scales[row] = scale(at.outer, std::int64_t{at.column} * kRows + row);
  }
  const auto load = [&](Run& words, int i) {
    return rows.template run<kRun>(i, 0, at.there - i, [&](int reach) {
      words.load(y + i * of.y_axis, of.y_axis, dy + i * of.dy_axis, of.dy_axis, reach);
    });
  };
  Run words, next;
  auto shown = load(words, 0);
#pragma unroll 1
  for (int i = 0; i < at.there; i += kRun, words = next) {
    const auto next_shown = load(next, i + kRun);  // on its way while this run is worked on
    words.template write<Y>(
        dx + i * of.dx_axis, of.dx_axis, at.there - i, states, [&](int row) { return scales[row]; }, shown);
    shown = next_shown;
  }
}

/// A word of rows of which nothing is hidden.
struct WholeWord {
  template <int kRun, class Load>
  __device__ __forceinline__ WholeColumn run(int, int, int there, const Load& load) const {
    load(there);
    return {};
  }
};

template <class E, template <class> class Gradient, int kRows>
__global__ void __launch_bounds__(kTwiceWarps * 32, 3) add_across_columns(const __grid_constant__ GradientSums p) {
  begin_in_order();
  add_columns<E, Gradient, kRows>(p, [](unsigned, unsigned, std::int64_t) { return WholeWord{}; });
}
template <class E, template <class> class Gradient, int kRows>
__global__ void __launch_bounds__(kTwiceWarps * 32, 3)
    write_across_columns(const __grid_constant__ GradientSums p, const GradientState<float>* roots) {
  begin_in_order();
  write_columns<E, E, Gradient, kRows>(
      p, roots, [](unsigned, unsigned, std::int64_t) { return WholeWord{}; },
      [&](unsigned, std::int64_t) { return p.of.scale; });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
