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
