// Cross-entropy of targets that are class probabilities q: every class of a row has a weight of its own, and none is
// the target. For any dtype, stride, axis, mask and length.
#pragma once

#include "cuda/in_order.cuh"
#include "cuda/loss.cuh"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What the classes of one row weigh: w q, with smoothing w ((1 - smoothing) q + smoothing / classes).
template <class T>
struct ClassShares {
  const char* first;  ///< of the row's probabilities
  T keep, add;

  __device__ __forceinline__ ClassShares(const LossProblem& p, const RowPlace& place, double classes)
      : first(p[LossSlot::targets].data + place.offset(p[LossSlot::targets])), keep(T(1)), add(T(0)) {
    if (p.label_smoothing == 0) return;
    keep = static_cast<T>(fold::Scalar<double>::sub(1., p.label_smoothing));
    add = static_cast<T>(fold::Scalar<double>::div(p.label_smoothing, classes));
  }
  __device__ __forceinline__ T operator()(const LossProblem& p, std::int64_t i) const {
    const Operand& o = p[LossSlot::targets];
    T q = element_at<T>(o.dtype, first + i * o.axis_stride);
    if (p.label_smoothing > 0) q = fold::Scalar<T>::fma(keep, q, add);
    return fold::Scalar<T>::mul(weight_at<T>(p, i), q);
  }
};

/// How many classes a row has. counts: where a mask hides some, what sum_classes found.
__device__ __forceinline__ double classes_of(const Row& r, std::int64_t index, const RowsSum* counts) {
  return static_cast<double>(counts != nullptr ? counts[index].rows : r.length);
}

template <class T>
struct ProbabilityRow {
  RowKind kind;
  ClassShares<T> shares;
  fold::CrossEntropyGradient<T> gradient;

  __device__ T operator()(const LossProblem& p, std::int64_t i, T x) const { return gradient(x, shares(p, i)); }
};

/// What all classes of each row weigh.
template <class T>
__global__ void __launch_bounds__(128)
    sum_shares(const __grid_constant__ LossProblem p, std::int64_t items, const RowsSum* counts, RowsSum* sums) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items) return;
  const Share share = share_of(p, item, false);
  const RowPlace place(p, share.row);
  const Row r = row_at(p, place);
  const ClassShares<T> shares(p, place, classes_of(r, share.row, counts));
  double v[lift::kPerLane];
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) {
    const std::int64_t i = share.first + 32 * j;
    v[j] = fold::Sum<double>::identity();
    if (is_present(r, p[Slot::mask].axis_stride, i)) v[j] = static_cast<double>(shares(p, i));
  }
  const double sum = add_chunk(v);
  if (threadIdx.x % 32 == 0) sums[item] = {sum, 0};
}

/// The leaves of a row's loss. A class that weighs nothing takes no part, whatever its logarithm is.
template <class T>
struct ProbabilityLeaves {
  ClassShares<T> shares;
  fold::LogNormaliser<T> log_row;

  __device__ ProbabilityLeaves(const LossProblem& p, const LossRow<T>& r, std::int64_t index, const RowsSum* counts)
      : shares(p, r.place, classes_of(r.row, index, counts)), log_row(r.log_normaliser()) {}
  __device__ T operator()(const LossProblem& p, std::int64_t i, T x) const {
    const T share = shares(p, i);
    return share == T(0) ? fold::Sum<T>::identity() : fold::Scalar<T>::mul(share, log_row.log_probability(x));
  }
};

/// Writes a row's loss and what its gradient is made with; returns the loss.
template <class T>
__device__ __forceinline__ double finish_of_probabilities(const LossProblem& p, std::int64_t index,
                                                          const LossWork<T, ProbabilityRow<T>>& work,
                                                          double all_weights) {
  const LossRow<T> r(p, index);
  const fold::Normaliser<T> norm(r.state);
  const double weights = work.shares != nullptr ? work.shares[index].sum : fold::Sum<double>::identity();
  fold::CrossEntropy terms(0., p.z_loss, weights, 1., weights);
  terms.hit = 0., terms.spread = 1.;
  const double lse = p.z_loss != 0 ? static_cast<double>(fold::LogSumExp<T>{r.factor.scale}.finish(r.state)) : 0.;
  double loss = 0.;
  if (p.op == Op::cross_entropy) {
    double sum = fold::canonical_nan<double>();
    if (norm.empty && p.empty != Empty::nan) sum = -fold::infinity<double>();
    if (norm.regular) sum = static_cast<double>(work.sums[index]);
    loss = terms.loss(0., sum, lse);
    if (p.reduction == Reduction::none) r.put_number(p, LossSlot::loss, loss);
  }
  if (work.rows == nullptr) return loss;
  const RowKind kind = norm.empty ? RowKind::zero : norm.regular ? RowKind::regular : RowKind::nan;
  work.rows[index] = {
      kind,
      ClassShares<T>(p, r.place, classes_of(r.row, index, work.classes)),
      {norm, r.factor.c, terms, lse, gradient_factor(p, dloss_at(p, r.place), r.row.scale, all_weights)}};
  return loss;
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    finish_probabilities(const __grid_constant__ LossProblem p, LossWork<T, ProbabilityRow<T>> work) {
  begin_in_order();
  const double all_weights = whole_of(work.weights).sum;
  finish_rows(p, work, [&](std::int64_t index) { return finish_of_probabilities(p, index, work, all_weights); });
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
