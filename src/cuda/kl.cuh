// kl_divergence and its gradients for any dtype, stride, axis, mask and length, a chunk of both rows a warp: the fold
// of chunks, what a row gives, and the gradients.
#pragma once

#include "cuda/generic.cuh"
#include "front/kl_problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// fold::KlSum, whose merge is too long to stand wherever nodes meet.
template <class T>
struct KlFold {
  using State = fold::KlState<T>;
  static __device__ State identity() { return fold::KlSum<T>::identity(); }
  static __device__ __noinline__ State merge(const State& a, const State& b) { return fold::KlSum<T>::merge(a, b); }
};

/// A row's scale as the elements of both rows are folded with it: c > 0.
template <class T>
struct KlFactor {
  fold::Scale<T> scale;
  T c, times;

  SOFTFOLD_HD explicit KlFactor(double value) : scale(fold::make_scale<T>(value)), c(::fabs(scale.c)), times(T(1)) {
    const bool finite = c < fold::infinity<T>();
    if (scale.c < T(0)) times = T(-1);
    if (finite && c > T(0)) return;
    times = finite ? T(0) : fold::canonical_nan<T>();
    c = T(1);
  }
  __device__ __forceinline__ T operator()(T x) const { return times == T(1) ? x : fold::Scalar<T>::mul(x, times); }
  SOFTFOLD_HD lift::Factor of_tiles() const {
    lift::Factor factor(c);
    factor.times = times, factor.plain = times == T(1);
    return factor;
  }
};

/// What both gradients of a pair of rows are multiplied by. Rows: KlRows, or what answers as it.
template <class T, class Rows>
__device__ __forceinline__ T incoming_of(const KlProblem& p, const Rows& r) {
  const Operand& o = p[KlSlot::dkl];
  const double dkl = o.given ? element_at<double>(o.dtype, o.data + r.place.offset(o)) : 1.;
  return static_cast<T>(fold::Scalar<double>::mul(dkl, r.scale()));
}

/// A pair of rows of a problem.
template <class T>
struct KlRows {
  using State = typename fold::LogSumExp<T>::State;
  RowPlace place;
  Row row;  ///< p's
  const char* q;
  KlFactor<T> factor;

  __device__ __forceinline__ KlRows(const KlProblem& p, std::int64_t index)
      : place(p, index), row(row_at(p, place)), q(at(p[KlSlot::q])), factor(row.scale) {}

  __device__ __forceinline__ T p_element(const KlProblem& p, std::int64_t i) const {
    const Operand& o = p[Slot::x];
    return factor(element_at<T>(o.dtype, row.x + i * o.axis_stride));
  }
  __device__ __forceinline__ T q_element(const KlProblem& p, std::int64_t i) const {
    const Operand& o = p[KlSlot::q];
    return factor(element_at<T>(o.dtype, q + i * o.axis_stride));
  }
  __device__ __forceinline__ double scale() const { return row.scale; }
  __device__ __forceinline__ char* dq(const KlProblem& p) const {
    return p[KlSlot::dq].given ? at(p[KlSlot::dq]) : nullptr;
  }
  /// Of regular states, of the rows or of a chunk of both.
  __device__ __forceinline__ fold::KlDivergence<T> divergence(const State& of_p, const State& of_q,
                                                              fold::KlRatio ratio) const {
    return {of_p, of_q, factor.scale, fold::KlScale<T>(factor.scale), factor.c, ratio};
  }

 private:
  __device__ __forceinline__ char* at(const Operand& o) const {
    return o.data + place.offset(o) + row.begin * o.axis_stride;
  }
};

/// The leaves of a chunk of two rows that are regular there, added up by a warp.
template <class T>
__device__ __forceinline__ fold::KlLeaf<fold::Scalar<T>> sum_kl_leaves(const KlProblem& p, const KlRows<T>& r,
                                                                       const Share& share,
                                                                       const fold::KlDivergence<T>& rows) {
  T divergence[lift::kPerLane], ratio[lift::kPerLane];
#pragma unroll
  for (int j = 0; j < lift::kPerLane; ++j) divergence[j] = ratio[j] = T(0);
#pragma unroll 1
  for (int j = 0; j < lift::kPerLane; ++j) {
    const std::int64_t i = share.first + 32 * j;
    fold::KlLeaf<fold::Scalar<T>> leaf{T(0), T(0)};
    if (is_present(r.row, p[Slot::mask].axis_stride, i)) leaf = rows.leaf(r.p_element(p, i), r.q_element(p, i));
      // Turned by one place a step: the registers keep constant names without unrolling the body.
#pragma unroll
    for (int k = 0; k + 1 < lift::kPerLane; ++k) divergence[k] = divergence[k + 1], ratio[k] = ratio[k + 1];
    divergence[lift::kPerLane - 1] = leaf.divergence, ratio[lift::kPerLane - 1] = leaf.ratio;
  }
  return {add_chunk(divergence), add_chunk(ratio)};
}

/// The state of a chunk of both rows, by a warp.
template <class T>
__device__ __forceinline__ fold::KlState<T> fold_kl_chunk(const KlProblem& p, const KlRows<T>& r, const Share& share) {
  using Sum = fold::KlSum<T>;
  Row q_row = r.row;
  q_row.x = r.q;
  const auto of_p = chunk_state<T>(p, p[Slot::x], r.row, share), of_q = chunk_state<T>(p, p[KlSlot::q], q_row, share);
  if (!Sum::is_regular(of_p, of_q)) return Sum::without_sums(of_p, of_q);
  const auto ratio = Sum::ratio_of(of_p, of_q);
  return Sum::with_sums(of_p, of_q, ratio, sum_kl_leaves(p, r, share, r.divergence(of_p, of_q, ratio)));
}

template <class T>
__global__ void __launch_bounds__(128)
    fold_kl_chunks(const __grid_constant__ KlProblem p, GenericItems items, fold::KlState<T>* states) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, false, items.first_chunks);
  if (share.row >= p.rows) return;
  const auto state = fold_kl_chunk(p, KlRows<T>(p, share.row), share);
  if (threadIdx.x % 32 == 0) states[item] = state;
}

/// From the rows' states: what is asked of each. A backward pass has the (m, d) that it is given, with which the states
/// stay for the gradients.
template <class T, class Rows>
__device__ __forceinline__ void finish_kl_row(const KlProblem& p, const Rows& r, fold::KlState<T>& s) {
  const Operand &kl = p[KlSlot::kl], &p_states = p[Slot::states], &q_states = p[KlSlot::q_states];
  const auto stored = [&](const Operand& o) { return reinterpret_cast<StoredState*>(o.data + r.place.offset(o)); };
  if (p.op == Op::kl_divergence_backward) {
    const auto given = [&](const Operand& o) { return given_state<T>(*stored(o), r.scale()); };
    s = fold::KlSum<T>::with_given(given(p_states), given(q_states), s);
    return;
  }
  put(kl.dtype, kl.data + r.place.offset(kl), s.finish(p.empty == Empty::nan));
  if (p_states.given) *stored(p_states) = stored_state<T>(s.p(), r.scale());
  if (q_states.given) *stored(q_states) = stored_state<T>(s.q(), r.scale());
}

template <class T>
__global__ void __launch_bounds__(128) finish_kl(const __grid_constant__ KlProblem p, fold::KlState<T>* states) {
  begin_in_order();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < p.rows) finish_kl_row(p, KlRows<T>(p, index), states[index]);
}

/// A lane's share of both gradients.
template <class T>
__device__ __forceinline__ void write_kl_share(const KlProblem& p, const KlRows<T>& r, const fold::KlState<T>& s,
                                               const Share& share) {
  const Operand &dp = p[Slot::y], &dq = p[KlSlot::dq];
  char* const to_q = r.dq(p);
  const fold::KlGradients<T> of(s);
  const auto none = fold::LogSumExp<T>::identity();
  const auto rows =
      of.q_regular ? r.divergence(s.p(), s.q(), fold::KlSum<T>::ratio_of(s)) : r.divergence(none, none, {0, 0});
  const T factor = incoming_of<T>(p, r);
#pragma unroll 1
  for (int j = 0; j < share.count; ++j) {
    const std::int64_t i = share.first + share.step * j;
    if (i >= r.row.n) break;
    T of_p = T(0), of_q = T(0);
    if (is_present(r.row, p[Slot::mask].axis_stride, i)) {
      of_p = of.p_value, of_q = of.q_value;
      if (of.q_regular) {
        const auto d = rows.gradient(r.p_element(p, i), r.q_element(p, i), s.divergence, factor);
        if (of.p_regular) of_p = d.p;
        of_q = d.q;
      }
    }
    if (dp.given) put(dp.dtype, r.row.y + i * dp.axis_stride, of_p);
    if (dq.given) put(dq.dtype, to_q + i * dq.axis_stride, of_q);
  }
}

template <class T>
__global__ void __launch_bounds__(128)
    write_kl_gradients(const __grid_constant__ KlProblem p, GenericItems items, const fold::KlState<T>* states) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items.count) return;
  const Share share = share_of(p, item, items.across, items.first_chunks);
  if (share.row < p.rows) write_kl_share(p, KlRows<T>(p, share.row), states[share.row], share);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
