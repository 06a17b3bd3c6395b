// softmax and log_softmax of rows too long for a cluster, by the whole device: each block a ring of tiles in shared
// memory, of which each warp has a few. A warp folds what has landed, or else writes a tile whose row's state has come.
// Nodes and roots cross by global memory.
#pragma once

#include "cuda/node_words.cuh"
#include "cuda/ring_tile.cuh"

#include <cooperative_groups.h>

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kGridRingWorkers = 11;  ///< warps of a block that fold and write tiles; two more serve them
inline constexpr int kGridRingThreads = (kGridRingWorkers + 2) * 32;
inline constexpr int kGridRingDepth = 5;  ///< tiles of a warp: landing, or waiting for their row's state
inline constexpr int kGridRingSlots = kGridRingWorkers * kGridRingDepth;
static_assert(kGridRingSlots >= 32);  // the lanes of the warp that hands states out have a tile each

/// Bytes from a slot to the next.
template <class E>
inline constexpr int kGridRingPitch = RingTile<E, false>::kBytes + 64;

/// Nodes of a lane that a warp merges at a time. (Four times as many are slower, although there are fewer rounds.)
inline constexpr int kNodeRun = 8, kNodeGroup = 32 * kNodeRun;
static_assert(kRingLongest <= 32 * kNodeGroup * lift::kChunk);

struct GridRingPlan {
  NodeBoard chunks;  ///< [rows][pitch]
  NodeBoard roots;   ///< [rows]
  uint4* nodes;      ///< of both, which become kMissing first
  std::int64_t words;
  int rows, tiles, count, pitch;  ///< tiles and chunks of a row; pitch: `count` up to whole runs
};

/// A tile by its row. Blocks take neighbouring tiles in turn, rows one after another.
struct GridRingPlace {
  int row, tile;
  __device__ __forceinline__ GridRingPlace(int at, int tiles) : row(at / tiles), tile(at - row * tiles) {}
  __device__ __forceinline__ void advance(const GridRingPlace& by, int tiles) {
    row += by.row, tile += by.tile;
    if (tile >= tiles) tile -= tiles, ++row;
  }
};
/// A slot, filled for the turn-th time.
struct GridRingSlot {
  int slot;
  unsigned turn = 0;
  __device__ __forceinline__ void advance(int by) {
    slot += by;
    if (slot >= kGridRingSlots) slot -= kGridRingSlots, ++turn;
  }
};

/// A block's barriers, and what goes with them. A slot is one worker's alone.
template <bool kLog>
struct alignas(16) GridRingShared {
  CopyBarrier landed[kGridRingSlots];  ///< a slot's tile
  CopyBarrier merged[kGridRingSlots];  ///< what it needs of its row
  char rows[kGridRingSlots * sizeof(RingRow<kLog>)];
  int tops[kGridRingSlots];  ///< RingTile::top_of

  __device__ __forceinline__ RingRow<kLog>& row(int slot) { return reinterpret_cast<RingRow<kLog>*>(rows)[slot]; }
  __device__ __forceinline__ void init() {
    const auto i = static_cast<int>(threadIdx.x);
    if (i < kGridRingSlots) landed[i].init(1), merged[i].init(1);
    CopyBarrier::publish();
    __syncthreads();
  }
};

/// One warp of a block: a worker, the one that merges, or the one that hands out what has been merged.
template <class E, bool kLog>
struct GridRingWarp {
  using Tile = RingTile<E, kLog>;
  using Part = typename Tile::Part;

  const PlainRows& p;
  const GridRingPlan& plan;
  GridRingShared<kLog>& shared;
  char* memory;  ///< the slots
  int lane, block, blocks;
  int tiles;  ///< the block's

  __device__ __forceinline__ GridRingWarp(const PlainRows& rows, const GridRingPlan& how, GridRingShared<kLog>& of,
                                          char* dynamic)
      : p(rows),
        plan(how),
        shared(of),
        memory(dynamic),
        lane(static_cast<int>(threadIdx.x) % 32),
        block(static_cast<int>(blockIdx.x)),
        blocks(static_cast<int>(gridDim.x)),
        tiles(up_to(plan.rows * plan.tiles, block, blocks)) {}

  /// A worker's tiles that land first.
  __device__ __forceinline__ void begin(int warp) const {
    if (lane != 0) return;
    for (int slot = warp; slot < min(tiles, kGridRingSlots); slot += kGridRingWorkers) fetch(slot, place(slot));
  }
  /// A worker's part of all tiles. It fetches into a slot what it wrote last from there, so a barrier's parity always
  /// means the tile that it asks for.
  __device__ __forceinline__ void work(int warp) const {
    const int own = up_to(tiles, warp, kGridRingWorkers);
    const GridRingPlace step(kGridRingWorkers * blocks, plan.tiles);
    GridRingSlot folded{warp}, written{warp};
    GridRingPlace fold_at = place(warp), write_at = fold_at, fetch_at = place(warp + kGridRingSlots);
#pragma unroll 1
    for (int folds = 0, writes = 0; writes < own;) {
      if (folds < min(own, writes + kGridRingDepth) && is_there(shared.landed, folded)) {
        fold(folded.slot, fold_at);
        folded.advance(kGridRingWorkers);
        fold_at.advance(step, plan.tiles);
        ++folds;
      } else if (writes < folds && is_there(shared.merged, written)) {
        write(written.slot, write_at, writes + kGridRingDepth < own, fetch_at);
        written.advance(kGridRingWorkers);
        write_at.advance(step, plan.tiles);
        fetch_at.advance(step, plan.tiles);
        ++writes;
      }
    }
  }

  /// By one warp: the nodes of every so-manieth row.
  __device__ __forceinline__ void merge_rows() const {
    for (int row = block; row < plan.rows; row += blocks) merge_row(row);
  }
  /// By another: the rows' roots to the block's tiles, a lane a tile. A row's root is put after all of its tiles have
  /// been folded, so after what was in their slots before has been written.
  __device__ __forceinline__ void hand_out() const {
    const GridRingPlace step(32 * blocks, plan.tiles);
    GridRingSlot slot{lane};
    GridRingPlace at = place(lane);
    for (int tile = lane; __any_sync(lift::kWholeWarp, tile < tiles);) {
      if (tile < tiles && hand_to(slot.slot, at.row)) {
        tile += 32;
        slot.advance(32);
        at.advance(step, plan.tiles);
      }
      __syncwarp();
    }
  }

 private:
  /// How many of [0, of) are first, first + step, ...
  static __device__ __forceinline__ int up_to(int of, int first, int step) {
    return of > first ? (of - first - 1) / step + 1 : 0;
  }
  __device__ __forceinline__ GridRingPlace place(int tile) const { return {block + tile * blocks, plan.tiles}; }
  __device__ __forceinline__ Part part(int slot, const GridRingPlace& place) const {
    return Tile::part(p, memory + slot * kGridRingPitch<E>, p.x + place.row * p.x_stride, place.tile);
  }
  __device__ __forceinline__ bool is_there(const CopyBarrier* barriers, const GridRingSlot& slot) const {
    return __all_sync(lift::kWholeWarp, barriers[slot.slot].is_complete_now(slot.turn & 1U));
  }
  /// Sends a tile on its way to its slot. By one lane.
  __device__ __forceinline__ void fetch(int slot, const GridRingPlace& place) const {
    const Part of = part(slot, place);
    CopyBarrier& landed = shared.landed[slot];
    landed.expect(of.bytes(p.x_begin, p.x_end));
    of.fetch(landed, p.x_begin, p.x_end);
  }

  /// A tile's chunks to their row's nodes.
  __device__ __forceinline__ void fold(int slot, const GridRingPlace& place) const {
    const Part of = part(slot, place);
    const auto own = Tile::fold(p, of);
    if constexpr (!kLog) shared.tops[slot] = Tile::top_of(own);
    const int group = lane / Tile::kLanes;
    if (lane % Tile::kLanes != 0 || group >= of.chunks) return;
    const StayMail mail = mail_of(own);
    plan.chunks.put(place.row * plan.pitch + place.tile * Tile::kChunks + group, mail.node, mail.far);
  }
  /// A tile's results to y, its slot to the worker's tile that is next there, if there is one.
  __device__ __forceinline__ void write(int slot, const GridRingPlace& place, bool more,
                                        const GridRingPlace& next) const {
    const RingRow<kLog>& found = shared.row(slot);
    const Part of = part(slot, place);
    const int top = kLog ? 0 : shared.tops[slot];
    char* y = p.y + place.row * p.y_stride + static_cast<std::int64_t>(place.tile) * Tile::kElements * Part::kSize;
    Tile::template write<false>(
        p, of, found, top, y, [&] { return plan.roots.state(place.row, look_for_word(plan.roots.nodes + place.row)); },
        [&](int waited) {
          __syncwarp();
          if (lane == 0 && more) fetch(slot + waited, next);
        });
  }

  /// By a lane: what a tile needs of its row, if the row's root is there.
  __device__ __forceinline__ bool hand_to(int slot, int row) const {
    const lift::Node root = look_for_word(plan.roots.nodes + row);
    if (root.z == kMissing) return false;
    shared.row(slot) = RingRow<kLog>(p, plan.roots.state(row, root), root.z);
    shared.merged[slot].arrive();
    return true;
  }

  /// A row's root, as soon as all of its nodes are there, to where all blocks look for it. Lane i keeps the state of
  /// the i-th group.
  __device__ __forceinline__ void merge_row(int row) const {
    RingState found = fold::LogSumExp<float>::identity();
    for (int begin = 0, group = 0; begin < plan.count; begin += kNodeGroup, ++group) {
      const RingState state = merge_group(row * plan.pitch + begin, min(plan.count - begin, kNodeGroup));
      if (lane == group) found = state;
    }
    if (plan.count > kNodeGroup) found = lift::merge_lanes(found);
    if (lane == 0) plan.roots.put(row, lift::node_of(found), found.m);
  }
  __device__ __forceinline__ RingState merge_group(int at, int count) const {
    const int first = lane * kNodeRun;
    lift::Node node[kNodeRun];
    bool there;
    do {
      there = true;
#pragma unroll
      for (int i = 0; i < kNodeRun; i += 2) {
        node[i] = node[i + 1] = {lift::kNone, 0.F};
        if (first + i < count) look_for_words(plan.chunks.nodes + at + first + i, node[i], node[i + 1]);
        if (first + i + 1 >= count) node[i + 1] = {lift::kNone, 0.F};
        there = there && node[i].z != kMissing && node[i + 1].z != kMissing;
      }
    } while (!__all_sync(lift::kWholeWarp, there));
    const lift::Node near = lift::merge_nodes(node);
    if (near.z != lift::kFar) return lift::state_of(near);
    __syncwarp();  // what neighbours saw is read again
    return lift::merge_states_wide(
        [board = plan.chunks, at](int i) { return board.state(at + i, look_for_word(board.nodes + at + i)); }, count);
  }
};

template <class E, bool kLog>
__global__ void __launch_bounds__(kGridRingThreads, 1)
    softmax_grid_ring(const __grid_constant__ PlainRows p, const __grid_constant__ GridRingPlan plan) {
  begin_in_order();
  extern __shared__ __align__(16) char memory[];
  __shared__ GridRingShared<kLog> shared;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  shared.init();
  const GridRingWarp<E, kLog> ring(p, plan, shared, memory);
  if (warp < kGridRingWorkers) ring.begin(warp);
  // While the first tiles are on their way, what blocks look for is cleared, and all of them learn that it is.
  const auto threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < plan.words; i += threads)
    plan.nodes[i] = {kMissing, 0, kMissing, 0};
  cooperative_groups::this_grid().sync();
  if (warp < kGridRingWorkers) {
    ring.work(warp);
  } else if (warp == kGridRingWorkers) {
    ring.merge_rows();
  } else {
    ring.hand_out();
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
