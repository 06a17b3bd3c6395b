// Cross-entropy of one row: its sums, its loss, its gradient. cross_entropy.cc decides which thread does what.
#pragma once

#include "cpu/backward_rows.hpp"
#include "cpu/loss_ops.hpp"
#include "cpu/operand_at.hpp"
#include "cpu/row_worker.hpp"
#include "front/targets.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

/// How many classes of a row exist, and what they weigh.
struct RowClasses {
  double number, weights;
};

/// What all rows share.
template <class T>
struct LossShared {
  const T* weight;            ///< [n]: also where none are given, if there is smoothing or probabilities; else null
  const double* row_weights;  ///< a row, of probabilities: what its classes weigh in all; null while it is found
  double weights;             ///< their sum by the canonical tree
  const RowClasses*
      classes;  ///< a row, of smoothing where some may be hidden; null otherwise, and while they are found
  double
      one_factor;  ///< of the gradient: dloss of a sum, over the denominator of a mean; NaN where rows have their own
};

template <class T>
class LossRow {
 public:
  using Fold = fold::LogSumExp<T>;
  using State = typename Fold::State;
  static constexpr bool kSums = true;

  LossRow(const LossProblem& p, const LossShared<T>& shared, const Row& row, std::int64_t index)
      : p_(p),
        shared_(shared),
        row_(row),
        source_(p, row, fold::make_scale<T>(row.scale)),
        index_(index),
        probabilities_(has_probabilities(p)),
        class_(probabilities_ ? -1 : integer_at(p[LossSlot::targets], p.at(p[LossSlot::targets], index))),
        target_(class_ < p.shard.offset ? -1 : class_ - p.shard.offset) {}

  bool ignored() const { return !probabilities_ && class_ == p_.ignore_index; }
  double target_weight() const { return p_[LossSlot::weight].given ? static_cast<double>(shared_.weight[class_]) : 1.; }

  /// Whether its state is folded, not only given.
  static bool folds(const LossProblem& p) { return p.op == Op::cross_entropy; }
  State fold(RowWorker<T>& worker, std::int64_t from, std::int64_t to) { return worker.reduce(row_, from, to); }
  static State with_given(const State&, const State& given) { return given; }
  static State row_state(const State& s) { return s; }

  /// Whether there is something to add up over the elements: the log-probabilities of label smoothing and of targets
  /// that are probabilities.
  static bool sums(const LossProblem& p) {
    return (p.label_smoothing > 0 || has_probabilities(p)) && p.op == Op::cross_entropy;
  }
  /// Of targets that are probabilities: the sum of w q over the classes that exist.
  double sum_of_weights() {
    return tree_over_classes([&](std::int64_t begin, int n, double* leaves) {
      const T* w = weights_at(begin, n);
      for (int k = 0; k < n; ++k) leaves[k] = exists(begin + k) ? static_cast<double>(w[k]) : -0.;
    });
  }
  /// Of smoothing: a look at all of the row. Nothing that is asked of an ignored row depends on it, nor on the weights
  /// of one whose targets are probabilities.
  RowClasses find_classes() {
    if (ignored()) return {0, 0};
    if (probabilities_) return {number_of_classes(), 0};
    return {number_of_classes(), tree_over_classes([&](std::int64_t begin, int n, double* leaves) {
              for (int k = 0; k < n; ++k)
                leaves[k] = exists(begin + k) ? static_cast<double>(shared_.weight[begin + k]) : -0.;
            })};
  }
  /// The sum of w lp over [from, to), from a multiple of a power of two of chunks that is no less than to - from.
  T sum(const State& s, std::int64_t from, std::int64_t to) {
    lift::TreeBuilder<fold::Sum<T>> tree;
    const auto row = log_normaliser(s);
    to = std::min(to, row_.length);
    for (std::int64_t i = from; i < to; i += lift::kChunk) tree.push(sum_chunk(row, i, chunk_size(i, to)));
    return from < to ? tree.root() : fold::Sum<T>::identity();
  }

  /// The loss, in double; writes what is asked of each row. `sum` is that of the whole row.
  double finish(const State& s, T sum) {
    const auto put = [&](LossSlot slot, double value) {
      if (p_[slot].given) put_number(p_[slot], p_.at(p_[slot], index_), value);
    };
    const bool each = p_.reduction == Reduction::none;
    if (ignored()) {
      put(LossSlot::log_probability, 0.);
      if (each) put(LossSlot::loss, 0.);
      return fold::Sum<double>::identity();
    }
    const T lp = probabilities_ ? any_log_probability(s) : target_log_probability(s);
    put(LossSlot::log_probability, static_cast<double>(lp));
    const double all = special(s) ? static_cast<double>(lp) : static_cast<double>(sum);
    const double loss = terms().loss(static_cast<double>(lp), all, lse(s));
    if (each) put(LossSlot::loss, loss);
    return loss;
  }

  /// Elements [from, to) of dx.
  void write(const State& s, T, std::int64_t from, std::int64_t to, bool stream) {
    Sink sink(p_, row_);
    const fold::Normaliser<T> norm(s);
    to = std::min(to, row_.n);
    if (ignored() || norm.empty) return sink.fill(from, to, 0.);
    const std::int64_t present = std::clamp(row_.length, from, to);
    sink.fill(present, to, 0.);
    if (!norm.regular) {
      sink.fill(from, present, 0.);
      return sink.fill_present(from, present, fold::canonical_nan<double>());
    }
    const fold::CrossEntropyGradient<T> row(norm, source_.c(), terms(), lse(s), factor());
    const bool has_target = from <= target_ && target_ < present && exists(target_);
    const T at_target = has_target ? row.at_target(element(target_), weight_at(target_)) : T(0);
    const auto gradient = loss_ops<T>().gradient[index(source_.dtype())][index(sink.dtype())];
    for (std::int64_t i = from; i < present;) {
      const int n = piece_size(sink, i, present);
      const bool here = has_target && i <= target_ && target_ < i + n;
      const T* weight = row.spread != T(0) ? weights_at(i, n) : nullptr;
      gradient(source_.at(i, n, gathered_), n, row, weight, sink.begin(i), stream && !here);
      sink.end(i, n);
      i += n;
    }
    clear_missing(p_, row_, sink, from, present);
    if (has_target) sink.fill(target_, target_ + 1, static_cast<double>(at_target));
  }

 private:
  static int chunk_size(std::int64_t begin, std::int64_t end) { return cpu::chunk_size(begin, end); }
  bool exists(std::int64_t i) const {
    return i < row_.length && (row_.mask == nullptr || row_.mask[i * p_[Slot::mask].axis_stride] != 0);
  }
  T weight_at(std::int64_t i) const { return shared_.weight != nullptr ? shared_.weight[p_.shard.offset + i] : T(1); }
  /// w, or of targets that are probabilities w q, of n <= kChunk classes.
  const T* weights_at(std::int64_t begin, int n) {
    const T* w = shared_.weight + p_.shard.offset + begin;
    if (!probabilities_) return w;
    const Operand& o = p_[LossSlot::targets];
    const char* at = p_.at(o, index_) + begin * o.axis_stride;
    const bool smooth = p_.label_smoothing > 0;
    const T keep = static_cast<T>(1. - p_.label_smoothing),
            add = smooth ? static_cast<T>(p_.label_smoothing / classes().number) : T(0);
    with_dtype(o.dtype, [&]<class S>(S) {
      for (int k = 0; k < n; ++k, at += o.axis_stride) {
        T q = static_cast<T>(fold::widen(*reinterpret_cast<const S*>(at)));
        if (smooth) q = fold::Scalar<T>::fma(keep, q, add);
        weighted_[k] = fold::Scalar<T>::mul(w[k], q);
      }
    });
    return weighted_;
  }
  RowClasses classes() const {
    return shared_.classes != nullptr ? shared_.classes[index_]
                                      : RowClasses{static_cast<double>(row_.length), shared_.weights};
  }
  double number_of_classes() const {
    if (row_.mask == nullptr) return static_cast<double>(row_.length);
    double number = 0;
    for (std::int64_t i = 0; i < row_.length; ++i) number += exists(i) ? 1. : 0.;
    return number;
  }
  /// What a row without a target has instead of its log-probability: whether it is empty, or no row of numbers.
  T any_log_probability(const State& s) const {
    const fold::Normaliser<T> norm(s);
    if (norm.empty && p_.empty != Empty::nan) return -fold::infinity<T>();
    return norm.regular ? T(0) : fold::canonical_nan<T>();
  }
  static bool special(const State& s) { return !fold::Normaliser<T>(s).regular; }

  T element(std::int64_t i) {
    T one[1];
    const void* at = source_.at(i, 1, one);
    return with_dtype(source_.dtype(),
                      [&]<class S>(S) -> T { return static_cast<T>(fold::widen(*static_cast<const S*>(at))); });
  }

  fold::LogNormaliser<T> log_normaliser(const State& s) const {
    auto row = chunk_ops<T>().log_normaliser(s, fold::make_scale<T>(row_.scale));
    row.set_c(source_.c());
    return row;
  }
  double lse(const State& s) const {
    return static_cast<double>(chunk_ops<T>().finish(s, fold::make_scale<T>(row_.scale)));
  }

  T target_log_probability(const State& s) {
    const auto row = log_normaliser(s);
    if (row.empty) return p_.empty == Empty::nan ? fold::canonical_nan<T>() : -fold::infinity<T>();
    if (!row.regular) return fold::canonical_nan<T>();
    if (!exists(target_)) return -fold::infinity<T>();
    T one[1], lp = T(0);
    const void* at = source_.at(target_, 1, one);
    chunk_ops<T>().write_log[index(source_.dtype())][index(dtype_of<T>())](at, 1, row, &lp, false);
    return lp;
  }

  T sum_chunk(const fold::LogNormaliser<T>& row, std::int64_t begin, int n) {
    const T* weight = weights_at(begin, n);
    const void* x = source_.at(begin, n, gathered_);
    if (row_.mask == nullptr) {
      const T sum = loss_ops<T>().sum_log[index(source_.dtype())](x, n, row, weight, room_);
      if (!probabilities_ || sum == sum) return sum;
    }
    // What is hidden has no logarithm, and a class of probability 0 takes no part, whatever its own is.
    const bool gathered = row_.mask != nullptr;
    for (int i = 0; i < n; ++i) {
      const bool counts = exists(begin + i) && !(probabilities_ && weight[i] == T(0));
      room_[i] =
          counts ? fold::Scalar<T>::mul(weight[i], row.log_probability(gathered ? gathered_[i] : element(begin + i)))
                 : -T(0);
    }
    return lift::halve<fold::Sum<T>>(room_, n);
  }

  /// The canonical tree over the row, of leaves(begin, n, to).
  template <class Leaves>
  double tree_over_classes(const Leaves& leaves) {
    lift::TreeBuilder<fold::Sum<double>> tree;
    double of[lift::kChunk];
    for (std::int64_t i = 0; i < row_.length; i += lift::kChunk) {
      const int n = chunk_size(i, row_.length);
      leaves(i, n, of);
      tree.push(lift::halve<fold::Sum<double>>(of, n));
    }
    return row_.length > 0 ? tree.root() : fold::Sum<double>::identity();
  }

  fold::CrossEntropy terms() {
    if (probabilities_) {  // sum w q (-lp) + z sum w q lse^2
      fold::CrossEntropy t(0, p_.z_loss, shared_.row_weights[index_], 1, shared_.row_weights[index_]);
      t.hit = 0;
      t.spread = 1;
      return t;
    }
    const RowClasses own = classes();
    return {p_.label_smoothing, p_.z_loss, target_weight(), own.number, own.weights};
  }

  /// What the gradient is multiplied by.
  double factor() const {
    const double dloss = p_.reduction == Reduction::none && p_[LossSlot::dloss].given
                             ? number_at(p_[LossSlot::dloss], p_.at(p_[LossSlot::dloss], index_))
                             : shared_.one_factor;
    return fold::Scalar<double>::mul(dloss, row_.scale);
  }

  const LossProblem& p_;
  const LossShared<T>& shared_;
  const Row& row_;
  Source<T> source_;
  std::int64_t index_;
  bool probabilities_;
  std::int64_t class_;   ///< the target
  std::int64_t target_;  ///< its place in x, or, of a shard, outside of it
  alignas(64) T weighted_[lift::kChunk];
  alignas(64) T gathered_[lift::kChunk];
  alignas(64) T room_[lift::kChunk];
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
