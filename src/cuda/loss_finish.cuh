// Rows behind their fold, of which nothing but the loss is asked for, or short ones whose gradients are written:
// finished where their chunks' states are merged, in one launch with the sum if they have few nodes.
#pragma once

#include "cuda/loss_add.cuh"
#include "cuda/row_results.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A warp a row. early: as finish_short_losses.
static __global__ void __launch_bounds__(128)
    finish_losses(const __grid_constant__ LossProblem p, const __grid_constant__ PlainRows rows, const RowNodes nodes,
                  RowLosses to, bool early) {
  begin_before_wait();
  if (!early) wait_for_before();
  const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (index >= p.rows) return;
  const PlainPlace place(p, index);
  // The target and its element are on their way while the states are merged.
  const TargetOf target(p, place);
  const float element = target.scaled_element(p, rows, place);
  wait_for_before();
  const auto state = nodes.root_by_warp(index);
  if (threadIdx.x % 32 == 0) finish_alone(p, place, PlainLossRow{rows, row_at(p, place), state}, target, element, to);
}

/// Of rare rows.
static __device__ __noinline__ void put_left_gradient(const LossProblem& p, const PlainRows& rows, std::int64_t index,
                                                      const fold::LogSumExp<float>::State& state, float element) {
  const PlainPlace place(p, index);
  put_target_gradient(p, place, PlainLossRow{rows, row_at(p, place), state}, TargetOf(p, place), element,
                      rows.gradients[index].factor);
}

/// Where the sums over rows go.
struct RowSums {
  RowsSum *losses, *targets;  ///< of chunks of rows; null: not asked for, or known
  RowsTotal known;            ///< weights of targets
  RowCounter::Word* done;     ///< of blocks

  /// By a block of as many threads as rows: the sums of its chunk. Of up to kMostChunks the last block puts the total.
  __device__ __forceinline__ void add(const LossProblem& p, double loss, double weight, bool counts,
                                      const LastBlock& block) const {
    __shared__ double all_losses[lift::kChunk], all_weights[lift::kChunk];
    all_losses[threadIdx.x] = loss, all_weights[threadIdx.x] = weight;
    const int counted = __syncthreads_count(counts);
    if (threadIdx.x < 32) {
      const double sum = sum_of_chunk(all_losses);
      if (threadIdx.x == 0) losses[blockIdx.x] = {sum, 0};
    } else if (threadIdx.x < 64 && targets != nullptr) {
      const double sum = sum_of_chunk(all_weights);
      if (threadIdx.x == 32) targets[blockIdx.x] = {sum, counted};
    }
    const std::int64_t chunks = gridDim.x;
    if (chunks <= kMostChunks && block.here())
      put_whole(p, {losses, chunks}, divisor_of(p, targets != nullptr ? RowsTotal{targets, chunks} : known));
  }
};

/// Rows of few nodes, a thread each, a block a chunk of them, and their sums. rows.targets: what a kernel that has
/// written the gradients has left of targets; null: elements are where they were. early: all before the call has ended
/// when it begins; then what is given may be read (and the word by which blocks are counted written, which no kernel
/// before it has) while the kernel before ends.
static __global__ void __launch_bounds__(lift::kChunk)
    finish_short_losses(const __grid_constant__ LossProblem p, const __grid_constant__ PlainRows rows,
                        const RowNodes nodes, const RowSums to, bool early) {
  begin_before_wait();
  if (!early) wait_for_before();
  const LastBlock block(to.losses != nullptr && gridDim.x <= kMostChunks ? to.done : nullptr);
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * lift::kChunk + threadIdx.x;
  const PlainPlace place(p, min(index, p.rows - 1));
  const TargetOf target(p, place);
  float element = 0.F;
  if (rows.targets == nullptr) element = target.scaled_element(p, rows, place);
  wait_for_before();
  double loss = fold::Sum<double>::identity(), weight = loss;
  const bool counts = index < p.rows && target.is_class;
  if (counts) weight = static_cast<double>(target.weight);
  if (index < p.rows) {
    // Of one node each: no merging.
    const auto state = rows.targets != nullptr ? rows.states[index] : nodes.root_by_thread(index);
    if (rows.targets != nullptr) {
      const RowTarget left = rows.targets[index];
      element = left.element;
      if (left.index == RowTarget::kLeft) put_left_gradient(p, rows, index, state, element);
    }
    loss = finish_alone(p, place, PlainLossRow{rows, row_at(p, place), state}, target, element, {});
  }
  if (to.losses != nullptr) to.add(p, loss, weight, counts, block);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
