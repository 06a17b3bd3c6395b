// Rows cut into shards and joined have the bits of whole rows, wherever the cuts are.
#include "support/bits.hpp"
#include "support/tensor.hpp"

#include "refuse/refusal.hpp"

#include "cpu/targets.hpp"
#include "softfold/lift/shard.hpp"
#include "softfold/shards.hpp"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace softfold_test {
namespace {

namespace lift = softfold::lift;
using softfold::CrossEntropyOptions;
using softfold::Reduction;
using softfold::Shard;
using softfold::ShardOptions;
using softfold::TopkOptions;
using Sizes = std::vector<std::int64_t>;
using Bytes = std::vector<unsigned char>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kRows = 9;

/// A contiguous tensor that owns its memory.
struct Owned {
  Sizes shape;
  DType dtype;
  Bytes bytes;

  Owned(DType t, Sizes s) : shape(std::move(s)), dtype(t) {
    const auto n = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    bytes.assign(static_cast<std::size_t>(n) * size_of(t) + 8, 0xA5);
  }
  View view() { return View(bytes.data(), dtype, shape); }
};

/// Rows of one dtype, plain ones and special ones, their targets, a mask and weights.
struct Rows {
  DType dtype;
  std::int64_t n;
  Owned x, targets, mask, weight;
  softfold::RowOptions options;
  Sizes wide;

  Rows(DType t, std::int64_t size, double scale, bool masked, std::uint64_t seed)
      : dtype(t),
        n(size),
        x(t, {kRows, n}),
        targets(DType::int64, {kRows}),
        mask(DType::boolean, {kRows, n}),
        weight(DType::float32, {n}),
        wide{n, 1} {
    Random random(seed);
    options.scale = scale;
    if (masked) options.mask = mask.view();
    auto* const weights = reinterpret_cast<float*>(weight.bytes.data());
    for (std::int64_t i = 0; i < n; ++i) weights[i] = static_cast<float>(random.uniform(0.5, 2));
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t i = 0; i < n; ++i) {
        mask.bytes[static_cast<std::size_t>(r * n + i)] = random.below(4) != 0;
        set(r, i, element(r, i, random));
      }
      reinterpret_cast<std::int64_t*>(targets.bytes.data())[r] = r == 6 ? -100 : n == 0 ? -100 : random.below(n);
    }
  }
  double element(std::int64_t row, std::int64_t i, Random& random) const {
    const double v = random.uniform(-6, 6);
    switch (row) {
      case 1: return std::rint(v);  // ties
      case 2: return -kInf;
      case 3: return i == n / 2 ? std::numeric_limits<double>::quiet_NaN() : v;
      case 4: return i == n / 3 ? kInf : v;
      case 5: return i % 3 == 0 ? -kInf : 5000 * v;
      case 7: return i < n - 2 ? -kInf : v;
      default: return v;
    }
  }
  void set(std::int64_t r, std::int64_t i, double v) {
    with_dtype(dtype, [&]<class S>(S) {
      const S s = fold::narrow<S>(static_cast<fold::FoldType<S>>(v));
      std::memcpy(x.bytes.data() + static_cast<std::size_t>(r * n + i) * sizeof s, &s, sizeof s);
    });
  }
  /// Elements [begin, end) of every row, of x or of something laid out like it.
  View cut(Owned& of, std::int64_t begin, std::int64_t end) {
    shape = {kRows, end - begin};
    return View(of.bytes.data() + static_cast<std::size_t>(begin) * size_of(of.dtype), of.dtype, shape, wide);
  }
  Sizes shape;
};

/// The partials of the shards between cuts, the last one first, each with more room than it needs and folded on another
/// SIMD target.
Owned folded(Rows& rows, const Sizes& cuts, std::int64_t k = 0, bool targets = false) {
  std::int64_t width = 0;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    width = std::max(width, softfold::partial_width(cuts[i + 1] - cuts[i], {cuts[i], rows.n}, k) + 3);
  Owned all(DType::float64, {std::ssize(cuts) - 1, kRows, width});
  const Sizes one{kRows, width};
  const auto targets_here = softfold::cpu::targets();
  const std::string_view before = softfold::cpu::current_target();
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    ShardOptions o;
    o.rows = rows.options;
    Sizes mask_shape{kRows, cuts[i + 1] - cuts[i]};
    if (o.rows.mask.given())
      o.rows.mask = View(rows.mask.bytes.data() + cuts[i], DType::boolean, mask_shape, rows.wide);
    o.shard = {cuts[i], rows.n};
    o.k = k;
    if (targets) o.targets = rows.targets.view();
    const auto at = (cuts.size() - 2 - i) * static_cast<std::size_t>(kRows * width) * sizeof(double);
    EXPECT_TRUE(softfold::cpu::use_target(targets_here[i % targets_here.size()]));
    softfold::fold_shard(rows.cut(rows.x, cuts[i], cuts[i + 1]), View(all.bytes.data() + at, DType::float64, one), o);
  }
  EXPECT_TRUE(softfold::cpu::use_target(before));
  return all;
}

/// Cuts that lie at, beside and between the edges of chunks, empty shards and single elements among them.
std::vector<Sizes> cuts_of(std::int64_t n) {
  std::vector<Sizes> all{{0, n}, {0, 0, n, n}};
  if (n > 5) all.push_back({0, 1, 2, 2, 5, n - 1, n});
  if (n > 2100) {
    all.push_back({0, 1023, 1024, 1025, 2047, 2049, n});
    all.push_back({0, 1024, 2048, n});
    all.push_back({0, n / 3, 2 * n / 3, n - 3, n});
  }
  return all;
}

std::string name(const Rows& rows, const Sizes& cuts) {
  std::string s = std::string(name_of(rows.dtype)) + ", scale " + std::to_string(rows.options.scale) + ", cuts";
  for (const auto c : cuts) s += " " + std::to_string(c);
  return s;
}

template <class Check>
void for_all_rows(const Check& check) {
  std::uint64_t seed = 0;
  for (const DType t : kFloating)
    for (const std::int64_t n : {0, 1, 7, 1024, 3000, 9300}) {
      const bool plain = n != 3000;
      Rows rows(t, n, plain ? 0.75 : t == DType::float16 ? 0 : -0.5, !plain, ++seed);
      for (const Sizes& cuts : cuts_of(n)) check(rows, cuts);
    }
}

TEST(Shards, ALayoutIsWhatLiesBetweenItsEnds) {
  for (const std::int64_t size : {0, 1, 1023, 1024, 1025, 5000, 8192})
    for (const std::int64_t begin : {0, 1, 500, 1023, 1024, 1025, 3000, 4096, 5000})
      for (const std::int64_t n : {0, 1, 24, 1023, 1024, 1025, 2048, 4000, 8192}) {
        if (begin + n > size) continue;
        const lift::ShardLayout l(begin, begin + n, size);
        EXPECT_TRUE(l.begin <= l.first && l.first <= l.last && l.last <= l.end);
        EXPECT_TRUE(l.first - l.begin < lift::kChunk && l.end - l.last < lift::kChunk);
        std::int64_t at = l.first;
        l.for_nodes([&](std::int64_t chunk, int level) {
          EXPECT_EQ(chunk * lift::kChunk, at);
          EXPECT_EQ(chunk % (std::int64_t{1} << level), 0);
          at = std::min((chunk + (std::int64_t{1} << level)) * lift::kChunk, size);
        });
        EXPECT_EQ(at, l.last) << begin << " " << n << " of " << size;
      }
}

TEST(Shards, StatesAreThoseOfWholeRows) {
  for_all_rows([](Rows& rows, const Sizes& cuts) {
    Owned whole(DType::float64, {kRows, 4}), joined = whole;
    softfold::state(rows.x.view(), whole.view(), rows.options);
    softfold::join_states(folded(rows, cuts).view(), joined.view());
    EXPECT_EQ(whole.bytes, joined.bytes) << name(rows, cuts);
  });
}

TEST(Shards, CrossEntropyAndItsGradientAreThoseOfWholeRows) {
  int which = 0;
  for_all_rows([&](Rows& rows, const Sizes& cuts) {
    CrossEntropyOptions o;
    o.rows = rows.options;
    o.reduction = static_cast<Reduction>(++which % 3);
    o.z_loss = which % 2 == 0 ? 0.01 : 0;
    if (which % 5 < 3) o.weight = rows.weight.view();
    o.rows.empty = which % 7 == 0 ? softfold::Empty::nan : softfold::Empty::zero;
    const bool each = o.reduction == Reduction::none;
    Owned lp(rows.dtype, {kRows}), joined_lp = lp, states(DType::float64, {kRows, 4}), joined_states = states;
    Owned loss(rows.dtype, each ? Sizes{kRows} : Sizes{}), joined_loss = loss, dloss = loss, dx = rows.x,
                                                           joined_dx = dx;
    for (std::size_t i = 0; i < static_cast<std::size_t>(each ? kRows : 1); ++i)
      with_dtype(rows.dtype, [&]<class S>(S) {
        const S v = fold::narrow<S>(fold::FoldType<S>(0.5));
        std::memcpy(dloss.bytes.data() + i * sizeof v, &v, sizeof v);
      });
    o.log_probability = lp.view(), o.states = states.view();
    softfold::cross_entropy(rows.x.view(), rows.targets.view(), loss.view(), o);
    CrossEntropyOptions backward = o;
    backward.log_probability = backward.states = {};
    softfold::cross_entropy_backward(rows.x.view(), rows.targets.view(), states.view(), dloss.view(), dx.view(),
                                     backward);

    CrossEntropyOptions join = o;
    join.rows = {};
    join.rows.empty = o.rows.empty;
    join.log_probability = joined_lp.view(), join.states = joined_states.view();
    softfold::join_cross_entropy(folded(rows, cuts, 0, true).view(), rows.targets.view(), joined_loss.view(), join);
    EXPECT_EQ(lp.bytes, joined_lp.bytes) << name(rows, cuts);
    EXPECT_EQ(states.bytes, joined_states.bytes) << name(rows, cuts);
    EXPECT_EQ(loss.bytes, joined_loss.bytes) << name(rows, cuts);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      backward.shard = {cuts[i], rows.n};
      const Sizes shape{kRows, cuts[i + 1] - cuts[i]};
      if (backward.rows.mask.given())
        backward.rows.mask = View(rows.mask.bytes.data() + cuts[i], DType::boolean, shape, rows.wide);
      if (rows.n == 0) backward.shard = {};
      const View to = rows.cut(joined_dx, cuts[i], cuts[i + 1]);
      softfold::cross_entropy_backward(
          View(std::as_const(rows.x).bytes.data() + static_cast<std::size_t>(cuts[i]) * size_of(rows.dtype), rows.dtype,
               shape, rows.wide),
          rows.targets.view(), joined_states.view(), dloss.view(), to, backward);
    }
    EXPECT_EQ(dx.bytes, joined_dx.bytes) << name(rows, cuts);
  });
}

TEST(Shards, TopkIsThatOfWholeRows) {
  int which = 0;
  for_all_rows([&](Rows& rows, const Sizes& cuts) {
    const std::int64_t k = std::min<std::int64_t>(rows.n, ++which % 4 == 0 ? 40 : 3);
    const auto run = [&](const auto& call) {
      std::vector<Owned> out{{rows.dtype, {kRows, k}},
                             {DType::int64, {kRows, k}},
                             {rows.dtype, {kRows, k}},
                             {rows.dtype, {kRows, k}},
                             {rows.dtype, {kRows}}};
      TopkOptions o;
      o.sorted = which % 3 != 0;
      if (which % 5 != 0) o.probabilities = out[2].view(), o.log_probabilities = out[3].view(), o.lse = out[4].view();
      call(out[0].view(), out[1].view(), o);
      std::vector<Bytes> bytes;
      for (const Owned& t : out) bytes.push_back(t.bytes);
      return bytes;
    };
    const auto whole = run([&](const View& values, const View& indices, TopkOptions& o) {
      o.rows = rows.options;
      softfold::topk(rows.x.view(), values, indices, o);
    });
    Owned partials = folded(rows, cuts, std::min(k + which % 2, rows.n));
    const auto joined = run([&](const View& values, const View& indices, TopkOptions& o) {
      softfold::join_topk(partials.view(), values, indices, o);
    });
    EXPECT_EQ(whole, joined) << name(rows, cuts);
  });
}

TEST(Shards, SampleDrawsWhatItDrawsFromWholeRows) {
  int drawn = 0;
  for_all_rows([&](Rows& rows, const Sizes& cuts) {
    if (rows.dtype == DType::float64 || !(rows.options.scale > 0)) return;
    if (rows.n == 1024) rows.options.mask = rows.mask.view();
    Owned partials = folded(rows, cuts);
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      softfold::SampleOptions o;
      o.rows = rows.options, o.seed = seed, o.offset = 3;
      std::vector<std::int64_t> whole(kRows), joined(kRows, -1), own(kRows);
      const Sizes per_row{kRows};
      softfold::sample(rows.x.view(), View(whole.data(), DType::int64, per_row), o);
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const Sizes shape{kRows, cuts[i + 1] - cuts[i]};
        if (o.rows.mask.given()) o.rows.mask = View(rows.mask.bytes.data() + cuts[i], DType::boolean, shape, rows.wide);
        softfold::sample_shard(rows.cut(rows.x, cuts[i], cuts[i + 1]), partials.view(),
                               View(own.data(), DType::int64, per_row), {cuts[i], rows.n}, o);
        for (std::size_t r = 0; r < own.size(); ++r) {
          EXPECT_TRUE(own[r] == -1 || (joined[r] == -1 && own[r] >= cuts[i] && own[r] < cuts[i + 1]));
          joined[r] = std::max(joined[r], own[r]);
          drawn += own[r] >= 0 ? 1 : 0;
        }
      }
      EXPECT_EQ(whole, joined) << name(rows, cuts) << ", seed " << seed;
    }
  });
  EXPECT_GT(drawn, 500);
}

TEST(Shards, RefusesWhatDoesNotMakeUpRows) {
  Rows rows(DType::float32, 3000, 1, false, 5);
  const Sizes cuts{0, 1000, 2500, 3000};
  const Owned good = folded(rows, cuts, 2, true);
  Owned states(DType::float64, {kRows, 4}), loss(DType::float32, {}), values(DType::float32, {kRows, 3});
  Owned indices(DType::int64, {kRows, 3});
  const Bytes before = states.bytes;
  const auto expect = [&](const std::string& what, Code code, const Words& words, std::size_t part, std::size_t word,
                          double value) {
    Owned bad = good;
    const auto width = static_cast<std::size_t>(bad.shape[2]);
    // The last row: nothing is written before all of them have been looked at.
    std::memcpy(bad.bytes.data() + ((part * kRows + kRows - 1) * width + word) * sizeof value, &value, sizeof value);
    expect_refused(what, code, words, [&] { softfold::join_states(bad.view(), states.view()); });
    EXPECT_EQ(states.bytes, before);
  };
  expect("another definition", Code::state, {"bits version 99 in the partials of row 8"}, 1, 0, 99);
  expect("digits", Code::state, {"digits 12"}, 1, 1, 12);
  expect("digits of some", Code::state, {"digits 24 and 53"}, 0, 1, 53);
  expect("scale", Code::state, {"scales", "one scale"}, 0, 2, 2);
  expect("size", Code::state, {"rows of 3001"}, 0, 3, 3001);
  expect("length", Code::state, {"a shard at 2500"}, 0, 5, 501);
  expect("a NaN for a length", Code::state, {"a shard at"}, 0, 5, NAN);
  expect("k", Code::state, {"k = 1"}, 2, 6, 1);
  expect("targets of some", Code::state, {"some with targets"}, 2, 7, 0);
  expect("an index", Code::state, {"index 7"}, 0, 10, 7);
  expect_refused("a node", Code::state, {"(m, d)"}, [&] {
    Rows aligned(DType::float32, 2048, 1, false, 5);
    Owned bad = folded(aligned, {0, 2048});
    const double d = -1;
    std::memcpy(bad.bytes.data() + 10 * sizeof d, &d, sizeof d);
    softfold::join_states(bad.view(), states.view());
  });
  const Sizes two{2, kRows, good.shape[2]};
  expect_refused("a missing shard", Code::state, {"no elements 0 to 1000"},
                 [&] { softfold::join_states(View(good.bytes.data(), DType::float64, two), states.view()); });
  expect_refused("a gap", Code::state, {"no elements 1000 to 1001", "end to end", "add their shard"}, [&] {
    Owned gap = folded(rows, {0, 1000, 1001, 3000});
    const Sizes outer{2, kRows, gap.shape[2]};  // the first and the last of the three
    const Sizes strides{2 * kRows * gap.shape[2], gap.shape[2], 1};
    softfold::join_states(View(std::as_const(gap).bytes.data(), DType::float64, outer, strides), states.view());
  });
  expect_refused("a shard twice", Code::state, {"elements 0 to 3000 twice", "end to end", "leave one shard out"}, [&] {
    Owned once = folded(rows, {0, 3000});
    const Sizes twice{2, kRows, once.shape[2]}, strides{0, once.shape[2], 1};
    softfold::join_states(View(std::as_const(once).bytes.data(), DType::float64, twice, strides), states.view());
  });
  Owned partials = good;
  expect_refused("more than was folded", Code::shape, {"k = 3 of partials with k = 2"},
                 [&] { softfold::join_topk(partials.view(), values.view(), indices.view()); });
  CrossEntropyOptions o;
  o.label_smoothing = 0.1;
  expect_refused("smoothing", Code::unsupported, {"label_smoothing"},
                 [&] { softfold::join_cross_entropy(partials.view(), rows.targets.view(), loss.view(), o); });
  Owned without = folded(rows, cuts);
  expect_refused("no targets", Code::state, {"partials without targets", "targets' elements", "fold_shard"},
                 [&] { softfold::join_cross_entropy(without.view(), rows.targets.view(), loss.view()); });
  reinterpret_cast<std::int64_t*>(rows.targets.bytes.data())[1] = 3000;
  expect_refused("a target that is no class", Code::data, {"target 3000 for row 1", "0 .. 2999"},
                 [&] { softfold::join_cross_entropy(partials.view(), rows.targets.view(), loss.view()); });
  const softfold::Device gpu{softfold::DeviceKind::cuda, 0};
  expect_refused("on a GPU", Code::unsupported, {"partials on a GPU", "host", "copy it"}, [&] {
    softfold::join_states(View(partials.bytes.data(), DType::float64, partials.shape, {}, gpu), states.view());
  });
  ShardOptions shard;
  shard.shard = {1, 3000};
  expect_refused("beyond the rows", Code::shape, {"a shard of 3000 elements at 1 of rows of 3000"},
                 [&] { softfold::fold_shard(rows.x.view(), partials.view(), shard); });
  softfold::SampleOptions draw;
  const auto expect_draw = [&](const std::string& what, Code code, const Words& words) {
    Owned tokens(DType::int64, {kRows});
    expect_refused(what, code, words, [&] {
      softfold::sample_shard(rows.cut(rows.x, 0, 1000), partials.view(), tokens.view(), {0, 3000}, draw);
    });
  };
  draw.top_k = 5;
  expect_draw("a filter", Code::unsupported, {"top_k for sample_shard", "seed", "join_topk"});
  draw = {};
  expect_refused("another shard than was folded", Code::state, {"no partial of the shard of 900 elements at 0"}, [&] {
    Owned tokens(DType::int64, {kRows});
    softfold::sample_shard(rows.cut(rows.x, 0, 900), partials.view(), tokens.view(), {0, 3000}, draw);
  });
  draw.rows.scale = 2;
  expect_draw("another scale", Code::state, {"scale 2.0"});
  expect_refused("too narrow", Code::shape, {"[9, 12]", "at least "}, [&] {
    shard.shard = {0, 4000};
    Owned narrow(DType::float64, {kRows, 12});
    softfold::fold_shard(rows.x.view(), narrow.view(), shard);
  });
}

}  // namespace
}  // namespace softfold_test
