// logsumexp and states of plain rows in one read: rows of 16-bit elements, and short ones of float32, as runs of slots
// (fold_slots.cuh), several a warp at a time.
#pragma once

#include "cuda/fold_queue.cuh"
#include "cuda/in_order.cuh"
#include "cuda/row_results.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Where the state of a lane's run of a tile goes, or its tile's: to its place in [rows][runs], where those of a merged
/// tile have one together (RowNodes), or, of rows of one run, to the row's result.
template <class E, int kLanes>
__device__ __forceinline__ void put_run(const PlainRows& p, const RunTiles& tiles, const FoldResults& to, unsigned tile,
                                        const fold::LogSumExp<float>::State& state) {
  constexpr int kRuns = Slots<E, kLanes>::kRuns;
  const unsigned place = threadIdx.x % 32 / kLanes;
  const bool merged = tile < tiles.merged;
  const RunOf<E, kLanes> run(p, tiles, tile, place);
  if (!run.exists || (merged && place > 0)) return;
  if (to.states == nullptr) return to.rows.put_state(run.row, state);
  const unsigned nodes = tiles.merged_runs / kRuns, saved = tiles.merged_runs - nodes;
  const std::uint64_t of_row = tiles.runs + (tiles.rest > 0 ? 1 : 0) - saved;
  to.states[run.row * of_row + (merged ? run.run / kRuns : run.run - saved)] = state;
}

/// The node over the runs of a lane's tile: states that have waited are those of the tile's runs in groups of lanes.
template <int kLanes>
__device__ __forceinline__ fold::LogSumExp<float>::State merge_tile(const fold::LogSumExp<float>::State& own) {
  if (!__all_sync(lift::kWholeWarp, lift::is_near(own))) return lift::merge_lanes<kLanes>(own);
  const auto node = lift::merge_lanes<kLanes>(lift::NearState{static_cast<float>(own.m), own.d});
  return {static_cast<double>(node.m), node.d};
}

/// Whether a tile's runs are chunks of longer rows.
template <class E, int kLanes>
inline constexpr bool kMerges = Slots<E, kLanes>::kSlots == lift::kChunk;

/// The state of a lane's run of a tile, as far as a frame in which all its terms are normal numbers is found.
template <class E, int kLanes, class Tiles>
__device__ __forceinline__ GuessedState fold_run(const LandedRun& run, bool full, int n, const Tiles& tiles, float c,
                                                 const TermTable& table) {
  using At = Slots<E, kLanes>;
  if constexpr (kLooksUp<E>) {
    if (tiles.looks_up) {
      const GuessedState state = full ? fold_looked_up<kLanes>(At(run.vector, run.shift, tiles.dense), c, table)
                                      : fold_cut_looked_up<kLanes>(run.vector, run.shift, n, c, table);
      if (__all_sync(lift::kWholeWarp, state.right)) return state;
    }
  } else if (full) {
    return fold_guessed<E, kLanes>(At(run.vector, run.shift, tiles.dense), c);
  }
  return fold_cut<E, kLanes>(run.vector, run.shift, full ? At::kSlots : n, c);
}

/// States wait in registers until every lane has one: a result costs as much as ten elements of a lane.
template <class E, int kLanes, class Tiles, class Results>
__device__ __forceinline__ void fold_tiles_of_runs(const PlainRows& p, const Tiles& tiles, const Results& to) {
  using At = Slots<E, kLanes>;
  using Run = typename Tiles::template Run<E, kLanes>;
  extern __shared__ __align__(kCopyLine) char landing_memory[];
  __shared__ TilesUnderWayOf<E, kLanes, Tiles> under_way;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  TileQueue<E, kLanes, Tiles> queue(p, tiles, landing_memory, under_way);
  const TermTable table(landing_memory, p.factor.c);
  if (kLooksUp<E> && tiles.looks_up) {
    TermTable::fill(landing_memory, p.factor.c);
    __syncthreads();
  }
  fold::LogSumExp<float>::State kept{0., 0.F};
  unsigned kept_tile = 0;
  int turn = 0;
#pragma unroll 1
  while (queue.has_tile()) {
    queue.look_ahead();
    queue.wait();
    const unsigned tile = queue.tile();
    const LandedRun landed = queue.run();
    const GuessedState state = fold_run<E, kLanes>(landed, tile < tiles.full, queue.length(), tiles, p.factor.c, table);
    __syncwarp();
    queue.take_next();
    if (lane % kLanes == turn) kept = {static_cast<double>(state.m), state.d}, kept_tile = tile;
    const unsigned right = __ballot_sync(lift::kWholeWarp, landed.there && p.factor.plain && state.right);
    if (right != lift::kWholeWarp) {
      constexpr unsigned all = (1U << kLanes) - 1U;
#pragma unroll 1
      for (int i = 0; i < At::kRuns; ++i) {
        if ((right >> (kLanes * i) & all) == all) continue;
        const Run run(p, tiles, tile, i);
        const auto exact = fold_exactly<E>(run.first, run.n, p);
        if (lane == i * kLanes + turn) kept = exact;
      }
    }
    if (++turn < kLanes && queue.has_tile()) continue;
    if constexpr (kMerges<E, kLanes> && !Tiles::kListed) {
      if (tiles.merged > 0) {
        const auto node = merge_tile<kLanes>(kept);
        if (kept_tile < tiles.merged) kept = node;
      }
    }
    if (lane % kLanes < turn) put_run<E, kLanes>(p, tiles, to, kept_tile, kept);
    turn = 0;
  }
}

template <class E, int kLanes>
__global__ void __launch_bounds__(kSlotWarps * 32, 1)
    fold_slots(const __grid_constant__ PlainRows p, const __grid_constant__ RunTiles tiles,
               const __grid_constant__ FoldResults to) {
  begin_in_order();
  fold_tiles_of_runs<E, kLanes>(p, tiles, to);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
