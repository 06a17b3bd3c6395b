// The entropy of one row's softmax, and its gradient: what LossRow is to cross-entropy. Its state holds all that is
// added up, so that a row is read once for it.
#pragma once

#include "cpu/entropy_ops.hpp"
#include "cpu/loss_rows.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

/// The probabilities of a row and their logarithms, from its state.
template <class T>
fold::Entropy<T> entropy_of(const typename fold::LogSumExp<T>::State& s, const fold::Scale<T>& scale,
                            const Source<T>& source) {
  auto log_row = chunk_ops<T>().log_normaliser(s, scale);
  log_row.set_c(source.c());
  return {fold::Normaliser<T>(s), log_row, source.c()};
}

template <class T>
class EntropyRow {
 public:
  using Fold = fold::EntropySum<T>;
  using State = typename Fold::State;
  static constexpr bool kSums = false;

  EntropyRow(const LossProblem& p, const LossShared<T>& shared, const Row& row, std::int64_t index)
      : p_(p), shared_(shared), row_(row), source_(p, row, fold::make_scale<T>(row.scale)), index_(index) {}

  static bool ignored() { return false; }
  /// A backward pass too: a state that is given lacks the sum.
  static bool folds(const LossProblem&) { return true; }

  /// The state of [from, to), from a multiple of a power of two of chunks that is no less than to - from.
  State fold(RowWorker<T>& worker, std::int64_t from, std::int64_t to) {
    const auto fold_chunk = entropy_ops<T>().fold[index(source_.dtype())];
    to = std::min(to, row_.length);
    lift::TreeBuilder<Fold> tree;
    for (std::int64_t i = from; i < to; i += lift::kChunk) {
      const int n = chunk_size(i, to);
      tree.push(
          fold_chunk(source_.at(i, n, gathered_), n, source_.c(), worker.terms(), room_, worker.guess(), worker.far()));
    }
    return tree.root();
  }
  static State with_given(const State& folded, const typename fold::LogSumExp<T>::State& given) {
    return Fold::with_given(given, folded);
  }
  static typename fold::LogSumExp<T>::State row_state(const State& s) { return s.row(); }

  double finish(const State& s, T) {
    put_number(p_[LossSlot::loss], p_.at(p_[LossSlot::loss], index_), static_cast<double>(entropy(s)));
    return 0.;
  }

  /// Elements [from, to) of dx.
  void write(const State& s, T, std::int64_t from, std::int64_t to, bool stream) {
    Sink sink(p_, row_);
    const fold::Normaliser<T> norm(s.row());
    to = std::min(to, row_.n);
    const std::int64_t present = norm.empty ? from : std::clamp(row_.length, from, to);
    sink.fill(present, to, 0.);
    if (!norm.regular) {
      sink.fill(from, present, 0.);
      return sink.fill_present(from, present, fold::canonical_nan<double>());
    }
    const fold::Entropy<T> row = entropy_of(s.row(), fold::make_scale<T>(row_.scale), source_);
    const auto gradient = entropy_ops<T>().gradient[index(source_.dtype())][index(sink.dtype())];
    const T h = entropy(s);
    for (std::int64_t i = from; i < present;) {
      const int n = piece_size(sink, i, present);
      gradient(source_.at(i, n, gathered_), n, row, h, factor(), sink.begin(i), stream);
      sink.end(i, n);
      i += n;
    }
    clear_missing(p_, row_, sink, from, present);
  }

 private:
  T entropy(const State& s) const {
    const bool empty = s.m == -fold::infinity<double>();
    if (empty && p_.empty == Empty::nan) return fold::canonical_nan<T>();
    return entropy_ops<T>().finish(s);
  }

  T factor() const {
    const Operand& dloss = p_[LossSlot::dloss];
    const double incoming = dloss.given ? number_at(dloss, p_.at(dloss, index_)) : shared_.one_factor;
    return static_cast<T>(-fold::Scalar<double>::mul(incoming, row_.scale));
  }

  const LossProblem& p_;
  const LossShared<T>& shared_;
  const Row& row_;
  Source<T> source_;
  std::int64_t index_;
  alignas(64) T gathered_[lift::kChunk];
  alignas(64) T room_[lift::kChunk];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
