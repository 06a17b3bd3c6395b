// sample against its definition and against probabilities in double, alone as in a batch, at its edges.
#include "backends/sample_reference.hpp"
#include "support/tensor.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

namespace softfold_test {
namespace {

using softfold::Distribution;

std::int64_t sample_one(const std::vector<float>& x, const Numbers& d) {
  const Shape shape{1, std::ssize(x)}, one{1};
  std::int64_t token = -7;
  softfold::sample(View(x.data(), DType::float32, shape), View(&token, DType::int64, one), options_of(d));
  return token;
}

TEST(Philox, KnownAnswers) {  // of Random123's kat_vectors
  const std::uint32_t zeros[4] = {0, 0, 0, 0}, ones[4] = {~0U, ~0U, ~0U, ~0U};
  const std::uint32_t pi[4] = {0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U};
  const auto words = [](const fold::Philox& p) { return std::vector<std::uint32_t>(p.word, p.word + 4); };
  EXPECT_EQ(words(fold::Philox::at(zeros, 0, 0)), (std::vector{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(words(fold::Philox::at(ones, ~0U, ~0U)), (std::vector{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(words(fold::Philox::at(pi, 0xa4093822U, 0x299f31d0U)),
            (std::vector{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

TEST(Sample, IsTheDefinitionsDraw) {
  int cut = 0;
  for (std::uint64_t seed = 0; seed < 400; seed += kStep) {
    Random random(seed * 13 + 1);
    const std::int64_t n = seed % 4 == 0 ? 1 + random.below(40) : 1 + random.below(5000);
    std::vector<float> x = row_of(n, seed, seed % 7 == 0 ? 300 : seed % 7 == 1 ? 3e30 : 4);
    if (seed % 5 == 0)
      for (float& v : x) v = std::rint(v);  // ties
    if (seed % 6 == 0)
      for (float& v : x)
        if (random.below(3) == 0) v = kAbsent;
    Numbers d;
    d.seed = seed, d.offset = seed * 77;
    d.temperature = seed % 3 == 0 ? 1 : random.uniform(0.05, 3);
    if (seed % 2 != 0) d.top_k = 1 + random.below(60);
    if (seed / 2 % 2 != 0) d.top_p = random.uniform(0, 1);
    if (seed / 4 % 2 != 0) d.min_p = random.uniform(0, 0.3);
    if (seed / 8 % 2 != 0) d.order = FilterOrder::min_p_last;
    const auto left = filtered(x, d);
    cut += left != x ? 1 : 0;
    EXPECT_EQ(sample_one(x, d), draw(left, d)) << "seed " << seed << ", n " << n;
  }
  EXPECT_GT(cut, 200 / static_cast<int>(kStep));
}

TEST(Sample, ARowDrawsTheSameWhereverItStands) {
  constexpr std::int64_t rows = 37, n = 3000;
  const auto x = row_of(rows * n, 3);
  std::vector<std::int64_t> tokens(rows), seeds(rows), ids(rows), ks(rows);
  std::vector<float> temperatures(rows), lp(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    seeds[r] = static_cast<std::int64_t>(r * r), ids[r] = static_cast<std::int64_t>(100 - r);
    ks[r] = static_cast<std::int64_t>(r % 3 * 40), temperatures[r] = static_cast<float>(r % 4) * 0.5F;
  }
  const Shape shape{rows, n}, per_row{rows}, one{1}, row{1, n};
  const auto make = [&](std::size_t r, const Shape& s) {
    SampleOptions o;
    o.seeds = View(&seeds[r], DType::int64, s), o.row_ids = View(&ids[r], DType::int64, s);
    o.top_ks = View(&ks[r], DType::int64, s), o.temperatures = View(&temperatures[r], DType::float32, s);
    o.top_p = 0.9;
    return o;
  };
  SampleOptions all = make(0, per_row);
  all.log_probability = View(lp.data(), DType::float32, per_row);
  for (const int threads : kThreadCounts) {
    const auto executor = softfold::make_thread_executor(threads);
    softfold::Context context;
    context.cpu = executor.get();
    softfold::sample(View(x.data(), DType::float32, shape), View(tokens.data(), DType::int64, per_row), all, context);
    for (std::size_t r = 0; r < rows; ++r) {
      std::int64_t alone = -7;
      float own = 7;
      SampleOptions o = make(r, one);
      o.log_probability = View(&own, DType::float32, one);
      softfold::sample(View(&x[r * n], DType::float32, row), View(&alone, DType::int64, one), o);
      EXPECT_EQ(tokens[r], alone) << r;
      EXPECT_EQ(lp[r], own) << r;
    }
  }
}

TEST(Sample, LogProbabilityAndRank) {
  constexpr std::int64_t rows = 5, n = 2000;
  const auto x = row_of(rows * n, 8);
  std::vector<float> lp(rows), expected(rows * n), bias(n);
  std::vector<std::int32_t> tokens(rows), rank(rows);
  for (std::size_t i = 0; i < n; ++i) bias[i] = i % 2 == 0 ? kAbsent : 0.5F;
  const Shape shape{rows, n}, per_row{rows}, all{n};
  const View view(x.data(), DType::float32, shape);
  SampleOptions o;
  o.rows.scale = 1.5, o.temperature = 0.7, o.top_k = 50, o.bias = View(bias.data(), DType::float32, all);
  o.log_probability = View(lp.data(), DType::float32, per_row), o.rank = View(rank.data(), DType::int32, per_row);
  const auto check = [&](const std::vector<float>& of, double scale) {
    softfold::sample(view, View(tokens.data(), DType::int32, per_row), o);
    softfold::RowOptions row;
    row.scale = scale;
    softfold::log_softmax(View(of.data(), DType::float32, shape), View(expected.data(), DType::float32, shape), row);
    for (std::size_t r = 0; r < rows; ++r) {
      const auto token = static_cast<std::size_t>(tokens[r]);
      ASSERT_EQ(token % 2, 1U);
      EXPECT_EQ(lp[r], expected[r * n + token]);
      const auto from = of.begin() + static_cast<std::ptrdiff_t>(r * n);
      EXPECT_EQ(rank[r], std::count_if(from, from + n, [&](float v) { return v >= of[r * n + token]; }));
    }
  };
  check(x, 1.5);
  o.of = Distribution::sampled;
  std::vector<float> drawn_from;
  for (std::size_t r = 0; r < rows; ++r) {
    std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(r * n),
                           x.begin() + static_cast<std::ptrdiff_t>((r + 1) * n));
    for (std::size_t i = 0; i < n; ++i) row[i] = bias[i] == kAbsent ? kAbsent : row[i] + bias[i];
    Numbers d;
    d.top_k = 50, d.temperature = 0.7 / 1.5;
    const auto left = filtered(row, d);
    drawn_from.insert(drawn_from.end(), left.begin(), left.end());
  }
  check(drawn_from, 1.5 / 0.7);
}

TEST(Sample, TopLogProbabilitiesAreTopksOfTheDistribution) {
  constexpr std::int64_t rows = 7, n = 3000, k = 40;
  auto x = row_of(rows * n, 12);
  for (float& v : x) v = std::rint(4 * v) / 4;  // ties
  for (std::int64_t i = 0; i < n; ++i) x[static_cast<std::size_t>(2 * n + i)] = i < 5 ? x[0] : kAbsent;
  x[3 * n + 7] = NAN, x[4 * n + 9] = INFINITY;
  std::fill_n(x.begin() + 5 * n, n, kAbsent);
  std::vector<float> masked(x.size()), values(rows * k), lp(rows * k), expected(rows * k), sampled_lp(rows);
  std::vector<std::int64_t> tokens(rows), top(rows * k), indices(rows * k);
  const Shape shape{rows, n}, per_row{rows}, some{rows, k};
  const View view(std::as_const(x).data(), DType::float32, shape), drawn(tokens.data(), DType::int64, per_row);
  SampleOptions o;
  o.rows.scale = 1.5, o.temperature = 0.7, o.top_k = 20, o.masked = View(masked.data(), DType::float32, shape);
  o.top_tokens = View(top.data(), DType::int64, some), o.top_log_probabilities = View(lp.data(), DType::float32, some);
  const auto check = [&](const std::vector<float>& of, double scale) {
    softfold::sample(view, drawn, o);
    softfold::TopkOptions topk;
    topk.rows.scale = scale, topk.log_probabilities = View(expected.data(), DType::float32, some);
    softfold::topk(View(of.data(), DType::float32, shape), View(values.data(), DType::float32, some),
                   View(indices.data(), DType::int64, some), topk);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kAbsent) indices[i] = -1, expected[i] = kAbsent;
      EXPECT_EQ(top[i], indices[i]) << i;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(lp[i]), std::bit_cast<std::uint32_t>(expected[i])) << i;
    }
  };
  check(x, 1.5);
  o.of = Distribution::sampled;
  softfold::sample(view, drawn, o);
  check(std::vector<float>(masked), 1.5 / 0.7);
  EXPECT_TRUE(top[2 * k + 4] == 4 && top[2 * k + 5] == -1);  // five are left of row 2
  o.temperature = 0;                                         // of the one element that is drawn from
  o.log_probability = View(sampled_lp.data(), DType::float32, per_row);
  softfold::sample(view, drawn, o);
  for (const std::size_t r : {0U, 2U, 4U}) {
    EXPECT_EQ(top[r * k], tokens[r]);
    EXPECT_TRUE(lp[r * k] == 0 && sampled_lp[r] == 0 && top[r * k + 1] == -1 && lp[r * k + 1] == kAbsent);
  }
  EXPECT_TRUE(tokens[3] == -1 && std::isnan(lp[3 * k]) && top[5 * k] == -1 && lp[5 * k] == kAbsent);
}

TEST(Sample, WhatItDrawsFrom) {
  for (std::uint64_t seed = 0; seed < 40; seed += kStep) {
    const std::int64_t n = 1 + static_cast<std::int64_t>(seed) * 70;
    const auto x = row_of(n, seed);
    Numbers d;
    d.temperature = 0.5, d.top_k = 30, d.top_p = 0.9, d.seed = seed;
    const auto left = filtered(x, d);
    std::vector<float> p(x.size()), masked(x.size()), expected(x.size());
    const Shape shape{1, n}, one{1};
    std::int64_t token = -7;
    SampleOptions o = options_of(d);
    o.probabilities = View(p.data(), DType::float32, shape), o.masked = View(masked.data(), DType::float32, shape);
    const View view(x.data(), DType::float32, shape), to(&token, DType::int64, one);
    softfold::sample(view, to, o);
    EXPECT_EQ(masked, left);
    softfold::RowOptions row;
    row.scale = 1 / d.temperature;
    softfold::softmax(View(std::as_const(left).data(), DType::float32, shape),
                      View(expected.data(), DType::float32, shape), row);
    EXPECT_EQ(p, expected);
    o.temperature = 0;
    softfold::sample(view, to, o);
    const auto at = static_cast<std::size_t>(token);
    EXPECT_EQ(p[at], 1.F);
    EXPECT_EQ(std::count(p.begin(), p.end(), 0.F), n - 1);
    EXPECT_EQ(masked[at], x[at]);
    EXPECT_EQ(std::count(masked.begin(), masked.end(), kAbsent), n - 1);
  }
  const float special[2][2] = {{NAN, 1}, {kAbsent, kAbsent}};
  float p[2][2], masked[2][2];
  std::int32_t tokens[2];
  const Shape shape{2, 2}, two{2};
  for (const double top_p : {1., 0.5}) {
    SampleOptions o;
    o.top_p = top_p;
    o.probabilities = View(p, DType::float32, shape), o.masked = View(masked, DType::float32, shape);
    softfold::sample(View(special, DType::float32, shape), View(tokens, DType::int32, two), o);
    EXPECT_TRUE(std::isnan(p[0][0]) && std::isnan(p[0][1]) && std::isnan(masked[0][0]) && masked[0][1] == 1);
    EXPECT_TRUE(p[1][0] == 0 && masked[1][0] == kAbsent && tokens[0] == -1 && tokens[1] == -1);
  }
}

TEST(Sample, Edges) {
  Numbers d;
  EXPECT_EQ(sample_one({3.F}, d), 0);
  EXPECT_EQ(sample_one({}, d), -1);
  EXPECT_EQ(sample_one({kAbsent, kAbsent}, d), -1);
  EXPECT_EQ(sample_one({1.F, NAN}, d), -1);
  EXPECT_EQ(sample_one({1.F, INFINITY}, d), -1);
  EXPECT_EQ(sample_one({kAbsent, -3e38F, kAbsent}, d), 1);
  for (const double p : {0., 1e-12}) {  // only the largest
    d.top_p = p;
    EXPECT_EQ(sample_one({1.F, 2.F, 0.F}, d), 1);
    EXPECT_EQ(sample_one({1.F, NAN}, d), -1);
    EXPECT_EQ(sample_one({kAbsent}, d), -1);
  }
  d = {};
  d.min_p = 1;
  EXPECT_EQ(sample_one({1.F, 2.F, 0.F}, d), 1);
  d = {};
  d.top_k = 1;
  EXPECT_EQ(sample_one({1.F, 2.F, 0.F}, d), 1);
  EXPECT_EQ(sample_one({1.F, INFINITY}, d), -1);
  for (const double t : {0., 1e-300, 1e-30}) {  // greedy, and next to it
    d = {};
    d.temperature = t;
    EXPECT_EQ(sample_one({1.F, 2.F, 0.F, 2.F}, d) % 2, 1) << t;
    EXPECT_EQ(sample_one({1.F, NAN}, d), -1);
    EXPECT_EQ(sample_one({kAbsent}, d), -1);
  }
  d.temperature = 0;
  EXPECT_EQ(sample_one({1.F, 2.F, 0.F, 2.F}, d), 1);
  EXPECT_EQ(sample_one({1.F, INFINITY}, d), 1);
}

TEST(Sample, FiltersThatTakeNothingAwayChangeNothing) {
  const auto x = row_of(5000, 21);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Numbers plain, open;
    plain.seed = open.seed = seed;
    open.top_k = 5000, open.min_p = 1e-300;
    EXPECT_EQ(sample_one(x, open), sample_one(x, plain));
  }
}

TEST(Sample, EveryDtypeAndLayoutAndTheBitmask) {
  constexpr std::int64_t rows = 6, n = 1100;
  const auto values = row_of(rows * n, 4);
  const Shape per_row{rows}, words_shape{rows, (n + 31) / 32}, flat{rows, n};
  std::vector<std::int32_t> words(rows * ((n + 31) / 32));
  std::vector<std::uint8_t> allowed(rows * n);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < n; ++i) {
      const bool on = (i * 7 + r) % 3 != 0;
      allowed[static_cast<std::size_t>(r * n + i)] = on;
      if (on) words[static_cast<std::size_t>(r * 35 + i / 32)] |= static_cast<std::int32_t>(1U << (i % 32));
    }
  for (const DType t : {DType::float32, DType::float16, DType::bfloat16}) {
    std::vector<std::int64_t> expected;
    for (const Layout layout : kLayouts) {
      Tensor x = make_tensor(t, rows, n, layout);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < n; ++i)
          with_dtype(t, [&]<class S>(S) {
            const S v = fold::narrow<S>(values[static_cast<std::size_t>(r * n + i)]);
            std::memcpy(x.at(r, i), &v, sizeof v);
          });
      std::vector<std::int64_t> by_words(rows), by_mask(rows);
      SampleOptions o;
      o.bitmask = View(words.data(), DType::int32, words_shape);
      softfold::sample(x.view(), View(by_words.data(), DType::int64, per_row), o);
      o.bitmask = {};
      o.rows.mask = View(allowed.data(), DType::boolean, flat);
      softfold::sample(x.view(), View(by_mask.data(), DType::int64, per_row), o);
      EXPECT_EQ(by_words, by_mask);
      for (std::int64_t r = 0; r < rows; ++r) EXPECT_NE((by_words[static_cast<std::size_t>(r)] * 7 + r) % 3, 0);
      if (expected.empty()) expected = by_words;
      EXPECT_EQ(by_words, expected) << softfold::name_of(t);
    }
  }
}

// Against the filters in plain double arithmetic: what they keep, apart from elements at the very edge.
TEST(Sample, FiltersByProbability) {
  for (std::uint64_t seed = 0; seed < 30; seed += kStep) {
    const std::int64_t n = 200 + static_cast<std::int64_t>(seed) * 90;
    const auto x = row_of(n, seed, 5);
    Random random(seed);
    Numbers d;
    d.temperature = random.uniform(0.3, 2);
    (seed % 2 == 0 ? d.min_p : d.top_p) = random.uniform(0.05, 0.95);
    const auto p = probabilities(x, d.temperature);
    std::vector<float> masked(x.size());
    const Shape shape{1, n}, one{1};
    std::int64_t token = -7;
    SampleOptions o = options_of(d);
    o.masked = View(masked.data(), DType::float32, shape);
    softfold::sample(View(x.data(), DType::float32, shape), View(&token, DType::int64, one), o);
    const double top = *std::max_element(p.begin(), p.end());
    for (std::size_t i = 0; i < p.size(); ++i) {
      double above = 0;  // of the larger ones
      for (const double q : p) above += q > p[i] ? q : 0;
      const double distance = seed % 2 == 0 ? p[i] / top - d.min_p : d.top_p - above;
      if (std::fabs(distance) < 1e-4) continue;
      EXPECT_EQ(masked[i] != kAbsent, distance > 0) << "seed " << seed << ", " << i;
    }
  }
}

}  // namespace
}  // namespace softfold_test
