// cross_entropy with any of its options, of class indices and of class probabilities, beside its formulas in long
// double.
#pragma once

#include "support/linear_reference.hpp"
#include "support/loss_row.hpp"

#include <utility>

namespace softfold_test {

using softfold::CrossEntropyOptions;

/// What a problem is made of.
struct LossKind {
  DType x = DType::float64, dx = DType::float64, loss = DType::float64, targets = DType::int64;
  DType weight = DType::float64, dloss = DType::float64;
  Layout layout = Layout::contiguous;
  Reduction reduction = Reduction::mean;
};

/// Row r's target, where it is a class, exists in the row, or is to be ignored: the loss is finite.
struct LossCase {
  std::int64_t rows, n;
  Array x, targets, weight, mask, length, scales, dloss;
  Array loss, log_probability, states, dx;
  CrossEntropyOptions options;
  bool has_weight = false, has_mask = false, has_length = false, has_scales = false, has_dloss = false;

  LossCase(const LossKind& kind, std::int64_t rows_, std::int64_t n_, std::uint64_t seed, double spread = 4)
      : rows(rows_),
        n(n_),
        x(kind.x, {rows, n}, kind.layout),
        targets(kind.targets, softfold::is_floating(kind.targets) ? Shape{rows, n} : Shape{rows}, kind.layout),
        weight(kind.weight, {n}),
        mask(DType::boolean, {rows, n}, kind.layout),
        length(DType::int32, {rows}),
        scales(DType::float32, {rows}),
        dloss(kind.dloss, loss_shape(kind, rows)),
        loss(kind.loss, loss_shape(kind, rows)),
        log_probability(kind.loss, {rows}),
        states(DType::float64, {rows, 4}),
        dx(kind.dx, {rows, n}, kind.layout) {
    options.reduction = kind.reduction;
    Random random(seed);
    for (std::int64_t k = 0; k < rows * n; ++k) {
      x.set_value(k, random.uniform(-spread, spread));
      mask.set_value(k, random.below(3) != 0 ? 1 : 0);
    }
    for (std::int64_t i = 0; i < n; ++i) weight.set_value(i, 0.25 * static_cast<double>(1 + i % 7));
    for (std::int64_t i = 0; i < dloss.count(); ++i) dloss.set_value(i, 1.5 - static_cast<double>((i + 1) % 3));
    for (std::int64_t r = 0; r < rows; ++r) {
      length.set_value(r, static_cast<double>(1 + random.below(n)));
      scales.set_value(r, 0.25 * static_cast<double>(r % 5) + 0.5);
    }
  }
  static Shape loss_shape(const LossKind& kind, std::int64_t rows) {
    return kind.reduction == Reduction::none ? Shape{rows} : Shape{};
  }

  bool of_classes() const { return !softfold::is_floating(targets.dtype()); }
  bool exists(std::int64_t r, std::int64_t i) const {
    if (options.rows.causal && i >= r + 1 + n - rows) return false;
    return (!has_length || static_cast<double>(i) < number(length, r)) && (!has_mask || number(mask, r * n + i) != 0);
  }
  /// Once it is decided what exists: classes that do, or probabilities, a third of them 0; every `ignored`-th row out.
  void set_targets(std::uint64_t seed, std::int64_t ignored = 0) {
    Random random(seed);
    for (std::int64_t r = 0; r < rows; ++r) {
      mask.set_value(r * n, 1);  // nothing is empty
      std::int64_t t = random.below(n);
      while (!exists(r, t)) t = random.below(n);
      if (of_classes()) {
        const bool out = ignored > 0 && r % ignored == ignored - 1;
        targets.set_value(r, static_cast<double>(out ? options.ignore_index : t));
        continue;
      }
      for (std::int64_t i = 0; i < n; ++i)
        targets.set_value(r * n + i, random.below(3) == 0 ? 0. : random.uniform(0., 2. / static_cast<double>(n)));
    }
  }

  CrossEntropyOptions bound() {
    CrossEntropyOptions o = options;
    if (has_weight) o.weight = weight.view();
    if (has_mask) o.rows.mask = mask.view();
    if (has_length) o.rows.length = length.view();
    if (has_scales) o.rows.scales = scales.view();
    return o;
  }
  /// Everything in one call.
  void run(const softfold::Context& context = {}) {
    CrossEntropyOptions o = bound();
    o.states = states.view(), o.dx = dx.view();
    if (of_classes()) o.log_probability = log_probability.view();
    if (has_dloss) o.dloss = dloss.view();
    softfold::cross_entropy(x.view(), targets.view(), loss.view(), o, context);
  }
  /// The gradient from the states that run() left, and of a dloss that is there.
  Array backward() {
    Array again(dx.dtype(), {rows, n});
    softfold::cross_entropy_backward(x.view(), targets.view(), states.view(), dloss.view(), again.view(), bound());
    return again;
  }
  /// The losses alone, each as often as dloss has it: what dx is the derivative of.
  double total() {
    softfold::cross_entropy(x.view(), targets.view(), loss.view(), bound());
    double sum = 0;
    for (std::int64_t i = 0; i < loss.count(); ++i) sum += number(loss, i) * (has_dloss ? number(dloss, i) : 1.);
    return sum;
  }
};

/// The formulas of docs/cross_entropy.md over all rows.
struct LossReference {
  std::vector<double> loss, log_probability, dx;
  /// What errors of the results are relative to: the largest sum of the sizes of what a number is put together from,
  /// with 1 for a logarithm, whose error is absolute.
  double loss_size = 0, log_probability_size = 1, dx_size = 0;

  explicit LossReference(const LossCase& c) {
    for (std::int64_t r = 0; r < c.rows; ++r)
      if (!c.of_classes() || target(c, r) != c.options.ignore_index)
        counted_ += c.of_classes() ? weight_of(c, target(c, r)) : 1;
    long double total = 0;
    for (std::int64_t r = 0; r < c.rows; ++r) total += add_row(c, r);
    if (c.options.reduction == Reduction::none) return;
    const long double by = c.options.reduction == Reduction::mean && counted_ > 0 ? counted_ : 1;
    loss.assign(1, static_cast<double>(total / by));
    loss_size = static_cast<double>(total_size_ / by);
  }

 private:
  static std::int64_t target(const LossCase& c, std::int64_t r) {
    return static_cast<std::int64_t>(number(c.targets, r));
  }
  static long double weight_of(const LossCase& c, std::int64_t i) { return c.has_weight ? number(c.weight, i) : 1.; }

  /// The row's scores less their lse, its shares and its z-loss.
  static LossRow row_of(const LossCase& c, std::int64_t r, long double scale) {
    const auto& o = c.options;
    const auto n = static_cast<std::size_t>(c.n);
    LossRow row;
    row.log_probability.assign(n, -HUGE_VALL), row.share.assign(n, 0);
    long double classes = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto k = static_cast<std::int64_t>(i);
      if (!c.exists(r, k)) continue;
      row.log_probability[i] = scale * static_cast<long double>(number(c.x, r * c.n + k));
      classes += 1;
    }
    row.lse = lse_of(n, [&](std::size_t i) { return row.log_probability[i]; });
    const std::int64_t t = c.of_classes() ? target(c, r) : -1;
    for (std::size_t i = 0; i < n; ++i) {
      if (row.log_probability[i] == -HUGE_VALL) continue;
      row.log_probability[i] -= row.lse;
      const auto k = static_cast<std::int64_t>(i);
      const long double q = c.of_classes() ? (k == t ? 1. : 0.) : number(c.targets, r * c.n + k);
      row.share[i] = LossRow::share_of(weight_of(c, k), q, o.label_smoothing, classes);
    }
    row.square = o.z_loss * (c.of_classes() ? weight_of(c, t) : row.shares());
    return row;
  }

  long double add_row(const LossCase& c, std::int64_t r) {
    const auto& o = c.options;
    if (c.of_classes() && target(c, r) == o.ignore_index) {
      loss.push_back(0), log_probability.push_back(0);
      dx.insert(dx.end(), static_cast<std::size_t>(c.n), 0.);
      return 0;
    }
    const long double scale = o.rows.scale * (c.has_scales ? number(c.scales, r) : 1.);
    const LossRow row = row_of(c, r, scale);
    const long double value = row.loss(), weights = row.shares(), far = std::abs(row.lse);
    const long double size = value + weights + 2 * row.square * far;
    loss.push_back(static_cast<double>(value));
    total_size_ += size;
    loss_size = std::max(loss_size, static_cast<double>(size));
    if (c.of_classes()) {
      const long double lp = row.log_probability[static_cast<std::size_t>(target(c, r))];
      log_probability.push_back(static_cast<double>(lp));
      log_probability_size = std::max(log_probability_size, std::abs(log_probability.back()));
    }
    long double factor = scale / (o.reduction == Reduction::mean ? counted_ : 1);
    if (c.has_dloss) factor *= number(c.dloss, o.reduction == Reduction::none ? r : 0);
    dx_size = std::max(dx_size, static_cast<double>(std::abs(factor) * (weights + 2 * row.square * (far + 1))));
    for (const long double slope : row.slopes()) dx.push_back(static_cast<double>(factor * slope));
    return value;
  }

  long double counted_ = 0, total_size_ = 0;
};

}  // namespace softfold_test
