// The gradients of softmax and log_softmax of rows that lie side by side, by columns: y and dy wait in shared memory
// between the rows' sums and their results.
#pragma once

#include "cuda/gradient_columns.cuh"
#include "cuda/in_order.cuh"
#include "cuda/launch.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

struct BackwardColumns {
  GradientColumns of;
  ColumnShare share;
  int slots;  ///< words of y that a lane has
};

/// A word on its way from memory to shared memory.
template <int kBytes>
__device__ __forceinline__ void ask_word(unsigned to, const char* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}

/// A lane's elements of y and dy in shared memory, kStep words apart.
template <class E, template <class> class Gradient, int kRows, int kWarps>
struct GradientColumn {
  using Pair = GradientColumnWord<E, Gradient, kRows>;
  using Words = typename Pair::Words;
  using Word = typename Pair::Word;
  using Part = GradientPart<kRows>;
  static constexpr int kBytes = static_cast<int>(sizeof(Word)), kCount = kGradientBytes / kBytes;
  static constexpr int kStep = kWarps * 32;

  Word *y, *dy;

  /// The first `there` of so many places are for words `step` bytes apart; in the others is `nothing`.
  static __device__ __forceinline__ void ask(Word* to, const char* from, std::int64_t step, int there, int places,
                                             float nothing) {
    if constexpr (kBytes > 2) {
      unsigned at = shared_address(to);
#pragma unroll 4
      for (int j = 0; j < there; ++j, at += kStep * kBytes, from += step) ask_word<kBytes>(at, from);
    }
    float none[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) none[row] = nothing;
#pragma unroll 1
    for (int j = there; j < places; ++j) to[j * kStep] = Words::pack(none);
  }
  /// By ordinary loads, some on their way at once: an asynchronous copy has 4 bytes at least.
  __device__ __forceinline__ void load(const char* y_from, std::int64_t y_step, const char* dy_from,
                                       std::int64_t dy_step, int there) const {
    constexpr int kBatch = 16;
#pragma unroll 1
    for (int begin = 0; begin < there; begin += kBatch) {
      Word of_y[kBatch], of_dy[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j, y_from += y_step, dy_from += dy_step) {
        if (begin + j >= there) continue;
        of_y[j] = *reinterpret_cast<const Word*>(y_from), of_dy[j] = *reinterpret_cast<const Word*>(dy_from);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (begin + j < there) y[(begin + j) * kStep] = of_y[j], dy[(begin + j) * kStep] = of_dy[j];
    }
  }
  /// By all lanes of a warp: what it knows of its rows, from so many places. shown(row, j): whether the j-th element
  /// is; the same below.
  template <class Shown>
  __device__ __forceinline__ void fold(Part& part, int lane, int places, const Shown& shown) const {
    float sums[kRows];
    unsigned seen[kRows] = {};
    const auto leaves = [&](int j, float(&to)[kRows]) {
      Pair::absent(to);
      if (j < places) Pair::leaves(y[j * kStep], dy[j * kStep], to, seen, [&](int row) { return shown(row, j); });
    };
    add_strided<kCount>(sums, [&](int i, int j, float(&s)[kRows], float(&t)[kRows]) { leaves(i, s), leaves(j, t); });
    bool any[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) any[row] = Pair::has_any(seen[row]);
    part.put(lane, sums, any);
  }
  /// `there` results, `step` bytes apart. scale(row): the row's.
  template <class Y, class Scale, class Shown>
  __device__ __forceinline__ void write(char* to, std::int64_t step, int there,
                                        const GradientState<float> (&states)[kRows], const Scale& scale,
                                        const Shown& shown) const {
    bool regular = Pair::all_have_any(states);
    char* at = to;
#pragma unroll 4
    for (int j = 0; j < there; ++j, at += step)
      *reinterpret_cast<typename AcrossWord<Y, kRows>::Word*>(at) = Pair::template results<Y>(
          y[j * kStep], dy[j * kStep], states, scale, regular, [&](int row) { return shown(row, j); });
    if (!regular) write_any<Y>(to, step, there, states, scale, shown);
  }

 private:
  /// Of rows with NaN or nothing in them.
  template <class Y, class Scale, class Shown>
  __device__ __forceinline__ void write_any(char* to, std::int64_t step, int there,
                                            const GradientState<float> (&states)[kRows], const Scale& scale,
                                            const Shown& shown) const {
#pragma unroll 1
    for (int j = 0; j < there; ++j, to += step)
      Pair::template write_any<Y>(to, y[j * kStep], dy[j * kStep], states, scale,
                                  [&](int row) { return shown(row, j); });
  }
};

/// What a block does. shown_at(place, load): what is shown of the lane's rows, of which load(reach) has the first
/// elements asked for; scale(outer, row): a row's.
template <class E, class Y, template <class> class Gradient, int kRows, int kWarps, class ShownAt, class Scale>
__device__ __forceinline__ void backward_columns(const BackwardColumns& p, const ShownAt& shown_at,
                                                 const Scale& scale) {
  using Column = GradientColumn<E, Gradient, kRows, kWarps>;
  using Part = typename Column::Part;
  using Word = typename Column::Word;
  using Cluster = lift::Cluster;
  extern __shared__ __align__(16) char gradient_memory[];
  __shared__ Part parts[kWarps];
  __shared__ ColumnMail mail;
  auto* stage = reinterpret_cast<Word*>(gradient_memory);
  auto* shares = reinterpret_cast<Part*>(stage + 2 * p.slots * Column::kStep);  // of the cluster's blocks
  const ColumnPlace at(p.share, kWarps);
  const GradientColumns& of = p.of;
  mail.begin(at.blocks);
  const std::int64_t column = std::int64_t{at.column} * Column::kBytes;
  const Column elements{stage + threadIdx.x, stage + p.slots * Column::kStep + threadIdx.x};
  const auto y = [&] { return of.y + at.outer * of.y_outer + at.begin * of.y_axis + column; };
  const auto dy = [&] { return of.dy + at.outer * of.dy_outer + at.begin * of.dy_axis + column; };
  const auto load = [&](int reach) {
    // dy's address is not found before y has been asked for: 0.04 of speed.
    if constexpr (Column::kBytes == 2)
      elements.load(y(), of.y_axis << at.residue_bits, dy(), of.dy_axis << at.residue_bits, reach);
    Column::ask(elements.y, y(), of.y_axis << at.residue_bits, reach, p.slots, Gradient<float>::nothing());
    Column::ask(elements.dy, dy(), of.dy_axis << at.residue_bits, reach, p.slots, fold::Sum<float>::identity());
  };
  const auto shown = shown_at(at, load);
  asm volatile("cp.async.wait_all;" ::: "memory");
  elements.fold(parts[at.warp], at.lane, p.slots, shown);
  if (at.classes > 1) __syncthreads();
  float sums[kRows];
  unsigned any[kRows];
  join_gradients<false, kWarps>(parts + at.warp - at.own, at.classes, at.lane, sums, any);
  if (at.blocks > 1) {
    mail.expect(static_cast<int>(at.blocks * sizeof(Part)));
    for (unsigned to = static_cast<unsigned>(at.warp); to < at.blocks; to += kWarps) {
      const unsigned barrier = Cluster::map(&mail.arrived, to);
      Part& share = shares[at.rank];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        send_u32(Cluster::map(&share.sums[row][at.lane], to), barrier, __float_as_uint(sums[row]));
        if (at.lane == 0) send_u32(Cluster::map(&share.any[row], to), barrier, any[row]);
      }
    }
    mail.wait();
    join_gradients<true, kColumnBlocks>(shares, static_cast<int>(at.blocks), at.lane, sums, any);
  }
  if (at.asked >= p.share.words) return;
  GradientState<float> states[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) states[row] = {sums[row], any[row] >> at.lane & 1U};
  float scales[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) scales[row] = scale(at.outer, std::int64_t{at.column} * kRows + row);
  elements.template write<Y>(
      of.dx + at.outer * of.dx_outer + at.begin * of.dx_axis +
          std::int64_t{at.column} * (kRows * static_cast<int>(sizeof(Y))),
      of.dx_axis << at.residue_bits, at.there, states, [&](int row) { return scales[row]; }, shown);
}

/// kWarps: 4 or 8. The smaller a block, the better blocks overlap; the larger, the longer a row may be.
template <class E, template <class> class Gradient, int kRows, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 28 / kWarps)
    backward_across_columns(const __grid_constant__ BackwardColumns p) {
  begin_in_order();
  const auto shown_at = [](const ColumnPlace& at, const auto& load) {
    load(at.there);
    return WholeColumn{};
  };
  backward_columns<E, E, Gradient, kRows, kWarps>(p, shown_at, [&](unsigned, std::int64_t) { return p.of.scale; });
}

/// Shared memory of a block.
template <class E, int kRows, int kWarps>
int gradient_bytes(const ColumnCut& cut) {
  const int stage = 2 * cut.slots * kWarps * 32 * kRows * static_cast<int>(sizeof(E));
  const int shares = cut.blocks > 1 ? cut.blocks * static_cast<int>(sizeof(GradientPart<kRows>)) : 0;
  // Measured: where rows fill their lanes, memory is up to a quarter slower with more bytes under way than these; but
  // not of words of 2 bytes.
  constexpr int kSize = static_cast<int>(sizeof(E)), kUnderWay = (kSize == 4 ? 160 : 128) * 1024;
  int bytes = stage + shares;
  if (kRows * kSize > 2 && 16 * cut.slots * kRows * kSize > 15 * kGradientBytes)
    bytes = bytes_of_blocks(kUnderWay / stage, bytes);
  return bytes;
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
