// The loss of plain rows without smoothing and z-loss: a row is finished by few instructions, and the sum over rows is
// a warp a chunk of them. Where nothing but the loss is asked for, that is done where the states of its chunks are
// merged.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/loss.cuh"
#include "cuda/plain_chunk.cuh"
#include "cuda/row_results.cuh"
#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What rows leave for the sums over them; null where nobody asks.
struct RowLosses {
  double* losses;
  RowsSum* targets;       ///< their weights
  unsigned* blocks_done;  ///< of add_losses
};

/// A plain row: LossRow, but for what all rows have in common.
struct PlainLossRow {
  const PlainRows& rows;
  Row row;
  fold::LogSumExp<float>::State state;
  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser() const { return rows.log_normaliser(state); }
};

/// A plain row's target. It is none of the classes if it is ignored, or out of range.
struct TargetOf {
  std::int64_t index;
  bool ignored, is_class;
  float weight;

  __device__ __forceinline__ TargetOf(const LossProblem& p, const PlainPlace& place)
      : TargetOf(p, number_at(p, place)) {}
  /// What is given as the row's target, and what that means.
  static __device__ __forceinline__ std::int64_t number_at(const LossProblem& p, const PlainPlace& place) {
    const Operand& o = p[LossSlot::targets];
    return integer_at(o.dtype, o.data + place.offset(o));
  }
  __device__ __forceinline__ TargetOf(const LossProblem& p, std::int64_t number) : index(number) {
    ignored = index == p.ignore_index;
    is_class = !ignored && index >= 0 && index < p.n;
    weight = is_class ? weight_at<float>(p, index) : 1.F;
  }
  /// Of x; 0 if there is none.
  __device__ __forceinline__ float element(const LossProblem& p, const PlainPlace& place) const {
    const Operand& x = p[Slot::x];
    return is_class ? element_at<float>(x.dtype, x.data + place.offset(x) + index * x.axis_stride) : 0.F;
  }
};

/// From a row's state: its loss and log-probability are written as finish_row() does without smoothing and z-loss.
/// Returns the loss as it counts in a sum.
static __device__ __forceinline__ double finish_alone(const LossProblem& p, const PlainPlace& place,
                                                      const PlainLossRow& r, const TargetOf& target, float element,
                                                      const RowLosses& to) {
  double lp = 0., loss = 0.;
  if (target.is_class) {
    lp = static_cast<double>(target_log_probability<float>(p, r, target.index, [&] { return element; }));
    loss = fold::CrossEntropy(0., 0., static_cast<double>(target.weight), 1., 1.).loss(lp, 0., 0.);
  } else if (!target.ignored) {
    lp = loss = fold::canonical_nan<double>();
    const Operand& status = p[LossSlot::status];
    if (status.given) atomicAdd(reinterpret_cast<int*>(status.data), 1);
  }
  const auto put_number = [&](LossSlot slot, double value) {
    const Operand& o = p[slot];
    if (o.given) put(o.dtype, o.data + place.offset(o), value);
  };
  put_number(LossSlot::log_probability, lp);
  if (p.reduction == Reduction::none) put_number(LossSlot::loss, loss);
  const Operand& o = p[Slot::states];
  if (o.given) *reinterpret_cast<StoredState*>(o.data + place.offset(o)) = stored_state<float>(r.state, p.scale);
  if (to.blocks_done != nullptr && place.row == 0) *to.blocks_done = 0;
  if (target.ignored) loss = fold::Sum<double>::identity();
  if (to.losses != nullptr) to.losses[place.row] = loss;
  if (to.targets != nullptr)
    to.targets[place.row] = target.is_class ? RowsSum{static_cast<double>(target.weight), 1} : RowsFold::identity();
  return loss;
}

/// Rows of up to 256 nodes, a warp each; `few`: a thread each (merges_by_threads).
static __global__ void __launch_bounds__(128)
    finish_losses(const __grid_constant__ LossProblem p, const __grid_constant__ PlainRows rows, const RowNodes nodes,
                  bool few, RowLosses to) {
  begin_in_order();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t index = few ? thread : thread / 32;
  if (index >= p.rows) return;
  const PlainPlace place(p, index);
  // The target and its element are on their way while the states are merged.
  const TargetOf target(p, place);
  float element = target.element(p, place);
  if (!rows.factor.plain) element = fold::Scalar<float>::mul(element, rows.factor.times);
  const auto state = nodes.root(index, few);
  if (few || threadIdx.x % 32 == 0) finish_alone(p, place, {rows, row_at(p, place), state}, target, element, to);
}

/// Whether the calling block is the last one to come here; what others wrote before is then seen. done: 0 before.
__device__ __forceinline__ bool is_last_block(unsigned* done) {
  if (gridDim.x == 1) {
    __syncthreads();
    return true;
  }
  __threadfence();
  __syncthreads();  // all of the block have come before it is counted
  const bool last = __syncthreads_or(threadIdx.x == 0 && atomicAdd(done, 1U) + 1 == gridDim.x) != 0;
  __threadfence();
  return last;
}

/// Chunks of rows a block.
inline constexpr int kRowChunksAtOnce = 8;

/// The sums of chunks of rows, a warp each, to `losses` and, if they are not `known` before, `targets`. Of up to
/// kMostChunks the last block puts the total.
static __global__ void __launch_bounds__(32 * kRowChunksAtOnce)
    add_losses(const __grid_constant__ LossProblem p, RowLosses rows, RowsSum* losses, RowsSum* targets,
               RowsTotal known) {
  begin_in_order();
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kRowChunksAtOnce + threadIdx.x / 32;
  const std::int64_t first = chunk * lift::kChunk + threadIdx.x % 32, chunks = lift::chunk_count(p.rows);
  const auto sum = [&](const auto& of_row) {
    double v[lift::kPerLane];
#pragma unroll
    for (int j = 0; j < lift::kPerLane; ++j)
      v[j] = first + 32 * j < p.rows ? of_row(first + 32 * j) : fold::Sum<double>::identity();
    return add_chunk(v);
  };
  if (chunk < chunks) {
    const double loss = sum([&](std::int64_t row) { return rows.losses[row]; });
    if (threadIdx.x % 32 == 0) losses[chunk] = {loss, 0};
    if (rows.targets != nullptr) {
      std::int64_t count = 0;
      const double weight = sum([&](std::int64_t row) {
        count += rows.targets[row].rows;
        return rows.targets[row].sum;
      });
      count = __reduce_add_sync(lift::kWholeWarp, static_cast<int>(count));
      if (threadIdx.x % 32 == 0) targets[chunk] = {weight, count};
    }
  }
  if (chunks <= kMostChunks && is_last_block(rows.blocks_done))
    put_whole(p, {losses, chunks}, divisor_of(p, rows.targets != nullptr ? RowsTotal{targets, chunks} : known));
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
