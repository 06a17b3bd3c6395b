// The gradients of softmax and log_softmax of plain rows that lie side by side: a lane has some neighbouring rows, a
// warp every so-manieth element of these, which wait in shared memory between the rows' sums and their results. A
// cluster shares rows that a block does not hold.
#pragma once

#include "cuda/across_words.cuh"
#include "cuda/in_order.cuh"
#include "cuda/sm90.cuh"
#include "cuda/stay_rows.cuh"
#include "cuda/tree_nodes.cuh"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kGradientWarps = 8;    ///< of a block, at most
inline constexpr int kGradientBlocks = 16;  ///< of a cluster, at most
inline constexpr int kGradientBytes = 128;  ///< of y that a lane has, at most

/// How rows are shared. A tile is 32 words of neighbouring rows; `classes` warps of a block share one, and in a cluster
/// 1 << part_bits blocks each of its chunks. A warp has the elements i = r, r + residues, r + 2 residues, ... of a
/// chunk: the tree's first strides; then come those between warps, between parts, and between chunks.
struct BackwardColumns {
  const char *y, *dy;
  char* dx;
  std::int64_t y_axis, y_outer, dy_axis, dy_outer, dx_axis, dx_outer;  ///< bytes between neighbours
  int n;
  unsigned across, words;  ///< words side by side, and in all
  int class_bits, part_bits;
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
    if (regular) return;
    // Once more, of rows with NaN or nothing in them.
#pragma unroll 1
    for (int j = 0; j < there; ++j, to += step) {
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

/// The lane's rows from `count` parts, of at most kMost: joined from the largest stride down (warps), or neighbours
/// first (blocks: chunks' parts, then chunks).
template <int kMost, bool kNeighbours, int kRows>
__device__ __forceinline__ void join_parts(const GradientPart<kRows>* parts, int count, int lane,
                                           float (&sums)[kRows], unsigned (&any)[kRows]) {
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
    for (int i = 0; i < kMost; ++i) all[i] = i < count ? parts[i].sums[row][lane] : fold::Sum<float>::identity();
#pragma unroll
    for (int step = 1; step < kMost; step *= 2) {
      const int stride = kNeighbours ? step : kMost / 2 / step;
#pragma unroll
      for (int i = 0; i + stride < (kNeighbours ? kMost : 2 * stride); i += kNeighbours ? 2 * stride : 1)
        all[i] = fold::Sum<float>::merge(all[i], all[i + stride]);
    }
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
  __shared__ CopyBarrier arrived;
  auto* stage = reinterpret_cast<Word*>(gradient_memory);
  auto* shares = reinterpret_cast<Part*>(stage + 2 * p.slots * Column::kStep);  // of the cluster's blocks
  const unsigned rank = Cluster::rank(), blocks = Cluster::size();
  if (blocks > 1) {
    if (threadIdx.x == 0) {
      arrived.init(1);
      CopyBarrier::publish();
    }
    Cluster::arrive_shared();
  }
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int classes = 1 << p.class_bits, own = warp & (classes - 1);
  const unsigned tile =
      blockIdx.x / blocks * (kWarps >> p.class_bits) + (static_cast<unsigned>(warp) >> p.class_bits);
  // Lanes without rows of their own take part with the last ones and write nothing.
  const unsigned asked = tile * 32 + static_cast<unsigned>(lane), word = min(asked, p.words - 1);
  const unsigned outer = word / p.across;
  const std::int64_t column = std::int64_t{word - outer * p.across} * Column::kBytes;
  const int chunk = static_cast<int>(rank >> p.part_bits), residue_bits = p.class_bits + p.part_bits;
  // Parts in such an order that the tree joins neighbouring blocks first.
  const auto part = static_cast<int>(__brev(rank & ((1U << p.part_bits) - 1)) >> 1 >> (31 - p.part_bits));
  const int first = part + (own << p.part_bits);
  const int rest = min(p.n - chunk * static_cast<int>(lift::kChunk), static_cast<int>(lift::kChunk)) - first;
  const int there = rest <= 0 ? 0 : (rest + (1 << residue_bits) - 1) >> residue_bits;
  const std::int64_t begin = chunk * lift::kChunk + first;

  const Column elements{stage + threadIdx.x, stage + p.slots * Column::kStep + threadIdx.x};
  Column::ask(elements.y, p.y + outer * p.y_outer + begin * p.y_axis + column, p.y_axis << residue_bits, there,
              p.slots, Gradient<float>::nothing());
  Column::ask(elements.dy, p.dy + outer * p.dy_outer + begin * p.dy_axis + column, p.dy_axis << residue_bits, there,
              p.slots, fold::Sum<float>::identity());
  asm volatile("cp.async.wait_all;" ::: "memory");
  elements.fold(parts[warp], lane, p.slots);
  if (classes > 1) __syncthreads();
  float sums[kRows];
  unsigned any[kRows];
  join_parts<kWarps, false>(parts + warp - own, classes, lane, sums, any);
  if (blocks > 1) {
    Cluster::wait();
    if (threadIdx.x == 0) arrived.expect(static_cast<int>(blocks * sizeof(Part)));
    for (unsigned to = static_cast<unsigned>(warp); to < blocks; to += kWarps) {
      const unsigned barrier = Cluster::map(&arrived, to);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        send_u32(Cluster::map(&shares[rank].sums[row][lane], to), barrier, __float_as_uint(sums[row]));
        if (lane == 0) send_u32(Cluster::map(&shares[rank].any[row], to), barrier, any[row]);
      }
    }
    wait_for_words(arrived, 0);
    join_parts<kGradientBlocks, true>(shares, static_cast<int>(blocks), lane, sums, any);
  }
  if (asked >= p.words) return;
  GradientState<float> states[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) states[row] = {sums[row], any[row] >> lane & 1U};
  elements.write(p.dx + outer * p.dx_outer + begin * p.dx_axis + column, p.dx_axis << residue_bits, there, states,
                 p.scale);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
