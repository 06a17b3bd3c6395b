// linear_cross_entropy by its formulas in double, from elements as they are stored.
#pragma once

#include "support/array.hpp"
#include "support/bits.hpp"

#include "softfold/softfold.hpp"

#include <cmath>
#include <vector>

namespace softfold_test {

using softfold::LinearCrossEntropyOptions;
using softfold::Reduction;

/// Element k of an array, as a number.
inline double number(const Array& a, std::int64_t k) {
  return with_storage(a.dtype(), [&]<class S>(S) {
    const S element = a.get<S>(k);
    if constexpr (std::is_integral_v<S>) {
      return static_cast<double>(element);
    } else {
      return static_cast<double>(softfold::fold::widen(element));
    }
  });
}

inline std::vector<double> numbers(const Array& a) {
  std::vector<double> all;
  for (std::int64_t k = 0; k < a.count(); ++k) all.push_back(number(a, k));
  return all;
}

/// Operands of a problem with B rows, D features and V classes, and every result.
struct LinearCase {
  std::int64_t rows, depth, classes;
  DType type;
  Array x, weight, bias, targets, class_weight, dloss;
  Array loss, log_probability, states, dx, dweight, dbias;
  LinearCrossEntropyOptions options;
  bool has_bias = false, has_class_weight = false, has_dloss = false;

  LinearCase(DType t, std::int64_t b, std::int64_t d, std::int64_t v, Reduction reduction, std::uint64_t seed = 1)
      : rows(b),
        depth(d),
        classes(v),
        type(t),
        x(t, {b, d}),
        weight(t, {v, d}),
        bias(t, {v}),
        targets(DType::int64, {b}),
        class_weight(DType::float32, {v}),
        dloss(DType::float32, reduction == Reduction::none ? Shape{b} : Shape{}),
        loss(double_or_float(t), reduction == Reduction::none ? Shape{b} : Shape{}),
        log_probability(double_or_float(t), {b}),
        states(DType::float64, {b, 4}),
        dx(t, {b, d}),
        dweight(t, {v, d}),
        dbias(double_or_float(t), {v}) {
    options.loss.reduction = reduction;
    Random random(seed);
    const double spread = 3. / std::sqrt(static_cast<double>(d));
    for (std::int64_t i = 0; i < b * d; ++i) x.set_value(i, random.uniform(-2., 2.));
    for (std::int64_t i = 0; i < v * d; ++i) weight.set_value(i, random.uniform(-spread, spread));
    for (std::int64_t i = 0; i < v; ++i) {
      bias.set_value(i, random.uniform(-1., 1.));
      class_weight.set_value(i, 0.25 * static_cast<double>(1 + i % 7));
    }
    for (std::int64_t r = 0; r < b; ++r) targets.set_value(r, static_cast<double>(random.below(v)));
    for (std::int64_t i = 0; i < dloss.count(); ++i) dloss.set_value(i, 1.5 - static_cast<double>(i % 3));
  }
  std::vector<Array*> arrays() {
    return {&x,    &weight,          &bias,   &targets, &class_weight, &dloss,
            &loss, &log_probability, &states, &dx,      &dweight,      &dbias};
  }
  /// A plan of every operand in use; view(i) is that of arrays()[i]. `gradients`: bits for dx, dweight, dbias.
  template <class ViewOf>
  softfold::Plan plan(const ViewOf& view, const softfold::Context& context = {}, int gradients = 7) const {
    LinearCrossEntropyOptions o = options;
    if (has_bias) o.bias = view(2);
    if (has_class_weight) o.loss.weight = view(4);
    if (has_dloss && gradients != 0) o.loss.dloss = view(5);
    o.loss.log_probability = view(7);
    o.loss.states = view(8);
    if ((gradients & 1) != 0) o.dx = view(9);
    if ((gradients & 2) != 0) o.dweight = view(10);
    if ((gradients & 4) != 0 && has_bias) o.dbias = view(11);
    const View inputs[] = {view(0), view(1), view(3)}, loss_view = view(6);
    return softfold::plan(softfold::Op::linear_cross_entropy, inputs, {&loss_view, 1}, o, context);
  }
  softfold::Plan plan_here(const softfold::Context& context = {}, int gradients = 7) {
    const auto all = arrays();
    return plan([&](std::size_t i) { return all[i]->view(); }, context, gradients);
  }
  static DType double_or_float(DType t) { return t == DType::float64 ? t : DType::float32; }
};

/// What the results should be.
struct LinearReference {
  std::vector<double> loss, log_probability, lse, dx, dweight, dbias;

  explicit LinearReference(const LinearCase& c) {
    const auto& o = c.options.loss;
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    loss.assign(at(c.rows), 0.), log_probability = lse = loss;
    dx.assign(at(c.rows * c.depth), 0.), dweight.assign(at(c.classes * c.depth), 0.), dbias.assign(at(c.classes), 0.);
    const auto weight_of = [&](std::int64_t k) { return c.has_class_weight ? number(c.class_weight, k) : 1.; };
    const std::vector<double> x = numbers(c.x), w = numbers(c.weight);
    double counted = 0, total = 0;
    const auto target = [&](std::int64_t r) { return static_cast<std::int64_t>(number(c.targets, r)); };
    for (std::int64_t r = 0; r < c.rows; ++r)
      if (target(r) != o.ignore_index) counted += weight_of(target(r));
    std::vector<double> s(at(c.classes)), slope(at(c.classes), 1.);
    for (std::int64_t r = 0; r < c.rows; ++r) {
      const std::int64_t t = target(r);
      double most = -HUGE_VAL, sum = 0, smooth = 0, weights = 0;
      for (std::int64_t v = 0; v < c.classes; ++v) {
        double z = c.has_bias ? number(c.bias, v) : 0.;
        for (std::int64_t d = 0; d < c.depth; ++d) z += x[at(r * c.depth + d)] * w[at(v * c.depth + d)];
        const double cap = c.options.softcap, u = cap > 0 ? std::tanh(z / cap) : 0.;
        slope[at(v)] = 1 - u * u;
        s[at(v)] = o.rows.scale * (cap > 0 ? cap * u : z);
        most = std::max(most, s[at(v)]);
      }
      for (const double e : s) sum += std::exp(e - most);
      const double l = most + std::log(sum);
      lse[at(r)] = l;
      if (t == o.ignore_index) continue;
      for (std::int64_t v = 0; v < c.classes; ++v) {
        smooth += weight_of(v) * (l - s[at(v)]);
        weights += weight_of(v);
      }
      const double k = static_cast<double>(c.classes), hit = (1 - o.label_smoothing) * weight_of(t),
                   spread = o.label_smoothing / k, square = o.z_loss * weight_of(t);
      log_probability[at(r)] = s[at(t)] - l;
      loss[at(r)] = hit * (l - s[at(t)]) + spread * smooth + square * l * l;
      total += loss[at(r)];
      double factor = o.rows.scale;
      if (c.has_dloss) factor *= number(c.dloss, o.reduction == Reduction::none ? r : 0);
      if (o.reduction == Reduction::mean) factor /= counted;
      const double pull = hit + spread * weights + 2 * square * l;
      for (std::int64_t v = 0; v < c.classes; ++v) {
        const double p = std::exp(s[at(v)] - l);
        const double g = factor * slope[at(v)] * (pull * p - spread * weight_of(v) - (v == t ? hit : 0.));
        dbias[at(v)] += g;
        for (std::int64_t d = 0; d < c.depth; ++d) {
          dx[at(r * c.depth + d)] += g * w[at(v * c.depth + d)];
          dweight[at(v * c.depth + d)] += g * x[at(r * c.depth + d)];
        }
      }
    }
    if (o.reduction != Reduction::none)
      loss.assign(1, counted == 0 || o.reduction == Reduction::sum ? total : total / counted);
  }
};

/// The largest error of a result over the largest size of what it should be.
inline double error_of(const Array& got, const std::vector<double>& wanted) {
  double worst = 0, largest = 0;
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const double w = wanted[static_cast<std::size_t>(i)], e = std::abs(number(got, i) - w);
    if (!(e <= worst)) worst = std::isnan(e) ? HUGE_VAL : e;
    largest = std::max(largest, std::abs(w));
  }
  return largest > 0 ? worst / largest : worst;
}

}  // namespace softfold_test
