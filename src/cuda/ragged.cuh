// Ragged rows, whose lengths only the device knows. Short ones are taken first, where there may be many of them
// (ragged_packs.cuh), then those of a few chunks (ragged_tiles.cuh). What they leave is taken here: rows of any kind by
// warps or blocks, those too long for a block by all of them (ragged_long.cuh).
#pragma once

#include "cuda/ragged_long.cuh"
#include "cuda/ragged_packs.cuh"
#include "cuda/ragged_tiles.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How rows are spread over the grid: its first blocks look among `long_rows` rows each for long ones, every warp of
/// the others takes the shorter ones of `warp_rows`, which divides kMarked or is up to
/// 32 times it.
struct RaggedSpread {
  std::int64_t long_blocks, long_rows;
  int warp_rows;
  RaggedList list;       ///< of rows that are too long for a block
  const unsigned* left;  ///< a mark a row: those to take; null: all
};

/// Up to kMarked neighbouring rows by a warp, those of at most kWarpElements.
template <class E, RaggedLeaves kLeaves>
struct WarpRows {
  using Team = RaggedTeam<E, kLeaves, 1>;

  const RowProblem& p;
  lift::Factor common;
  int lane;

  __device__ __forceinline__ explicit WarpRows(const RowProblem& p_)
      : p(p_), common(fold::make_scale<float>(p_.scale).c), lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void run(std::int64_t first, int count, const unsigned* left,
                                      typename Team::Storage& storage, RaggedParking& parking, AnyStorage& any) const {
    unsigned todo = 0xFFFFFFFFU >> (32 - count);
    if (left != nullptr) todo &= left[first / kMarked] >> first % kMarked;
    if (todo == 0) return;
    RaggedRow own{first + lane, 0, kWarpElements + 1};
    if (lane < count) own = ragged_row(p, first + lane);
    if (kLeaves == RaggedLeaves::row && own.n == 0 && left == nullptr)
      write_row<float>(p, own.index, fold::LogSumExp<float>::identity());
    todo &= __ballot_sync(lift::kWholeWarp, own.n > 0 && own.n <= kWarpElements);
    const auto at = [&](int i) {
      const std::int64_t begin = __shfl_sync(lift::kWholeWarp, own.begin, i);
      return RaggedRow{first + i, begin, __shfl_sync(lift::kWholeWarp, own.n, i)};
    };
#pragma unroll 1
    while (todo != 0) {
      const RaggedRow r = at(__ffs(static_cast<int>(todo)) - 1);
      todo &= todo - 1;
      const RaggedRow next = at(max(__ffs(static_cast<int>(todo)) - 1, 0));
      if (lane == 0 && todo != 0) fetch_ahead<E>(p, next, 0);
      const lift::Factor factor = RaggedView<E>{p, r}.factor(common);
      lift::Node node{lift::kFar, 0.F};
      if (factor.plain && !p[Slot::mask].given) node = Team(p, r, factor.c, storage, parking).run();
      const auto state = node.z == lift::kFar ? any_row<E, kLeaves>(p, r.index, any, 1) : lift::state_of(node);
      if (kLeaves == RaggedLeaves::row && lane == 0) write_row<float>(p, r.index, state);
      __syncwarp();
    }
  }
};

/// The rows found from `base` on, by all warps of the block.
template <class E, RaggedLeaves kLeaves>
__device__ __forceinline__ void take_long(const RowProblem& p, const RaggedSpread& spread, std::int64_t base,
                                          const int* found, int count, const lift::Factor& common,
                                          typename RaggedTeam<E, kLeaves, kRaggedWarps>::Storage& storage,
                                          RaggedParking& parking, AnyStorage& any) {
  using Team = RaggedTeam<E, kLeaves, kRaggedWarps>;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const std::int64_t row = base + found[i];
    const RaggedRow r = ragged_row(p, row);
    if (r.n > kBlockElements && spread.list.append(row, r.n)) continue;
    if (threadIdx.x == 0) {
      constexpr int kMost = Team::kAhead * kRaggedWarps * lift::kChunk;
      if (i == 0) fetch_ahead<E>(p, r, 0, kMost);
      if (i + 1 < count) fetch_ahead<E>(p, ragged_row(p, base + found[i + 1]), 0, kMost);
    }
    const lift::Factor factor = RaggedView<E>{p, r}.factor(common);
    lift::Node node{lift::kFar, 0.F};
    if (factor.plain && !p[Slot::mask].given) node = Team(p, r, factor.c, storage, parking).run();
    fold::LogSumExp<float>::State state;
    if (node.z == lift::kFar) {
      __syncthreads();
      state = any_row<E, kLeaves>(p, row, any, kRaggedWarps);
    } else {
      state = lift::state_of(node);
    }
    if (kLeaves == RaggedLeaves::row && threadIdx.x == 0) write_row<float>(p, row, state);
    __syncthreads();
  }
}

/// Looks among the block's share of the rows for those beyond kWarpElements, and takes each with all warps.
template <class E, RaggedLeaves kLeaves>
__device__ __forceinline__ void long_rows(const RowProblem& p, const RaggedSpread& spread,
                                          typename RaggedTeam<E, kLeaves, kRaggedWarps>::Storage& storage,
                                          RaggedParking& parking, AnyStorage& any) {
  constexpr int kThreads = 32 * kRaggedWarps;
  __shared__ int found[kThreads], count;
  const lift::Factor common(fold::make_scale<float>(p.scale).c);
  const std::int64_t begin = blockIdx.x * spread.long_rows, end = min(begin + spread.long_rows, p.rows);
  const int each = spread.long_rows > kThreads ? kMarked : 1;  // rows that a thread looks at
  for (std::int64_t base = begin; base < end; base += kThreads * each) {
    const std::int64_t own = base + static_cast<int>(threadIdx.x) * each;
    unsigned bits = each == 1 ? 1U : 0xFFFFFFFFU;
    if (own >= end) bits = 0;
    if (bits != 0 && spread.left != nullptr) bits &= spread.left[own / kMarked] >> own % kMarked;
    while (__syncthreads_or(static_cast<int>(bits)) != 0) {
      if (threadIdx.x == 0) count = 0;
      __syncthreads();
      const std::int64_t row = own + __ffs(static_cast<int>(bits)) - 1;
      if (bits != 0 && row < end && ragged_row(p, row).n > kWarpElements)
        found[atomicAdd(&count, 1)] = static_cast<int>(row - base);
      bits &= bits - 1;
      __syncthreads();
      take_long<E, kLeaves>(p, spread, base, found, count, common, storage, parking, any);
    }
  }
}

template <class E, RaggedLeaves kLeaves>
__global__ void __launch_bounds__(32 * kRaggedWarps, kRaggedBlocks)
    ragged_rows(const __grid_constant__ RowProblem p, const __grid_constant__ RaggedSpread spread) {
  begin_in_order();
  extern __shared__ __align__(16) RaggedParking parking[];
  __shared__ typename RaggedTeam<E, kLeaves, kRaggedWarps>::Storage of_block;
  __shared__ typename RaggedTeam<E, kLeaves, 1>::Storage of_warp[kRaggedWarps];
  __shared__ AnyStorage any[kRaggedWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (blockIdx.x < spread.long_blocks) return long_rows<E, kLeaves>(p, spread, of_block, parking[warp], any[0]);
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) - spread.long_blocks) * kRaggedWarps + warp;
  const std::int64_t begin = item * spread.warp_rows, end = min(begin + spread.warp_rows, p.rows);
  // Lanes look for words of marks that hold some.
  const std::int64_t own = begin + threadIdx.x % 32 * kMarked;
  const bool some = own < end && (spread.left == nullptr || spread.left[own / kMarked] != 0);
  unsigned words = __ballot_sync(lift::kWholeWarp, some);
#pragma unroll 1
  for (; words != 0; words &= words - 1) {
    const std::int64_t first = begin + (__ffs(static_cast<int>(words)) - 1) * kMarked;
    const auto count = static_cast<int>(min(end - first, std::int64_t{kMarked}));
    WarpRows<E, kLeaves>(p).run(first, count, spread.left, of_warp[warp], parking[warp], any[warp]);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
