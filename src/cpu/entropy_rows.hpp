// The entropy of one row's softmax, and its gradient: what LossRow is to cross-entropy.
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
  using State = typename fold::LogSumExp<T>::State;

  EntropyRow(const LossProblem& p, const LossShared<T>& shared, const Row& row, std::int64_t index)
      : p_(p), shared_(shared), row_(row), source_(p, row, fold::make_scale<T>(row.scale)), index_(index) {}

  static bool ignored() { return false; }
  static bool sums(const LossProblem&) { return true; }

  /// The sum of p lp over [from, to), from a multiple of a power of two of chunks that is no less than to - from.
  T sum(const State& s, std::int64_t from, std::int64_t to) {
    to = std::min(to, row_.length);
    const fold::Normaliser<T> norm(s);
    if (from >= to || !norm.regular) return fold::Sum<T>::identity();
    const fold::Entropy<T> row = entropy_of(s, fold::make_scale<T>(row_.scale), source_);
    lift::TreeBuilder<fold::Sum<T>> tree;
    for (std::int64_t i = from; i < to; i += lift::kChunk) tree.push(sum_chunk(row, i, chunk_size(i, to)));
    return tree.root();
  }

  double finish(const State& s, T sum) {
    put_number(p_[LossSlot::loss], p_.at(p_[LossSlot::loss], index_), static_cast<double>(entropy(s, sum)));
    return 0.;
  }

  /// Elements [from, to) of dx.
  void write(const State& s, T sum, std::int64_t from, std::int64_t to, bool stream) {
    Sink sink(p_, row_);
    const fold::Normaliser<T> norm(s);
    to = std::min(to, row_.n);
    const std::int64_t present = norm.empty ? from : std::clamp(row_.length, from, to);
    sink.fill(present, to, 0.);
    if (!norm.regular) {
      sink.fill(from, present, 0.);
      return sink.fill_present(from, present, fold::canonical_nan<double>());
    }
    const fold::Entropy<T> row = entropy_of(s, fold::make_scale<T>(row_.scale), source_);
    const auto gradient = entropy_ops<T>().gradient[index(source_.dtype())][index(sink.dtype())];
    for (std::int64_t i = from; i < present;) {
      const int n = piece_size(sink, i, present);
      gradient(source_.at(i, n, gathered_), n, row, entropy(s, sum), factor(), sink.begin(i), stream);
      sink.end(i, n);
      i += n;
    }
    clear_missing(p_, row_, sink, from, present);
  }

 private:
  T entropy(const State& s, T sum) const {
    const fold::Normaliser<T> norm(s);
    if (norm.empty) return p_.empty == Empty::nan ? fold::canonical_nan<T>() : T(0);
    return norm.regular ? fold::Scalar<T>::sub(T(0), sum) : fold::canonical_nan<T>();
  }

  T sum_chunk(const fold::Entropy<T>& row, std::int64_t begin, int n) {
    // What is hidden is gathered as -inf, whose leaf is 0: it changes no sum of what is never above 0.
    return entropy_ops<T>().sum[index(source_.dtype())](source_.at(begin, n, gathered_), n, row, room_);
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
