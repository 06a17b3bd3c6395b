// sample with its options drawn at random, all together, against the slow reference: the draw, what is told of it and
// what it was drawn from.
#include "backends/sample_reference.hpp"
#include "support/linear_reference.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

namespace softfold_test {
namespace {

using softfold::Distribution;

constexpr DType kReal[] = {DType::float32, DType::float64};
constexpr DType kResult[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};
constexpr DType kInteger[] = {DType::int32, DType::int64};

bool same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// What is expected of one row.
struct Told {
  std::int64_t token = -1, rank = 0;
  double log_probability = NAN;
  std::vector<std::int64_t> top;
  std::vector<double> top_lp, masked, p;
};

/// A call of random options, and each row of it by the definition.
struct SampleCase {
  Random random;
  std::int64_t rows, n, k;
  Array x, bias, bitmask, mask, length, scales, temperatures, top_ks, top_ps, min_ps, seeds, offsets, row_ids;
  Array tokens, lp, rank, top, top_lp, p, masked;
  SampleOptions o;
  Numbers all;  ///< of rows that have no numbers of their own

  explicit SampleCase(std::uint64_t seed)
      : random(seed * 17 + 3), rows(1 + random.below(4)), n(1 + random.below(seed % 3 == 0 ? 3000 : 100)), k(0) {
    make_x();
    make_what_exists();
    make_numbers(seed);
    make_results();
  }
  bool flip() { return random.below(2) != 0; }
  Layout layout() { return kLayouts[random.below(std::ssize(kLayouts))]; }

  void make_x() {
    const DType types[] = {DType::float32, DType::float16, DType::bfloat16};
    x = Array(types[random.below(3)], {rows, n}, layout());
    const bool ties = flip();
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double v = random.uniform(-5, 5);
      x.set_value(i, random.below(50) == 0 ? -HUGE_VAL : ties ? std::rint(v) : v);
    }
    if (random.below(8) == 0) x.set_value(random.below(x.count()), flip() ? NAN : HUGE_VAL);
  }
  void make_what_exists() {
    const auto one_or_all = [&] { return flip() ? Shape{rows, n} : Shape{n}; };
    if (flip()) {
      bias = Array(kResult[random.below(4)], one_or_all(), layout());
      for (std::int64_t i = 0; i < bias.count(); ++i)
        bias.set_value(i, random.below(5) == 0 ? -HUGE_VAL : std::rint(random.uniform(-20, 20)) / 8);
      o.bias = bias.view();
    }
    if (flip()) {
      const std::int64_t words = (n + 31) / 32;
      bitmask = Array(DType::int32, flip() ? Shape{rows, words} : Shape{words}, layout());
      for (std::int64_t i = 0; i < bitmask.count(); ++i)
        bitmask.set(i, static_cast<std::int32_t>(random.next() | random.next()));
      o.bitmask = bitmask.view();
    }
    if (flip()) {
      mask = Array(DType::boolean, one_or_all(), layout());
      for (std::int64_t i = 0; i < mask.count(); ++i) mask.set(i, std::uint8_t{random.below(4) != 0});
      o.rows.mask = mask.view();
    }
    if (flip()) {
      length = Array(kInteger[random.below(2)], {rows});
      for (std::int64_t r = 0; r < rows; ++r) length.set_value(r, static_cast<double>(random.below(n + 1)));
      o.rows.length = length.view();
    }
    o.rows.causal = random.below(4) == 0;
  }
  /// One a row, or one for all.
  template <class Of>
  void maybe_each(Array& a, View& view, const DType (&types)[2], Of&& of) {
    if (random.below(3) != 0) return;
    a = Array(types[random.below(2)], {flip() ? rows : 1});
    for (std::int64_t r = 0; r < a.count(); ++r) a.set_value(r, of());
    view = a.view();
  }
  void make_numbers(std::uint64_t seed) {
    const auto temperature = [&] { return random.below(6) == 0 ? 0. : random.uniform(0.05, 3); };
    const auto top_p = [&] { return flip() ? 1. : random.uniform(); };
    const auto min_p = [&] { return flip() ? 0. : random.uniform(0, 0.3); };
    const auto top_k = [&] { return static_cast<double>(flip() ? 0 : random.below(60)); };
    const auto any = [&] { return static_cast<double>(random.next() >> 11); };
    constexpr DType wide[] = {DType::int64, DType::int64};
    if (flip()) o.rows.scale = random.uniform(0.1, 2);
    if (flip()) {
      scales = Array(kReal[random.below(2)], {rows});
      for (std::int64_t r = 0; r < rows; ++r) scales.set_value(r, random.uniform(0.1, 2));
      o.rows.scales = scales.view();
    }
    all.temperature = flip() ? 1 : temperature(), all.top_p = top_p(), all.min_p = min_p();
    all.top_k = static_cast<std::int64_t>(top_k()), all.seed = seed, all.offset = random.next();
    all.order = flip() ? FilterOrder::min_p_first : FilterOrder::min_p_last;
    const auto view = o;
    o = options_of(all);
    o.rows = view.rows, o.bias = view.bias, o.bitmask = view.bitmask;
    maybe_each(temperatures, o.temperatures, kReal, temperature);
    maybe_each(top_ks, o.top_ks, kInteger, top_k);
    maybe_each(top_ps, o.top_ps, kReal, top_p);
    maybe_each(min_ps, o.min_ps, kReal, min_p);
    maybe_each(seeds, o.seeds, wide, any);
    maybe_each(offsets, o.offsets, wide, any);
    maybe_each(row_ids, o.row_ids, wide, any);
  }
  void make_results() {
    o.of = flip() ? Distribution::raw : Distribution::sampled;
    tokens = Array(kInteger[random.below(2)], {rows});
    lp = Array(kResult[random.below(4)], {rows}), rank = Array(kInteger[random.below(2)], {rows});
    p = Array(kResult[random.below(4)], {rows, n}, layout()), masked = Array(DType::float32, {rows, n}, layout());
    if (flip()) o.log_probability = lp.view();
    if (flip()) o.rank = rank.view();
    if (flip()) o.probabilities = p.view();
    if (flip()) o.masked = masked.view();
    if (flip()) return;
    k = random.below(std::min<std::int64_t>(n, 70) + 1);
    top = Array(kInteger[random.below(2)], {rows, k}), top_lp = Array(kResult[random.below(4)], {rows, k});
    o.top_tokens = top.view(), o.top_log_probabilities = top_lp.view();
  }

  /// An operand's number for row r: of all rows, or its own.
  template <class T>
  static T number_of(const Array& a, const View& view, std::int64_t r, T otherwise) {
    if (!view.given()) return otherwise;
    if (a.count() == 1) r = 0;
    if constexpr (std::is_floating_point_v<T>) return number(a, r);
    return a.dtype() == DType::int32 ? static_cast<T>(a.get<std::int32_t>(r)) : static_cast<T>(a.get<std::int64_t>(r));
  }
  Numbers numbers_of(std::int64_t r) const {
    Numbers d = all;
    d.scale = o.rows.scale * number_of(scales, o.rows.scales, r, 1.);
    d.temperature = number_of(temperatures, o.temperatures, r, d.temperature);
    d.top_p = number_of(top_ps, o.top_ps, r, d.top_p), d.min_p = number_of(min_ps, o.min_ps, r, d.min_p);
    d.top_k = number_of(top_ks, o.top_ks, r, d.top_k);
    d.seed = number_of(seeds, o.seeds, r, d.seed), d.offset = number_of(offsets, o.offsets, r, d.offset);
    d.id = number_of(row_ids, o.row_ids, r, static_cast<std::uint64_t>(o.seeds.given() ? 0 : r));
    return d;
  }
  /// Of an operand that has one row for all, or all of them.
  std::int64_t at(const Array& a, std::int64_t r, std::int64_t i) const {
    return a.shape().size() == 1 ? i : r * a.shape()[1] + i;
  }
  /// Row r as it is given, and what is drawn from before temperature and filters. -inf: not there.
  std::pair<std::vector<float>, std::vector<float>> rows_of(std::int64_t r) const {
    std::int64_t size = number_of(length, o.rows.length, r, n);
    if (o.rows.causal) size = std::clamp<std::int64_t>(r + 1 + n - rows, 0, size);
    std::vector<float> raw(static_cast<std::size_t>(n), kAbsent), processed = raw;
    for (std::int64_t i = 0; i < size; ++i) {
      if (o.rows.mask.given() && mask.get<std::uint8_t>(at(mask, r, i)) == 0) continue;
      float& v = processed[static_cast<std::size_t>(i)];
      v = raw[static_cast<std::size_t>(i)] = static_cast<float>(number(x, r * n + i));
      if (o.bias.given()) {
        const auto b = static_cast<float>(number(bias, at(bias, r, i)));
        v = b == kAbsent ? kAbsent : v + b;
      }
      if (!o.bitmask.given()) continue;
      const auto word = static_cast<std::uint32_t>(bitmask.get<std::int32_t>(at(bitmask, r, i / 32)));
      if ((word >> (i % 32) & 1U) == 0) v = kAbsent;
    }
    return {raw, processed};
  }
  Told told(std::int64_t r) const;
};

std::vector<float> log_softmax_of(const std::vector<float>& x, double scale) {
  const Shape shape{1, std::ssize(x)};
  std::vector<float> y(x.size());
  softfold::RowOptions row;
  row.scale = scale;
  softfold::log_softmax(View(x.data(), DType::float32, shape), View(y.data(), DType::float32, shape), row);
  return y;
}

Told SampleCase::told(std::int64_t r) const {
  const Numbers d = numbers_of(r);
  const auto [raw, processed] = rows_of(r);
  const bool has_nan = std::any_of(processed.begin(), processed.end(), [](float v) { return std::isnan(v); });
  const float most = *std::max_element(processed.begin(), processed.end());
  const bool greedy = d.temperature == 0, regular = !has_nan && std::isfinite(most);
  Told t;
  auto left = processed;
  if (!greedy && regular) {
    left = filtered(processed, d);
    t.token = draw(left, d);
  } else if (greedy && !has_nan && most != kAbsent) {  // +inf is the largest too
    t.token = std::max_element(processed.begin(), processed.end()) - processed.begin();
    std::fill(left.begin(), left.end(), kAbsent);
    left[static_cast<std::size_t>(t.token)] = most;
  }
  t.masked.assign(left.begin(), left.end());
  const bool point = greedy && t.token >= 0;
  for (const float v : left) t.p.push_back(v == kAbsent ? 0 : point ? 1 : NAN);
  if (t.token >= 0 && !point) {
    std::vector<float> drawn_from(left.size());
    const Shape shape{1, n};
    softfold::RowOptions row;
    row.scale = d.scale / d.temperature;
    softfold::softmax(View(std::as_const(left).data(), DType::float32, shape),
                      View(drawn_from.data(), DType::float32, shape), row);
    t.p.assign(drawn_from.begin(), drawn_from.end());
  }
  const bool of_raw = o.of == Distribution::raw;
  const auto& of = of_raw ? raw : left;
  std::vector<float> logs(of.size());
  if (of_raw || !point) logs = log_softmax_of(of, of_raw ? d.scale : greedy ? 1 : d.scale / d.temperature);
  std::vector<std::int64_t> best(of.size());
  std::iota(best.begin(), best.end(), 0);
  const auto value = [&](std::int64_t i) { return of[static_cast<std::size_t>(i)]; };
  std::stable_sort(best.begin(), best.end(), [&](std::int64_t i, std::int64_t j) {
    return std::isnan(value(i)) ? !std::isnan(value(j)) : value(i) > value(j);
  });
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t i = best[static_cast<std::size_t>(j)];
    t.top.push_back(value(i) == kAbsent ? -1 : i);
    t.top_lp.push_back(value(i) == kAbsent ? -HUGE_VAL : static_cast<double>(logs[static_cast<std::size_t>(i)]));
  }
  if (t.token < 0) return t;
  t.log_probability = static_cast<double>(logs[static_cast<std::size_t>(t.token)]);
  t.rank = std::count_if(of.begin(), of.end(), [&](float v) { return v >= value(t.token); });
  return t;
}

/// A number as a result's dtype has it.
double stored(DType t, double v) {
  Array one(t, {1});
  one.set_value(0, v);
  return number(one, 0);
}

TEST(Sample, OfRandomOptionsIsTheDefinitions) {
  std::int64_t drawn = 0, none = 0;
  for (std::uint64_t seed = 0; seed < 600; seed += kStep) {
    SampleCase c(seed);
    softfold::sample(c.x.view(), c.tokens.view(), c.o);
    for (std::int64_t r = 0; r < c.rows; ++r) {
      const Told t = c.told(r);
      const auto what = "seed " + std::to_string(seed) + ", row " + std::to_string(r) + " of " + std::to_string(c.n) +
                        (c.o.of == Distribution::raw ? ", raw" : ", sampled");
      ++(t.token < 0 ? none : drawn);
      const auto expect = [&](const char* name, const View& asked, const Array& got, std::int64_t at, double wanted) {
        if (!asked.given()) return;
        const double v = softfold::is_floating(got.dtype()) ? stored(got.dtype(), wanted) : wanted;
        EXPECT_TRUE(same_number(number(got, at), v)) << name << " " << number(got, at) << ", not " << v << ": " << what;
      };
      expect("token", c.tokens.view(), c.tokens, r, static_cast<double>(t.token));
      expect("log-probability", c.o.log_probability, c.lp, r, t.log_probability);
      expect("rank", c.o.rank, c.rank, r, static_cast<double>(t.rank));
      for (std::int64_t i = 0; i < c.n; ++i) {
        expect("masked", c.o.masked, c.masked, r * c.n + i, t.masked[static_cast<std::size_t>(i)]);
        if (t.token >= 0) expect("p", c.o.probabilities, c.p, r * c.n + i, t.p[static_cast<std::size_t>(i)]);
      }
      for (std::int64_t j = 0; j < c.k; ++j) {
        expect("top", c.o.top_tokens, c.top, r * c.k + j, static_cast<double>(t.top[static_cast<std::size_t>(j)]));
        expect("top lp", c.o.top_tokens, c.top_lp, r * c.k + j, t.top_lp[static_cast<std::size_t>(j)]);
      }
    }
  }
  EXPECT_GT(drawn, 800 / static_cast<std::int64_t>(kStep));
  EXPECT_GT(none, 20 / static_cast<std::int64_t>(kStep));
}

}  // namespace
}  // namespace softfold_test
