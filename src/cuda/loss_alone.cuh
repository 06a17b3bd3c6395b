// The loss of plain rows without smoothing and z-loss: what is known of a row's target, and how the row is finished by
// few instructions.
#pragma once

#include "cuda/choose.hpp"
#include "cuda/in_order.cuh"
#include "cuda/loss.cuh"
#include "cuda/plain_chunk.cuh"
#include "cuda/row_results.cuh"
#include "cuda/softmax_plain.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// Null if losses of plain rows without smoothing and z-loss are all that is asked for, so that rows are finished where
/// their chunks' states are merged, else why not.
inline const char* refuses_losses(const LossProblem& p) {
  constexpr std::int64_t most = 256;
  if (p.op != Op::cross_entropy || p[Slot::y].given) return "a gradient is asked for";
  if (p.label_smoothing != 0 || p.z_loss != 0) return "labels are smoothed, or there is a z-loss";
  if (has_probabilities(p)) return "targets are probabilities";
  if (p.is_double()) return "float64 has no vector tiles";
  if (p.n == 0 || p.rows == 0) return "there is no element";
  if (lift::chunk_count(p.n) > most) return "a row is longer than 262144";
  return refuses_plain(p);
}
inline bool wants_losses(const LossProblem& p) { return refuses_losses(p) == nullptr; }
inline bool adds_rows(const LossProblem& p) { return p.op == Op::cross_entropy && p.reduction != Reduction::none; }
inline void clear_status(const LossProblem& p, const Stream& stream) {
  const Operand& o = p[LossSlot::status];
  if (o.given) check(cudaMemsetAsync(o.data, 0, sizeof(std::int32_t), stream), "status");
}

/// Rows in the place of elements: what merge_levels wants to know of a sum over rows.
inline RowProblem rows_as_row(const LossProblem& p) {
  RowProblem line = p;
  line.n = p.rows;
  line.rows = 1;
  line[Slot::offsets] = {};
  return line;
}

/// From the sums of chunks of rows. targets: their weights, or those of chunks, `known` if there are none.
inline void put_sum(const LossProblem& p, RowsSum* losses, RowsSum* targets, const RowsTotal& known, Stream stream) {
  const RowProblem line = rows_as_row(p);
  const RowsTotal all = total_of(line, losses, stream);
  launch("put_total", put_total, {1, 32}, stream, p, all, targets != nullptr ? total_of(line, targets, stream) : known);
}

/// Whether one cluster finishes p's rows behind their fold and adds up their losses (loss_small.cu).
bool finishes_few(const LossProblem& p);
/// It does. early: as finish_short_losses.
void finish_few(const LossProblem& p, const RowNodes& nodes, const Stream& stream, bool early);

/// What rows leave for the sums over them; null where nobody asks.
struct RowLosses {
  double* losses;
  RowsSum* targets;  ///< their weights
};

/// A plain row: LossRow, but for what all rows have in common.
template <class Rows>
struct PlainLossRow {
  const Rows& rows;
  Row row;
  fold::LogSumExp<float>::State state;
  __device__ __forceinline__ fold::LogNormaliser<float> log_normaliser() const { return rows.log_normaliser(state); }
};

/// A plain row's target. Problem here and below: a LossProblem, or what answers as one. The target is none of the
/// classes if it is ignored, or out of range.
struct TargetOf {
  std::int64_t index;
  bool ignored, is_class;
  float weight;

  template <class Problem>
  __device__ __forceinline__ TargetOf(const Problem& p, const PlainPlace& place) : TargetOf(p, number_at(p, place)) {}
  /// What is given as the row's target, and what that means.
  template <class Problem>
  static __device__ __forceinline__ std::int64_t number_at(const Problem& p, const PlainPlace& place) {
    const auto& o = p[LossSlot::targets];
    return integer_at(o.dtype, o.data + place.offset(o));
  }
  template <class Problem>
  __device__ __forceinline__ TargetOf(const Problem& p, std::int64_t number) : index(number) {
    ignored = index == p.ignore_index;
    is_class = !ignored && index >= 0 && index < p.n;
    weight = is_class ? weight_at<float>(p, index) : 1.F;
  }
  /// Of x; 0 if there is none.
  template <class Problem>
  __device__ __forceinline__ float element(const Problem& p, const PlainPlace& place) const {
    const auto& x = p[Slot::x];
    return is_class ? element_at<float>(x.dtype, x.data + place.offset(x) + index * x.axis_stride) : 0.F;
  }
  /// As it was folded.
  template <class Problem, class Rows>
  __device__ __forceinline__ float scaled_element(const Problem& p, const Rows& rows, const PlainPlace& place) const {
    const float own = element(p, place);
    return rows.factor.plain ? own : fold::Scalar<float>::mul(own, rows.factor.times);
  }
};

/// From a row's state: its loss and log-probability are written as finish_row() does without smoothing and z-loss.
/// Returns the loss as it counts in a sum.
template <class Problem, class Rows>
__device__ __forceinline__ double finish_alone(const Problem& p, const PlainPlace& place, const PlainLossRow<Rows>& r,
                                               const TargetOf& target, float element, const RowLosses& to) {
  double lp = 0., loss = 0.;
  if (target.is_class) {
    lp = static_cast<double>(target_log_probability<float>(p, r, target.index, [&] { return element; }));
    loss = fold::CrossEntropy(0., 0., static_cast<double>(target.weight), 1., 1.).loss(lp, 0., 0.);
  } else if (!target.ignored) {
    lp = loss = fold::canonical_nan<double>();
    const auto& status = p[LossSlot::status];
    if (status.given) atomicAdd(reinterpret_cast<int*>(status.data), 1);
  }
  const auto put_number = [&](LossSlot slot, double value) {
    const auto& o = p[slot];
    if (o.given) put(o.dtype, o.data + place.offset(o), value);
  };
  put_number(LossSlot::log_probability, lp);
  if (p.reduction == Reduction::none) put_number(LossSlot::loss, loss);
  const auto& o = p[Slot::states];
  if (o.given) *reinterpret_cast<StoredState*>(o.data + place.offset(o)) = stored_state<float>(r.state, p.scale);
  if (target.ignored) loss = fold::Sum<double>::identity();
  if (to.losses != nullptr) to.losses[place.row] = loss;
  if (to.targets != nullptr)
    to.targets[place.row] = target.is_class ? RowsSum{static_cast<double>(target.weight), 1} : RowsFold::identity();
  return loss;
}

/// The gradient of a row's target; factor: GradientRow's.
__device__ __forceinline__ void put_target_gradient(const LossProblem& p, const PlainPlace& place,
                                                    const PlainLossRow<PlainRows>& r, const TargetOf& target,
                                                    float element, float factor) {
  const fold::Normaliser<float> norm(r.state);
  if (!target.is_class || !norm.regular) return;
  const fold::CrossEntropyGradient<float> gradient(norm, r.rows.factor.c,
                                                   {0., 0., static_cast<double>(target.weight), 1., 1.}, 0., factor);
  const Operand& dx = p[Slot::y];
  put(dx.dtype, dx.data + place.offset(dx) + target.index * dx.axis_stride, gradient.at_target(element, target.weight));
}

/// By a warp: the sum of a chunk of rows' numbers, of_row(row) of each of the first `rows`.
template <class OfRow>
__device__ __forceinline__ double sum_of_chunk(std::int64_t chunk, std::int64_t rows, const OfRow& of_row) {
  const std::int64_t first = chunk * lift::kChunk + threadIdx.x % 32;
  double v[lift::kPerLane];
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j)
    v[j] = first + 32 * j < rows ? of_row(first + 32 * j) : fold::Sum<double>::identity();
  return add_chunk(v);
}

__device__ __forceinline__ double sum_of_chunk(const double (&of_rows)[lift::kChunk]) {
  return sum_of_chunk(0, lift::kChunk, [&](std::int64_t row) { return of_rows[row]; });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
