// The loss of plain rows where nothing else is asked for: a row is finished where the states of its chunks are merged,
// by few instructions, and the sum over rows is a warp a chunk of them.
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
  RowsSum* targets;  ///< their weights
};

/// A plain row: LossRow, but for what all rows have in common.
struct PlainLossRow {
  const PlainRows& rows;
  Row row;
  fold::LogSumExp<float>::State state;
  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser() const { return rows.log_normaliser(state); }
};

/// From a row's state: its loss and log-probability are written as finish_row() does without smoothing and z-loss.
static __device__ __forceinline__ void finish_alone(const LossProblem& p, const PlainPlace& place,
                                                    const PlainLossRow& r, std::int64_t target, bool is_class,
                                                    float element, float weight, const RowLosses& to) {
  const bool ignored = target == p.ignore_index;
  double lp = 0., loss = 0.;
  if (is_class) {
    lp = static_cast<double>(target_log_probability<float>(p, r, target, [&] { return element; }));
    loss = fold::CrossEntropy(0., 0., static_cast<double>(weight), 1., 1.).loss(lp, 0., 0.);
  } else if (!ignored) {
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
  if (to.losses != nullptr) to.losses[place.row] = ignored ? fold::Sum<double>::identity() : loss;
  if (to.targets != nullptr)
    to.targets[place.row] = is_class ? RowsSum{static_cast<double>(weight), 1} : RowsFold::identity();
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
  const bool finishes = few || threadIdx.x % 32 == 0;
  const Row row = row_at(p, place);
  // The target and its element are on their way while the states are merged.
  std::int64_t target = p.ignore_index;
  float element = 0.F, weight = 1.F;
  const Operand &targets = p[LossSlot::targets], &x = p[Slot::x];
  if (finishes) target = integer_at(targets.dtype, targets.data + place.offset(targets));
  const bool is_class = target != p.ignore_index && target >= 0 && target < p.n;
  if (finishes && is_class) {
    element = element_at<float>(x.dtype, row.x + target * x.axis_stride);
    weight = weight_at<float>(p, target);
    if (!rows.factor.plain) element = fold::Scalar<float>::mul(element, rows.factor.times);
  }
  const auto state = nodes.root(index, few);
  if (finishes) finish_alone(p, place, {rows, row, state}, target, is_class, element, weight, to);
}

/// Chunks of rows whose sums one block finds, and then the whole.
inline constexpr int kRowChunksAtOnce = 8;

/// The sums of chunks of rows, a warp each. at_once: there is one block, which puts the total.
static __global__ void __launch_bounds__(32 * kRowChunksAtOnce)
    add_losses(const __grid_constant__ LossProblem p, RowLosses rows, RowsSum* losses, RowsSum* targets, bool at_once) {
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
    if (targets != nullptr) {
      std::int64_t count = 0;
      const double weight = sum([&](std::int64_t row) {
        count += rows.targets[row].rows;
        return rows.targets[row].sum;
      });
      count = __reduce_add_sync(lift::kWholeWarp, static_cast<int>(count));
      if (threadIdx.x % 32 == 0) targets[chunk] = {weight, count};
    }
  }
  if (!at_once) return;
  __syncthreads();
  put_whole(p, {losses, chunks}, {targets, chunks});
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
