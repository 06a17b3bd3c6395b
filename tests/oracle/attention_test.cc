// Attention against materialised float64: odd shapes, every option alone, samples of their combinations.
#include "support/attention.hpp"

#include "cpu/targets.hpp"

#include <gtest/gtest.h>

#include <string>

namespace softfold_test {
namespace {

using softfold::Layout;

/// Half a unit in the last place of what `value` is stored as.
double half_ulp(DType t, double value) {
  switch (t) {
    case DType::bfloat16: return std::ldexp(std::abs(value), -8);
    case DType::float16: return std::ldexp(std::abs(value), -11) + 0x1p-25;
    default: return 0;
  }
}

std::string name_of(const AttentionCase& c) {
  std::string s = std::string(softfold::name_of(c.dtype)) + (c.layout == Layout::bhtd ? " bhtd" : " bthd");
  for (const auto n : {c.batch, c.heads, c.kv_heads, c.queries, c.keys, std::int64_t{c.d}, std::int64_t{c.dv}})
    s += " " + std::to_string(n);
  const std::pair<bool, const char*> parts[] = {{c.causal, "causal"},
                                                {c.softcap > 0, "softcap"},
                                                {c.sink, "sink"},
                                                {c.slopes || c.slopes_batched, "slopes"},
                                                {c.mask, "mask"},
                                                {c.bias, "bias"},
                                                {c.lengths, "lengths"},
                                                {c.starts, "starts"},
                                                {c.index, "index"},
                                                {c.packed(), "packed"},
                                                {c.window.left >= 0 || c.window.right >= 0, "window"}};
  for (const auto& [on, what] : parts)
    if (on) s += std::string(" ") + what;
  return s;
}

/// Compares every `stride`-th row with the reference, within `times` its bound.
void expect_right(AttentionData& a, std::int64_t stride = 1, double times = 1) {
  const AttentionCase& c = a.c;
  const double u = times * (c.dtype == DType::float64 ? 0x1p-53 : 0x1p-24),
               infinity = std::numeric_limits<double>::infinity();
  double worst = 0, worst_lse = 0;
  for (std::int64_t b = 0, n = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < a.queries_of(b); ++i, ++n) {
        if (n % stride != 0) continue;
        const auto row = a.reference(b, h, i);
        const std::int64_t at = a.at(a.out, b, h, i), row_at = a.row_at(b, h, i);
        const double lse = AttentionData::value(a.lse, row_at);
        if (row.lse == -infinity) {
          ASSERT_EQ(lse, -infinity) << name_of(c);
        } else {
          worst_lse = std::max(worst_lse, std::abs(lse - row.lse) / (u * (row.error + std::abs(row.lse) + 4)));
        }
        const double m = AttentionData::value(a.state, row_at * (c.dv + 2)),
                     d = AttentionData::value(a.state, row_at * (c.dv + 2) + 1);
        ASSERT_EQ(d == 0, row.lse == -infinity) << name_of(c);
        for (int x = 0; x < c.dv; ++x) {
          const double got = AttentionData::value(a.out, at + x), right = row.out[static_cast<std::size_t>(x)];
          const double bound = u * (row.error * row.spread[static_cast<std::size_t>(x)] + std::abs(right)) +
                               half_ulp(c.dtype, right) * 1.01 + 1e-37;
          ASSERT_LE(std::abs(got - right), bound) << name_of(c) << ": row " << b << ", " << h << ", " << i << ", " << x;
          worst = std::max(worst, std::abs(got - right) / bound);
          if (d == 0) continue;
          const double o = AttentionData::value(a.state, row_at * (c.dv + 2) + 2 + x);
          ASSERT_LE(std::abs(o / d - right), bound) << name_of(c);
        }
        if (d != 0) {
          ASSERT_NEAR(m * std::log(2.) + std::log(d), lse, 8 * u * (std::abs(lse) + 1)) << name_of(c);
        }
      }
  EXPECT_LE(worst_lse, 1) << name_of(c);
  EXPECT_TRUE(a.out.only_elements_written());
}

AttentionCase shape(std::int64_t queries, std::int64_t keys, int d, int dv, DType t = DType::float32) {
  AttentionCase c;
  c.dtype = t;
  c.heads = 2, c.kv_heads = 1;
  c.queries = queries, c.keys = keys;
  c.d = d, c.dv = dv;
  c.seed = static_cast<unsigned>(queries * 7 + keys);
  return c;
}

void check(const AttentionCase& c, std::int64_t stride = 1) {
  AttentionData a(c);
  a.run();
  expect_right(a, stride);
}

TEST(Attention, OddShapes) {
  for (const bool causal : {false, true}) {
    for (auto [queries, keys, d, dv] :
         {std::array{113, 203, 64, 64}, std::array{799, 3, 24, 8}, std::array{239, 1, 16, 40},
          std::array{1, 131072, 16, 16}, std::array{3, 1023, 128, 96}, std::array{5, 2049, 1, 1},
          std::array{97, 130, 192, 128}, std::array{33, 70, 512, 512}, std::array{4224, 4224, 8, 8}}) {
      AttentionCase c = shape(queries, keys, d, dv);
      c.causal = causal;
      const std::int64_t stride = queries > 1000 ? 97 : queries > 200 ? 7 : 1;
      check(c, stride);
      if (d % 32 != 0 || dv % 32 != 0) continue;
      c.dtype = DType::bfloat16;  // AMX has kernels for these
      check(c, 3);
    }
  }
}

TEST(Attention, EveryDtypeAndLayout) {
  for (const DType t : kFloating)
    for (const Layout layout : {Layout::bhtd, Layout::bthd}) {
      AttentionCase c = shape(50, 150, 40, 72, t);
      c.layout = layout;
      c.batch = 2, c.heads = 6, c.kv_heads = 3;
      check(c);
    }
}

TEST(Attention, NothingToSee) {
  for (const auto& [queries, keys] : {std::pair{5, 0}, std::pair{0, 5}, std::pair{0, 0}, std::pair{200, 9}}) {
    AttentionCase c = shape(queries, keys, 8, 8);
    c.causal = true;  // with 200 queries of 9 keys, the first 191 see none
    check(c);
    c.sink = true;
    check(c);
  }
}

TEST(Attention, EveryOptionAlone) {
  for (const auto& [t, queries] : {std::pair{DType::float32, 70}, std::pair{DType::bfloat16, 70},
                                   std::pair{DType::float64, 70}, std::pair{DType::float32, 3}}) {
    AttentionCase base = shape(queries, 140, 32, 32, t);
    base.batch = 3, base.heads = 4, base.kv_heads = 2;
    const auto with = [&](auto&& set) {
      AttentionCase c = base;
      set(c);
      check(c);
    };
    with([](AttentionCase& c) { c.causal = true; });
    with([](AttentionCase& c) { c.causal = true, std::swap(c.queries, c.keys); });
    with([](AttentionCase& c) { c.window = {20, -1}; });
    with([](AttentionCase& c) { c.window = {-1, 3}; });
    with([](AttentionCase& c) { c.window = {0, 0}; });
    with([](AttentionCase& c) { c.window = {30, -1}, c.causal = true; });
    with([](AttentionCase& c) { c.softcap = 0.7F; });
    with([](AttentionCase& c) { c.scale = 0; });
    with([](AttentionCase& c) { c.scale = -2.5; });
    with([](AttentionCase& c) { c.sink = true; });
    with([](AttentionCase& c) { c.slopes = true; });
    with([](AttentionCase& c) { c.slopes_batched = true; });
    with([](AttentionCase& c) { c.mask = true; });
    with([](AttentionCase& c) { c.bias = true; });
    with([](AttentionCase& c) { c.lengths = true; });
    with([](AttentionCase& c) { c.starts = true; });
    with([](AttentionCase& c) { c.index = true; });
    with([](AttentionCase& c) { c.q_lengths = {5, 0, 130, 1}, c.kv_lengths = {9, 4, 70, 0}; });
  }
}

TEST(Attention, CombinationsOfOptions) {
  std::mt19937 random(20261121);
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random() % static_cast<unsigned>(most - least + 1));
  };
  const auto sometimes = [&] { return random() % 3 == 0; };
  for (int n = 0; n < 120; ++n) {
    AttentionCase c;
    c.dtype = kFloating[random() % 4];
    c.layout = random() % 2 == 0 ? Layout::bhtd : Layout::bthd;
    c.batch = pick(1, 3), c.kv_heads = pick(1, 2), c.heads = c.kv_heads * pick(1, 3);
    c.queries = pick(0, 60), c.keys = random() % 4 == 0 ? pick(900, 1200) : pick(0, 150);
    c.d = static_cast<int>(pick(1, 70)), c.dv = static_cast<int>(pick(1, 70));
    c.causal = sometimes();
    if (sometimes()) c.window = {pick(-1, 80), c.causal ? -1 : pick(-1, 20)};
    if (sometimes()) c.softcap = static_cast<float>(pick(1, 30));
    c.sink = sometimes(), c.slopes = sometimes(), c.mask = sometimes(), c.bias = sometimes();
    c.lengths = sometimes(), c.starts = sometimes(), c.index = sometimes();
    if (sometimes()) {
      c.index = false;
      for (std::int64_t b = 0; b < c.batch; ++b) {
        c.q_lengths.push_back(pick(0, 60));
        c.kv_lengths.push_back(pick(0, 150));
      }
    }
    c.seed = static_cast<unsigned>(random());
    check(c);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Every rung of the ladder is the same attention; naive where no score overflows. tiled and fused give the bits of the
// automatic choice.
TEST(Attention, EveryRungOfTheLadder) {
  using softfold::Rung;
  for (const DType t : {DType::float32, DType::float64})
    for (const bool causal : {false, true}) {
      AttentionCase c = shape(70, 1500, 40, 24, t);
      c.causal = causal;
      c.lengths = true;
      AttentionData right(c);
      right.run();
      for (const Rung rung : {Rung::naive, Rung::safe, Rung::merged, Rung::online, Rung::tiled, Rung::fused}) {
        AttentionData a(c);
        auto options = a.options();
        options.rung = rung;
        if (rung < Rung::tiled || rung == Rung::merged) options.state = {};
        softfold::attention(a.q.view(), a.k.view(), a.v.view(), a.out.view(), options);
        if (rung == Rung::tiled || rung == Rung::fused) {
          EXPECT_EQ(a.out.elements(), right.out.elements());
          EXPECT_EQ(a.lse.elements(), right.lse.elements());
        } else {
          a.state = right.state;  // they have none of their own
          expect_right(a, 3, 2);
        }
      }
    }
}

// Scores far beyond what a float exponent holds: one key takes all, and no finite score is taken for an infinite one.
TEST(Attention, HugeScores) {
  AttentionCase c = shape(3, 300, 8, 8);
  for (const double scale : {1e4, 1e12, 1e30}) {
    c.scale = scale;
    AttentionData a(c);
    a.run();
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t i = 0; i < 3; ++i) {
        std::int64_t best = 0;
        double most = -1e300, second = -1e300;
        for (std::int64_t j = 0; j < 300; ++j) {
          double s = 0;
          for (int x = 0; x < 8; ++x) s += a.value(a.q, a.at(a.q, 0, h, i) + x) * a.value(a.k, a.at(a.k, 0, 0, j) + x);
          if (s > most)
            second = most, most = s, best = j;
          else
            second = std::max(second, s);
        }
        if ((most - second) * scale < 200) continue;
        for (int x = 0; x < 8; ++x) {
          const double right = a.value(a.v, a.at(a.v, 0, 0, best) + x);
          ASSERT_NEAR(a.value(a.out, a.at(a.out, 0, h, i) + x), right, 0x1p-22 * std::abs(right)) << scale;
        }
      }
  }
}

// A mask of the lowest finite numbers hides nothing where nothing is above them; -inf hides.
TEST(Attention, HugeBiasesAndSinks) {
  for (const auto& [t, bias, tolerance] :
       {std::tuple{DType::float64, DType::float64, 1e-13}, std::tuple{DType::float32, DType::float32, 1e-5},
        std::tuple{DType::float32, DType::float64, 1e-5}, std::tuple{DType::bfloat16, DType::float32, 0.01}})
    for (const int queries : {3, 20}) {  // few have kernels of their own
      AttentionCase c = shape(queries, 150, 32, 32, t);
      c.heads = 1;
      c.bias = true;
      AttentionData a(c);
      give_huge_biases(a, bias);
      a.run();
      EXPECT_LE(huge_bias_error(a), tolerance) << name_of(c);
      for (std::int64_t i = 0; i < queries; ++i) EXPECT_TRUE(std::isfinite(a.value(a.lse, i))) << name_of(c);
      a.sink = Array(bias, {1});
      auto options = a.options();
      for (const double sign : {-1., 1.}) {  // the lowest sink is nothing to a row of its keys, the largest all
        a.sink.set_value(0, sign * (bias == DType::float64 ? std::numeric_limits<double>::max()
                                                           : std::numeric_limits<float>::max()));
        options.bias = {};
        options.sink = a.sink.view();
        softfold::attention(a.q.view(), a.k.view(), a.v.view(), a.out.view(), options);
        const double got = a.value(a.out, 0);
        EXPECT_TRUE(sign < 0 ? std::isfinite(got) && got != 0 : got == 0) << name_of(c) << " " << got;
      }
    }
}

TEST(Attention, EveryTarget) {
  const std::string_view before = softfold::cpu::current_target();
  AttentionCase c = shape(113, 1203, 72, 40);
  c.causal = true;
  c.softcap = 5;
  c.slopes = true;
  std::vector<unsigned char> first;
  for (const std::string_view target : softfold::cpu::targets()) {
    ASSERT_TRUE(softfold::cpu::use_target(target));
    AttentionData a(c);
    a.run();
    expect_right(a, 5);
    if (first.empty()) first = a.out.elements();
    EXPECT_EQ(a.out.elements(), first) << target;  // more than is promised: every row's chains are the same
  }
  softfold::cpu::use_target(before);
}

}  // namespace
}  // namespace softfold_test
