// kl_divergence and its gradients from the states of both rows, for any dtype, stride, axis, mask and length, a chunk a
// warp: the two sums over a pair of rows, the divergence, and the gradients.
#pragma once

#include "cuda/generic.cuh"
#include "cuda/in_order.cuh"
#include "front/kl_problem.hpp"
#include "softfold/fold/kl_divergence.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

/// A node of the tree of fold::KlSum.
template <class T>
struct KlNode {
  T divergence, ratio;
};
template <class T>
__device__ __forceinline__ KlNode<T> shuffle(KlNode<T> a, int distance) {
  return {shuffle(a.divergence, distance), shuffle(a.ratio, distance)};
}
template <class T>
struct KlFold {
  using State = KlNode<T>;
  static __device__ State identity() { return {fold::Sum<T>::identity(), fold::Sum<T>::identity()}; }
  static __device__ State merge(const State& a, const State& b) {
    return {fold::Sum<T>::merge(a.divergence, b.divergence), fold::Sum<T>::merge(a.ratio, b.ratio)};
  }
};

/// What is to be known of a pair of rows, from their states.
template <class T>
struct KlPair {
  using State = typename fold::LogSumExp<T>::State;
  fold::Scale<T> scale;
  T c, times;  ///< elements times `times`, where that is not 1, are folded with this c > 0
  State p_state, q_state;
  fold::Normaliser<T> p, q;

  __device__ __forceinline__ KlPair(double scale_, const State& of_p, const State& of_q)
      : scale(fold::make_scale<T>(scale_)),
        c(::fabs(scale.c)),
        times(T(1)),
        p_state(of_p),
        q_state(of_q),
        p(of_p),
        q(of_q) {
    const bool finite = c < fold::infinity<T>();
    if (scale.c < T(0)) times = T(-1);
    if (finite && c > T(0)) return;
    times = finite ? T(0) : fold::canonical_nan<T>();
    c = T(1);
  }

  __device__ __forceinline__ T element(T x) const { return times == T(1) ? x : fold::Scalar<T>::mul(x, times); }
  /// Whether a row holds NaN or +inf.
  __device__ __forceinline__ bool is_invalid() const { return (!p.regular && !p.empty) || (!q.regular && !q.empty); }
  __device__ __forceinline__ bool is_regular() const { return p.regular && q.regular; }

  /// Of two regular rows; `correction` as there.
  __device__ __forceinline__ fold::KlDivergence<T> rows(double correction) const {
    const auto entropy_of = [&](const State& s, const fold::Normaliser<T>& norm) -> fold::Entropy<T> {
      fold::LogNormaliser<T> log_row(s, scale);
      log_row.set_c(c);
      return {norm, log_row, c};
    };
    return {entropy_of(p_state, p), entropy_of(q_state, q), p_state, q_state, scale, correction};
  }

  __device__ __forceinline__ double divergence(Empty empty, const KlNode<T>& sums) const {
    if (is_invalid()) return fold::canonical_nan<double>();
    if ((p.empty || q.empty) && empty == Empty::nan) return fold::canonical_nan<double>();
    if (p.empty) return 0.;
    return q.empty ? fold::infinity<double>() : static_cast<double>(sums.divergence);
  }
};

/// How an element's gradients come about: `regular` by the formula, `value` else.
template <class T>
struct KlGradients {
  bool p_regular, q_regular;
  T p_value, q_value;

  __device__ __forceinline__ KlGradients(const KlPair<T>& pair, const KlNode<T>& sums)
      : p_regular(false), q_regular(false), p_value(T(0)), q_value(T(0)) {
    if (pair.is_invalid()) {
      p_value = q_value = fold::canonical_nan<T>();
    } else if (pair.p.regular) {
      // No direction leads from an infinite divergence to another one.
      q_regular = pair.q.regular;
      p_regular = q_regular && sums.divergence != fold::infinity<T>();
      if (!p_regular) p_value = fold::canonical_nan<T>();
    }
  }
  /// By how much ln p - ln q is to be lowered.
  static __device__ __forceinline__ double correction(const KlNode<T>& sums) {
    const auto is_finite = [](T a) { return ::fabs(a) < fold::infinity<T>(); };
    if (!is_finite(sums.divergence) || !is_finite(sums.ratio)) return 0.;
    return fold::Scalar<double>::sub(static_cast<double>(sums.ratio), static_cast<double>(sums.divergence));
  }
};

/// A pair of rows of a problem.
template <class T>
struct KlRows {
  using State = typename KlPair<T>::State;
  RowPlace place;
  Row row;  ///< p's
  const char* q;
  KlPair<T> pair;

  /// The states are those that lie in memory.
  __device__ __forceinline__ KlRows(const KlProblem& p, std::int64_t index) : KlRows(p, RowPlace(p, index)) {}
  __device__ __forceinline__ KlRows(const KlProblem& p, std::int64_t index, const State& of_p, const State& of_q)
      : place(p, index), row(row_at(p, place)), q(q_at(p, place, row)), pair(row.scale, of_p, of_q) {}

  __device__ __forceinline__ T p_element(const KlProblem& p, std::int64_t i) const {
    const Operand& o = p[Slot::x];
    return pair.element(element_at<T>(o.dtype, row.x + i * o.axis_stride));
  }
  __device__ __forceinline__ T q_element(const KlProblem& p, std::int64_t i) const {
    const Operand& o = p[KlSlot::q];
    return pair.element(element_at<T>(o.dtype, q + i * o.axis_stride));
  }
  /// Of both gradients.
  __device__ __forceinline__ T factor(const KlProblem& p) const {
    const Operand& o = p[KlSlot::dkl];
    const double dkl = o.given ? element_at<double>(o.dtype, o.data + place.offset(o)) : 1.;
    return static_cast<T>(fold::Scalar<double>::mul(dkl, row.scale));
  }
  __device__ __forceinline__ char* dq(const KlProblem& p) const {
    const Operand& o = p[KlSlot::dq];
    return o.given ? o.data + place.offset(o) + row.begin * o.axis_stride : nullptr;
  }

 private:
  __device__ __forceinline__ KlRows(const KlProblem& p, const RowPlace& at)
      : place(at),
        row(row_at(p, place)),
        q(q_at(p, place, row)),
        pair(row.scale, given(p[Slot::states]), given(p[KlSlot::q_states])) {}
  static __device__ __forceinline__ const char* q_at(const KlProblem& p, const RowPlace& place, const Row& row) {
    const Operand& o = p[KlSlot::q];
    return o.data + place.offset(o) + row.begin * o.axis_stride;
  }
  __device__ __forceinline__ State given(const Operand& o) const {
    return given_state<T>(*reinterpret_cast<const StoredState*>(o.data + place.offset(o)), row.scale);
  }
};

/// The sums over a chunk of two regular rows, by a warp; `first`: the lane's first element.
template <class T>
__device__ __forceinline__ KlNode<T> kl_chunk_sums(const KlProblem& p, const KlRows<T>& r, std::int64_t first) {
  const fold::KlDivergence<T> rows = r.pair.rows(0.);
  // The tree over the lane's elements, one after the other: in bit-reversed order neighbours are merged first.
  KlNode<T> left[5], sum = KlFold<T>::identity();
#pragma unroll 1
  for (unsigned step = 0; step < lift::kPerLane; ++step) {
    const std::int64_t i = first + 32 * static_cast<std::int64_t>(__brev(step) >> 27);
    sum = KlFold<T>::identity();
    if (is_present(r.row, p[Slot::mask].axis_stride, i)) {
      const auto leaf = rows.leaf(r.p_element(p, i), r.q_element(p, i));
      sum = {leaf.divergence, leaf.ratio};
    } else if (i < r.row.length) {
      sum = {T(0), T(0)};  // what is hidden has p = q = 0
    }
    bool merges = true;
#pragma unroll
    for (int level = 0; level < 5; ++level) {
      if (!merges) continue;
      merges = (step >> level & 1U) != 0;
      if (merges) {
        sum = KlFold<T>::merge(left[level], sum);
      } else {
        left[level] = sum;
      }
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum = KlFold<T>::merge(sum, shuffle(sum, distance));
  return sum;
}

template <class T>
__global__ void __launch_bounds__(128)
    sum_kl_chunks(const __grid_constant__ KlProblem p, std::int64_t items, KlNode<T>* sums) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items) return;
  const Share share = share_of(p, item, false);
  const KlRows<T> r(p, share.row);
  KlNode<T> sum = KlFold<T>::identity();
  if (r.pair.is_regular()) sum = kl_chunk_sums(p, r, share.first);
  if (threadIdx.x % 32 == 0) sums[item] = sum;
}

/// One number a row. sums: null where rows have no elements.
template <class T>
__global__ void __launch_bounds__(128) finish_kl(const __grid_constant__ KlProblem p, const KlNode<T>* sums) {
  begin_in_order();
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= p.rows) return;
  const KlRows<T> r(p, index);
  const Operand& o = p[KlSlot::kl];
  put(o.dtype, o.data + r.place.offset(o),
      r.pair.divergence(p.empty, sums != nullptr ? sums[index] : KlFold<T>::identity()));
}

/// A lane's share of both gradients.
template <class T>
__device__ __forceinline__ void write_kl_share(const KlProblem& p, const KlRows<T>& r, const KlNode<T>& sum,
                                               const Share& share) {
  const Operand &dp = p[Slot::y], &dq = p[KlSlot::dq];
  char* const to_q = r.dq(p);
  const KlGradients<T> of(r.pair, sum);
  const fold::KlDivergence<T> rows = r.pair.rows(KlGradients<T>::correction(sum));
  const T factor = r.factor(p);
#pragma unroll 1
  for (int j = 0; j < share.count; ++j) {
    const std::int64_t i = share.first + share.step * j;
    if (i >= r.row.n) break;
    T of_p = T(0), of_q = T(0);
    if (is_present(r.row, p[Slot::mask].axis_stride, i)) {
      of_p = of.p_value, of_q = of.q_value;
      if (of.q_regular) {
        const auto d = rows.gradient(r.p_element(p, i), r.q_element(p, i), sum.divergence, factor);
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
    write_kl_gradients(const __grid_constant__ KlProblem p, std::int64_t items, bool across, const KlNode<T>* sums) {
  begin_in_order();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (item >= items) return;
  const Share share = share_of(p, item, across);
  if (share.row < p.rows) write_kl_share(p, KlRows<T>(p, share.row), sums[share.row], share);
}

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
