// cross_entropy and its backward pass from the rows' states, for any dtype, stride, axis, mask and length:
// the sums over a row's elements, what a row gives, sums over rows, and the gradient.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/in_order.cuh"
#include "cuda/loss_sums.cuh"
#include "front/targets.hpp"
#include "softfold/fold/cross_entropy.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// What a row's gradient is made with.
enum class RowKind : int {
  zero,     ///< nothing but zeros: an ignored row, an empty one
  nan,      ///< NaN wherever an element is
  regular,  ///< by the formula
};

template <class T>
struct CrossEntropyRow {
  RowKind kind;
  std::int64_t target;  ///< its place in x, of a shard also outside it
  fold::CrossEntropyGradient<T> gradient;

  __device__ T operator()(const LossProblem& p, std::int64_t i, T x) const;
};
/// What the steps of one call leave for each other; null where a call has no such step.
template <class T, class RowResult>
struct LossWork {
  const T* sums = nullptr;           ///< a row: sum of w lp
  const RowsSum* classes = nullptr;  ///< a row: the weights of the classes that exist, and their number
  RowsTotal weights{};               ///< of the targets, and the number of rows that count, known before
  RowsSum* losses = nullptr;         ///< a chunk of rows: their losses, added up
  RowsSum* targets = nullptr;        ///< the same of the targets' weights, where they are not known before
  RowResult* rows = nullptr;         ///< for the gradient
  const RowsSum* shares = nullptr;   ///< a row, of targets that are probabilities: what its classes weigh
};

/// The weight of class i, as the fold's precision has it.
template <class T, class Problem>
__device__ __forceinline__ T weight_at(const Problem& p, std::int64_t i) {
  const auto& w = p[LossSlot::weight];
  return w.given ? fold::narrow<T>(element_at<double>(w.dtype, w.data + i * w.axis_stride)) : T(1);
}

template <class T>
__device__ __forceinline__ T CrossEntropyRow<T>::operator()(const LossProblem& p, std::int64_t i, T x) const {
  const std::int64_t of_row = p.shard.offset + i;
  if (i == target) return gradient.at_target(x, weight_at<T>(p, of_row));
  return gradient(x, gradient.spread != T(0) ? weight_at<T>(p, of_row) : T(1));
}

/// A row's operands, its scale as elements are multiplied by it, and its state.
template <class T>
struct LossRow {
  RowPlace place;
  Row row;
  RowFactor<T> factor;
  typename fold::LogSumExp<T>::State state;

  /// The state is the one that lies in memory.
  __device__ __forceinline__ LossRow(const LossProblem& p, std::int64_t index)
      : place(p, index), row(row_at(p, place)), factor(row.scale), state(row_state<T>(p, place, row, index, nullptr)) {}
  __device__ __forceinline__ LossRow(const LossProblem& p, std::int64_t index,
                                     const typename fold::LogSumExp<T>::State& given)
      : place(p, index), row(row_at(p, place)), factor(row.scale), state(given) {}

  __device__ __forceinline__ T element(const LossProblem& p, std::int64_t i) const {
    const Operand& x = p[Slot::x];
    return factor(element_at<T>(x.dtype, row.x + i * x.axis_stride));
  }
  __device__ __forceinline__ fold::LogNormaliser<T> log_normaliser() const {
    fold::LogNormaliser<T> log_row(state, factor.scale);
    log_row.set_c(factor.c);
    return log_row;
  }
  __device__ __forceinline__ T c() const { return factor.c; }
  __device__ __forceinline__ double scale() const { return row.scale; }
  __device__ __forceinline__ std::int64_t target(const LossProblem& p) const {
    const Operand& o = p[LossSlot::targets];
    return integer_at(o.dtype, o.data + place.offset(o));
  }
  __device__ __forceinline__ void put_number(const LossProblem& p, LossSlot slot, double value) const {
    const Operand& o = p[slot];
    if (o.given) put(o.dtype, o.data + place.offset(o), value);
  }
};

/// The sum over a chunk in the layout of share_of: leaf(i) of each element that exists, `nothing` of the others.
template <class T, class Leaf>
__device__ __forceinline__ T add_present(const LossProblem& p, const Row& row, const Share& share, T nothing,
                                         const Leaf& leaf) {
  T v[lift::kPerLane];
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) v[j] = nothing;
#pragma unroll 1
  for (int j = 0; j < lift::kPerLane; ++j) {
    const std::int64_t i = share.first + 32 * j;
    T a = nothing;
    if (is_present(row, p[Slot::mask].axis_stride, i)) a = leaf(i);
      // Turned by one place a step: the registers keep constant names without unrolling the body.
#pragma unroll
    for (int k = 0; k + 1 < lift::kPerLane; ++k) v[k] = v[k + 1];
    v[lift::kPerLane - 1] = a;
  }
  return add_chunk(v);
}

/// The leaves of a sum over a row's elements, w lp. The constructor's last arguments are what others ask for.
template <class T>
struct CrossEntropyLeaves {
  fold::LogNormaliser<T> log_row;
  __device__ CrossEntropyLeaves(const LossProblem&, const LossRow<T>& r, std::int64_t, const RowsSum*)
      : log_row(r.log_normaliser()) {}
  __device__ T operator()(const LossProblem& p, std::int64_t i, T x) const {
    return fold::Scalar<T>::mul(weight_at<T>(p, i), log_row.log_probability(x));
  }
};
template <class T, class Leaves>
__global__ void __launch_bounds__(128)
    sum_row_leaves(const __grid_constant__ LossProblem p, GenericItems items, const RowsSum* classes, T* sums) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, false, items.first_chunks);
  if (share.row >= p.rows) return;
  const LossRow<T> r(p, share.row);
  const Leaves leaf(p, r, share.row, classes);
  const T sum = add_present(p, r.row, share, fold::Sum<T>::identity(),
                            [&](std::int64_t i) { return leaf(p, i, r.element(p, i)); });
  if (threadIdx.x % 32 == 0) sums[item] = sum;
}

/// The weights of the classes that exist in each row.
template <class T>
__global__ void __launch_bounds__(128)
    sum_classes(const __grid_constant__ LossProblem p, GenericItems items, RowsSum* sums) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, false, items.first_chunks);
  if (share.row >= p.rows) return;
  const Row r = row_at(p, RowPlace(p, share.row));
  double v[lift::kPerLane];
  int count = 0;
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) {
    const std::int64_t i = share.first + 32 * j;
    v[j] = fold::Sum<double>::identity();
    if (!is_present(r, p[Slot::mask].axis_stride, i)) continue;
    v[j] = static_cast<double>(weight_at<T>(p, i));
    ++count;
  }
  count = __reduce_add_sync(lift::kWholeWarp, count);
  const double sum = add_chunk(v);
  if (threadIdx.x % 32 == 0) sums[item] = {sum, count};
}

/// The weight of a row's target where the row counts; of class probabilities 1. A target that is no class is for
/// finish_row to report.
template <class T>
struct TargetWeight {
  const LossProblem& p;
  __device__ __forceinline__ RowsSum operator()(std::int64_t index) const {
    if (has_probabilities(p)) return {1., 1};
    const RowPlace place(p, index);
    const Operand& targets = p[LossSlot::targets];
    const std::int64_t t = integer_at(targets.dtype, targets.data + place.offset(targets));
    const std::int64_t n = p[Slot::offsets].given ? row_at(p, place).n : p.classes();
    if (t == p.ignore_index || t < 0 || t >= n) return RowsFold::identity();
    return {static_cast<double>(weight_at<T>(p, t)), 1};
  }
};

template <class T>
__global__ void __launch_bounds__(kRowThreads) sum_targets(const __grid_constant__ LossProblem p, RowsSum* chunks) {
  begin_in_order();
  RowsSum own = RowsFold::identity();
  for_chunk_of_rows(p.rows, [&](std::int64_t row) { own = RowsFold::merge(own, TargetWeight<T>{p}(row)); });
  put_chunk(chunks, own);
}

/// Finishes the rows of the block's chunk and adds up what is asked for of them. finish(row) returns the loss.
template <class T, class RowResult, class Finish>
__device__ __forceinline__ void finish_rows(const LossProblem& p, const LossWork<T, RowResult>& work,
                                            const Finish& finish) {
  RowsSum losses = RowsFold::identity(), targets = losses;
  for_chunk_of_rows(p.rows, [&](std::int64_t row) {
    losses = RowsFold::merge(losses, {finish(row), 1});
    if (work.targets != nullptr) targets = RowsFold::merge(targets, TargetWeight<T>{p}(row));
  });
  if (work.losses != nullptr) put_chunk(work.losses, losses);
  if (work.targets != nullptr) put_chunk(work.targets, targets);
}

/// What a mean is divided by, for every thread of a block.
template <class Problem>
__device__ __forceinline__ RowsSum divisor_of(const Problem& p, const RowsTotal& targets) {
  return p.reduction == Reduction::mean ? whole_of(targets) : RowsFold::identity();
}
/// The one number that a sum or a mean is. total: all losses.
template <class Problem>
__device__ __forceinline__ void put_loss(const Problem& p, double total, const RowsSum& weights) {
  const bool mean = p.reduction == Reduction::mean;
  if (mean && weights.rows == 0) {
    total = p.empty == Empty::nan ? fold::canonical_nan<double>() : 0.;
  } else {
    total = fold::Scalar<double>::add(mean ? fold::Scalar<double>::div(total, weights.sum) : total, 0.);
  }
  const auto& o = p[LossSlot::loss];
  put(o.dtype, o.data, total);
}
/// By all threads of a block.
template <class Problem>
__device__ __forceinline__ void put_whole(const Problem& p, const RowsTotal& losses, const RowsSum& weights) {
  const double total = whole_of(losses).sum;
  if (threadIdx.x == 0) put_loss(p, total, weights);
}
static __global__ void __launch_bounds__(32)
    put_total(const __grid_constant__ LossProblem p, RowsTotal losses, RowsTotal targets) {
  begin_in_order();
  put_whole(p, losses, divisor_of(p, targets));
}

/// element: reads the one at the target.
template <class T, class Problem, class OfRow, class Element>
__device__ __forceinline__ T target_log_probability(const Problem& p, const OfRow& r, std::int64_t target,
                                                    const Element& element) {
  const fold::Normaliser<T> norm(r.state);
  if (norm.empty) return p.empty == Empty::nan ? fold::canonical_nan<T>() : -fold::infinity<T>();
  if (!norm.regular) return fold::canonical_nan<T>();
  if (!is_present(r.row, p[Slot::mask].axis_stride, target)) return -fold::infinity<T>();
  return r.log_normaliser().log_probability(element());
}

/// What the loss that a row at `place` counts for is to be multiplied by.
template <class Place>
__device__ __forceinline__ double dloss_at(const LossProblem& p, const Place& place) {
  const Operand& o = p[LossSlot::dloss];
  if (!o.given) return 1.;
  return element_at<double>(o.dtype, p.reduction == Reduction::none ? o.data + place.offset(o) : o.data);
}
/// What a row's gradient is multiplied by. weights: of all targets.
__device__ __forceinline__ double gradient_factor(const LossProblem& p, double dloss, double scale, double weights) {
  if (p.reduction == Reduction::mean) dloss = fold::Scalar<double>::div(dloss, weights);
  return fold::Scalar<double>::mul(dloss, scale);
}

/// A row that is finished: its loss as it counts in a sum, and what its gradient is made with.
template <class T>
struct FinishedRow {
  double loss;
  CrossEntropyRow<T> row;
};

/// Its loss and log-probability are written. A target that is no class is counted in `status`, read nowhere as an
/// index, and makes its row NaN. all_weights: of all rows' targets.
template <class T, class Element>
__device__ __forceinline__ FinishedRow<T> finish_row(const LossProblem& p, std::int64_t index, const LossRow<T>& r,
                                                     const LossWork<T, CrossEntropyRow<T>>& work, double all_weights,
                                                     const Element& element) {
  const fold::Normaliser<T> norm(r.state);
  const std::int64_t target = r.target(p);
  const std::int64_t all = p.shard.size != 0 ? p.shard.size : r.row.n;
  const bool ignored = target == p.ignore_index, lost = !ignored && (target < 0 || target >= all);
  double classes = static_cast<double>(r.row.length), weights = classes;
  if (work.classes != nullptr)
    weights = work.classes[index].sum, classes = static_cast<double>(work.classes[index].rows);
  const fold::CrossEntropy terms(p.label_smoothing, p.z_loss,
                                 ignored || lost ? 1. : static_cast<double>(weight_at<T>(p, target)), classes, weights);
  const double lse = p.z_loss != 0 ? static_cast<double>(fold::LogSumExp<T>{r.factor.scale}.finish(r.state)) : 0.;
  if (lost && p[LossSlot::status].given) atomicAdd(reinterpret_cast<int*>(p[LossSlot::status].data), 1);
  double loss = 0.;
  if (p.op == Op::cross_entropy) {
    double lp = 0.;
    if (lost) {
      lp = loss = fold::canonical_nan<double>();
    } else if (!ignored) {
      lp = static_cast<double>(target_log_probability<T>(p, r, target, element));
      const bool whole = norm.regular && work.sums != nullptr;
      loss = terms.loss(lp, whole ? static_cast<double>(work.sums[index]) : norm.regular ? 0. : lp, lse);
    }
    r.put_number(p, LossSlot::log_probability, lp);
    if (p.reduction == Reduction::none) r.put_number(p, LossSlot::loss, loss);
    if (ignored) loss = fold::Sum<double>::identity();
  }
  const double factor = p[Slot::y].given ? gradient_factor(p, dloss_at(p, r.place), r.row.scale, all_weights) : 0.;
  const RowKind kind = ignored || (norm.empty && !lost) ? RowKind::zero
                       : lost || !norm.regular          ? RowKind::nan
                                                        : RowKind::regular;
  const std::int64_t place = kind == RowKind::regular ? target - p.shard.offset : -1;
  return {loss, {kind, place, {norm, r.factor.c, terms, lse, factor}}};
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    finish_cross_entropy(const __grid_constant__ LossProblem p, LossWork<T, CrossEntropyRow<T>> work) {
  begin_in_order();
  const double all_weights = whole_of(work.weights).sum;
  finish_rows(p, work, [&](std::int64_t index) {
    const LossRow<T> r(p, index);
    const auto finished = finish_row(p, index, r, work, all_weights, [&] { return r.element(p, r.target(p)); });
    if (work.rows != nullptr) work.rows[index] = finished.row;
    return finished.loss;
  });
}

template <class T, class RowResult>
__global__ void __launch_bounds__(128)
    write_loss_gradient(const __grid_constant__ LossProblem p, GenericItems items, const RowResult* rows) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, items.across, items.first_chunks);
  if (share.row >= p.rows) return;
  const Row r = row_at(p, RowPlace(p, share.row));
  const RowFactor<T> factor(r.scale);
  const RowResult& row = rows[share.row];
  const Operand &x = p[Slot::x], &dx = p[Slot::y];
#pragma unroll 1
  for (int j = 0; j < share.count; ++j) {
    const std::int64_t i = share.first + share.step * j;
    if (i >= r.n) break;
    T result = T(0);
    if (row.kind != RowKind::zero && is_present(r, p[Slot::mask].axis_stride, i))
      result = row.kind == RowKind::nan ? fold::canonical_nan<T>()
                                        : row(p, i, factor(element_at<T>(x.dtype, r.x + i * x.axis_stride)));
    put(dx.dtype, r.y + i * dx.axis_stride, result);
  }
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
