// How rows reach the warps that fold them: cut into runs of slots (fold_slots.cuh), several a tile, which the copy
// engine brings to shared memory ahead of the warps. Where runs lie is computed, of plain rows (RunTiles), or stands on
// a list (listed_runs.cuh).
#pragma once

#include "cuda/divisor.hpp"
#include "cuda/fold_slots.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

template <class E, int kLanes>
struct RunOf;

/// How plain rows are cut into runs of kSlots elements, and what is left of each into one more; a warp takes kRuns of
/// them at a time: first those whose states are merged, which are neighbours in a row, then other full ones. All runs
/// are fewer than 2^31, as Divisor wants them: what finds a tile in 32 bits takes half as many instructions.
struct RunTiles {
  template <class E, int kLanes>
  using Run = RunOf<E, kLanes>;
  static constexpr bool kListed = false;
  static constexpr std::int64_t kMostRuns = std::int64_t{1} << 31;

  unsigned merged, full, all;        ///< tiles, each with those before
  unsigned runs, merged_runs;        ///< full runs a row, and the first of them, which are merged
  unsigned others;                   ///< full runs that are not merged, of all rows
  int rest;                          ///< elements of the last one of each row
  Divisor merged_tiles, other_runs;  ///< tiles a row of the merged runs; other full runs a row
  bool dense;                        ///< x is full runs end to end, the first on a vector
  bool looks_up;                     ///< terms come from a table
};

/// Elements from the last multiple of so many bytes to `first`.
template <class E>
__device__ __forceinline__ int elements_behind(const char* first, int bytes) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(first) % static_cast<unsigned>(bytes) / sizeof(E));
}

/// A lane's run of a tile.
template <class E, int kLanes>
struct RunOf {
  unsigned row, run;
  const char* first;
  int n;
  bool exists;  ///< false: the last one, once more

  __device__ __forceinline__ RunOf(const PlainRows& p, const RunTiles& tiles, unsigned tile, unsigned place) {
    using At = Slots<E, kLanes>;
    const bool full = tile < tiles.full;
    if (tile < tiles.merged) {
      row = tiles.merged_tiles.quotient(tile);
      run = (tile - row * tiles.merged_tiles.value) * At::kRuns + place;
      exists = true;
    } else {
      const unsigned wanted = (tile - (full ? tiles.merged : tiles.full)) * At::kRuns + place;
      const unsigned item = min(wanted, (full ? tiles.others : static_cast<unsigned>(p.rows)) - 1);
      exists = item == wanted;
      row = full ? tiles.other_runs.quotient(item) : item;
      run = full ? tiles.merged_runs + item - row * tiles.other_runs.value : tiles.runs;
    }
    n = full ? At::kSlots : tiles.rest;
    first = p.x + row * p.x_stride + std::uint64_t{run} * (At::kSlots * At::kSize);
  }
  __device__ __forceinline__ typename Landing<E, 32>::Span span(const PlainRows& p) const {
    return {first, n, p.x_begin, p.x_end};
  }
};

/// Whether runs' terms come from a table, beside whose halves the places then lie.
template <class E>
inline constexpr bool kLooksUp = std::is_same_v<E, fold::BFloat16>;

/// Warps of a block, one block a processor.
inline constexpr int kSlotWarps = 16;

/// Shared memory of a block, which is alone on its processor.
inline constexpr int kBlockBytes = 227 * 1024;

/// The places for tiles in it: as many as there is room for.
template <class E, int kLanes>
struct Places {
  static constexpr int kBytes = Slots<E, kLanes>::kBytes;
  static constexpr int kRoom = kBlockBytes - 2048;  ///< without what the queue knows of the tiles
  static constexpr int kBeside = kLooksUp<E> ? (TermTable::kNegative - TermTable::kBytes) / kBytes : 0;
  static constexpr int kAfter = kLooksUp<E> ? TermTable::kNegative + TermTable::kBytes : 0;
  static constexpr int kCount = kBeside + (kRoom - kAfter) / kBytes;
  static constexpr int kAll = kAfter + (kCount - kBeside) * kBytes;

  static __device__ __forceinline__ int at(int place) {
    return place < kBeside ? TermTable::kBytes + place * kBytes : kAfter + (place - kBeside) * kBytes;
  }
};

/// What a block's warps know of the tiles that are on their way.
template <class E, int kLanes>
struct TilesUnderWay {
  static constexpr int kRuns = Slots<E, kLanes>::kRuns;
  CopyBarrier barriers[Places<E, kLanes>::kCount];
  unsigned next;                                         ///< ticket
  unsigned fetched[Places<E, kLanes>::kCount];           ///< the ticket whose tile a place was last sent
  signed char shifts[Places<E, kLanes>::kCount][kRuns];  ///< a run: elements from its place to it; -1: not brought
  bool joined[Places<E, kLanes>::kCount];                ///< the runs lie as in x
};

/// The same of runs by a list, of which each that is not full has a length of its own.
template <class E, int kLanes>
struct ListedUnderWay : TilesUnderWay<E, kLanes> {
  short lengths[Places<E, kLanes>::kCount][Slots<E, kLanes>::kRuns];
};
template <class E, int kLanes, class Tiles>
using TilesUnderWayOf = std::conditional_t<Tiles::kListed, ListedUnderWay<E, kLanes>, TilesUnderWay<E, kLanes>>;

/// Where a lane's run is in shared memory.
struct LandedRun {
  const char* vector;  ///< in which it begins
  int shift;           ///< elements of the vector before it
  bool there;          ///< false: it reaches beyond x's memory, and has not been brought
};

/// The tiles of a block, taken by its warps as they come to them: an even share each would leave the slowest at work
/// alone. The n-th tile flies to place n modulo their number, as soon as the tile before it there has been read: there
/// are more places than warps, so that what a warp takes has most often landed.
template <class E, int kLanes, class Tiles>
class TileQueue {
 public:
  using Shared = TilesUnderWayOf<E, kLanes, Tiles>;
  using Run = typename Tiles::template Run<E, kLanes>;
  using At = Slots<E, kLanes>;
  using Place = Places<E, kLanes>;

  // One warp makes the places ready, and no warp waits for a place that another has yet to empty.
  static_assert(Place::kCount <= 32 && Place::kCount > kSlotWarps);
  static_assert(sizeof(Shared) <= kBlockBytes - Place::kRoom);
  static_assert(At::kRuns * At::kDense % kCopyLine == 0);  // tiles end to end begin alike in their lines

  __device__ __forceinline__ TileQueue(const PlainRows& p, const Tiles& tiles, char* memory, Shared& shared)
      : p_(p), tiles_(tiles), memory_(memory), shared_(shared), ticket_(threadIdx.x / 32) {
    if (threadIdx.x < Place::kCount) {
      shared.barriers[threadIdx.x].init(1);
      shared.fetched[threadIdx.x] = threadIdx.x;
      CopyBarrier::publish();
    }
    if (threadIdx.x == 0) shared.next = blockDim.x / 32;
    __syncthreads();
#pragma unroll 1
    for (unsigned ticket = ticket_; ticket < Place::kCount; ticket += blockDim.x / 32) fetch(ticket, ticket);
  }

  __device__ __forceinline__ unsigned tile() const { return tile_of(ticket_); }
  __device__ __forceinline__ bool has_tile() const { return tile() < tiles_.all; }
  /// Copies land in any order: the tile before this one may not even have been there, and a barrier tells its own phase
  /// from the last one, not from the next.
  __device__ __forceinline__ void wait() {
    while (*const_cast<volatile unsigned*>(&shared_.fetched[place()]) != ticket_) __nanosleep(40);
    shared_.barriers[place()].wait(ticket_ / Place::kCount % 2);
  }
  /// This lane's run.
  __device__ __forceinline__ LandedRun run() const {
    const bool joined = tiles_.dense || shared_.joined[place()];
    const int shift = tiles_.dense ? elements_behind<E>(p_.x, kCopyLine) : shared_.shifts[place()][own()];
    const int all = max(shift, 0);
    const char* from = memory_ + Place::at(static_cast<int>(place())) + own() * (joined ? At::kDense : At::kLoose);
    return {from + all / At::kWidth * 16, all % At::kWidth, shift >= 0};
  }
  /// Its elements, of a tile whose runs are not full.
  __device__ __forceinline__ int length() const {
    if constexpr (Tiles::kListed) {
      return shared_.lengths[place()][own()];
    } else {
      return tiles_.rest;
    }
  }
  /// What the next fetch will ask for first is on its way while the tile is folded.
  __device__ __forceinline__ void look_ahead() const {
    if constexpr (Tiles::kListed) tiles_.look_ahead(tile_of(ticket_ + Place::kCount));
  }
  /// The tile has been read: its place is filled again, and the warp takes another one.
  __device__ __forceinline__ void take_next() {
    fetch(ticket_ + Place::kCount, place());
    unsigned ticket = 0;
    // To add one, others of the warp who do would be looked for first, and so they would if it counted to ~0U.
    if (threadIdx.x % 32 == 0) ticket = atomicInc(&shared_.next, ~0U - 1);
    ticket_ = __shfl_sync(lift::kWholeWarp, ticket, 0);
  }

 private:
  static __device__ __forceinline__ unsigned own() { return threadIdx.x % 32 / kLanes; }
  __device__ __forceinline__ unsigned place() const { return ticket_ % Place::kCount; }
  __device__ __forceinline__ unsigned tile_of(unsigned ticket) const { return ticket * gridDim.x + blockIdx.x; }

  __device__ __forceinline__ void fetch(unsigned ticket, unsigned place) {
    const unsigned tile = tile_of(ticket);
    if (tile >= tiles_.all) return;
    CopyBarrier& barrier = shared_.barriers[place];
    if (threadIdx.x % 32 == 0) *const_cast<volatile unsigned*>(&shared_.fetched[place]) = ticket;
    char* to = memory_ + Place::at(static_cast<int>(place));
    if (!tiles_.dense) return fetch_runs(tile, place, barrier, to);
    if (threadIdx.x % 32 != 0) return;
    constexpr std::int64_t most = At::kRuns * At::kDense;
    const char* from = p_.x + std::int64_t{tile} * most;
    const int bytes = static_cast<int>(min(most, static_cast<std::int64_t>(p_.x_end - from)));
    barrier.expect(bytes);
    barrier.copy(to + elements_behind<E>(from, kCopyLine) * At::kSize, from, bytes);
  }

  __device__ __forceinline__ void fetch_runs(unsigned tile, unsigned place, CopyBarrier& barrier, char* to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (!Tiles::kListed)
      if (kLanes == 8 && sizeof(E) == 2 && tile < tiles_.full && fetch_joined(tile, place, barrier, to)) return;
    const Run run(p_, tiles_, tile, min(lane, At::kRuns - 1));
    if constexpr (Tiles::kListed) {
      const std::uintptr_t first = __shfl_sync(lift::kWholeWarp, reinterpret_cast<std::uintptr_t>(run.first), 0);
      const bool joined = tile < tiles_.full && are_neighbours(run, first);
      if (fetch_joined(reinterpret_cast<const char*>(first), joined, place, barrier, to)) return;
      if (lane < At::kRuns) shared_.lengths[place][lane] = static_cast<short>(run.n);
    }
    if (lane == 0) shared_.joined[place] = false;
    const auto span = run.span(p_);
    const bool lands = span.begin == span.from && span.end == span.up_to;  // else it reaches beyond x's memory
    if (lane < At::kRuns)
      shared_.shifts[place][lane] = static_cast<signed char>(lands ? elements_behind<E>(run.first, 16) : -1);
    const int bytes = lane < At::kRuns && lands ? span.bytes() : 0, sum = __reduce_add_sync(lift::kWholeWarp, bytes);
    __syncwarp();
    if (lane == 0) barrier.expect(sum);
    __syncwarp();
    if (bytes > 0) barrier.copy(to + lane * At::kLoose, reinterpret_cast<const void*>(span.from), bytes);
  }

  /// Whether a tile's runs, a lane each, are neighbours in a row, from its first one on.
  static __device__ __forceinline__ bool are_neighbours(const Run& run, std::uintptr_t first) {
    const std::uintptr_t own = first + min(threadIdx.x % 32, At::kRuns - 1U) * At::kDense;
    return __all_sync(lift::kWholeWarp, reinterpret_cast<std::uintptr_t>(run.first) == own);
  }
  /// A tile of neighbours in a row by one copy. False: it is none, or it lies at an end of x's memory.
  __device__ __forceinline__ bool fetch_joined(unsigned tile, unsigned place, CopyBarrier& barrier, char* to) {
    const Run run(p_, tiles_, tile, 0);
    return fetch_joined(run.first, run.run + At::kRuns <= tiles_.runs, place, barrier, to);
  }
  __device__ __forceinline__ bool fetch_joined(const char* first, bool neighbours, unsigned place, CopyBarrier& barrier,
                                               char* to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int shift = elements_behind<E>(first, kCopyLine), before = shift % At::kWidth * At::kSize;
    const char* from = first - before;
    const int bytes = At::kRuns * At::kDense + (before != 0 ? 16 : 0);
    if (!neighbours || from < p_.x_begin || from + bytes > p_.x_end) return false;
    if (lane < At::kRuns) shared_.shifts[place][lane] = static_cast<signed char>(shift);
    if (lane == 0) shared_.joined[place] = true;
    __syncwarp();
    if (lane == 0) {
      barrier.expect(bytes);
      barrier.copy(to + shift * At::kSize - before, from, bytes);
    }
    return true;
  }

  const PlainRows& p_;
  const Tiles& tiles_;
  char* memory_;
  Shared& shared_;
  unsigned ticket_;
};

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
