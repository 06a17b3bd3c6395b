// softmax and log_softmax of long plain rows by clusters that stay, each block a ring of tiles in shared memory: a warp
// folds one tile and writes another, whose row's state has come meanwhile. Between the two a tile waits as it came, and
// no registers do.
#pragma once

#include "cuda/plain_chunk.cuh"
#include "cuda/stay.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

inline constexpr int kRingWorkers = 15;  ///< warps of a block that fold and write tiles; another merges
inline constexpr int kRingThreads = (kRingWorkers + 1) * 32;
inline constexpr int kRingSlots = 56;            ///< of a block's ring, at most
inline constexpr int kRingBoxes = 12;            ///< rows in flight, at most
inline constexpr int kRingDeals = 16;            ///< rows dealt but not fetched, at most: fewer than are in flight
inline constexpr int kRingLongest = 256 * 1024;  ///< elements of a row
static_assert(kRingDeals > kRingBoxes);

struct RingPlan {
  unsigned* taken;  ///< rows that clusters have taken, but for the first ones
  int rows, clusters, blocks;
  int tiles, chunks;  ///< of a row
  int slots, slack;   ///< of a ring; a tile is written so many tiles after its row's last one was folded
  int boxes;          ///< for the mail of rows in flight
  int first_steps;    ///< rows of a cluster whose numbers are known before any is dealt
};

/// Places of 4 KB: a chunk of float32, two of 16 bit.
template <class E>
struct RingTile {
  static constexpr int kCount = sizeof(E) == 2 ? 64 : 32, kLanes = lift::kChunk / kCount;
  static constexpr int kElements = 32 * kCount, kChunks = kElements / lift::kChunk;
  using Part = WarpPart<E, kLanes, kCount>;
  using Fold = lift::WarpFold<Part::kWidth, kLanes, kCount>;
};

/// What one warp finds of a row for all of the block's tiles.
template <bool kLog>
struct alignas(16) RingRow {
  fold::LogSumExp<float>::State state;
  std::conditional_t<kLog, fold::LogNormaliser<float>, PlainProbability> norm;
  bool plain;  ///< regular, and for softmax in the fast range: norm is all that its elements need
  int top;     ///< z
  /// Tiles whose top is no further below: whose elements lie near each other then have no probability that leaves as 0.
  static constexpr int kNear = 40;
  static_assert(60 + kNear + 1 + 19 <= 124 && kRingLongest * 3 / 2 < 1 << 19);  // kSmallest is 2^-124, d below 2^19
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
  int tops[kRingSlots];  ///< z (lift::Node) of a tile whose elements lie near each other, else lift::kNone

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
template <class E, bool kLog>
struct RingWarp {
  using Tile = RingTile<E>;
  using Part = typename Tile::Part;
  using Fold = typename Tile::Fold;
  using Row = RingRow<kLog>;
  static constexpr int kSize = Part::kSize, kVectors = Part::kVectors, kWidth = Part::kWidth;

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
    char* at = memory + plan.slots * Part::kBytes + box * StayBox::bytes(plan.chunks);
    return {reinterpret_cast<StayMail*>(at)};
  }
  __device__ __forceinline__ Row& row_in(int box) const {
    char* at = memory + plan.slots * Part::kBytes + plan.boxes * StayBox::bytes(plan.chunks);
    return reinterpret_cast<Row*>(at)[box];
  }
  __device__ __forceinline__ Part part(int slot, int row, int tile) const {
    const int begin = (first_tile + tile) * Tile::kElements, n = min(static_cast<int>(p.n) - begin, Tile::kElements);
    const char* first = p.x + row * p.x_stride + static_cast<std::int64_t>(begin) * kSize;
    return {memory + slot * Part::kBytes, first, n, (n + lift::kChunk - 1) / lift::kChunk};
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
    uint4 raw[kVectors];
    of.read(raw, lift::absent(p.factor.c), p.x_begin, p.x_end);
    const auto extremes = extremes_by_integers<E>(raw);
    float v[Tile::kCount];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    const auto own = Fold::reduce(v, p.factor.c, extremes);
    // By every lane, so by those that send too: what they wrote is seen by who learns of it by the mail.
    if constexpr (!kLog) shared.tops[slot.slot] = own.dense ? own.node.z : lift::kNone;
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
    const bool near = !kLog && shared.tops[slot.slot] >= found.top - Row::kNear;
    uint4 raw[kVectors];
    of.read_again(raw);
    __syncwarp();
    if (lane == 0) fetch(slot.slot, next);
    const int group = lane / Tile::kLanes;
    char* y = p.y + row * p.y_stride +
              (static_cast<std::int64_t>(first_tile + place.tile) * Tile::kElements + group * lift::kChunk) * kSize;
    if (found.plain) {
      put(raw, found, near, y, of.count(group));
    } else {
      uint4 copy[kVectors];  // raw itself would be in memory wherever it is used
#pragma unroll
      for (int j = 0; j < kVectors; ++j) copy[j] = raw[j];
      put_any(copy, found, y, of.count(group));
    }
    return true;
  }

  /// Takes the next row, for all blocks of the cluster; -1 if there is none.
  __device__ __forceinline__ int deal(int at) const {
    const unsigned row = static_cast<unsigned>(plan.clusters * plan.first_steps) + atomicAdd(plan.taken, 1U);
    for (unsigned to = 0; to < lift::Cluster::size(); ++to)
      send_word(lift::Cluster::map(&shared.deals[at], to), lift::Cluster::map(&shared.dealt[at], to), row);
    return row < static_cast<unsigned>(plan.rows) ? static_cast<int>(row) : -1;
  }

  /// What the elements of a row need, once its mail has arrived.
  __device__ __forceinline__ void merge(const RingPlace& place) const {
    wait_for_words(shared.arrived[place.box], place.turn & 1U);
    const lift::Root root = mail(place.box).merge(plan.chunks);
    const auto state = root.state();
    const fold::Normaliser<float> norm(state);
    Row& row = row_in(place.box);
    if (lane != 0) return;
    row.state = state;
    row.top = root.node.z;
    if constexpr (kLog) {
      row.plain = norm.regular;
      row.norm = p.log_normaliser(state);
    } else {
      row.plain = norm.regular && fold::LogSumExp<float>::is_fast(state.m);
      if (row.plain) row.norm = PlainProbability(norm);
    }
    shared.merged[place.box].arrive();
  }

  __device__ __forceinline__ void put(uint4 (&raw)[kVectors], const Row& found, bool near, char* y, int count) const {
    float v[Tile::kCount];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
    const auto pack = [&](int j) { raw[j] = Packed<E>::pack(v + j * kWidth); };
    if constexpr (kLog) {
      finish<kLog, kWidth>(
          v, false, 0.F, [&] { return found.norm; }, pack);
    } else {
      const PlainProbability norm = found.norm;
      const auto each = [&](const auto& probability) {
#pragma unroll
        for (int i = 0; i < Tile::kCount; ++i) v[i] = probability(v[i]);
      };
      if (near) {
        each([&](float x) { return norm.near(x, p.factor.c); });
      } else {
        each([&](float x) { return norm(x, p.factor.c); });
      }
#pragma unroll
      for (int j = 0; j < kVectors; ++j) pack(j);
    }
    write_vectors<E, Tile::kLanes, kVectors>(y, count, [&](int j) { return raw[j]; });
  }

  /// Results of rows that are not plain.
  __device__ __noinline__ void put_any(uint4 (&raw)[kVectors], const Row& found, char* y, int count) const {
    const fold::Normaliser<float> norm(found.state);
    if (!norm.regular)
      return fill<E, kLog>(y, nullptr, 0, lane % Tile::kLanes, Tile::kLanes, count, count,
                           constant_of<kLog>(found.state, p.empty));
    if constexpr (!kLog) {
      float v[Tile::kCount];
#pragma unroll
      for (int j = 0; j < kVectors; ++j) Packed<E>::unpack(raw[j], v + j * kWidth);
      const float unit = terms_in_frame(v, p.factor.c, found.state.m);
      finish<false, kWidth>(
          v, false, fold::Scalar<float>::mul(norm.reciprocal, unit), [] { return 0; },
          [&](int j) { raw[j] = Packed<E>::pack(v + j * kWidth); });
      write_vectors<E, Tile::kLanes, kVectors>(y, count, [&](int j) { return raw[j]; });
    }
  }
};

template <class E, bool kLog>
__global__ void __launch_bounds__(kRingThreads, 1)
    softmax_ring(const __grid_constant__ PlainRows p, const __grid_constant__ RingPlan plan) {
  begin_in_order();
  extern __shared__ __align__(16) char memory[];
  __shared__ RingShared shared;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  shared.init();
  RingWarp<E, kLog> ring(p, plan, shared, memory);
  if (warp < kRingWorkers) ring.begin(warp);
  lift::Cluster::arrive();
  lift::Cluster::wait();
  if (warp < kRingWorkers) {
    ring.work(warp);
  } else {
    ring.serve();
  }
  lift::Cluster::arrive();  // nobody leaves while others still send
  lift::Cluster::wait();
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
