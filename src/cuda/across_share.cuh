// How threads and blocks share rows along an outer axis, and what they exchange.
#pragma once

#include "cuda/rows.cuh"
#include "softfold/lift/tree.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kAcrossThreads = 256, kAcrossBlocks = 16;  ///< of a block, of a cluster
inline constexpr int kAcrossCount = 32;                         ///< elements of a row that a thread has

/// How a block's threads share rows: thread t of a tile has the tile's (t % columns)-th row, and of each chunk the
/// elements i = t / columns, i + classes, i + 2 classes, ...: all strides of the tree from `classes` on stay in the
/// thread. A row of more than a chunk is shared by the blocks of a cluster.
struct AcrossShare {
  int classes;  ///< 1 << shift, up to 32
  int shift;
  int columns;          ///< up to 32; a tile has whole warps
  int chunks;           ///< of a block: a power of two
  std::int64_t groups;  ///< of tiles, one a block or cluster
};

/// What threads and blocks exchange.
struct AcrossStorage {
  using Lse = fold::LogSumExp<float>;
  using Tree = lift::TreeBuilder<Lse>;
  static constexpr int kLongColumns = kAcrossThreads / 32;  ///< rows of a block whose rows have whole chunks
  lift::Extremes extremes[kAcrossThreads];
  float sums[kAcrossThreads];
  Lse::State shares[kAcrossBlocks][kLongColumns];  ///< of the cluster's blocks
  Lse::State rows[kLongColumns];
  alignas(Tree) char trees[kLongColumns][sizeof(Tree)];  ///< shared memory has no constructors

  __device__ __forceinline__ Tree& tree(int row) { return *reinterpret_cast<Tree*>(trees[row]); }
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
