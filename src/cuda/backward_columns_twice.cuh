// The gradients of softmax and log_softmax of plain rows that lie side by side, of any length: one kernel adds up, as
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
  __device__ __forceinline__ void add(float (&sums)[kRows], typename Pair::Seen& seen, int there) const {
    add_strided<kRun>(sums, [&](int i, int j, float(&s)[kRows], float(&t)[kRows]) {
      Pair::absent(s), Pair::absent(t);
      if (i < there) Pair::leaves(y[i], dy[i], s, seen);
      if (j < there) Pair::leaves(y[j], dy[j], t, seen);
    });
  }
  __device__ __forceinline__ void write(char* to, std::int64_t step, int there,
                                        const GradientState<float> (&states)[kRows], float scale) const {
    bool regular = Pair::all_have_any(states);
    char* at = to;
#pragma unroll
    for (int j = 0; j < kRun; ++j, at += step)
      if (j < there) *reinterpret_cast<Word*>(at) = Pair::results(y[j], dy[j], states, scale, regular);
    if (!regular) write_any(to, step, there, states, scale);
  }

 private:
  /// Of rows with NaN or nothing in them.
  __device__ __forceinline__ void write_any(char* to, std::int64_t step, int there,
                                            const GradientState<float> (&states)[kRows], float scale) const {
#pragma unroll
    for (int j = 0; j < kRun; ++j, to += step)
      if (j < there) Pair::write_any(to, y[j], dy[j], states, scale);
  }
};

/// The states of rows' chunks.
template <class E, template <class> class Gradient, int kRows>
__global__ void __launch_bounds__(kTwiceWarps * 32, 3) add_across_columns(const __grid_constant__ GradientSums p) {
  begin_in_order();
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
  float sums[kRows];
  unsigned seen[kRows] = {};
  add_runs<kRun>(sums, p.share, at, [&](int run, int there, float(&s)[kRows]) {
    Run words;
    words.load(y + run * of.y_axis, of.y_axis << p.share.residue_bits, dy + run * of.dy_axis,
               of.dy_axis << p.share.residue_bits, there);
    words.add(s, seen, there);
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

/// The gradients, from each row's state.
template <class E, template <class> class Gradient, int kRows>
__global__ void __launch_bounds__(kTwiceWarps * 32, 3)
    write_across_columns(const __grid_constant__ GradientSums p, const GradientState<float>* roots) {
  begin_in_order();
  constexpr int kRun = gradient_run(kRows * static_cast<int>(sizeof(E))) / 2;
  using Run = GradientRun<E, Gradient, kRows, kRun>;
  const SpanPlace at(p.share, kTwiceWarps, true);
  if (at.there == 0) return;
  const GradientColumns& of = p.of;
  const std::int64_t column = std::int64_t{at.column} * Run::kBytes;
  const char *y = of.y + at.outer * of.y_outer + at.begin * of.y_axis + column,
             *dy = of.dy + at.outer * of.dy_outer + at.begin * of.dy_axis + column;
  char* dx = of.dx + at.outer * of.dx_outer + at.begin * of.dx_axis + column;
  GradientState<float> states[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) states[row] = roots[std::int64_t{at.word} * kRows + row];
  const auto load = [&](Run& words, int i) {
    words.load(y + i * of.y_axis, of.y_axis, dy + i * of.dy_axis, of.dy_axis, at.there - i);
  };
  Run words, next;
  load(words, 0);
#pragma unroll 1
  for (int i = 0; i < at.there; i += kRun, words = next) {
    load(next, i + kRun);  // on its way while this run is worked on
    words.write(dx + i * of.dx_axis, of.dx_axis, at.there - i, states, of.scale);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
