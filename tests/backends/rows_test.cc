// A row's bits are its own: the same alone, in a batch, ragged, under a length, streamed, sharded and joined,
// whatever stands where nothing exists.
#include "backends/matrix.hpp"
#include "support/row_reference.hpp"

#include "softfold/lift/stream.hpp"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

namespace softfold_test {
namespace {

/// Elements [begin, begin + n) of a contiguous array's bytes.
std::vector<unsigned char> slice(const Array& t, std::int64_t begin, std::int64_t n) {
  const auto all = t.elements();
  const auto size = static_cast<std::int64_t>(size_of(t.dtype()));
  return {all.begin() + begin * size, all.begin() + (begin + n) * size};
}

TEST(Rows, AloneAsInABatch) {
  int rows = 0;
  for (std::size_t k = 0; k < cases().size(); k += kStep) {
    if (!cases()[k].rows) continue;
    const RowCase& c = *cases()[k].rows;
    if (c.shape.size() != 2 || c.axis != -1 || c.causal || c.ragged || c.mask == MaskShape::last_axis) continue;
    const Array& batch = Baseline::of(k).outputs[0];
    const std::int64_t per_row = c.rows() == 0 ? 0 : batch.count() / c.rows();
    for (std::int64_t r = 0; r < c.rows(); r += 1 + c.rows() / 40) {
      RowCase alone = c;
      alone.shape[0] = 1;
      alone.first_row = r;
      Problem p = make_problem(alone);
      run(p);
      EXPECT_EQ(p.outputs[0].elements(), slice(batch, r * per_row, per_row)) << c.name() << ", row " << r;
      ++rows;
    }
  }
  EXPECT_GT(rows, 2000 / static_cast<int>(kStep));
}

// What a mask, a length or causality takes away may be NaN, infinite or huge: it is never read arithmetically.
TEST(Rows, NothingLeaksFromWhatDoesNotExist) {
  int poisoned = 0;
  expect_baseline_bits("poisoned", [&](std::size_t i) {
    const Case& c = cases()[i];
    if (!c.rows || (c.rows->mask == MaskShape::none && !c.rows->length && !c.rows->causal)) return Baseline::of(i);
    RowCase bad = *c.rows;
    bad.poison = true;
    Problem p = make_problem(bad);
    run(p);
    ++poisoned;
    return p;
  });
  EXPECT_GT(poisoned, 100 / static_cast<int>(kStep));
}

// Row r of ragged rows, row r under a length, and a tensor of that length alone: one answer.
TEST(Rows, ARowIsItsFirstElementsHoweverThatIsSaid) {
  for (const DType t : {DType::float32, DType::float64, DType::float16, DType::bfloat16})
    for (const Op op : {Op::softmax, Op::log_softmax}) {
      RowCase c;
      c.op = op;
      c.in = c.out = t;
      c.shape = {9, 2600};
      c.kind = Kind::gaussian;
      RowCase with_length = c, ragged = c;
      with_length.length = ragged.ragged = true;
      Problem a = make_problem(with_length), b = make_problem(ragged);
      run(a);
      run(b);
      std::int64_t at = 0;
      for (std::int64_t r = 0; r < 9; ++r) {
        const std::int64_t n = with_length.length_of_row(r);
        const auto x = c.row(r);
        Problem alone;
        alone.op = op;
        alone.inputs.emplace_back(t, Shape{n});
        for (std::int64_t i = 0; i < n; ++i) alone.inputs[0].set_value(i, x[static_cast<std::size_t>(i)]);
        alone.outputs.emplace_back(t, Shape{n});
        run(alone);
        const auto expected = alone.outputs[0].elements();
        EXPECT_EQ(slice(a.outputs[0], r * 2600, n), expected) << softfold::name_of(t) << " row " << r;
        EXPECT_EQ(slice(b.outputs[0], at, n), expected) << softfold::name_of(t) << " row " << r;
        at += n;
      }
    }
}

template <class S>
class Shards : public testing::Test {};
using Storages = testing::Types<float, double, fold::Float16, fold::BFloat16>;
TYPED_TEST_SUITE(Shards, Storages);

template <class S>
constexpr DType kDType = std::is_same_v<S, double>          ? DType::float64
                         : std::is_same_v<S, float>         ? DType::float32
                         : std::is_same_v<S, fold::Float16> ? DType::float16
                                                            : DType::bfloat16;

/// One row, whole, and what its states and shards give.
template <class S>
struct WholeRow {
  using T = fold::FoldType<S>;
  std::vector<S> x;
  std::vector<T> wide;
  double scale;
  std::vector<S> y, log_y;
  double state[4];

  WholeRow(Kind kind, std::int64_t n, double s) : x(make_row<S>(kind, n)), scale(s), y(x.size()), log_y(x.size()) {
    for (const S v : x) wide.push_back(fold::widen(v));
    apply(Op::softmax, 0, n, nullptr, y.data());
    apply(Op::log_softmax, 0, n, nullptr, log_y.data());
    const std::int64_t shape[] = {n}, four[] = {4};
    const View in(x.data(), kDType<S>, shape), out(state, DType::float64, four);
    softfold::RowOptions o;
    o.scale = scale;
    softfold::plan(Op::state, {&in, 1}, {&out, 1}, o).run();
  }

  /// op on x[begin, end), given the row's state where the operation takes one.
  void apply(Op op, std::int64_t begin, std::int64_t end, const double* states, S* to) const {
    const std::int64_t shape[] = {end - begin}, four[] = {4};
    std::vector<View> in{View(x.data() + begin, kDType<S>, shape)};
    if (states != nullptr) in.emplace_back(states, DType::float64, four);
    const View out(to, kDType<S>, shape);
    softfold::RowOptions o;
    o.scale = scale;
    softfold::plan(op, in, {&out, 1}, o).run();
  }

  std::vector<double> stored(const typename fold::LogSumExp<T>::State& s) const {
    return {s.m, static_cast<double>(s.d), scale, static_cast<double>(fold::Real<T>::kDigits)};
  }
};

/// The row cut at `cuts`; pieces folded apart, joined in another order, finished shard by shard.
template <class S>
void check_cuts(const WholeRow<S>& row, std::vector<std::int64_t> cuts) {
  using T = fold::FoldType<S>;
  const auto n = static_cast<std::int64_t>(row.x.size());
  cuts.push_back(0);
  cuts.push_back(n);
  std::sort(cuts.begin(), cuts.end());
  std::vector<softfold::Partial<T>> parts;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    parts.emplace_back(row.scale, cuts[i]);
    parts.back().append(std::span(row.wide).subspan(static_cast<std::size_t>(cuts[i]),
                                                    static_cast<std::size_t>(cuts[i + 1] - cuts[i])));
  }
  for (std::size_t i = parts.size(); i-- > 1;) {  // the last two first
    parts[i - 1].join(parts[i]);
    parts.pop_back();
  }
  const auto state = row.stored(parts[0].state());
  for (std::size_t k = 0; k < 4; ++k) EXPECT_EQ(bits(state[k]), bits(row.state[k])) << k;
  std::vector<S> y(row.x.size()), log_y(row.x.size());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    row.apply(Op::finish_softmax, cuts[i], cuts[i + 1], state.data(), y.data() + cuts[i]);
    row.apply(Op::finish_log_softmax, cuts[i], cuts[i + 1], state.data(), log_y.data() + cuts[i]);
  }
  EXPECT_EQ(std::memcmp(y.data(), row.y.data(), y.size() * sizeof(S)), 0);
  EXPECT_EQ(std::memcmp(log_y.data(), row.log_y.data(), log_y.size() * sizeof(S)), 0);
}

TYPED_TEST(Shards, JoinedAndFinishedHaveTheWholeRowsBits) {
  for (int k = 0; k < static_cast<int>(Kind::count); ++k)
    for (const std::int64_t n : {1, 1500, 9000}) {
      SCOPED_TRACE(testing::Message() << name_of(static_cast<Kind>(k)) << " n=" << n);
      const WholeRow<TypeParam> row(static_cast<Kind>(k), n, k % 3 == 0 ? 0.7 : 1.);
      check_cuts(row, {n / 3, n / 2, n - 1});
      check_cuts(row, {std::min<std::int64_t>(n, 1024), std::min<std::int64_t>(n, 3072)});
    }
}

// What a state does not cover was not in the row that it is the state of: NaN, and the others as they are.
TYPED_TEST(Shards, WhatTheStateDoesNotCoverBecomesNaN) {
  using Lse = fold::LogSumExp<fold::FoldType<TypeParam>>;
  for (const std::int64_t n : {3, 100, 1500, 5000}) {
    SCOPED_TRACE(n);
    const WholeRow<TypeParam> row(Kind::gaussian, n, 0.7);
    for (const double foreign : {1e4, static_cast<double>(INFINITY), static_cast<double>(NAN)})
      for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
        WholeRow<TypeParam> other = row;
        other.x[static_cast<std::size_t>(at)] = fold::narrow<TypeParam>(foreign);
        std::vector<TypeParam> y(row.x.size()), log_y(row.x.size());
        other.apply(Op::finish_softmax, 0, n, row.state, y.data());
        other.apply(Op::finish_log_softmax, 0, n, row.state, log_y.data());
        for (std::size_t i = 0; i < y.size(); ++i) {
          if (i == static_cast<std::size_t>(at)) {
            EXPECT_TRUE(fold::is_nan(fold::widen(y[i])) && fold::is_nan(fold::widen(log_y[i]))) << i;
          } else {
            EXPECT_EQ(fold::widen(y[i]), fold::widen(row.y[i])) << i;
            EXPECT_EQ(fold::widen(log_y[i]), fold::widen(row.log_y[i])) << i;
          }
        }
        other.apply(Op::finish_softmax, 0, n, row.stored(Lse::identity()).data(), y.data());
        for (const TypeParam v : y) EXPECT_TRUE(fold::is_nan(fold::widen(v)));
      }
  }
}

// Bare states are right in any order, and have the row's bits where every cut is aligned: whole subtrees.
TYPED_TEST(Shards, BareStatesOfAlignedShardsMergeToTheWholeRowsBits) {
  const WholeRow<TypeParam> row(Kind::gaussian, 8 * 1024 - 100, 1.);
  std::vector<std::vector<double>> states;
  for (const auto& [begin, end] : {std::pair{0, 4096}, std::pair{4096, 8192 - 100}}) {
    const std::int64_t shape[] = {end - begin}, four[] = {4};
    std::vector<double>& s = states.emplace_back(4);
    const View in(row.x.data() + begin, kDType<TypeParam>, shape), out(s.data(), DType::float64, four);
    softfold::plan(Op::state, {&in, 1}, {&out, 1}).run();
  }
  const std::int64_t four[] = {4};
  double merged[4];
  for (const bool swapped : {false, true}) {
    const View in[] = {View(states[swapped ? 1 : 0].data(), DType::float64, four),
                       View(states[swapped ? 0 : 1].data(), DType::float64, four)};
    const View out(merged, DType::float64, four);
    softfold::plan(Op::merge_states, in, {&out, 1}, softfold::MergeOptions{}).run();
    for (std::size_t k = 0; k < 4; ++k) EXPECT_EQ(bits(merged[k]), bits(row.state[k]));
  }
}

// Ragged rows are as many elements as there are, not rows times the longest.
TEST(Rows, OneLongRowAmongManyShortOnesDoesNotMakeEachOfThemATask) {
  struct Counting final : softfold::Executor {
    std::int64_t tasks = 0;
    int concurrency() const override { return 4; }
    void run(std::int64_t n, Task task, void* argument) override {
      tasks += n;
      for (std::int64_t i = 0; i < n; ++i) task(argument, i);
    }
  } executor;
  constexpr std::int64_t rows = 4096, longest = 1 << 20;
  std::vector<std::int64_t> offsets(rows + 1);
  for (std::int64_t r = 0; r < rows; ++r)
    offsets[static_cast<std::size_t>(r + 1)] = offsets[static_cast<std::size_t>(r)] + (r == 1000 ? longest : 1);
  const std::vector<float> x(static_cast<std::size_t>(offsets.back()));
  std::vector<float> lse(rows);
  const std::int64_t x_shape[] = {offsets.back()}, offsets_shape[] = {rows + 1}, lse_shape[] = {rows};
  softfold::RowOptions options;
  options.offsets = View(offsets.data(), DType::int64, offsets_shape);
  softfold::logsumexp(View(x.data(), DType::float32, x_shape), View(lse.data(), DType::float32, lse_shape), options,
                      {&executor, nullptr, nullptr});
  EXPECT_LE(executor.tasks, 32);
  EXPECT_EQ(lse[1000], std::log(static_cast<float>(longest)));
  EXPECT_EQ(lse[999], 0.F);
}

}  // namespace
}  // namespace softfold_test
