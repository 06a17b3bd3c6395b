// The sum of what rows have left of losses and their targets' weights.
#pragma once

#include "cuda/loss_alone.cuh"
#include "cuda/stay_rows.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Which block of a launch is the last one to say so. word: RowCounter's, of nobody else meanwhile; null: nobody asks.
class LastBlock {
 public:
  /// By all threads, early.
  __device__ __forceinline__ explicit LastBlock(RowCounter::Word* word) : counter_{word, gridDim.x} {
    if (word != nullptr && gridDim.x > 1 && threadIdx.x == 0) counter_.begin(counter_.seen());
  }
  /// By all threads, once, if there is a word; what others wrote before is then seen.
  __device__ __forceinline__ bool here() const {
    if (gridDim.x == 1) {
      __syncthreads();
      return true;
    }
    __threadfence();
    __syncthreads();  // all of the block have come before it is counted
    const bool last = __syncthreads_or(threadIdx.x == 0 && counter_.take() + 1 == gridDim.x) != 0;
    __threadfence();
    if (last && threadIdx.x == 0) counter_.end();
    return last;
  }

 private:
  RowCounter counter_;
};

/// Chunks of rows a block.
inline constexpr int kRowChunksAtOnce = 8;

inline Grid add_losses_grid(const LossProblem& p) {
  return {ceil_div(lift::chunk_count(p.rows), kRowChunksAtOnce), 32 * kRowChunksAtOnce};
}

/// The sums of chunks of rows, a warp each, to `losses` and, if they are not `known` before, `targets`. Of up to
/// kMostChunks the last block puts the total.
static __global__ void __launch_bounds__(32 * kRowChunksAtOnce)
    add_losses(const __grid_constant__ LossProblem p, RowLosses rows, RowsSum* losses, RowsSum* targets,
               RowsTotal known, RowCounter::Word* done) {
  begin_in_order();
  const LastBlock block(lift::chunk_count(p.rows) <= kMostChunks ? done : nullptr);
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kRowChunksAtOnce + threadIdx.x / 32;
  const std::int64_t chunks = lift::chunk_count(p.rows);
  if (chunk < chunks) {
    const double loss = sum_of_chunk(chunk, p.rows, [&](std::int64_t row) { return rows.losses[row]; });
    if (threadIdx.x % 32 == 0) losses[chunk] = {loss, 0};
    if (rows.targets != nullptr) {
      std::int64_t count = 0;
      const double weight = sum_of_chunk(chunk, p.rows, [&](std::int64_t row) {
        count += rows.targets[row].rows;
        return rows.targets[row].sum;
      });
      count = __reduce_add_sync(lift::kWholeWarp, static_cast<int>(count));
      if (threadIdx.x % 32 == 0) targets[chunk] = {weight, count};
    }
  }
  if (chunks <= kMostChunks && block.here())
    put_whole(p, {losses, chunks}, divisor_of(p, rows.targets != nullptr ? RowsTotal{targets, chunks} : known));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
