// softmax and log_softmax of few long plain rows with one read: blocks that all run at once, a run of chunks each,
// spread over the whole device; a row's states cross by global memory.
#pragma once

#include "cuda/node_words.cuh"
#include "cuda/softmax_plain.cuh"

#include <cooperative_groups.h>

#include <utility>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kFewWarps = 16, kFewBlocks = 2;  ///< warps a block at most; blocks a processor
inline constexpr int kMostWatched = 32;               ///< nodes of a row that its blocks wait for one by one
inline constexpr int kArrivedApart = 32;              ///< words between rows' counts: each in a line of its own

/// How the blocks of a cooperative grid share the rows, and what they exchange; nothing in it needs to be set before.
struct FewShare {
  NodeBoard board;    ///< [rows][blocks]
  unsigned* arrived;  ///< [rows][kArrivedApart]: how many of a row's nodes are there
  int blocks;         ///< a row, at most 256
};

/// The exchange between the blocks of a row: each brings a node of the tree, all of one level.
class FewExchange {
 public:
  using State = fold::LogSumExp<float>::State;

  __device__ __forceinline__ FewExchange(const FewShare& share, int row, int block)
      : board_{share.board.nodes + row * share.blocks, share.board.far + row * share.blocks},
        arrived_(share.arrived + row * kArrivedApart),
        blocks_(share.blocks),
        block_(block) {}

  /// By one thread of every block, before the grid's barrier, after which they call fold().
  __device__ __forceinline__ void clear() const {
    if (watches_nodes()) {
      put_word(board_.nodes + block_, {kMissing, 0.F});
    } else if (block_ == 0) {
      *arrived_ = 0;
    }
  }
  /// By one warp of every block; all its lanes get the row's state.
  __device__ __forceinline__ State fold(const State& own) const {
    const lift::Node node = lift::node_of(own);
    if (threadIdx.x % 32 == 0) {
      board_.put(block_, node, own.m);
      if (!watches_nodes()) count();
    }
    __syncwarp();
    const lift::Node root = lift::merge_some(Watched{board_}, blocks_);
    if (root.z != lift::kFar) return lift::state_of(root);
    return lift::merge_states_wide(Exact{board_}, blocks_);
  }

 private:
  struct Watched {
    NodeBoard board;
    __device__ __forceinline__ lift::Node operator()(int i) const {
      lift::Node node{kMissing, 0.F};
      do node = look_for_word(board.nodes + i);
      while (node.z == kMissing);
      return node;
    }
  };
  struct Exact {
    NodeBoard board;
    __device__ State operator()(int i) const { return board.state(i, Watched{board}(i)); }
  };

  /// Measured: a row of few blocks waits for their nodes; of more, whose many loads would hold up the stores, each
  /// waits for their number.
  __device__ __forceinline__ bool watches_nodes() const { return blocks_ <= kMostWatched; }
  __device__ __forceinline__ void count() const {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived_) : "memory");
    unsigned seen = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived_) : "memory");
    } while (seen < static_cast<unsigned>(blocks_));
  }

  NodeBoard board_;
  unsigned* arrived_;
  int blocks_, block_;
};

/// The results of a chunk, whose terms (for log_softmax, elements) are in v, from its row's state.
template <class E, bool kLog, class Folded>
__device__ __forceinline__ void write_chunk(const PlainRows& p, const fold::LogSumExp<float>::State& row,
                                            const Folded& own, float (&v)[lift::kPerLane], char* y, int n) {
  const fold::Normaliser<float> norm(row);
  if (!norm.regular) {
    fill<E, kLog>(y, nullptr, 0, static_cast<int>(threadIdx.x) % 32, 32, n, n, constant_of<kLog>(row, p.empty));
    return;
  }
  finish<kLog, lift::kPerLane>(
      v, own.dense, fold::Scalar<float>::mul(norm.multiplier(own.state.m), own.unit),
      [&] { return p.log_normaliser(row); }, [](int) {});
  Tile<E, 32>(y).store(y, n, v);
}

/// A chunk a warp. Blocks are runs of a power of two of them: nodes of the row's tree.
template <class E, bool kLog>
__global__ void __launch_bounds__(kFewWarps * 32, kFewBlocks)
    softmax_grid_few(const __grid_constant__ PlainRows p, const __grid_constant__ FewShare share) {
  begin_in_order();
  using Elements = Tile<E, 32>;
  using Fold = lift::WarpFold<Elements::kWidth>;
  using State = fold::LogSumExp<float>::State;
  __shared__ State chunk_states[kFewWarps], row_state;
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int row = static_cast<int>(blockIdx.x) / share.blocks, block = static_cast<int>(blockIdx.x) % share.blocks;
  const std::int64_t begin = static_cast<std::int64_t>(block * warps + warp) * lift::kChunk;
  const int n = static_cast<int>(clamp(p.n - begin, lift::kChunk));
  const std::int64_t at = begin * static_cast<std::int64_t>(sizeof(E));
  const char* first = p.x + row * p.x_stride + at;
  const Elements tile(first);
  uint4 raw[Elements::kVectors];
  if (n > 0) tile.gather(raw, first, n, lift::absent(p.factor.c));
  // While the elements are on their way, what the blocks wait for is cleared, and all of them learn that it is.
  const FewExchange exchange(share, row, block);
  if (threadIdx.x == 0) exchange.clear();
  auto cleared = cooperative_groups::this_grid().barrier_arrive();
  float v[lift::kPerLane];
  typename Fold::Folded own{fold::LogSumExp<float>::identity(), 1.F, false, {lift::kNone, 0.F}};
  if (n > 0) {
    const auto extremes = tile.unpack(v, raw, n, p.factor);
    own = kLog ? Fold::reduce(v, p.factor.c, extremes) : Fold::terms(v, p.factor.c, extremes);
    if (threadIdx.x % 32 == 0) chunk_states[warp] = own.state;
  }
  cooperative_groups::this_grid().barrier_wait(std::move(cleared));  // the block's barrier, too
  if (warp == 0) {
    const int chunks = static_cast<int>(clamp(lift::chunk_count(p.n) - block * warps, warps));
    const auto node = lift::merge_states([&](int i) { return chunk_states[i]; }, chunks);
    const State whole = exchange.fold(node);
    if (threadIdx.x == 0) row_state = whole;
  }
  __syncthreads();
  if (n > 0) write_chunk<E, kLog>(p, row_state, own, v, p.y + row * p.y_stride + at, n);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
