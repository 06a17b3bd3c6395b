// The divergence of one row's softmax from another's, and its gradients. kl_divergence.cc decides which thread does
// what.
#pragma once

#include "cpu/backward_rows.hpp"
#include "cpu/kl_ops.hpp"
#include "cpu/operand_at.hpp"
#include "front/kl_problem.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace cpu {

template <class T>
class KlRow {
 public:
  using Sum = fold::KlSum<T>;
  using State = typename Sum::State;
  using Room = typename KlOps<T>::Room;
  /// fold::KlSum, compiled for the machine's own instructions.
  struct Fold {
    using State = KlRow::State;
    static State identity() { return Sum::identity(); }
    static State merge(const State& a, const State& b) { return kl_ops<T>().merge(a, b); }
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

  /// The state of [from, to), from a multiple of a power of two of chunks that is no less than to - from.
  State fold(std::int64_t from, std::int64_t to, Room& room, bool far) {
    const auto fold_chunk = kl_ops<T>().fold[index(dtype_)];
    const fold::KlScale<T> split(scale_);
    to = std::min(to, p_row_.length);
    lift::TreeBuilder<Fold> tree;
    for (std::int64_t i = from; i < to; i += lift::kChunk) {
      const int n = chunk_size(i, to);
      // What is hidden is gathered as -inf twice, whose leaves are 0.
      tree.push(fold_chunk(at(p_source_, i, n, gathered_), at(q_source_, i, n, gathered_ + lift::kChunk), n, scale_,
                           split, p_source_.c(), room, far));
    }
    return tree.root();
  }

  void finish(const State& s) const {
    put_number(p_[KlSlot::kl], p_.at(p_[KlSlot::kl], index_), s.finish(p_.empty == Empty::nan));
  }

  /// Elements [from, to) of both gradients.
  void write(const State& s, std::int64_t from, std::int64_t to, Room& room) {
    to = std::min(to, p_row_.n);
    if (from >= to) return;  // of a ragged row that is shorter than others
    const fold::KlGradients<T> of(s);
    if (of.q_regular) write_gradients(s, from, to, room);
    if (!of.q_regular) fill_present(q_, q_row_, from, to, static_cast<double>(of.q_value));
    if (!of.p_regular) fill_present(p_, p_row_, from, to, static_cast<double>(of.p_value));
  }

 private:
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
  void write_gradients(const State& s, std::int64_t from, std::int64_t to, Room& room) {
    const fold::KlDivergence<T> rows(s.p(), s.q(), scale_, fold::KlScale<T>(scale_), p_source_.c(), Sum::ratio_of(s));
    const auto gradient = kl_ops<T>().gradient[index(dtype_)];
    const std::int64_t present = std::clamp(p_row_.length, from, to);
    T *const dp = room.pairs, *const dq = room.pairs + lift::kChunk;
    for (std::int64_t i = from; i < present; i += lift::kChunk) {
      const int n = chunk_size(i, present);
      gradient(at(p_source_, i, n, gathered_), at(q_source_, i, n, gathered_ + lift::kChunk), n, rows, s.divergence,
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
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
