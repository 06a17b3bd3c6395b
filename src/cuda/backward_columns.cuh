// The gradients of softmax and log_softmax of plain rows that lie side by side, by columns: y and dy wait in shared
// memory between the rows' sums and their results.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/in_order.cuh"
#include "cuda/tree_nodes.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kGradientBytes = 128;  ///< of y that a lane has, at most

struct BackwardColumns {
  const char *y, *dy;
  char* dx;
  std::int64_t y_axis, y_outer, dy_axis, dy_outer, dx_axis, dx_outer;  ///< bytes between neighbours
  ColumnShare share;
  int slots;  ///< words of y that a lane has
  float scale;
};

/// A word on its way from memory to shared memory.
template <int kBytes>
__device__ __forceinline__ void ask_word(unsigned to, const char* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}

/// What the warps of a tile tell each other: their sums, and of which lanes' rows they have seen something.
template <int kRows>
struct alignas(4 * kRows) GradientPart {
  float sums[kRows][32];
  unsigned any[kRows];
};

/// A lane's elements of y and dy in shared memory, kStep words apart.
template <class E, template <class> class Gradient, int kRows, int kWarps>
struct GradientColumn {
  using Words = AcrossWord<E, kRows>;
  using Word = typename Words::Word;
  using Part = GradientPart<kRows>;
  static constexpr int kBytes = static_cast<int>(sizeof(Word)), kCount = kGradientBytes / kBytes;
  static constexpr int kStep = kWarps * 32;

  Word *y, *dy;

  /// The first `there` of so many places are for words `step` bytes apart; in the others is `nothing`.
  static __device__ __forceinline__ void ask(Word* to, const char* from, std::int64_t step, int there, int places,
                                             float nothing) {
    unsigned at = shared_address(to);
#pragma unroll 4
    for (int j = 0; j < there; ++j, at += kStep * kBytes, from += step) ask_word<kBytes>(at, from);
    float none[kRows];
#pragma unroll
    for (float& of_row : none) of_row = nothing;
#pragma unroll 1
    for (int j = there; j < places; ++j) to[j * kStep] = Words::pack(none);
  }
  /// By all lanes of a warp: what it knows of its rows, from so many places.
  __device__ __forceinline__ void fold(Part& part, int lane, int places) const {
    float sums[kRows];
    unsigned seen[kRows] = {};  // the bits in which any y is not `nothing`
    const auto leaves = [&](int j, float(&to)[kRows]) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) to[row] = fold::Sum<float>::identity();
      if (j >= places) return;
      float a[kRows], b[kRows];
      Words::unpack(y[j * kStep], a), Words::unpack(dy[j * kStep], b);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        seen[row] |= __float_as_uint(a[row]) ^ __float_as_uint(Gradient<float>::nothing());
        to[row] = Gradient<float>::leaf(a[row], b[row]);
      }
    };
    add_strided<kCount>(sums, [&](int i, int j, float(&s)[kRows], float(&t)[kRows]) { leaves(i, s), leaves(j, t); });
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      part.sums[row][lane] = sums[row];
      const bool of_zero = Gradient<float>::nothing() == 0.F;  // of either sign
      const unsigned any = __ballot_sync(lift::kWholeWarp, (of_zero ? seen[row] << 1 : seen[row]) != 0);
      if (lane == 0) part.any[row] = any;
    }
    __syncwarp();
  }
  /// `there` results, `step` bytes apart.
  __device__ __forceinline__ void write(char* to, std::int64_t step, int there,
                                        const GradientState<float> (&states)[kRows], float scale) const {
    bool regular = true;
#pragma unroll
    for (int row = 0; row < kRows; ++row) regular = regular && states[row].any != 0;
    char* at = to;
#pragma unroll 4
    for (int j = 0; j < there; ++j, at += step) {
      float a[kRows], b[kRows];
      Words::unpack(y[j * kStep], a), Words::unpack(dy[j * kStep], b);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        a[row] = value(Gradient<float>{states[row].sum, scale}, a[row], b[row]);
        regular = regular && !fold::is_nan(a[row]);
      }
      *reinterpret_cast<Word*>(at) = Words::pack(a);
    }
    // Once more, of rows with NaN or nothing in them.
#pragma unroll 1
    for (int j = 0; j < there && !regular; ++j, to += step) {
      float a[kRows], b[kRows];
      Words::unpack(y[j * kStep], a), Words::unpack(dy[j * kStep], b);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const Gradient<float> through{states[row].sum, scale};
        reinterpret_cast<E*>(to)[row] = fold::narrow<E>(states[row].any != 0 ? through(a[row], b[row]) : 0.F);
      }
    }
  }

 private:
  static __device__ __forceinline__ float value(const fold::SoftmaxGradient<float>& through, float y, float dy) {
    return through.value(y, dy);
  }
  static __device__ __forceinline__ float value(const fold::LogSoftmaxGradient<float>& through, float y, float dy) {
    return through(y, dy);
  }
};

/// The lane's rows from `count` parts, of at most kMost.
template <bool kNeighbours, int kMost, int kRows>
__device__ __forceinline__ void join_gradients(const GradientPart<kRows>* parts, int count, int lane,
                                               float (&sums)[kRows], unsigned (&any)[kRows]) {
  using Sum = fold::Sum<float>;
#pragma unroll
  for (int row = 0; row < kRows; ++row) any[row] = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i >= count) continue;
#pragma unroll
    for (int row = 0; row < kRows; ++row) any[row] |= parts[i].any[row];
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float all[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) all[i] = i < count ? parts[i].sums[row][lane] : Sum::identity();
    join_parts<kNeighbours>(all, count, [](float a, float b) { return Sum::merge(a, b); });
    sums[row] = all[0];
  }
}

/// kWarps: 4 or 8. The smaller a block, the better blocks overlap; the larger, the longer a row may be.
template <class E, template <class> class Gradient, int kRows, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 28 / kWarps)
    backward_across_columns(const __grid_constant__ BackwardColumns p) {
  begin_in_order();
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
  mail.begin(at.blocks);
  const std::int64_t column = std::int64_t{at.column} * Column::kBytes;
  const Column elements{stage + threadIdx.x, stage + p.slots * Column::kStep + threadIdx.x};
  Column::ask(elements.y, p.y + at.outer * p.y_outer + at.begin * p.y_axis + column, p.y_axis << at.residue_bits,
              at.there, p.slots, Gradient<float>::nothing());
  Column::ask(elements.dy, p.dy + at.outer * p.dy_outer + at.begin * p.dy_axis + column, p.dy_axis << at.residue_bits,
              at.there, p.slots, fold::Sum<float>::identity());
  asm volatile("cp.async.wait_all;" ::: "memory");
  elements.fold(parts[at.warp], at.lane, p.slots);
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
  elements.write(p.dx + at.outer * p.dx_outer + at.begin * p.dx_axis + column, p.dx_axis << at.residue_bits, at.there,
                 states, p.scale);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
