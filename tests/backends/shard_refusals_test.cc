// What shards refuse: partials that do not make up rows, those that no fold has written, options without a meaning.
#include "support/shard_rows.hpp"

#include "refuse/refusal.hpp"

#include "softfold/softfold.hpp"

namespace softfold_test {
namespace {

using softfold::CrossEntropyOptions;
using softfold::Shard;

constexpr std::size_t kHead = 10;  // the numbers before the largest elements

/// Partials by hand, one row of one part each: rows of no memory to speak of, of any size.
struct Parts {
  std::size_t width;
  std::vector<double> numbers;

  explicit Parts(std::size_t elements) : width(kHead + elements) {}
  double* add(double offset, double length, double size) {
    numbers.resize(numbers.size() + width);
    double* const part = &*numbers.end() - width;
    const double head[kHead] = {SOFTFOLD_BITS_VERSION, 24, 1, size, offset, length, 0, 0, 0, -1};
    std::copy(head, head + kHead, part);
    return part + kHead;
  }
  void join(std::int64_t words_of_stride = -1) {
    double states[4];
    const auto wide = static_cast<std::int64_t>(width);
    const Sizes shape{std::ssize(numbers) / wide, 1, wide}, of{1, 4};
    const Sizes strides{words_of_stride < 0 ? wide : words_of_stride, wide, 1};
    softfold::join_states(View(numbers.data(), DType::float64, shape, strides), View(states, DType::float64, of));
  }
};

/// Three shards of rows, good ones.
struct Good {
  Rows rows{DType::float32, 3000, 1, false, 5};
  Sizes cuts{0, 1000, 2500, 3000};
  Owned partials = folded(rows, cuts, 2, true), states{DType::float64, {kRows, 4}}, loss{DType::float32, {}};
};

TEST(ShardRefusals, NumbersThatNoFoldHasWritten) {
  Good good;
  const Bytes before = good.states.bytes;
  const auto expect = [&](const std::string& what, const Words& words, std::size_t part, std::size_t word,
                          double value) {
    Owned bad = good.partials;
    const auto width = static_cast<std::size_t>(bad.shape[2]);
    // The last row: nothing is written before all of them have been looked at.
    std::memcpy(bad.bytes.data() + ((part * kRows + kRows - 1) * width + word) * sizeof value, &value, sizeof value);
    expect_refused(what, Code::state, words, [&] { softfold::join_states(bad.view(), good.states.view()); });
    EXPECT_EQ(good.states.bytes, before);
  };
  expect("another definition", {"bits version 99 in the partials of row 8"}, 1, 0, 99);
  expect("digits", {"digits 12"}, 1, 1, 12);
  expect("digits of some", {"digits 24 and 53"}, 0, 1, 53);
  expect("scale", {"scales", "one scale"}, 0, 2, 2);
  expect("size", {"rows of 3001"}, 0, 3, 3001);
  expect("length", {"a shard at 2500"}, 0, 5, 501);
  expect("a NaN for a length", {"a shard at"}, 0, 5, NAN);
  expect("k", {"k = 1"}, 2, 6, 1);
  expect("no k", {"k = 0.5"}, 2, 6, 0.5);
  expect("k of many", {"k = 100000"}, 2, 6, 100000);
  expect("a mark that is none", {"a mark of targets 2", "0 or 1"}, 2, 7, 2);
  expect("a target beyond the rows", {"target 3000"}, 1, 9, 3000);
  expect("an index", {"index 7"}, 0, kHead + 1, 7);
  expect("an element behind a smaller one", {"index "}, 0, kHead + 2, 1e30);
  expect_refused("targets of some", Code::state, {"some with targets, some without", "for none"}, [&] {
    Parts two(1);
    two.add(0, 1, 2);
    two.add(1, 1, 2)[-3] = 1;
    two.join();
  });
  for (const auto& wrong : {std::pair(-kInfinity, -1.), std::pair(-kInfinity, -0.), std::pair(1e300, 1.)})
    expect_refused("a node", Code::state, {"(m, d)"}, [&] {
      Parts one(2);
      double* const node = one.add(0, 1024, 1024);
      node[0] = wrong.first, node[1] = wrong.second;
      one.join();
    });
}

// 2^53 + 1 is 2^53 in float64: the elements of ever more parts would be taken for those of one chunk.
TEST(ShardRefusals, PlacesThatAreLargerThanTheRowByARounding) {
  Parts many(2);
  many.add(0, 0x1p53, 0x1p53)[0] = -kInfinity;
  for (int i = 0; i < 3000; ++i) many.add(0x1p53, 1, 0x1p53);
  expect_refused("behind the row", Code::state, {"a shard at 9007199254740992 of 1 elements"}, [&] { many.join(); });
  Parts one(3);
  one.add(0x1p53 - 1, 2, 0x1p53);
  expect_refused("over the end", Code::state, {"a shard at 9007199254740991 of 2 elements"}, [&] { one.join(); });
}

// The order of NaNs is none: enough parts that a sort that believed in one would run out of them.
TEST(ShardRefusals, APlaceThatIsNoNumberAmongManyParts) {
  Parts many(1);
  for (int i = 0; i < 40; ++i) many.add(i % 3 == 1 ? std::nan("") : 40. - i, 1, 41);
  expect_refused("a NaN", Code::state, {"a shard at nan of 1 elements"}, [&] { many.join(); });
}

TEST(ShardRefusals, ShardsThatDoNotLieEndToEnd) {
  Good good;
  Rows& rows = good.rows;
  Owned& states = good.states;
  const Sizes two{2, kRows, good.partials.shape[2]};
  expect_refused("a missing shard", Code::state, {"no elements 0 to 1000"},
                 [&] { softfold::join_states(View(good.partials.bytes.data(), DType::float64, two), states.view()); });
  expect_refused("a gap", Code::state, {"no elements 1000 to 1001", "end to end", "add their shard"}, [&] {
    Owned gap = folded(rows, {0, 1000, 1001, 3000});
    const Sizes outer{2, kRows, gap.shape[2]};  // the first and the last of the three
    const Sizes strides{2 * kRows * gap.shape[2], gap.shape[2], 1};
    softfold::join_states(View(gap.bytes.data(), DType::float64, outer, strides), states.view());
  });
  expect_refused("a shard twice", Code::state, {"elements 0 to 3000 twice", "end to end", "leave one shard out"}, [&] {
    Owned once = folded(rows, {0, 3000});
    const Sizes twice{2, kRows, once.shape[2]}, strides{0, once.shape[2], 1};
    softfold::join_states(View(once.bytes.data(), DType::float64, twice, strides), states.view());
  });
  Parts one(2);
  one.add(0, 1, 1)[0] = -kInfinity;
  EXPECT_NO_THROW(one.join(std::numeric_limits<std::int64_t>::max()));  // a stride over one part is over none
  const Shard ten{0, 10};
  expect_refused("fewer elements than none", Code::shape, {"a shard of -5 elements", "0 or more"},
                 [&] { softfold::partial_width(-5, ten); });
  ShardOptions shard;
  shard.shard = {1, 3000};
  expect_refused("beyond the rows", Code::shape, {"a shard of 3000 elements at 1 of rows of 3000"},
                 [&] { softfold::fold_shard(rows.x.view(), good.partials.view(), shard); });
  shard.shard = {0, 4000};
  expect_refused("too narrow", Code::shape, {"[9, 12]", "at least "}, [&] {
    Owned narrow(DType::float64, {kRows, 12});
    softfold::fold_shard(rows.x.view(), narrow.view(), shard);
  });
}

TEST(ShardRefusals, JoinsOfWhatWasNotFolded) {
  Good good;
  Rows& rows = good.rows;
  Owned& partials = good.partials;
  Owned &loss = good.loss, values(DType::float32, {kRows, 3}), indices(DType::int64, {kRows, 3});
  expect_refused("more than was folded", Code::shape, {"k = 3 of partials with k = 2"},
                 [&] { softfold::join_topk(partials.view(), values.view(), indices.view()); });
  CrossEntropyOptions o;
  o.label_smoothing = 0.1;
  const auto join = [&](Owned& of) { softfold::join_cross_entropy(of.view(), rows.targets.view(), loss.view(), o); };
  expect_refused("smoothing", Code::unsupported, {"label_smoothing"}, [&] { join(partials); });
  o = {};
  Owned without = folded(rows, good.cuts);
  expect_refused("no targets", Code::state, {"partials without targets", "targets' elements", "fold_shard"},
                 [&] { join(without); });
  auto* const targets = reinterpret_cast<std::int64_t*>(rows.targets.bytes.data());
  const std::int64_t before = std::exchange(targets[1], 3000);
  expect_refused("a target that is no class", Code::data, {"target 3000 for row 1", "0 .. 2999"},
                 [&] { join(partials); });
  targets[1] = (before + 1) % 3000;
  expect_refused("another target", Code::state,
                 {"target " + std::to_string(before) + " (-1: none) in the partials of row 1",
                  "target " + std::to_string(targets[1]), "same targets on all ranks"},
                 [&] { join(partials); });
  targets[1] = o.ignore_index;
  EXPECT_NO_THROW(join(partials));  // what is ignored may have been anything
  const softfold::Device other{static_cast<softfold::DeviceKind>(10), 0};
  expect_refused("on a device of another kind", Code::unsupported, {"device kind 10", "CPU", "copy the data"}, [&] {
    const View from(partials.bytes.data(), DType::float64, partials.shape, {}, other);
    softfold::join_states(from, View(good.states.bytes.data(), DType::float64, good.states.shape, {}, other));
  });
}

TEST(ShardRefusals, Draws) {
  Good good;
  softfold::SampleOptions draw;
  const auto expect = [&](const std::string& what, Code code, const Words& words, std::int64_t n = 1000) {
    Owned tokens(DType::int64, {kRows});
    expect_refused(what, code, words, [&] {
      softfold::sample_shard(good.rows.cut(good.rows.x, 0, n), good.partials.view(), tokens.view(), {0, 3000}, draw);
    });
    draw = {};
  };
  draw.top_k = 5;
  expect("a filter", Code::unsupported, {"top_k for sample_shard", "seed", "join_topk"});
  draw.order = softfold::FilterOrder::min_p_last;
  expect("an order of filters", Code::unsupported, {"order for sample_shard"});
  draw.of = softfold::Distribution::sampled;
  expect("a distribution of results", Code::unsupported, {"of for sample_shard"});
  draw.rows.empty = softfold::Empty::nan;
  expect("what empty rows have", Code::unsupported, {"empty for sample_shard"});
  expect("another shard than was folded", Code::state, {"no partial of the shard of 900 elements at 0"}, 900);
  draw.rows.scale = 1 / 0.7;
  expect("another scale", Code::state, {"scale 1.4285714285714286 for partials of row 0 with scale 1"});
  std::vector<double> scales(kRows, 1e39);
  const Sizes per_row{kRows};
  draw.rows.scales = View(scales.data(), DType::float64, per_row);
  expect("a scale beyond float32", Code::data, {"scale 1e+39 for row 0", "join_topk with k = 1"});
}

}  // namespace
}  // namespace softfold_test
