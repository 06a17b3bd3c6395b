// What sample draws, by chi-square: how often each element is drawn, under every filter, and whether draws of
// neighbouring counters and keys know of each other.
#include "backends/sample_reference.hpp"
#include "support/tensor.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

namespace softfold_test {
namespace {

constexpr int kDraws = 100000 / static_cast<int>(kStep) / 2000 * 2000;

/// Of counts whose expectations are known: a share that is off by a few percent fails. What cannot be is not there.
void expect_counts(const std::vector<double>& seen, const std::vector<double>& expected, const std::string& what) {
  double chi2 = 0, cells = -1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] < 1e-6) {
      EXPECT_EQ(seen[i], 0) << what << ", " << i;
      continue;
    }
    chi2 += (seen[i] - expected[i]) * (seen[i] - expected[i]) / expected[i];
    ++cells;
  }
  ASSERT_GT(cells, 0) << what;
  EXPECT_LT(chi2, cells + 5 * std::sqrt(2 * cells) + 10) << what;
  EXPECT_GT(chi2, cells - 5 * std::sqrt(2 * cells) - 10) << what;
}

/// Draws of a row whose probabilities are p.
void expect_distribution(const std::string& what, const std::vector<float>& x, SampleOptions o,
                         const std::vector<double>& p, DType t = DType::float32) {
  const std::int64_t rows = 2000, n = std::ssize(x);
  Array batch(t, {rows, n}), tokens(DType::int32, {rows});
  for (std::int64_t k = 0; k < rows * n; ++k)
    batch.set_value(k, static_cast<double>(x[static_cast<std::size_t>(k % n)]));
  std::vector<double> seen(x.size()), expected;
  for (int i = 0; i < kDraws / static_cast<int>(rows); ++i) {
    o.offset = static_cast<std::uint64_t>(i);
    softfold::sample(batch.view(), tokens.view(), o);
    for (std::int64_t r = 0; r < rows; ++r) ++seen.at(static_cast<std::size_t>(tokens.get<std::int32_t>(r)));
  }
  for (const double q : p) expected.push_back(q * kDraws);
  expect_counts(seen, expected, what);
}

double summed(const std::vector<double>& p) { return std::accumulate(p.begin(), p.end(), 0.); }
std::vector<double> normalised(std::vector<double> p) {
  const double sum = summed(p);
  for (double& v : p) v /= sum;
  return p;
}
/// The filters of docs/sample.md on probabilities in double, each of what the ones before it left.
std::vector<double> top_k_of(std::vector<double> p, std::size_t k) {
  auto sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());
  for (double& v : p) v = v < sorted[k - 1] ? 0 : v;
  return normalised(p);
}
std::vector<double> top_p_of(std::vector<double> p, double share) {
  auto sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());
  std::size_t last = 0;
  for (double reached = sorted[0]; reached < share; reached += sorted[++last])
    EXPECT_GT(std::abs(share - reached), 1e-4);
  for (double& v : p) v = v < sorted[last] ? 0 : v;
  return normalised(p);
}
std::vector<double> min_p_of(std::vector<double> p, double least) {
  const double top = *std::max_element(p.begin(), p.end());
  for (double& v : p) {
    EXPECT_GT(std::abs(v / top - least), 1e-4);  // at the edge, rounding would decide
    v = v < least * top ? 0 : v;
  }
  return normalised(p);
}
std::ptrdiff_t left_of(const std::vector<double>& p) { return std::ssize(p) - std::count(p.begin(), p.end(), 0.); }

TEST(SampleDistribution, OfProbabilities) {
  const auto x = row_of(60, 5, 1.5);
  SampleOptions o;
  expect_distribution("plain", x, o, probabilities(x, 1));
  o.temperature = 0.6;
  expect_distribution("temperature", x, o, probabilities(x, 0.6));
  // Two chunks and a bit, of which 40 elements count.
  std::vector<float> wide(2100, -90.F);
  for (std::size_t i = 0; i < 40; ++i) wide[i * 52] = x[i];
  expect_distribution("wide", wide, {}, probabilities(wide, 1));
}

TEST(SampleDistribution, OfEachFilterAlone) {
  const auto x = row_of(60, 5, 1.5);
  const auto p = probabilities(x, 1);
  SampleOptions top_k, top_p, min_p;
  top_k.top_k = 15, top_p.top_p = 0.7, min_p.min_p = 0.3;
  const auto by_p = top_p_of(p, 0.7), by_min = min_p_of(p, 0.3);
  for (const auto* q : {&by_p, &by_min}) EXPECT_TRUE(left_of(*q) > 5 && left_of(*q) < 55);
  expect_distribution("top-k", x, top_k, top_k_of(p, 15));
  expect_distribution("top-p", x, top_p, by_p);
  expect_distribution("min-p", x, min_p, by_min);
}

TEST(SampleDistribution, OfTheFiltersInEitherOrder) {
  const auto x = row_of(60, 5, 1.5);
  const auto p = probabilities(x, 0.6);
  SampleOptions o;
  o.temperature = 0.6, o.top_k = 30, o.top_p = 0.8, o.min_p = 0.2;
  const auto first = top_p_of(top_k_of(min_p_of(p, 0.2), 30), 0.8);
  const auto last = min_p_of(top_p_of(top_k_of(p, 30), 0.8), 0.2);
  EXPECT_NE(left_of(first), left_of(last));  // the order matters here
  expect_distribution("min-p first", x, o, first);
  o.order = FilterOrder::min_p_last;
  expect_distribution("min-p last", x, o, last);
}

TEST(SampleDistribution, OfBiasAndBitmask) {
  auto x = row_of(60, 5, 1.5);
  auto bias = row_of(60, 6, 1);
  bias[3] = bias[40] = kAbsent;
  std::vector<std::int32_t> words(2);
  auto sum = x;
  for (std::size_t i = 0; i < 60; ++i) {
    const bool allowed = i % 3 != 0;
    if (allowed) words[i / 32] |= static_cast<std::int32_t>(1U << (i % 32));
    sum[i] = allowed ? x[i] + bias[i] : kAbsent;
  }
  const Shape all{60}, two{2};
  SampleOptions o;
  o.bias = View(std::as_const(bias).data(), DType::float32, all);
  o.bitmask = View(std::as_const(words).data(), DType::int32, two);
  expect_distribution("bias and bitmask", x, o, probabilities(sum, 1));
  o.top_p = 0.6;
  expect_distribution("bias, bitmask and top-p", x, o, top_p_of(probabilities(sum, 1), 0.6));
}

TEST(SampleDistribution, OfSixteenBits) {
  for (const DType t : {DType::bfloat16, DType::float16}) {
    auto x = row_of(60, 5, 1.5);
    for (float& v : x)
      with_storage(t, [&]<class S>(S) {
        if constexpr (!std::is_arithmetic_v<S>) v = static_cast<float>(fold::widen(fold::narrow<S>(v)));
      });
    const auto p = probabilities(x, 1);
    SampleOptions o;
    expect_distribution(std::string(softfold::name_of(t)), x, o, p, t);
    o.top_p = 0.7;
    expect_distribution(std::string(softfold::name_of(t)) + ", top-p", x, o, top_p_of(p, 0.7), t);
  }
}

/// Key and counter of one draw.
struct At {
  std::int64_t seed, offset, id;
};

/// Of pairs of draws of one row: how often each pair of elements comes.
template <class Pair>
void expect_independent(const std::string& what, Pair&& pair) {
  constexpr std::int64_t pairs = 40000 / static_cast<std::int64_t>(kStep), n = 8;
  const auto x = row_of(n, 3, 1);
  const auto p = probabilities(x, 1);
  Array batch(DType::float32, {2 * pairs, n}), seeds(DType::int64, {2 * pairs}), tokens = seeds, offsets = seeds,
                                                                                 ids = seeds;
  for (std::int64_t k = 0; k < batch.count(); ++k) batch.set(k, x[static_cast<std::size_t>(k % n)]);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::pair<At, At> both = pair(i);
    for (std::int64_t j = 0; j < 2; ++j) {
      const At& at = j == 0 ? both.first : both.second;
      seeds.set(2 * i + j, at.seed), offsets.set(2 * i + j, at.offset), ids.set(2 * i + j, at.id);
    }
  }
  SampleOptions o;
  o.seeds = seeds.view(), o.offsets = offsets.view(), o.row_ids = ids.view();
  softfold::sample(batch.view(), tokens.view(), o);
  std::vector<double> seen(n * n), expected(n * n);
  for (std::int64_t i = 0; i < pairs; ++i)
    ++seen.at(static_cast<std::size_t>(tokens.get<std::int64_t>(2 * i) * n + tokens.get<std::int64_t>(2 * i + 1)));
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = p[i / n] * p[i % n] * static_cast<double>(pairs);
  expect_counts(seen, expected, what);
}

TEST(SampleDistribution, NeighboursAreIndependent) {
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{1} << 32}) {  // in the low word, and in the high one
    const auto name = " that are " + std::to_string(step) + " apart";
    const std::int64_t by = step == 1 ? 2 : 1;  // no draw is in two pairs
    expect_independent("row ids" + name, [&](std::int64_t i) {
      return std::pair{At{7, 3, by * i}, At{7, 3, by * i + step}};
    });
    expect_independent("seeds" + name, [&](std::int64_t i) {
      return std::pair{At{by * i, 3, 5}, At{by * i + step, 3, 5}};
    });
    expect_independent("offsets" + name, [&](std::int64_t i) {
      return std::pair{At{7, by * i, 5}, At{7, by * i + step, 5}};
    });
  }
  expect_independent("an offset and a row id", [](std::int64_t i) {
    return std::pair{At{7, i + 1, 0}, At{7, 0, i + 1}};
  });
  expect_independent("a seed and an offset", [](std::int64_t i) { return std::pair{At{i, 1, 0}, At{1, i + 2, 0}}; });
  expect_independent("a seed and a row id", [](std::int64_t i) { return std::pair{At{i, 0, 1}, At{1, 0, i + 2}}; });
}

/// The default row ids of one call, and the plain numbers of two calls.
TEST(SampleDistribution, RowsOfACallAndCallsAreIndependent) {
  constexpr std::int64_t rows = 2 * (40000 / static_cast<std::int64_t>(kStep)), n = 8;
  const auto x = row_of(n, 3, 1);
  const auto p = probabilities(x, 1);
  Array batch(DType::float32, {rows, n});
  for (std::int64_t k = 0; k < batch.count(); ++k) batch.set(k, x[static_cast<std::size_t>(k % n)]);
  const auto draw_all = [&](std::uint64_t seed, std::uint64_t offset) {
    std::vector<std::int64_t> tokens(rows);
    const Shape per_row{rows};
    SampleOptions o;
    o.seed = seed, o.offset = offset;
    softfold::sample(batch.view(), View(tokens.data(), DType::int64, per_row), o);
    return tokens;
  };
  const auto base = draw_all(7, 3), offset = draw_all(7, 4), seed = draw_all(8, 3);
  const auto check = [&](const std::string& what, std::size_t pairs, auto&& first, auto&& second) {
    std::vector<double> seen(n * n), expected;
    for (std::size_t i = 0; i < pairs; ++i) ++seen.at(static_cast<std::size_t>(first(i) * n + second(i)));
    for (std::size_t i = 0; i < n * n; ++i) expected.push_back(p[i / n] * p[i % n] * static_cast<double>(pairs));
    expect_counts(seen, expected, what);
  };
  const auto of = [](const std::vector<std::int64_t>& v) { return [&v](std::size_t i) { return v[i]; }; };
  check(
      "rows", rows / 2, [&](std::size_t i) { return base[2 * i]; }, [&](std::size_t i) { return base[2 * i + 1]; });
  check("the next offset", rows, of(base), of(offset));
  check("the next seed", rows, of(base), of(seed));
}

}  // namespace
}  // namespace softfold_test
