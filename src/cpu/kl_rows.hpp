// The divergence of one row's softmax from another's, and its gradients. kl_divergence.cc decides which thread does
// what.
#pragma once

#include "cpu/backward_rows.hpp"
#include "cpu/entropy_rows.hpp"
#include "cpu/kl_ops.hpp"
#include "cpu/operand_at.hpp"
#include "front/kl_problem.hpp"

#include <cmath>

namespace softfold {
inline namespace v0 {
namespace cpu {

template <class T>
class KlRow {
 public:
  using State = typename fold::LogSumExp<T>::State;
  using Sums = typename fold::KlSum<T>::State;
  struct States {
    State p, q;
  };

  /// q: rows_of_q(p).
  KlRow(const KlProblem& p, const RowProblem& q, const Row& p_row, const Row& q_row, std::int64_t index)
      : p_(p),
        q_(q),
        p_row_(p_row),
        q_row_(q_row),
        scale_(fold::make_scale<T>(p_row.scale)),
        p_source_(p, p_row, scale_),
        q_source_(q, q_row, scale_),
        dtype_(p_source_.dtype() == q_source_.dtype() ? p_source_.dtype() : dtype_of<T>()),
        index_(index) {}

  /// The sums over [from, to), from a multiple of a power of two of chunks that is no less than to - from.
  Sums sums(const States& s, std::int64_t from, std::int64_t to) {
    to = std::min(to, p_row_.length);
    if (from >= to || !Normaliser(s.p).regular || !Normaliser(s.q).regular) return fold::KlSum<T>::identity();
    const fold::KlDivergence<T> rows = rows_of(s, 0);
    const auto sum = kl_ops<T>().sum[index(dtype_)];
    lift::TreeBuilder<fold::KlSum<T>> tree;
    for (std::int64_t i = from; i < to; i += lift::kChunk) {
      const int n = chunk_size(i, to);
      // What is hidden is gathered as -inf twice, whose leaves are 0.
      tree.push(sum(at(p_source_, i, n, gathered_), at(q_source_, i, n, gathered_ + lift::kChunk), n, rows, room_));
    }
    return tree.root();
  }

  void finish(const States& s, const Sums& sums) const {
    put_number(p_[KlSlot::kl], p_.at(p_[KlSlot::kl], index_), divergence(s, sums));
  }

  /// Elements [from, to) of both gradients.
  void write(const States& s, const Sums& sums, std::int64_t from, std::int64_t to) {
    to = std::min(to, p_row_.n);
    if (is_invalid(s.p) || is_invalid(s.q)) {
      fill_present(p_, p_row_, from, to, fold::canonical_nan<double>());
      return fill_present(q_, q_row_, from, to, fold::canonical_nan<double>());
    }
    const bool has_q = Normaliser(s.q).regular;
    if (!Normaliser(s.p).regular || !has_q) fill(q_, q_row_, from, to, 0.);
    if (!Normaliser(s.p).regular) return fill(p_, p_row_, from, to, 0.);
    if (has_q) write_gradients(s, sums, from, to);
    // No direction leads from an infinite divergence to another one.
    if (!has_q || sums.divergence == fold::infinity<T>())
      fill_present(p_, p_row_, from, to, fold::canonical_nan<double>());
  }

 private:
  using Normaliser = fold::Normaliser<T>;

  /// Whether the row holds NaN or +inf.
  static bool is_invalid(const State& s) { return !Normaliser(s).regular && !Normaliser(s).empty; }

  double divergence(const States& s, const Sums& sums) const {
    if (is_invalid(s.p) || is_invalid(s.q)) return fold::canonical_nan<double>();
    const bool p_empty = Normaliser(s.p).empty, q_empty = Normaliser(s.q).empty;
    if ((p_empty || q_empty) && p_.empty == Empty::nan) return fold::canonical_nan<double>();
    if (p_empty) return 0.;
    return q_empty ? fold::infinity<double>() : static_cast<double>(sums.divergence);
  }

  fold::KlDivergence<T> rows_of(const States& s, double correction) const {
    return {entropy_of(s.p, scale_, p_source_), entropy_of(s.q, scale_, q_source_), s.p, s.q, scale_, correction};
  }

  const void* at(const Source<T>& source, std::int64_t begin, int n, T* buffer) const {
    const void* x = source.at(begin, n, buffer);
    if (source.dtype() == dtype_) return x;
    with_dtype(source.dtype(), [&]<class S>(S) {
      if constexpr (std::is_same_v<fold::FoldType<S>, T>)
        for (int i = 0; i < n; ++i) buffer[i] = fold::widen(static_cast<const S*>(x)[i]);
    });
    return buffer;
  }

  /// Both rows have elements.
  void write_gradients(const States& s, const Sums& sums, std::int64_t from, std::int64_t to) {
    using A = fold::Scalar<double>;
    const bool finite = std::isfinite(sums.divergence) && std::isfinite(sums.ratio);
    const double common = finite ? A::sub(static_cast<double>(sums.ratio), static_cast<double>(sums.divergence)) : 0.;
    const fold::KlDivergence<T> rows = rows_of(s, common);
    const auto gradient = kl_ops<T>().gradient[index(dtype_)];
    const std::int64_t present = std::clamp(p_row_.length, from, to);
    T *const dp = room_, *const dq = room_ + lift::kChunk;
    for (std::int64_t i = from; i < present; i += lift::kChunk) {
      const int n = chunk_size(i, present);
      gradient(at(p_source_, i, n, gathered_), at(q_source_, i, n, gathered_ + lift::kChunk), n, rows, sums.divergence,
               factor(), dp, dq);
      put(p_, p_row_, dp, i, n);
      put(q_, q_row_, dq, i, n);
    }
    fill(p_, p_row_, present, to, 0.);
    fill(q_, q_row_, present, to, 0.);
  }

  T factor() const {
    const Operand& dkl = p_[KlSlot::dkl];
    return static_cast<T>(fold::Scalar<double>::mul(dkl.given ? number_at(dkl, p_.at(dkl, index_)) : 1., scale_.value));
  }

  static void put(const RowProblem& p, const Row& row, const T* values, std::int64_t begin, int n) {
    if (!p[Slot::y].given) return;
    Sink sink(p, row);
    kl_ops<T>().store[index(sink.dtype())](values, n, sink.begin(begin));
    sink.end(begin, n);
    clear_missing(p, row, sink, begin, begin + n);
  }
  static void fill(const RowProblem& p, const Row& row, std::int64_t from, std::int64_t to, double value) {
    if (p[Slot::y].given) Sink(p, row).fill(from, to, value);
  }
  /// Of what exists; 0 for what does not.
  static void fill_present(const RowProblem& p, const Row& row, std::int64_t from, std::int64_t to, double value) {
    fill(p, row, from, to, 0.);
    if (p[Slot::y].given) Sink(p, row).fill_present(from, std::clamp(row.length, from, to), value);
  }

  const KlProblem& p_;
  const RowProblem& q_;
  const Row& p_row_;
  const Row& q_row_;
  fold::Scale<T> scale_;
  Source<T> p_source_, q_source_;
  DType dtype_;  ///< that both are handed to the operations in
  std::int64_t index_;
  alignas(64) T gathered_[2 * lift::kChunk];
  alignas(64) T room_[2 * lift::kChunk];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
