// Rows cut into shards and joined have the bits of whole rows, wherever the cuts are.
#include "support/shard_rows.hpp"
#include "support/thread_counts.hpp"

#include "softfold/lift/shard.hpp"
#include "softfold/softfold.hpp"

namespace softfold_test {
namespace {

namespace lift = softfold::lift;
using softfold::CrossEntropyOptions;
using softfold::Reduction;
using softfold::TopkOptions;

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

/// An axis that is not the last, lengths and scales of rows, every element apart from its neighbour.
TEST(Shards, StridedRowsWithLengthsAndScalesOfTheirOwn) {
  constexpr std::int64_t n = 5000, rows = 4;
  std::vector<float> x(2 * n * rows);
  Random random(11);
  for (float& v : x) v = static_cast<float>(random.uniform(-4, 4));
  const Sizes cuts{0, 700, 2048, 3000, n}, per_row{rows}, shape{n, rows}, strides{2 * rows, 2}, four{rows, 4};
  std::vector<std::int32_t> lengths{5000, 2500, 0, 699}, own(rows);
  std::vector<float> scales{1, 0.25F, -2, 3};
  softfold::RowOptions o;
  o.axis = 0, o.scale = 0.5;
  o.length = View(lengths.data(), DType::int32, per_row);
  o.scales = View(scales.data(), DType::float32, per_row);
  std::vector<double> whole(4 * rows), joined(4 * rows);
  softfold::state(View(x.data(), DType::float32, shape, strides), View(whole.data(), DType::float64, four), o);
  const std::int64_t width = 2100, parts = std::ssize(cuts) - 1;
  std::vector<double> partials(static_cast<std::size_t>(parts * rows * width));
  const Sizes one{rows, width}, all{parts, rows, width};
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::int64_t begin = cuts[i], size = cuts[i + 1] - begin;
    for (std::size_t r = 0; r < own.size(); ++r)
      own[r] = static_cast<std::int32_t>(std::clamp<std::int64_t>(lengths[r] - begin, 0, size));
    const Sizes cut{size, rows};
    ShardOptions shard;
    shard.rows = o, shard.shard = {begin, n};
    shard.rows.length = View(own.data(), DType::int32, per_row);
    softfold::fold_shard(View(x.data() + 2 * rows * begin, DType::float32, cut, strides),
                         View(partials.data() + static_cast<std::int64_t>(i) * rows * width, DType::float64, one),
                         shard);
  }
  softfold::join_states(View(partials.data(), DType::float64, all), View(joined.data(), DType::float64, four));
  EXPECT_EQ(whole, joined);
}

TEST(Shards, TheSameBitsOnAnyNumberOfThreads) {
  Rows rows(DType::bfloat16, 9300, 0.75, true, 77);
  const Sizes cuts{0, 1500, 4096, 4097, rows.n};
  Owned partials = folded(rows, cuts, 3, true);
  std::vector<Bytes> first;
  for (const int threads : kThreadCounts) {
    const auto executor = softfold::make_thread_executor(threads);
    const softfold::Context context{executor.get(), nullptr, nullptr};
    Owned own(DType::float64, {kRows, partials.shape[2]}), states(DType::float64, {kRows, 4}), loss(rows.dtype, {});
    Owned values(rows.dtype, {kRows, 3}), indices(DType::int64, {kRows, 3}), tokens(DType::int64, {kRows});
    ShardOptions shard;
    shard.shard = {0, rows.n}, shard.k = 3, shard.targets = rows.targets.view(), shard.rows = rows.options;
    softfold::fold_shard(rows.x.view(), own.view(), shard, context);
    softfold::join_states(partials.view(), states.view(), context);
    softfold::join_cross_entropy(partials.view(), rows.targets.view(), loss.view(), {}, context);
    softfold::join_topk(partials.view(), values.view(), indices.view(), {}, context);
    softfold::SampleOptions draw;
    draw.rows = rows.options;
    const Sizes mask{kRows, 2596};
    draw.rows.mask = View(rows.mask.bytes.data() + 1500, DType::boolean, mask, rows.wide);
    softfold::sample_shard(rows.cut(rows.x, 1500, 4096), partials.view(), tokens.view(), {1500, rows.n}, draw, context);
    const std::vector<Bytes> all{own.bytes, states.bytes, loss.bytes, values.bytes, indices.bytes, tokens.bytes};
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
}

/// A row of 2^32 + 5 elements, of which the first 2^32 are -inf: its draws are those of the last five.
TEST(Shards, SampleDrawsBehindTwoToThe32Elements) {
  constexpr std::int64_t before = std::int64_t{1} << 32, size = before + 5, width = 17;
  float x[] = {1, 2, 0.5F, 1.5F, 2};
  std::int64_t whole = -7, own = -7, other = -7;
  const Sizes row{1, 5}, none{1, 0}, one{1}, part{1, width}, parts{2, 1, width};
  std::vector<double> partials(2 * width);
  ShardOptions shard;
  shard.shard = {before, size};
  softfold::fold_shard(View(x, DType::float32, row), View(partials.data(), DType::float64, part), shard);
  shard.shard = {0, size};
  double* const empty = partials.data() + width;
  softfold::fold_shard(View(x, DType::float32, none), View(empty, DType::float64, part), shard);
  empty[5] = static_cast<double>(before), empty[10] = -kInfinity;  // its length, and its only node
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    softfold::SampleOptions o;
    o.seed = seed;
    const View to(&own, DType::int64, one), gathered(partials.data(), DType::float64, parts);
    softfold::sample(View(x, DType::float32, row), View(&whole, DType::int64, one), o);
    softfold::sample_shard(View(x, DType::float32, row), gathered, to, {before, size}, o);
    EXPECT_EQ(own, before + whole);
    softfold::sample_shard(View(x, DType::float32, none), gathered, View(&other, DType::int64, one), {0, size}, o);
    EXPECT_EQ(other, -1);
  }
}

/// A target may be any number where the join ignores it.
TEST(Shards, TargetsThatAreIgnoredMayBeAnyNumber) {
  Rows rows(DType::float32, 3000, 1, false, 5);
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  auto* const targets = reinterpret_cast<std::int64_t*>(rows.targets.bytes.data());
  targets[0] = targets[6] = least;
  CrossEntropyOptions o;
  o.ignore_index = least;
  Owned loss(DType::float32, {}), joined = loss, states(DType::float64, {kRows, 4}), dloss = loss;
  softfold::cross_entropy(rows.x.view(), rows.targets.view(), loss.view(), o);
  o.states = states.view();
  softfold::join_cross_entropy(folded(rows, {0, 1000, 3000}, 0, true).view(), rows.targets.view(), joined.view(), o);
  EXPECT_EQ(loss.bytes, joined.bytes);
  o.states = {};
  o.shard = {1000, 3000};
  Owned dx(DType::float32, {kRows, 2000});
  softfold::cross_entropy_backward(rows.cut(rows.x, 1000, 3000), rows.targets.view(), states.view(), dloss.view(),
                                   dx.view(), o);
  const std::vector<unsigned char> zeros(2000 * sizeof(float));
  EXPECT_TRUE(std::equal(zeros.begin(), zeros.end(), dx.bytes.begin()));
}

}  // namespace
}  // namespace softfold_test
