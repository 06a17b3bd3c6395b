// Rows that lie side by side as words: a lane has some neighbouring rows, a warp every so-manieth element of these, and
// a cluster shares rows that a block does not hold.
#pragma once

#include "cuda/across_words.cuh"
#include "cuda/columns.hpp"
#include "cuda/sm90.cuh"
#include "cuda/stay_rows.cuh"
#include "softfold/lift/cluster.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where a warp's elements lie: i = first, first + residues, first + 2 residues, ... of a chunk, which are the tree's
/// first strides; then come those between a tile's warps, between a chunk's parts, and between chunks.
struct ColumnPlace {
  int lane, warp, own, classes;  ///< own: the warp's number among its tile's
  unsigned rank, blocks;         ///< of the cluster
  unsigned asked, word;          ///< the lane's word; `word` exists
  unsigned outer, column;        ///< of `word`, columns in words
  int residue_bits, there;       ///< `there`: elements of each row
  std::int64_t begin;            ///< the first element

  __device__ __forceinline__ ColumnPlace(const ColumnShare& p, int warps) {
    lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    classes = 1 << p.class_bits, own = warp & (classes - 1);
    rank = lift::Cluster::rank(), blocks = lift::Cluster::size();
    const unsigned tile = blockIdx.x / blocks * static_cast<unsigned>(warps >> p.class_bits) +
                          (static_cast<unsigned>(warp) >> p.class_bits);
    // Lanes without rows of their own take part with the last ones and write nothing. What they read may be what others
    // write at the same time, in place; nobody uses what comes of it.
    asked = tile * 32 + static_cast<unsigned>(lane), word = min(asked, p.words - 1);
    outer = word / p.across, column = word - outer * p.across;
    // Parts in such an order that the tree joins neighbouring blocks first.
    const auto part = static_cast<int>(__brev(rank & ((1U << p.part_bits) - 1)) >> 1 >> (31 - p.part_bits));
    const int chunk = static_cast<int>(rank >> p.part_bits), first = part + (own << p.part_bits);
    const int rest = min(p.n - chunk * static_cast<int>(lift::kChunk), static_cast<int>(lift::kChunk)) - first;
    residue_bits = p.class_bits + p.part_bits;
    there = rest <= 0 ? 0 : (rest + (1 << residue_bits) - 1) >> residue_bits;
    begin = chunk * lift::kChunk + first;
  }
};

/// A warp's part of an item.
struct ItemPlace {
  unsigned chunk, tile;
  int lane, classes, own;  ///< own: the warp's number among its item's
  int n;                   ///< elements of the chunk
  int level_bits;          ///< of the tree over the warp's runs

  __device__ __forceinline__ ItemPlace(const ColumnItems& p, unsigned item, int warp) {
    chunk = item / p.tiles, tile = item - chunk * p.tiles;
    lane = static_cast<int>(threadIdx.x) % 32, classes = 1 << p.class_bits, own = warp & (classes - 1);
    n = static_cast<int>(clamp(p.n - begin(), lift::kChunk));
    level_bits = p.residue_bits - p.class_bits;
  }
  __device__ __forceinline__ unsigned word() const { return tile * 32 + static_cast<unsigned>(lane); }
  __device__ __forceinline__ std::int64_t begin() const { return std::int64_t{chunk} * lift::kChunk; }
};

/// The sums over the warp's runs of an item, in the tree's order. add(run, there, sums): those of a run, of which so
/// many elements exist. kRun: elements of one, at most.
template <int kRun, int kRows, class Add>
__device__ __forceinline__ void add_runs(float (&sums)[kRows], const ColumnItems& p, const ItemPlace& at,
                                         const Add& add) {
  constexpr int kLevels = kRun == 8 ? 7 : 6;
  static_assert(kRun == 8 || kRun == 16);
  float nodes[kLevels][kRows];
#pragma unroll 1
  for (int t = 0; t < 1 << at.level_bits; ++t) {
    // In such an order that nodes of the tree follow each other: few wait at a time.
    const auto turn = static_cast<int>(__brev(static_cast<unsigned>(t)) >> 1 >> (31 - at.level_bits));
    const int run = at.own + (turn << p.class_bits);
    add(run, (at.n - run + (1 << p.residue_bits) - 1) >> p.residue_bits, sums);
    bool carries = true;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const bool waits = (t >> level & 1) == 0;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (carries && waits) nodes[level][row] = sums[row];
        if (carries && !waits) sums[row] = fold::Scalar<float>::add(nodes[level][row], sums[row]);
      }
      carries = carries && !waits;
    }
  }
}

/// A warp's part of a pass over rows whose sums are known: kColumnSpan neighbouring elements of a tile.
struct SpanPlace {
  unsigned word, outer, column;  ///< the lane's; column in words
  std::int64_t begin;
  int there;  ///< elements of each row; 0 where the lane has no rows

  /// is_back: the last elements by the first blocks, while the L2 cache has them from the pass before.
  __device__ __forceinline__ SpanPlace(const ColumnItems& p, int warps, bool is_back) {
    const unsigned block = is_back ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const std::int64_t item = std::int64_t{block} * warps + threadIdx.x / 32, span = item / p.tiles;
    word = static_cast<unsigned>(item - span * p.tiles) * 32 + threadIdx.x % 32;
    outer = word / p.across, column = word - outer * p.across;
    begin = span * kColumnSpan;
    there = word < p.words ? static_cast<int>(clamp(p.n - begin, kColumnSpan)) : 0;
  }
};

/// all[0] becomes the tree over kMost parts, of which the first `count` exist and the others change nothing: from the
/// largest stride down (a tile's warps), or neighbours first (blocks: chunks' parts, then chunks).
template <bool kNeighbours, int kMost, class T, class Merge>
__device__ __forceinline__ void join_parts(T (&all)[kMost], int count, const Merge& merge) {
#pragma unroll
  for (int step = 1; step < kMost; step *= 2) {
    const int stride = kNeighbours ? step : kMost / 2 / step;
    if (stride >= count) continue;
#pragma unroll
    for (int i = 0; i + stride < (kNeighbours ? kMost : 2 * stride); i += kNeighbours ? 2 * stride : 1)
      all[i] = merge(all[i], all[i + stride]);
  }
}

/// The mail by which the blocks of a cluster tell each other of their tile; `Part`s in dynamic shared memory, one from
/// each of them.
struct ColumnMail {
  CopyBarrier arrived;

  /// By all threads, before anything else.
  __device__ __forceinline__ void begin(unsigned blocks) {
    if (blocks == 1) return;
    if (threadIdx.x == 0) {
      arrived.init(1);
      CopyBarrier::publish();
    }
    lift::Cluster::arrive_shared();
  }
  /// By all threads, before they send.
  __device__ __forceinline__ void expect(int bytes) {
    lift::Cluster::wait();
    if (threadIdx.x == 0) arrived.expect(bytes);
  }
  __device__ __forceinline__ void wait() { wait_for_words(arrived, 0); }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
