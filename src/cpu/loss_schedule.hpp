// What follows from a row's state and its elements: which rows, or which parts of a row, run where. Without a gradient
// and without a sum over the elements a row is read once; else what comes after its state reads it again, from the
// cache where it fits there.
#pragma once

#include "cpu/loss_rows.hpp"
#include "cpu/row_schedules.hpp"

#include <algorithm>
#include <vector>

namespace softfold {
inline namespace v0 {
namespace cpu {

using Tree = lift::TreeBuilder<fold::Sum<double>>;

/// The canonical tree over `count` numbers.
template <class At>
double sum_over(std::int64_t count, const At& at) {
  Tree tree;
  double leaves[lift::kChunk];
  for (std::int64_t i = 0; i < count; i += lift::kChunk) {
    const int n = chunk_size(i, count);
    for (int k = 0; k < n; ++k) leaves[k] = at(i + k);
    tree.push(lift::halve<fold::Sum<double>>(leaves, n));
  }
  return count > 0 ? tree.root() : fold::Sum<double>::identity();
}

/// Refuses a target that is no class of its row, before anything is written.
inline void check_targets(const LossProblem& p) {
  const Operand& targets = p[LossSlot::targets];
  if (is_floating(targets.dtype)) return;
  RowCursor cursor(p, 0);
  const bool ragged = p[Slot::offsets].given;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const std::int64_t t = integer_at(targets, p.at(targets, r)), n = ragged ? cursor.row().n : p.classes();
    if (ragged) cursor.next();
    if (t == p.ignore_index || (t >= 0 && t < n)) continue;
    const std::string ignored = "ignore_index " + std::to_string(p.ignore_index);
    throw Error(Code::data, "target " + std::to_string(t) + " for row " + std::to_string(r),
                n > 0 ? "0 .. " + std::to_string(n - 1) + ", or " + ignored : ignored + ", as the row has no classes",
                ignored + " for a row that is not to count");
  }
}

/// The rows that are not ignored, and what their targets weigh.
struct CountedRows {
  std::int64_t count;
  double weights;
};
template <class WeightOf>
CountedRows count_rows(const LossProblem& p, const WeightOf& weight_of) {
  const Operand& targets = p[LossSlot::targets];
  CountedRows rows{0, 0};
  rows.weights = sum_over(p.rows, [&](std::int64_t r) {
    const std::int64_t t = integer_at(targets, p.at(targets, r));
    if (t == p.ignore_index) return fold::Sum<double>::identity();
    ++rows.count;
    return weight_of(t);
  });
  return rows;
}

/// A total of losses, or a mean of it. Nothing to add up is an empty row's case.
inline double reduced(const LossProblem& p, double total, const CountedRows& rows) {
  const bool mean = p.reduction == Reduction::mean;
  if (rows.count == 0) return p.empty == Empty::nan && mean ? fold::canonical_nan<double>() : 0.;
  return fold::Scalar<double>::add(mean ? fold::Scalar<double>::div(total, rows.weights) : total, 0.);
}

/// From states to results, for whatever a row's state, in some cases one more sum over its elements, and a gradient
/// make: RowOf is LossRow or EntropyRow.
template <class T, template <class> class RowOf>
class LossRun {
 public:
  using Fold = typename RowOf<T>::Fold;
  using State = typename Fold::State;

  LossRun(const LossProblem& p, const Context& context)
      : p_(p),
        context_(context),
        backward_(p.op == Op::cross_entropy_backward || p.op == Op::entropy_backward),
        losses_(thread_scratch(), Scratch::row_values, static_cast<std::size_t>(p.rows) + 1),
        weight_(thread_scratch(), Scratch::weights, static_cast<std::size_t>(p.classes()) + 1),
        row_weights_(thread_scratch(), Scratch::row_weights,
                     has_probabilities(p) ? static_cast<std::size_t>(p.rows) : 0) {}

  void run() {
    if (p_[LossSlot::targets].given) check_targets(p_);
    if (p_[LossSlot::status].given) *reinterpret_cast<std::int32_t*>(p_[LossSlot::status].data) = 0;
    if (backward_) check_states(p_);
    share();
    if (p_.rows != 0 && splits_inside_rows(p_, context_)) {
      shared_rows();
    } else if (p_.rows != 0) {
      whole_rows();
    }
    if (backward_ || p_.reduction == Reduction::none) return;
    const double total = sum_over(p_.rows, [&](std::int64_t r) { return losses_.data()[r]; });
    put_number(p_[LossSlot::loss], p_[LossSlot::loss].data, reduced(p_, total, counted_));
  }

 private:
  void share() {
    const Operand& weight = p_[LossSlot::weight];
    if (!p_[LossSlot::targets].given) {
      shared_ = {nullptr, nullptr, 0, nullptr, 1};
      return;
    }
    const bool smooth = p_.label_smoothing > 0;
    shared_ = {smooth || weight.given || has_probabilities(p_) ? weight_.data() : nullptr, nullptr, 0, nullptr, 1};
    if (shared_.weight != nullptr)
      for (std::int64_t i = 0; i < p_.classes(); ++i)
        weight_.data()[i] =
            weight.given ? fold::narrow<T>(number_at(weight, weight.data + i * weight.axis_stride)) : T(1);
    if (smooth)
      shared_.weights = sum_over(p_.n, [&](std::int64_t i) { return static_cast<double>(shared_.weight[i]); });
    if (smooth && hides_classes()) find_classes();
    if (has_probabilities(p_)) {
      counted_ = {p_.rows, static_cast<double>(p_.rows)};
      weigh_rows();
    } else {
      counted_ =
          count_rows(p_, [&](std::int64_t t) { return weight.given ? static_cast<double>(shared_.weight[t]) : 1.; });
    }
    const Operand& dloss = p_[LossSlot::dloss];
    if (dloss.given && p_.reduction != Reduction::none) shared_.one_factor = number_at(dloss, dloss.data);
    if (p_.reduction == Reduction::mean)
      shared_.one_factor = fold::Scalar<double>::div(shared_.one_factor, counted_.weights);
  }

  /// visit(row, its index) of each row of a loss.
  template <class Visit>
  void for_rows(const Visit& visit) {
    if (p_.rows == 0) return;
    if constexpr (std::is_same_v<RowOf<T>, LossRow<T>>)
      split_rows(p_, context_, [&](std::int64_t first, std::int64_t last) {
        for (RowCursor cursor(p_, first); first < last; ++first, cursor.next()) {
          const Row r = cursor.row();
          LossRow<T> row(p_, shared_, r, first);
          visit(row, first);
        }
      });
  }
  /// What the classes of each row weigh, of targets that are class probabilities.
  void weigh_rows() {
    for_rows([&](auto& row, std::int64_t i) { row_weights_.data()[i] = row.sum_of_weights(); });
    shared_.row_weights = row_weights_.data();
  }
  /// Whether not all rows have all classes.
  bool hides_classes() const {
    return p_[Slot::mask].given || p_[Slot::length].given || p_[Slot::offsets].given || p_.causal;
  }
  /// Once a row: parts of one that threads share would each look at all of it.
  void find_classes() {
    classes_.resize(static_cast<std::size_t>(p_.rows));
    for_rows([&](auto& row, std::int64_t i) { classes_[static_cast<std::size_t>(i)] = row.find_classes(); });
    shared_.classes = classes_.data();
  }

  bool writes() const { return p_[Slot::y].given; }
  /// Whether elements are added up once the row's state is known.
  bool sums() const {
    if constexpr (RowOf<T>::kSums) return RowOf<T>::sums(p_);
    return false;
  }
  static T sum_of(RowOf<T>& row, const State& s, std::int64_t from, std::int64_t to) {
    if constexpr (RowOf<T>::kSums) return row.sum(s, from, to);
    return T(0);
  }
  /// A backward pass has the states that it is given.
  State whole_state(const Row& r, const State& folded) const {
    return backward_ ? RowOf<T>::with_given(folded, state_of<T>(stored_state(r))) : folded;
  }
  /// Whether the row need not be read: nothing that is asked of it depends on it.
  bool skips(const RowOf<T>& row) const { return row.ignored() && (backward_ || !p_[Slot::states].given); }

  void whole_rows() {
    const bool stream = streams(p_);
    split_rows(p_, context_, [&](std::int64_t first, std::int64_t last) {
      RowWorker<T> worker(p_, Result::state);
      for (RowCursor cursor(p_, first); first < last; ++first, cursor.next()) {
        const Row r = cursor.row();
        RowOf<T> row(p_, shared_, r, first);
        const State s = skips(row) ? Fold::identity()
                                   : whole_state(r, RowOf<T>::folds(p_) ? row.fold(worker, 0, r.n) : Fold::identity());
        const T sum = sums() && !row.ignored() ? sum_of(row, s, 0, r.n) : T(0);
        finish(worker, row, r, first, s, sum);
        if (writes()) row.write(s, sum, 0, r.n, stream);
      }
    });
  }

  /// Few long rows: the threads share each of them, and meet between its state, its sum and its gradient.
  void shared_rows() {
    const Blocks blocks(p_.n);
    const auto count = static_cast<std::size_t>(p_.rows * blocks.count);
    const Scratch::Held<State> states(thread_scratch(), Scratch::blocks, count);
    const Scratch::Held<T> block_sums(thread_scratch(), Scratch::block_sums, count);
    const auto each = [&](const auto& body) {
      for_blocks(p_, context_, blocks,
                 [&](const Row& r, std::int64_t i, std::int64_t b, std::int64_t begin, std::int64_t end) {
                   RowOf<T> row(p_, shared_, r, i);
                   if (!skips(row)) body(r, row, i, i * blocks.count + b, begin, end);
                 });
    };
    if (RowOf<T>::folds(p_))
      each([&](const Row&, RowOf<T>& row, std::int64_t, std::int64_t at, std::int64_t begin, std::int64_t end) {
        RowWorker<T> worker(p_, Result::state);
        states.data()[at] = row.fold(worker, begin, end);
      });
    const auto root = [&](const RowOf<T>& row, const Row& r, std::int64_t i) {
      if (skips(row)) return Fold::identity();
      const std::int64_t folded = RowOf<T>::folds(p_) ? blocks.count : 0;
      return whole_state(r, lift::reduce_nodes<Fold>(states.data() + i * blocks.count, folded));
    };
    RowCursor cursor(p_, 0);
    for (std::int64_t i = 0; i < p_.rows; ++i, cursor.next()) {
      const Row r = cursor.row();
      states.data()[i * blocks.count] = root(RowOf<T>(p_, shared_, r, i), r, i);
    }
    const auto state = [&](std::int64_t i) { return states.data()[i * blocks.count]; };
    if (sums())
      each([&](const Row&, RowOf<T>& row, std::int64_t i, std::int64_t at, std::int64_t begin, std::int64_t end) {
        block_sums.data()[at] = row.ignored() ? T(0) : sum_of(row, state(i), begin, end);
      });
    RowWorker<T> worker(p_, Result::state);
    RowCursor again(p_, 0);
    for (std::int64_t i = 0; i < p_.rows; ++i, again.next()) {
      const Row r = again.row();
      RowOf<T> row(p_, shared_, r, i);
      const bool adds = sums() && !row.ignored();
      const std::int64_t live = std::min(blocks.count, (r.length + blocks.size - 1) / blocks.size);
      T& sum = block_sums.data()[i * blocks.count];
      sum = adds ? lift::reduce_nodes<fold::Sum<T>>(&sum, live) : T(0);
      finish(worker, row, r, i, state(i), sum);
    }
    if (!writes()) return;
    const bool stream = streams(p_);
    for_blocks(p_, context_, blocks,
               [&](const Row& r, std::int64_t i, std::int64_t, std::int64_t begin, std::int64_t end) {
                 const T sum = block_sums.data()[i * blocks.count];
                 if (begin < r.n) RowOf<T>(p_, shared_, r, i).write(state(i), sum, begin, end, stream);
                 if (stream) hwy::FlushStream();
               });
  }

  void finish(RowWorker<T>& worker, RowOf<T>& row, const Row& r, std::int64_t index, const State& s, T sum) {
    if (backward_) return;
    losses_.data()[index] = row.finish(s, sum);
    if (p_[Slot::states].given) worker.finish(r, RowOf<T>::row_state(s));
  }

  const LossProblem& p_;
  const Context& context_;
  bool backward_;
  Scratch::Held<double> losses_;
  Scratch::Held<T> weight_;
  Scratch::Held<double> row_weights_;
  std::vector<RowClasses> classes_;
  LossShared<T> shared_{};
  CountedRows counted_{0, 0};
};

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
