// Ragged rows, whose lengths only the device knows. Of many the short ones are taken first (ragged_packs.cuh), then
// those of a few chunks (ragged_tiles.cuh), and here what they leave; or all rows. Rows of up to a few chunks are taken
// by warps, each some neighbouring rows in order of length: short ones a few lanes each, the others a warp. Longer ones
// are taken by blocks, from a queue where kernels before have found them, and those too long for a block by all of them
// (ragged_long.cuh).
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/ragged_long.cuh"
#include "cuda/ragged_packs.cuh"
#include "cuda/ragged_tiles.cuh"
#include "cuda/short_place.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// How rows are spread over the grid. With a queue its blocks take the rows in that, then every warp the shorter ones
/// of `warp_rows` at a time. Else the first blocks look among `long_rows` rows each for long ones, every warp of the
/// others takes the shorter ones of as many.
struct RaggedSpread {
  std::int64_t long_blocks, long_rows;
  bool apart;  ///< a block's long rows are long_blocks apart: neighbours are equally long where rows are in that order
  int warp_rows;         ///< with marks divides kMarked or is up to 32 times it; 0: warps have none
  RaggedList list;       ///< of rows that are too long for a block
  RaggedQueue queue;     ///< of long rows that are left
  const unsigned* left;  ///< with a queue a mark a row: the others to take

  /// The i-th of the rows among which the calling block looks.
  __device__ __forceinline__ std::int64_t long_row(std::int64_t i) const {
    return apart ? blockIdx.x + i * long_blocks : blockIdx.x * long_rows + i;
  }
  __device__ __forceinline__ bool takes(std::int64_t row) const {
    return left == nullptr || (left[row / kMarked] >> row % kMarked & 1U) != 0;
  }
};

/// Up to 32 neighbouring rows, one a lane, in order of length. Rows beyond kWarpElements are left to others; with a
/// queue they had no room there, and are taken, too.
template <class E, RaggedLeaves kLeaves>
struct WarpRows {
  using State = fold::LogSumExp<float>::State;
  struct Results {
    unsigned left;  ///< rows, by order of length, that any_row must take
    State state;    ///< of the lane-th shortest row
  };
  static constexpr int kLengthBits = 13;
  static_assert(kWarpElements < (1 << kLengthBits) - 1);

  const RowProblem& p;
  std::int64_t first, begin;  ///< begin: of the lane's row
  int key;                    ///< of the lane-th shortest row: its length, and the lane that has its begin
  lift::Factor common;
  int lane, count;  ///< count: of its rows

  __device__ __forceinline__ WarpRows(const RowProblem& p_, const RaggedSpread& spread, std::int64_t first_,
                                      int neighbours)
      : p(p_),
        first(first_),
        begin(0),
        common(fold::make_scale<float>(p_.scale).c),
        lane(static_cast<int>(threadIdx.x) % 32) {
    int n = 1 << kLengthBits;
    if (lane < neighbours && spread.takes(first + lane)) {
      const RaggedRow r = ragged_row(p, first + lane);
      begin = r.begin;
      n = static_cast<int>(min(r.n, std::int64_t{(1 << kLengthBits) - 1}));
    }
    key = ShortOrder::sorted(n * 32 + lane).key;
    count = up_to(spread.queue.given() ? (1 << kLengthBits) - 1 : kWarpElements);
  }
  /// How many rows have at most n elements.
  __device__ __forceinline__ int up_to(int n) const {
    return __popc(__ballot_sync(lift::kWholeWarp, key < (n + 1) * 32));
  }
  /// The i-th shortest row.
  __device__ __forceinline__ RaggedRow at(int i) const {
    const int its = __shfl_sync(lift::kWholeWarp, key, i), from = its % 32;
    const std::int64_t its_begin = __shfl_sync(lift::kWholeWarp, begin, from);
    return {first + from, its_begin, its / 32};
  }

  /// The rows from the i-th shortest on that kLanes lanes hold; i moves behind them.
  template <int kLanes>
  __device__ __forceinline__ void groups(int& i, Results& results) const {
    constexpr int kRows = 32 / kLanes;
    const int stop = up_to(CutTile<E, kLanes>::kLongest);
#pragma unroll 1
    for (; i < stop; i += kRows) {
      const int own = i + lane / kLanes;
      const RaggedRow r = at(min(own, stop - 1));
      const lift::Node node = ragged_group<E, kLeaves, kLanes>(p, r, common, own < stop);
      const unsigned far = __ballot_sync(lift::kWholeWarp, node.z == lift::kFar && own < stop);
#pragma unroll
      for (int g = 0; g < kRows; ++g)
        if ((far >> (g * kLanes) & 1U) != 0) results.left |= 1U << (i + g);
      if constexpr (kLeaves == RaggedLeaves::row) {
        const int from = (lane - i) * kLanes % 32;
        const lift::Node its{__shfl_sync(lift::kWholeWarp, node.z, from), __shfl_sync(lift::kWholeWarp, node.d, from)};
        if (lane >= i && lane < min(i + kRows, stop) && its.z != lift::kFar) results.state = lift::state_of(its);
      }
    }
    i = max(min(i, stop), up_to(0));
  }
  __device__ __forceinline__ void run(typename RaggedTeam<E, kLeaves, 1>::Storage& storage, RaggedParking& parking,
                                      AnyStorage& any) const {
    Results results{0U, fold::LogSumExp<float>::identity()};
    int i = up_to(0);
    const int stop = up_to(kWarpElements);
    if (!common.plain) {
      for (; i < stop; ++i) results.left |= 1U << i;
    } else {
      groups<4>(i, results);
      groups<8>(i, results);
#pragma unroll 1
      for (; i < stop; ++i) {
        const RaggedRow r = at(i);
        const RaggedRow next = at(min(i + 1, stop - 1));
        if (lane == 0) fetch_ahead<E>(p, next, 0);
        const lift::Node node = RaggedTeam<E, kLeaves, 1>(p, r, common.c, storage, parking).run();
        if (node.z == lift::kFar) {
          results.left |= 1U << i;
        } else if (lane == i) {
          results.state = lift::state_of(node);
        }
        __syncwarp();
      }
    }
    for (i = stop; i < count; ++i) results.left |= 1U << i;
#pragma unroll 1
    while (results.left != 0) {
      const int one = __ffs(static_cast<int>(results.left)) - 1;
      results.left &= results.left - 1;
      const State s = any_row<E, kLeaves>(p, at(one).index, any, 1);
      if (lane == one) results.state = s;
      __syncwarp();
    }
    if constexpr (kLeaves == RaggedLeaves::row) {
      if (lane < count) write_row<float>(p, first + key % 32, results.state);
    }
  }
};

/// The rows that a block takes with all its warps: from the queue, which blocks take from as they come to it, or those
/// beyond kWarpElements that it finds among its own.
class LongRows {
 public:
  static constexpr int kThreads = 32 * kRaggedWarps;
  struct Storage {
    int found[kThreads], count;
    std::int64_t next;
  };

  __device__ __forceinline__ LongRows(const RowProblem& p, const RaggedSpread& spread, Storage& storage)
      : p_(p), spread_(spread), storage_(storage) {
    if (spread.queue.given() && threadIdx.x == 0) take_ = spread.queue.take();
  }
  /// One after another, then -1. By all threads.
  __device__ __forceinline__ std::int64_t next() {
    if (spread_.queue.given()) return next_of_queue();
    while (at_ == count_) {
      if (base_ >= spread_.long_rows) return -1;
      look();
    }
    return spread_.long_row(base_ - kThreads + storage_.found[at_++]);
  }

 private:
  /// What it takes next is on its way meanwhile.
  __device__ __forceinline__ std::int64_t next_of_queue() {
    __syncthreads();
    if (threadIdx.x == 0) {
      storage_.next = spread_.queue.row(take_);
      if (storage_.next >= 0) take_ = spread_.queue.take();
    }
    __syncthreads();
    return storage_.next;
  }
  /// Among the next ones, a thread each.
  __device__ __forceinline__ void look() {
    __syncthreads();
    if (threadIdx.x == 0) storage_.count = 0;
    __syncthreads();
    const std::int64_t i = base_ + threadIdx.x, own = spread_.long_row(i);
    if (i < spread_.long_rows && own < p_.rows && ragged_row(p_, own).n > kWarpElements)
      storage_.found[atomicAdd(&storage_.count, 1)] = static_cast<int>(threadIdx.x);
    __syncthreads();
    count_ = storage_.count, at_ = 0, base_ += kThreads;
  }

  const RowProblem& p_;
  const RaggedSpread& spread_;
  Storage& storage_;
  std::int64_t base_ = 0;   ///< rows that have been looked at
  int at_ = 0, count_ = 0;  ///< of what was found among the last of them
  unsigned take_ = 0;       ///< of the queue, in its first thread
};

// Those that a block would read twice.
static_assert(RaggedQueue::kLong == kRaggedWarps * kWarpElements);

/// Long rows, one after another; of those that no block is to take alone it makes a list.
template <class E, RaggedLeaves kLeaves>
__device__ __forceinline__ void long_rows(const RowProblem& p, const RaggedSpread& spread,
                                          typename RaggedTeam<E, kLeaves, kRaggedWarps>::Storage& storage,
                                          RaggedParking& parking, AnyStorage& any) {
  using Team = RaggedTeam<E, kLeaves, kRaggedWarps>;
  __shared__ LongRows::Storage of_rows;
  const lift::Factor common(fold::make_scale<float>(p.scale).c);
  LongRows rows(p, spread, of_rows);
  // Those that a block would read twice are all blocks' if they are too few for these.
  const bool few = spread.queue.given() && spread.queue.has_few(2 * gridDim.x);
  const std::int64_t longest = few ? RaggedQueue::kLong : kBlockElements;
  const auto fetch = [&](const RaggedRow& r) {
    if (threadIdx.x == 0) fetch_ahead<E>(p, r, 0, Team::kAhead * kRaggedWarps * lift::kChunk);
  };
  std::int64_t row = rows.next();
  if (row >= 0) fetch(ragged_row(p, row));
#pragma unroll 1
  for (std::int64_t following; row >= 0; row = following) {
    following = rows.next();
    if (following >= 0) fetch(ragged_row(p, following));
    const RaggedRow r = ragged_row(p, row);
    if (r.n > longest && spread.list.append(row, r.n)) continue;
    lift::Node node{lift::kFar, 0.F};
    // Between what this row leaves in `storage` and what the next one puts there lies a barrier of the loop's.
    if (common.plain) node = Team(p, r, common.c, storage, parking).run();
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

/// A function of its own: inside the kernel's loop ptxas spills five times as much, but of states alone.
template <class E, RaggedLeaves kLeaves>
__device__ __noinline__ void warp_rows(const RowProblem& p, const RaggedSpread& spread, std::int64_t first, int count,
                                       typename RaggedTeam<E, kLeaves, 1>::Storage& storage, RaggedParking& parking,
                                       AnyStorage& any) {
  WarpRows<E, kLeaves>(p, spread, first, count).run(storage, parking, any);
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
  const bool in_front = blockIdx.x < spread.long_blocks;
  const bool has_queue = spread.queue.given() && spread.queue.count() > 0;
  if (in_front || has_queue) long_rows<E, kLeaves>(p, spread, of_block, parking[warp], any[0]);
  if (in_front || spread.warp_rows == 0) return;
  __syncthreads();  // the block's memory is the warps' now
  const std::int64_t rest = static_cast<std::int64_t>(gridDim.x) - spread.long_blocks;
  const std::int64_t step = rest * kRaggedWarps * spread.warp_rows;
  std::int64_t begin =
      ((static_cast<std::int64_t>(blockIdx.x) - spread.long_blocks) * kRaggedWarps + warp) * spread.warp_rows;
#pragma unroll 1
  for (; begin < p.rows; begin += step) {
    const std::int64_t end = min(begin + spread.warp_rows, p.rows);
    // Lanes look for words of marks that hold some.
    const std::int64_t own = begin + threadIdx.x % 32 * kMarked;
    const bool some = own < end && (spread.left == nullptr || spread.left[own / kMarked] != 0);
    unsigned words = __ballot_sync(lift::kWholeWarp, some);
#pragma unroll 1
    for (; words != 0; words &= words - 1) {
      const std::int64_t first = begin + (__ffs(static_cast<int>(words)) - 1) * kMarked;
      const auto count = static_cast<int>(min(end - first, std::int64_t{kMarked}));
      if constexpr (kLeaves == RaggedLeaves::row)
        WarpRows<E, kLeaves>(p, spread, first, count).run(of_warp[warp], parking[warp], any[warp]);
      else
        warp_rows<E, kLeaves>(p, spread, first, count, of_warp[warp], parking[warp], any[warp]);
    }
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
