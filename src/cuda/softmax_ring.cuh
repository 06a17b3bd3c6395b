// log_softmax of long plain rows by clusters that stay, each block a ring of tiles in shared memory: a warp
// folds one tile and writes another, whose row's state has come meanwhile. Between the two a tile waits as it came, and
// no registers do.
#pragma once

#include "cuda/ring_tile.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kRingWorkers = 15;  ///< warps of a block that fold and write tiles; another merges
inline constexpr int kRingThreads = (kRingWorkers + 1) * 32;
inline constexpr int kRingSlots = 56;  ///< of a block's ring, at most
inline constexpr int kRingBoxes = 12;  ///< rows in flight, at most
inline constexpr int kRingDeals = 16;  ///< rows dealt but not fetched, at most: fewer than are in flight
static_assert(kRingDeals > kRingBoxes);

struct RingPlan {
  RowCounter::Word* taken;  ///< counts rows that clusters have taken, but for the first ones
  int rows, clusters, blocks;
  int tiles, chunks;  ///< of a row
  int slots, pitch;   ///< of a ring, and bytes between them
  int slack;          ///< a tile is written so many tiles after its row's last one was folded
  int boxes;          ///< for the mail of rows in flight
  int first_steps;    ///< rows of a cluster whose numbers are known before any is dealt
};

/// What one warp finds of a row for all of the block's tiles.
struct alignas(16) RingMerged {
  RingState state;
  RingRow<true> row;
};

/// A place in the order of a block's tiles: the row's number among the cluster's, the tile's among the block's part of
/// the row, and which of the boxes of rows in flight is the row's, used for the how-manieth time.
struct RingPlace {
  int step = 0, tile, box = 0;
  unsigned turn = 0;
  __device__ __forceinline__ RingPlace(int at, int tiles, int boxes) : tile(at) { settle(tiles, boxes); }
  __device__ __forceinline__ void advance(int by, int tiles, int boxes) {
    tile += by;
    settle(tiles, boxes);
  }

 private:
  __device__ __forceinline__ void settle(int tiles, int boxes) {
    while (tile >= tiles) {
      tile -= tiles, ++step;
      if (++box == boxes) box = 0, ++turn;
    }
  }
};
/// A slot of the ring, filled for the turn-th time.
struct RingSlot {
  int slot;
  unsigned turn = 0;
  __device__ __forceinline__ void advance(int by, int slots) {
    slot += by;
    if (slot >= slots) slot -= slots, ++turn;
  }
};

/// A block's barriers, and what goes with them.
struct alignas(16) RingShared {
  CopyBarrier landed[kRingSlots];                       ///< a slot's tile, and which row it is of
  CopyBarrier arrived[kRingBoxes], merged[kRingBoxes];  ///< a row's mail; its RingRow
  CopyBarrier dealt[kRingDeals];                        ///< the row of a step
  std::uint64_t deals[kRingDeals];
  int rows[kRingSlots];  ///< whose tiles they are; -1: there is none, as all after it

  __device__ __forceinline__ void init() {
    for (int i = static_cast<int>(threadIdx.x); i < kRingSlots; i += kRingThreads) {
      landed[i].init(1);
      if (i < kRingBoxes) arrived[i].init(1), merged[i].init(1);
      if (i < kRingDeals) dealt[i].init(1);
    }
    CopyBarrier::publish();
    __syncthreads();
  }
};

/// One warp of a block: a worker, or the one that deals rows out and merges them.
template <class E>
struct RingWarp {
  using Tile = RingTile<E, true>;
  using Part = typename Tile::Part;
  using Row = RingMerged;

  const PlainRows& p;
  const RingPlan& plan;
  RingShared& shared;
  char* memory;           ///< the slots, the boxes' mail, the boxes' rows
  int first_tile, tiles;  ///< the block's of a row
  int lane, cluster;
  int seen, seen_row;  ///< the last step whose row was looked up, and its row

  __device__ __forceinline__ RingWarp(const PlainRows& rows, const RingPlan& how, RingShared& block, char* dynamic)
      : p(rows), plan(how), shared(block), memory(dynamic), lane(static_cast<int>(threadIdx.x) % 32) {
    const auto blocks = static_cast<int>(lift::Cluster::size()), rank = static_cast<int>(lift::Cluster::rank());
    first_tile = rank * plan.tiles / blocks;
    tiles = (rank + 1) * plan.tiles / blocks - first_tile;
    cluster = static_cast<int>(blockIdx.x) / blocks;
    seen = plan.first_steps - 1;
    seen_row = row_of(seen);
  }

  __device__ __forceinline__ StayBox mail(int box) const {
    char* at = memory + plan.slots * plan.pitch + box * StayBox::bytes(plan.chunks);
    return {reinterpret_cast<StayMail*>(at)};
  }
  __device__ __forceinline__ Row& row_in(int box) const {
    char* at = memory + plan.slots * plan.pitch + plan.boxes * StayBox::bytes(plan.chunks);
    return reinterpret_cast<Row*>(at)[box];
  }
  __device__ __forceinline__ Part part(int slot, int row, int tile) const {
    const char* x = p.x + row * p.x_stride;
    char* room = memory + slot * plan.pitch;
    // 16 bit would lose more by the instructions.
    return Tile::part(p, sizeof(E) == 4 ? place_in_sectors(room, x) : room, x, first_tile + tile);
  }

  /// A worker's part of the tiles that are there first.
  __device__ __forceinline__ void begin(int warp) {
    if (lane != 0) return;
    for (int slot = warp; slot < plan.slots; slot += kRingWorkers) fetch(slot, RingPlace(slot, tiles, plan.boxes));
  }
  /// A worker's part of all tiles, until one that it would write is not there. Those that it folds until then are
  /// fetched, or the word that they are not there, because the ring holds `behind` + kRingWorkers tiles.
  __device__ __forceinline__ void work(int warp) {
    const int behind = tiles + plan.slack;  // so many tiles after it was folded a tile is written
    RingSlot folded{warp}, written{0};
    RingPlace fold_at(warp, tiles, plan.boxes), write_at(0, tiles, plan.boxes), fetch_at(plan.slots, tiles, plan.boxes);
#pragma unroll 1
    for (int waits = behind - warp;; waits -= kRingWorkers) {
      fold(folded, fold_at);
      folded.advance(kRingWorkers, plan.slots);
      fold_at.advance(kRingWorkers, tiles, plan.boxes);
      if (waits > 0) continue;
      const int by = waits > -kRingWorkers ? -waits : kRingWorkers;
      written.advance(by, plan.slots);
      write_at.advance(by, tiles, plan.boxes);
      fetch_at.advance(by, tiles, plan.boxes);
      if (!write(written, write_at, fetch_at)) return;
    }
  }

  /// By the warp that is no worker: what all rows need, as soon as their mail has arrived. Before it waits for that it
  /// has the row taken whose first tile is fetched next.
  __device__ __forceinline__ void serve() {
    int last = row_of(plan.first_steps - 1);
    if (last >= 0 && lift::Cluster::rank() == 0 && lane == 0) counter().begin(counter().seen());
    for (RingPlace place(0, 1, plan.boxes); row_of(place.step) >= 0; place.advance(1, 1, plan.boxes)) {
      const int at = place.step % kRingDeals;
      if (lane == 0) {
        shared.dealt[at].expect(sizeof(std::uint64_t));
        if (last >= 0 && lift::Cluster::rank() == 0) last = deal(at);
        shared.arrived[place.box].expect(plan.chunks * static_cast<int>(sizeof(StayMail)));
      }
      __syncwarp();
      merge(place);
    }
  }

 private:
  /// The row of a step, -1 beyond the last. The first ones are known, others are dealt as clusters come to them. For
  /// steps in order.
  __device__ __forceinline__ int row_of(int step) {
    if (step < plan.first_steps) {
      const int row = cluster + step * plan.clusters;
      return row < plan.rows ? row : -1;
    }
    while (seen < step && seen_row >= 0) {
      ++seen;
      const int at = (seen - plan.first_steps) % kRingDeals, turn = (seen - plan.first_steps) / kRingDeals;
      wait_for_words(shared.dealt[at], static_cast<unsigned>(turn) & 1U);
      const auto row = static_cast<int>(shared.deals[at]);
      seen_row = row < plan.rows ? row : -1;
    }
    return seen_row;
  }
  /// Sends a tile on its way to its slot, or the word that there is none. By one lane.
  __device__ __forceinline__ void fetch(int slot, const RingPlace& place) {
    const int row = row_of(place.step);
    shared.rows[slot] = row;
    CopyBarrier& landed = shared.landed[slot];
    if (row < 0) return landed.arrive();
    const Part of = part(slot, row, place.tile);
    landed.expect(of.bytes(p.x_begin, p.x_end));
    of.fetch(landed, p.x_begin, p.x_end);
  }

  /// A tile's chunks to their row's mail.
  __device__ __forceinline__ void fold(const RingSlot& slot, const RingPlace& place) const {
    shared.landed[slot.slot].wait(slot.turn & 1U);
    const int row = shared.rows[slot.slot];
    if (row < 0) return;
    const Part of = part(slot.slot, row, place.tile);
    const auto own = Tile::fold(p, of);
    const int group = lane / Tile::kLanes;
    if (group >= of.chunks) return;
    send_mail<Tile::kLanes>(mail(place.box)[(first_tile + place.tile) * Tile::kChunks + group],
                            shared.arrived[place.box], mail_of(own));
  }

  /// A tile's results to y, its slot to the tile that is next there; false if there is no tile.
  __device__ __forceinline__ bool write(const RingSlot& slot, const RingPlace& place, const RingPlace& next) {
    shared.landed[slot.slot].wait(slot.turn & 1U);
    const int row = shared.rows[slot.slot];
    if (row < 0) return false;
    shared.merged[place.box].wait(place.turn & 1U);
    const Row& found = row_in(place.box);
    const Part of = part(slot.slot, row, place.tile);
    char* y =
        p.y + row * p.y_stride + static_cast<std::int64_t>(first_tile + place.tile) * Tile::kElements * Part::kSize;
    Tile::template write<true>(
        p, of, found.row, 0, y, [&] { return found.state; },
        [&](int waited) {
          __syncwarp();
          if (lane == 0) fetch(slot.slot + waited, next);
        });
    return true;
  }

  /// Each cluster whose first steps all have a row takes until there is none.
  __device__ __forceinline__ RowCounter counter() const {
    return {plan.taken, static_cast<unsigned>(plan.rows - (plan.first_steps - 1) * plan.clusters)};
  }
  /// Takes the next row, for all blocks of the cluster; -1 if there is none.
  __device__ __forceinline__ int deal(int at) const {
    const unsigned row = static_cast<unsigned>(plan.clusters * plan.first_steps) + counter().take();
    for (unsigned to = 0; to < lift::Cluster::size(); ++to)
      send_word(lift::Cluster::map(&shared.deals[at], to), lift::Cluster::map(&shared.dealt[at], to), row);
    if (row < static_cast<unsigned>(plan.rows)) return static_cast<int>(row);
    counter().end();
    return -1;
  }

  /// What the elements of a row need, once its mail has arrived.
  __device__ __forceinline__ void merge(const RingPlace& place) const {
    wait_for_words(shared.arrived[place.box], place.turn & 1U);
    const lift::Root root = mail(place.box).merge(plan.chunks);
    const RingState state = root.state();
    if (lane != 0) return;
    row_in(place.box) = {state, RingRow<true>(p, state, lift::node_of(state).z)};
    shared.merged[place.box].arrive();
  }
};

template <class E>
__global__ void __launch_bounds__(kRingThreads, 1)
    softmax_ring(const __grid_constant__ PlainRows p, const __grid_constant__ RingPlan plan) {
  begin_in_order();
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ RingShared shared;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  shared.init();
  RingWarp<E> ring(p, plan, shared, landing_memory);
  if (warp < kRingWorkers) ring.begin(warp);
  lift::Cluster::arrive_shared();
  lift::Cluster::wait();
  if (warp < kRingWorkers) {
    ring.work(warp);
  } else {
    ring.serve();
  }
  lift::Cluster::arrive_relaxed();  // nobody leaves while others still send
  lift::Cluster::wait();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
