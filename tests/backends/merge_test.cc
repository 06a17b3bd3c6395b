// merge_attention and merge_blocks: against long double, for what is empty, infinite or far apart, and
// the same bits on every SIMD target, thread count and layout.
#include "backends/merge_parts.hpp"
#include "cpu/targets.hpp"
#include "softfold/error.hpp"
#include "support/thread_counts.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace softfold_test {
namespace {

/// The error of a share (docs/accuracy.md), for a part that lies `distance` below the one of the largest lse.
long double share_error(std::size_t parts, long double distance) {
  return (10 + static_cast<long double>(parts) + 2 * distance) * 0x1p-53L;
}

/// What rounding a result to a 16-bit S may add: half a unit in its last place.
template <class S>
long double half_ulp(long double a) {
  if (sizeof(S) != 2) return 0;
  const long double smallest = std::is_same_v<S, fold::Float16> ? 0x1p-25L : 0x1p-134L;
  // The error moves `a` into the next binade at most.
  return std::max(smallest, 1.01L * static_cast<long double>(unit_of<S>()) * std::abs(a));
}

/// `got` against the joint statistic; returns each part's share.
struct PartShare {
  long double value, error;  ///< the error is relative
};

template <class S, class L>
std::vector<PartShare> check_statistic(const Parts<S, L>& p, const Merged<S, L>& m, std::int64_t r, LogBase base) {
  const auto power = [&](long double a) { return base == LogBase::two ? std::exp2(a) : std::exp(a); };
  long double top = -kInf, total = 0;
  for (std::size_t i = 0; i < p.value.size(); ++i) top = std::max(top, p.log_sum(i, r, base));
  std::vector<PartShare> share;
  const auto at = static_cast<std::size_t>(r), first = p.form == Statistics::lse ? at : 2 * at;
  long double largest = -kInf;
  for (const auto& s : p.stat) largest = std::max<long double>(largest, s[first]);
  for (std::size_t i = 0; i < p.value.size(); ++i)
    share.push_back({power(p.log_sum(i, r, base) - top), share_error(p.value.size(), largest - p.stat[i][first])});
  for (const auto& s : share) total += s.value;
  for (auto& s : share) s.value /= total;
  const long double lse = top + (base == LogBase::two ? std::log2(total) : std::log(total)), u = unit_of<L>();
  const long double of_total = (10 + 2 * static_cast<long double>(p.value.size()) + std::abs(lse)) * 0x1p-53L;
  if (p.form == Statistics::lse) {
    EXPECT_LE(std::abs(m.stat[at] - lse), u * std::abs(lse) + of_total);
  } else {
    EXPECT_EQ(m.stat[first], static_cast<L>(largest));
    EXPECT_LE(std::abs(m.stat[first + 1] / power(lse - largest) - 1), u + of_total);
  }
  return share;
}

template <class S, class L>
void check_attention(int parts, std::int64_t n, Statistics form, LogBase base) {
  const auto p = random_parts<S, L>(parts, 5, n, form, static_cast<std::uint64_t>(n * 31 + parts));
  const auto m = merge_attention(p, base);
  const long double fold_unit = std::is_same_v<S, double> ? 0x1p-53L : 0x1p-24L;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const auto share = check_statistic(p, m, r, base);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(r * n + i);
      long double want = 0, bound = 0;
      for (std::size_t k = 0; k < share.size(); ++k) {
        const long double term = share[k].value * fold::widen(p.value[k][at]);
        want += term;
        bound += std::abs(term) * ((parts + 1) * fold_unit + share[k].error);
      }
      bound += half_ulp<S>(want);
      ASSERT_LE(std::abs(fold::widen(m.out[at]) - want), bound)
          << "n " << n << " parts " << parts << " row " << r << " at " << i;
    }
  }
}

template <class S, class L>
void check_blocks(int parts, std::int64_t n, Statistics form, LogBase base) {
  auto p = random_parts<S, L>(parts, 3, n, form, static_cast<std::uint64_t>(n * 37 + parts));
  for (auto& block : p.value)
    for (auto& v : block) v = fold::narrow<S>(std::abs(fold::widen(v)) * 0.3F);
  const auto m = merge_blocks(p, base);
  const long double fold_unit = std::is_same_v<S, double> ? 0x1p-53L : 0x1p-24L;
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const auto share = check_statistic(p, m, r, base);
    for (std::size_t k = 0; k < share.size(); ++k)
      for (std::int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(r * n + i);
        const long double want = share[k].value * fold::widen(p.value[k][at]);
        const long double bound = (2 * fold_unit + share[k].error) * want + half_ulp<S>(want);
        ASSERT_LE(std::abs(fold::widen(m.out[k * p.value[0].size() + at]) - want), bound);
      }
  }
}

template <class S, class L>
void check_all_forms() {
  for (const auto form : {Statistics::lse, Statistics::max_sum})
    for (const auto base : {LogBase::natural, LogBase::two})
      for (const int parts : {1, 2, 3, 5, 16})
        for (const std::int64_t n : {1, 2, 7, 16, 33, 128}) {
          check_attention<S, L>(parts, n, form, base);
          check_blocks<S, L>(parts, n, form, base);
          if (testing::Test::HasFailure()) return;
        }
  check_attention<S, L>(2, 40001, Statistics::lse, LogBase::natural);
  check_blocks<S, L>(2, 40001, Statistics::lse, LogBase::natural);
}

TEST(Merge, Float32) { check_all_forms<float, float>(), check_all_forms<float, double>(); }
TEST(Merge, Float64) { check_all_forms<double, double>(), check_all_forms<double, float>(); }
TEST(Merge, Float16) { check_all_forms<fold::Float16, float>(); }
TEST(Merge, BFloat16) { check_all_forms<fold::BFloat16, float>(); }

TEST(Merge, SameBitsOnEveryTargetAndThreadCount) {
  const auto one = [](auto s) {
    using S = decltype(s);
    // The last one leaves past the cache.
    for (const std::int64_t n :
         {std::int64_t{3}, std::int64_t{64}, std::int64_t{100}, 40001 / kShrink, 2200001 / kShrink}) {
      const std::int64_t rows = n > 1000 ? 2 : 300;
      const auto p = random_parts<S, float>(4, rows, n, Statistics::lse, 7);
      const auto before = std::string(softfold::cpu::current_target());
      ASSERT_TRUE(softfold::cpu::use_target(softfold::cpu::targets().back()));  // scalar, or the only one
      const auto want = merge_attention(p);
      const auto want_blocks = merge_blocks(p);
      for (const auto target : softfold::cpu::targets()) {
        ASSERT_TRUE(softfold::cpu::use_target(target));
        for (const int threads :
             n > 100000 ? std::vector{2} : std::vector(kThreadCounts.begin(), kThreadCounts.end())) {
          const auto executor = softfold::make_thread_executor(threads);
          const Context context{executor.get(), nullptr, nullptr};
          EXPECT_TRUE(merge_attention(p, LogBase::natural, context) == want) << target << " " << threads << " " << n;
          EXPECT_TRUE(merge_blocks(p, LogBase::natural, context) == want_blocks) << target << " " << threads;
        }
      }
      softfold::cpu::use_target(before);
    }
  };
  one(float{}), one(double{}), one(fold::Float16{}), one(fold::BFloat16{});
}

TEST(Merge, TwoPartsGiveTheSameBitsInEitherOrder) {
  auto p = random_parts<float, float>(2, 200, 24, Statistics::lse, 11);
  p.stat[1][3] = p.stat[0][3];
  const auto ab = merge_attention(p);
  std::swap(p.value[0], p.value[1]);
  std::swap(p.stat[0], p.stat[1]);
  EXPECT_TRUE(ab == merge_attention(p));
}

TEST(Merge, AnEmptyPartChangesNothingAndIsNeverRead) {
  for (const auto form : {Statistics::lse, Statistics::max_sum}) {
    auto p = random_parts<float, float>(2, 50, 19, form, 13);
    for (auto& v : p.value[1]) v = static_cast<float>(kNaN);
    for (std::size_t i = 0; i < p.stat[1].size(); ++i)
      p.stat[1][i] = form == Statistics::max_sum && i % 2 == 1 ? 0.F : static_cast<float>(-kInf);
    const auto m = merge_attention(p);
    EXPECT_EQ(m.out, p.value[0]);
    EXPECT_EQ(m.stat, p.stat[0]);
    const auto b = merge_blocks(p);
    for (std::size_t i = 0; i < p.value[0].size(); ++i) {
      EXPECT_EQ(b.out[i], p.value[0][i] < 0 ? 0.F : p.value[0][i]);
      EXPECT_TRUE(same(b.out[p.value[0].size() + i], 0.F));
    }
    EXPECT_EQ(b.stat, p.stat[0]);
  }
}

/// One row of two parts with 1 and 2 as values.
template <class L>
Merged<float, L> merge_two(L a, L b, LogBase base = LogBase::natural) {
  Parts<float, L> p(2, 1, 20);
  for (auto& v : p.value[0]) v = 1;
  for (auto& v : p.value[1]) v = 2;
  p.stat[0][0] = a;
  p.stat[1][0] = b;
  const auto m = merge_attention(p, base);
  for (const float v : m.out) EXPECT_TRUE(same(v, m.out[0]));
  return m;
}

TEST(Merge, EmptyInfiniteAndFarApart) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float largest = std::numeric_limits<float>::max();
  const auto empty = merge_two(-inf, -inf);
  EXPECT_TRUE(same(empty.out[0], 0.F));
  EXPECT_EQ(empty.stat[0], -inf);
  for (const float other : {0.F, -inf, inf}) {
    const auto plus = merge_two(inf, other);
    EXPECT_EQ(bits(plus.out[0]), 0x7FC00000U);
    EXPECT_EQ(plus.stat[0], inf);
  }
  for (const float other : {0.F, -inf, inf, nan}) {
    const auto m = merge_two(other, nan);
    EXPECT_EQ(bits(m.out[0]), 0x7FC00000U);
    EXPECT_EQ(bits(m.stat[0]), 0x7FC00000U);
  }
  for (const auto base : {LogBase::natural, LogBase::two}) {
    EXPECT_EQ(merge_two(largest, -largest, base).out[0], 1.F);
    EXPECT_EQ(merge_two(largest, -largest, base).stat[0], largest);
    EXPECT_EQ(merge_two(-largest, largest, base).out[0], 2.F);
    EXPECT_EQ(merge_two(largest, largest, base).out[0], 1.5F);
    EXPECT_EQ(merge_two(-largest, -largest, base).out[0], 1.5F);
    EXPECT_EQ(merge_two(-largest, -largest, base).stat[0], -largest);
    EXPECT_EQ(merge_two(std::numeric_limits<double>::max(), -std::numeric_limits<double>::max(), base).out[0], 1.F);
    EXPECT_EQ(merge_two(-200.F, 0.F, base).out[0], 2.F);
  }
  EXPECT_EQ(merge_two(5.F, 4.F, LogBase::two).stat[0], static_cast<float>(5 + std::log2(1.5)));
  EXPECT_EQ(merge_two(5., 5., LogBase::two).stat[0], 6.);
  EXPECT_EQ(merge_two(1000.F, 1000.F).stat[0], static_cast<float>(1000 + std::log(2.)));
  EXPECT_NEAR(merge_two(0.F, -100.F).out[0], 1., 1e-7);
}

TEST(Merge, ValuesNearTheLargestDoNotOverflow) {
  Parts<float, float> p(2, 1, 20);
  for (auto& part : p.value)
    for (auto& v : part) v = std::numeric_limits<float>::max();
  for (const float v : merge_attention(p).out) EXPECT_EQ(v, std::numeric_limits<float>::max());
}

TEST(Merge, MaxAndSumOfSpecialParts) {
  Parts<float, double> p(2, 1, 9, Statistics::max_sum);
  const auto with = [&](double m0, double d0, double m1, double d1) {
    p.stat[0] = {m0, d0};
    p.stat[1] = {m1, d1};
    return merge_attention(p);
  };
  EXPECT_EQ(with(-kInf, 0, -kInf, 0).stat, (std::vector<double>{-kInf, 0.}));
  EXPECT_EQ(with(3, 2, -kInf, 0).stat, (std::vector<double>{3., 2.}));
  EXPECT_EQ(with(3, 2, 7, 0).stat, (std::vector<double>{3., 2.}));
  EXPECT_EQ(with(kInf, 1, 7, 1).stat, (std::vector<double>{kInf, 1.}));
  for (const auto& m : {with(-kInf, kNaN, 7, 1), with(kNaN, 1, 7, 1), with(1, -1, 7, 1), with(kInf, kNaN, kInf, 1)}) {
    EXPECT_EQ(m.stat[0], kInf);
    EXPECT_TRUE(std::isnan(m.stat[1]));
    EXPECT_EQ(bits(m.out[0]), 0x7FC00000U);
  }
}

// Sums at the ends of the statistics' range: an infinite d would say that the row holds +inf.
template <class L>
void merge_extreme_sums(const std::vector<L>& sums, L m) {
  for (const auto base : {LogBase::natural, LogBase::two}) {
    Parts<double, L> p(static_cast<int>(sums.size()), 1, 5, Statistics::max_sum);
    long double total = 0, mean = 0;
    for (std::size_t k = 0; k < sums.size(); ++k) {
      p.stat[k] = {m, sums[k]};
      for (auto& v : p.value[k]) v = static_cast<double>(k);
      total += sums[k];
      mean += static_cast<long double>(sums[k]) * static_cast<long double>(k);
    }
    const auto merged = merge_attention(p, base);
    const L log = merged.stat[0], sum = merged.stat[1];
    ASSERT_TRUE(sum > 0 && sum <= std::numeric_limits<L>::max()) << sum;
    const long double want = base == LogBase::two ? std::log2(total) : std::log(total);
    const long double got =
        static_cast<long double>(log - m) +
        (base == LogBase::two ? std::log2(static_cast<long double>(sum)) : std::log(static_cast<long double>(sum)));
    const long double u = unit_of<L>(), rounded = sizeof(L) == 8 ? u * std::abs(static_cast<long double>(m)) : 0;
    EXPECT_NEAR(static_cast<double>(got), static_cast<double>(want), static_cast<double>(2 * u + rounded + 1e-13L));
    EXPECT_NEAR(merged.out[0], static_cast<double>(mean / total), 1e-13);
  }
}

TEST(Merge, SumsAtTheEndsOfTheRange) {
  merge_extreme_sums<float>({3e38F, 3e38F}, 0);
  merge_extreme_sums<float>({3e38F, 1e38F, 3.4e38F, 3.4e38F}, -1000);
  merge_extreme_sums<float>({3e38F, 3e38F}, 1e6F);
  merge_extreme_sums<float>({1e-45F, 3e-45F}, 7);
  merge_extreme_sums<double>({1e308, 1.7e308, 1.7e308}, 0);
  merge_extreme_sums<double>({1e308, 1.7e308}, -700);
  merge_extreme_sums<double>({5e-324, 1e-320, 2e-320}, 3);
  // Where m has no finer steps than the exponent of d: finite still.
  Parts<float, float> far(2, 1, 3, Statistics::max_sum);
  far.stat[0] = far.stat[1] = {std::numeric_limits<float>::max(), 3e38F};
  EXPECT_EQ(merge_attention(far).stat, (std::vector<float>(2, std::numeric_limits<float>::max())));
}

TEST(Merge, StridedAndInPlace) {
  const auto p = random_parts<float, float>(3, 6, 70, Statistics::lse, 17);
  const auto want = merge_attention(p);
  // Transposed operands and result.
  Parts<float, float> t(3, 6, 70);
  const std::vector<std::int64_t> strides{1, 6};
  std::vector<View> views;
  for (std::size_t k = 0; k < 3; ++k) {
    for (std::size_t r = 0; r < 6; ++r)
      for (std::size_t i = 0; i < 70; ++i) t.value[k][i * 6 + r] = p.value[k][r * 70 + i];
    views.emplace_back(static_cast<const void*>(t.value[k].data()), DType::float32, t.shape, strides);
    views.emplace_back(static_cast<const void*>(p.stat[k].data()), DType::float32, p.stat_shape);
  }
  std::vector<float> out(420), lse(6);
  softfold::merge_attention(views, View(out.data(), DType::float32, t.shape, strides),
                            View(lse.data(), DType::float32, p.stat_shape));
  for (std::size_t r = 0; r < 6; ++r)
    for (std::size_t i = 0; i < 70; ++i) ASSERT_EQ(out[i * 6 + r], want.out[r * 70 + i]);
  EXPECT_EQ(lse, want.stat);
  // Into the second part.
  auto q = p;
  softfold::merge_attention(q.views(), View(q.value[1].data(), DType::float32, q.shape),
                            View(q.stat[1].data(), DType::float32, q.stat_shape));
  EXPECT_EQ(q.value[1], want.out);
  EXPECT_EQ(q.stat[1], want.stat);
}

TEST(Merge, ABlocksResultMayNotOverwriteAnotherBlock) {
  auto p = random_parts<float, float>(2, 3, 8, Statistics::lse, 19);
  std::vector<float> lse(3);
  const View crossed[] = {View(p.value[1].data(), DType::float32, p.shape),
                          View(p.value[0].data(), DType::float32, p.shape),
                          View(lse.data(), DType::float32, p.stat_shape)};
  EXPECT_THROW(softfold::merge_blocks(p.views(), crossed), softfold::Error);
  const auto want = merge_blocks(p);
  const View own[] = {crossed[1], crossed[0], crossed[2]};
  softfold::merge_blocks(p.views(), own);
  EXPECT_EQ(p.value[0], std::vector<float>(want.out.begin(), want.out.begin() + 24));
  EXPECT_EQ(p.value[1], std::vector<float>(want.out.begin() + 24, want.out.end()));
}

TEST(Merge, BlocksOfARowJoinToItsSoftmax) {
  constexpr std::int64_t blocks = 4, n = 500;
  Random random(23);
  std::vector<float> x(blocks * n);
  for (auto& v : x) v = static_cast<float>(random.uniform(-20., 20.));
  Parts<float, float> p(blocks, 1, n);
  const std::int64_t block_shape[] = {1, n}, lse_shape[] = {1}, whole_shape[] = {1, blocks * n};
  for (std::size_t k = 0; k < blocks; ++k) {
    const View block(x.data() + k * n, DType::float32, block_shape);
    softfold::softmax(block, View(p.value[k].data(), DType::float32, block_shape));
    softfold::logsumexp(block, View(p.stat[k].data(), DType::float32, lse_shape));
  }
  const auto m = merge_blocks(p);
  std::vector<float> y(blocks * n), lse(1);
  softfold::softmax(View(x.data(), DType::float32, whole_shape), View(y.data(), DType::float32, whole_shape));
  softfold::logsumexp(View(x.data(), DType::float32, whole_shape), View(lse.data(), DType::float32, lse_shape));
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(m.out[i], y[i], 60 * 0x1p-24 * y[i]);
  EXPECT_NEAR(m.stat[0], lse[0], 4e-6);
}

}  // namespace
}  // namespace softfold_test
