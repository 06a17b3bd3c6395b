// What attention's bits may and may not depend on, and what must not leak into a row.
#include "support/attention.hpp"
#include "support/thread_counts.hpp"

#include "cpu/targets.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Layout;

/// The stored elements of out and lse of one sequence's rows.
std::vector<double> results_of(const AttentionData& a, std::int64_t b) {
  std::vector<double> all;
  for (std::int64_t h = 0; h < a.c.heads; ++h)
    for (std::int64_t i = 0; i < a.queries_of(b); ++i) {
      for (int x = 0; x < a.c.dv; ++x) all.push_back(a.value(a.out, a.at(a.out, b, h, i) + x));
      all.push_back(a.value(a.lse, a.row_at(b, h, i)));
    }
  return all;
}

void copy_tokens(const AttentionData& from, const Array& x, std::int64_t from_b, std::int64_t first, AttentionData& to,
                 Array& y, std::int64_t to_b, std::int64_t to_first, std::int64_t heads, std::int64_t count) {
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t t = 0; t < count; ++t)
      for (int i = 0; i < x.shape().back(); ++i)
        y.set_value(to.at(y, to_b, h, to_first + t) + i, from.value(x, from.at(x, from_b, h, first + t) + i));
}

AttentionCase grouped() {
  AttentionCase c;
  c.batch = 3, c.heads = 6, c.kv_heads = 2;
  c.queries = 70, c.keys = 2500;
  c.d = 24, c.dv = 40;
  return c;
}

TEST(AttentionBits, SameForAnyNumberOfThreads) {
  AttentionCase decode;
  decode.keys = 20000 / kShrink;
  decode.d = decode.dv = 64;
  AttentionCase halves = grouped();
  halves.dtype = DType::bfloat16;
  halves.d = 64, halves.dv = 32;
  for (AttentionCase c : {grouped(), decode, halves}) {
    c.causal = true;
    if (kShrink > 1) c.batch = 1;
    std::vector<unsigned char> out, lse;
    for (const int threads : kThreadCounts) {
      const auto executor = softfold::make_thread_executor(threads);
      AttentionData a(c);
      a.run({.cpu = executor.get()});
      if (out.empty()) out = a.out.elements(), lse = a.lse.elements();
      EXPECT_EQ(a.out.elements(), out) << threads;
      EXPECT_EQ(a.lse.elements(), lse) << threads;
    }
  }
}

TEST(AttentionBits, AThousandRunsAreTheSame) {
  const auto executor = softfold::make_thread_executor(4);
  for (const std::int64_t queries : {2, 20}) {
    AttentionCase c = grouped();
    c.batch = 1, c.queries = queries, c.keys = 1100, c.d = c.dv = 8;
    AttentionData first(c);
    first.run({.cpu = executor.get()});
    AttentionData a = first;
    for (int n = 0; n < 500 / static_cast<int>(kStep); ++n) {
      a.run({.cpu = executor.get()});
      ASSERT_TRUE(a.out.elements() == first.out.elements() && a.state.elements() == first.state.elements()) << n;
    }
  }
}

TEST(AttentionBits, ASequenceAloneIsTheSameAsInABatch) {
  for (const auto& [causal, t] :
       {std::pair{false, DType::float32}, std::pair{true, DType::float32}, std::pair{true, DType::bfloat16}}) {
    AttentionCase c = grouped();
    c.dtype = t;
    c.d = 32, c.dv = t == DType::bfloat16 ? 32 : 40;
    c.causal = causal;
    c.softcap = 3;
    AttentionData all(c);
    all.run();
    c.batch = 1;
    for (std::int64_t b = 0; b < 3; ++b) {
      AttentionData one(c);
      copy_tokens(all, all.q, b, 0, one, one.q, 0, 0, c.heads, c.queries);
      copy_tokens(all, all.k, b, 0, one, one.k, 0, 0, c.kv_heads, c.keys);
      copy_tokens(all, all.v, b, 0, one, one.v, 0, 0, c.kv_heads, c.keys);
      one.run();
      EXPECT_EQ(results_of(one, 0), results_of(all, b));
    }
  }
}

// Few rows have kernels of their own: their bits are those that the same queries have among many, but for AMX.
TEST(AttentionBits, AFewQueriesAreTheSameAsAmongMany) {
  const std::string_view before = softfold::cpu::current_target();
  for (const std::string_view target : softfold::cpu::targets()) {
    ASSERT_TRUE(softfold::cpu::use_target(target));
    for (const DType t : kFloating)
      for (const auto& [d, dv] : {std::pair{64, 128}, std::pair{32, 16}}) {
        if (target == "avx512_amx" && t == DType::bfloat16) continue;  // many are computed on tiles there
        AttentionCase c = grouped();
        c.dtype = t;
        c.batch = 1, c.heads = 2, c.kv_heads = 1, c.queries = 20, c.keys = 1100;
        c.d = d, c.dv = dv;
        AttentionData many(c);
        many.run();
        for (const std::int64_t queries : {1, 2, 3, 4}) {
          c.queries = queries;
          AttentionData few(c);
          few.k = many.k, few.v = many.v;
          copy_tokens(many, many.q, 0, 7, few, few.q, 0, 0, c.heads, queries);
          few.run();
          for (std::int64_t h = 0; h < c.heads; ++h)
            for (std::int64_t i = 0; i < queries; ++i)
              for (int x = 0; x < dv; ++x)
                ASSERT_EQ(few.value(few.out, few.at(few.out, 0, h, i) + x),
                          many.value(many.out, many.at(many.out, 0, h, 7 + i) + x))
                    << target << " " << softfold::name_of(t) << " " << queries << " of d " << d;
        }
      }
  }
  softfold::cpu::use_target(before);
}

/// The same sequences packed, padded on the right and padded on the left.
void expect_packing_and_padding_do_not_matter(AttentionCase c) {
  c.causal = true;
  c.slopes = true;
  c.window = {700, -1};
  c.q_lengths = {9, 1, 130}, c.kv_lengths = {9, 1100, 130};
  AttentionData packed(c);
  packed.run();
  for (std::int64_t b = 0; b < 3; ++b)
    for (const bool left : {false, true}) {
      AttentionCase one = c;
      one.q_lengths.clear(), one.kv_lengths.clear();
      one.batch = 1, one.queries = packed.queries_of(b), one.keys = 1300;
      one.lengths = true, one.starts = left;
      AttentionData a(one);
      const std::int64_t keys = packed.keys_of(b), start = left ? 150 : 0;
      a.lengths.set(0, static_cast<std::int32_t>(start + keys));
      if (left) a.starts.set(0, static_cast<std::int32_t>(start));
      copy_tokens(packed, packed.q, b, 0, a, a.q, 0, 0, c.heads, one.queries);
      copy_tokens(packed, packed.k, b, 0, a, a.k, 0, start, c.kv_heads, keys);
      copy_tokens(packed, packed.v, b, 0, a, a.v, 0, start, c.kv_heads, keys);
      for (std::int64_t h = 0; h < c.heads; ++h) a.slopes.set_value(h, packed.value(packed.slopes, h));
      a.run();
      EXPECT_EQ(results_of(a, 0), results_of(packed, b)) << b << (left ? " left" : " right");
    }
}

TEST(AttentionBits, PackedAndPaddedSequencesAreTheSame) {
  AttentionCase c = grouped();
  expect_packing_and_padding_do_not_matter(c);
  c.dtype = DType::bfloat16;
  c.d = c.dv = 32;
  expect_packing_and_padding_do_not_matter(c);
}

TEST(AttentionBits, StridesDoNotMatter) {
  AttentionCase c = grouped();
  c.keys = 300;
  AttentionData a(c);
  a.run();
  c.layout = Layout::bthd;
  AttentionData b(c);
  for (const auto& [x, y, heads, tokens] :
       {std::tuple{&a.q, &b.q, c.heads, c.queries}, {&a.k, &b.k, c.kv_heads, c.keys}, {&a.v, &b.v, c.kv_heads, c.keys}})
    for (std::int64_t s = 0; s < c.batch; ++s) copy_tokens(a, *x, s, 0, b, *y, s, 0, heads, tokens);
  b.run();
  for (std::int64_t s = 0; s < c.batch; ++s) EXPECT_EQ(results_of(a, s), results_of(b, s));
}

/// Keys cut anywhere, each part attended to by itself, and merged: the whole within the bound of merging two results.
TEST(AttentionMerge, SplitAnywhereIsTheWhole) {
  AttentionCase c = grouped();
  c.batch = 1, c.heads = 2;
  AttentionData whole(c);
  whole.run();
  std::mt19937 random(5);
  for (int n = 0; n < 6; ++n) {
    const std::int64_t cut = n == 0   ? 0
                             : n == 1 ? c.keys
                                      : static_cast<std::int64_t>(random() % static_cast<unsigned>(c.keys));
    AttentionCase half = c;
    half.starts = half.lengths = true;
    AttentionData left(half), right(half);
    left.starts.set(0, std::int32_t{0}), left.lengths.set(0, static_cast<std::int32_t>(cut));
    right.starts.set(0, static_cast<std::int32_t>(cut)), right.lengths.set(0, static_cast<std::int32_t>(c.keys));
    left.run(), right.run();
    Array out(DType::float32, whole.out.shape()), lse(DType::float32, whole.lse.shape());
    const View parts[] = {left.out.view(), left.lse.view(), right.out.view(), right.lse.view()};
    softfold::merge_attention(parts, out.view(), lse.view());
    // The states merge too: m and d are their first two numbers, in base 2.
    const std::int64_t shape[] = {1, c.heads, c.queries, 2}, wide = c.dv + 2,
                       strides[] = {c.heads * c.queries * wide, c.queries * wide, wide, 1};
    const auto sums = [&](AttentionData& a) { return View(a.state.view().data, DType::float32, shape, strides); };
    Array by_state(DType::float32, whole.out.shape()), merged(DType::float32, {1, c.heads, c.queries, 2});
    const View states[] = {left.out.view(), sums(left), right.out.view(), sums(right)};
    softfold::merge_attention(states, by_state.view(), merged.view(),
                              {.base = softfold::LogBase::two, .statistics = softfold::Statistics::max_sum});
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const auto row = whole.reference(0, h, i);
        const std::int64_t at = whole.at(whole.out, 0, h, i);
        for (const Array* got : {&out, &by_state})
          for (int x = 0; x < c.dv; ++x)
            ASSERT_NEAR(AttentionData::value(*got, at + x), AttentionData::value(whole.out, at + x),
                        0x1p-24 * (2 * row.error + 2 * std::abs(row.lse) + 8) * row.spread[static_cast<std::size_t>(x)])
                << "cut at " << cut;
      }
  }
}

/// NaN in everything that does not exist must not be seen in anything that does.
class AttentionLeaks : public testing::Test {
 protected:
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

  static void expect_same(AttentionData& clean, AttentionData& poisoned) {
    clean.run(), poisoned.run();
    EXPECT_EQ(clean.out.elements(), poisoned.out.elements());
    EXPECT_EQ(clean.lse.elements(), poisoned.lse.elements());
  }
  void poison(AttentionData& a, Array& x, std::int64_t b, std::int64_t t, double value) const {
    for (std::int64_t h = 0; h < a.c.kv_heads; ++h)
      for (int i = 0; i < x.shape().back(); ++i) x.set_value(a.at(x, b, h, t) + i, value);
  }
};

TEST_F(AttentionLeaks, PaddingAndTails) {
  for (const DType t : kFloating)
    for (const double value : {nan, infinity}) {
      AttentionCase c = grouped();
      c.dtype = t;
      c.batch = 2, c.keys = 150;
      c.lengths = c.starts = true;
      AttentionData clean(c), poisoned(c);
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t j = 0; j < c.keys; ++j)
          if (j < poisoned.start_of(b) || j >= poisoned.end_of(b))
            poison(poisoned, poisoned.k, b, j, value), poison(poisoned, poisoned.v, b, j, value);
      expect_same(clean, poisoned);
    }
}

TEST_F(AttentionLeaks, NeighboursOfAPackedSequence) {
  AttentionCase c = grouped();
  c.q_lengths = {3, 5, 4}, c.kv_lengths = {70, 33, 90};
  AttentionData clean(c), poisoned(c);
  for (const std::int64_t b : {0, 2})
    for (std::int64_t j = 0; j < c.kv_lengths[static_cast<std::size_t>(b)]; ++j)
      poison(poisoned, poisoned.k, b, j, nan), poison(poisoned, poisoned.v, b, j, nan);
  clean.run(), poisoned.run();
  EXPECT_EQ(results_of(clean, 1), results_of(poisoned, 1));
}

TEST_F(AttentionLeaks, KeysThatAMaskHides) {
  for (const int kind : {0, 1}) {
    AttentionCase c = grouped();
    c.batch = 1, c.keys = 150;
    c.mask = kind == 0, c.bias = kind == 1;
    AttentionData clean(c);
    for (std::int64_t row = 0; row < c.heads * c.queries; ++row)
      for (std::int64_t j = 5; j < c.keys; j += 11) {
        if (kind == 0) clean.mask.set(row * c.keys + j, std::uint8_t{0});
        if (kind == 1 && row < c.queries) clean.bias.set_value(row * c.keys + j, -infinity);
      }
    AttentionData poisoned = clean;
    for (std::int64_t j = 5; j < c.keys; j += 11) poison(poisoned, poisoned.k, 0, j, nan);
    expect_same(clean, poisoned);
  }
}

TEST_F(AttentionLeaks, TilesThatCausalAndWindowLeaveOut) {
  AttentionCase c = grouped();
  c.batch = 1, c.heads = c.kv_heads, c.queries = c.keys = 1400;
  c.causal = true;
  c.window = {100, -1};
  AttentionData clean(c), poisoned(c);
  clean.run();
  // Queries 0 .. 95 see keys 0 .. 95: a key at 1200 lies in no tile of theirs.
  for (std::int64_t j = 1200; j < 1400; ++j)
    poison(poisoned, poisoned.k, 0, j, nan), poison(poisoned, poisoned.v, 0, j, nan);
  poisoned.run();
  for (std::int64_t i = 0; i < 1000; ++i)
    for (int x = 0; x < c.dv; ++x) {
      const std::int64_t at = clean.at(clean.out, 0, 1, i) + x;
      ASSERT_EQ(clean.value(clean.out, at), clean.value(poisoned.out, at)) << i;
    }
}

// Every weight is above 0 here, so the infinite value reaches every row, and no other column.
TEST_F(AttentionLeaks, AnInfiniteValueThatIsSeenIsInItsColumnAlone) {
  const std::string_view before = softfold::cpu::current_target();
  for (const std::string_view target : softfold::cpu::targets()) {
    ASSERT_TRUE(softfold::cpu::use_target(target));
    for (const DType t : {DType::float32, DType::bfloat16}) {
      AttentionCase c = grouped();
      c.dtype = t;
      c.batch = 1, c.d = c.dv = 32, c.keys = 150;
      AttentionData clean(c), infinite(c);
      for (std::int64_t h = 0; h < c.kv_heads; ++h)
        infinite.v.set_value(infinite.at(infinite.v, 0, h, 97) + 5, -infinity);
      clean.run(), infinite.run();
      EXPECT_EQ(clean.lse.elements(), infinite.lse.elements());
      for (std::int64_t i = 0; i < clean.out.count(); ++i)
        ASSERT_EQ(clean.value(infinite.out, i), i % c.dv == 5 ? -infinity : clean.value(clean.out, i)) << target;
    }
  }
  softfold::cpu::use_target(before);
}

/// A row's own NaN stays in that row.
TEST_F(AttentionLeaks, ANaNInOneQueryIsThatRowsAlone) {
  for (const double value : {nan, infinity}) {
    AttentionCase c = grouped();
    c.batch = 1, c.keys = 70;
    AttentionData clean(c), poisoned(c);
    poisoned.q.set_value(poisoned.at(poisoned.q, 0, 2, 33), value);
    clean.run(), poisoned.run();
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const double got = clean.value(poisoned.out, clean.at(clean.out, 0, h, i));
        if (h == 2 && i == 33) {
          EXPECT_TRUE(std::isnan(got));
          EXPECT_TRUE(std::isnan(clean.value(poisoned.lse, clean.row_at(0, h, i))));
        } else {
          EXPECT_EQ(got, clean.value(clean.out, clean.at(clean.out, 0, h, i)));
        }
      }
  }
}

}  // namespace
}  // namespace softfold_test
