// Ragged rows that do not cover x: what results of x's shape hold where no row is.
#include "softfold/softfold.hpp"
#include "support/linear_reference.hpp"

#include <gtest/gtest.h>
#include <functional>

namespace softfold_test {
namespace {

using softfold::RowOptions;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Operands of every operation that takes ragged rows, of x's shape and one a row.
struct RaggedCase {
  Array x, other, y, also, offsets, targets, row, states, other_states;

  RaggedCase(DType t, const std::vector<std::int64_t>& at, std::int64_t n, Layout layout)
      : x(t, {n}, layout),
        other(t, {n}, layout),
        y(t, {n}, layout),
        also(t, {n}, layout),
        offsets(n % 2 == 0 ? DType::int32 : DType::int64, {std::ssize(at)}),
        targets(DType::int64, {std::ssize(at) - 1}),
        row(t, {std::ssize(at) - 1}),
        states(DType::float64, {std::ssize(at) - 1, 4}),
        other_states(states) {
    Random random(static_cast<std::uint64_t>(n));
    for (std::int64_t k = 0; k < n; ++k)
      x.set_value(k, random.uniform(-3, 3)), other.set_value(k, random.uniform(-3, 3));
    for (std::size_t r = 0; r < at.size(); ++r)
      offsets.set_value(static_cast<std::int64_t>(r), static_cast<double>(at[r]));
    for (std::int64_t r = 0; r < row.count(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      row.set_value(r, random.uniform(-1, 1));
      targets.set_value(r, at[i] == at[i + 1] ? -100 : 0);
    }
  }
};

struct RaggedOp {
  const char* name;
  double outside;
  std::function<void(RaggedCase&, const RowOptions&)> run;  ///< writes y, and maybe `also`
};

const RaggedOp kRaggedOps[] = {
    {"softmax", 0, [](RaggedCase& c, const RowOptions& o) { softfold::softmax(c.x.view(), c.y.view(), o); }},
    {"log_softmax", -kInfinity,
     [](RaggedCase& c, const RowOptions& o) { softfold::log_softmax(c.x.view(), c.y.view(), o); }},
    {"softmax_backward", 0,
     [](RaggedCase& c, const RowOptions& o) { softfold::softmax_backward(c.x.view(), c.other.view(), c.y.view(), o); }},
    {"log_softmax_backward", 0,
     [](RaggedCase& c, const RowOptions& o) {
       softfold::log_softmax_backward(c.x.view(), c.other.view(), c.y.view(), o);
     }},
    {"logsumexp_backward", 0,
     [](RaggedCase& c, const RowOptions& o) {
       softfold::state(c.x.view(), c.states.view(), o);
       softfold::logsumexp_backward(c.x.view(), c.states.view(), c.row.view(), c.y.view(), o);
     }},
    {"finish_softmax", 0,
     [](RaggedCase& c, const RowOptions& o) {
       softfold::state(c.x.view(), c.states.view(), o);
       softfold::finish_softmax(c.x.view(), c.states.view(), c.y.view(), o);
     }},
    {"finish_log_softmax", -kInfinity,
     [](RaggedCase& c, const RowOptions& o) {
       softfold::state(c.x.view(), c.states.view(), o);
       softfold::finish_log_softmax(c.x.view(), c.states.view(), c.y.view(), o);
     }},
    {"cross_entropy", 0,
     [](RaggedCase& c, const RowOptions& o) {
       softfold::CrossEntropyOptions own;
       own.rows = o, own.reduction = softfold::Reduction::none, own.dx = c.y.view(), own.states = c.states.view();
       softfold::cross_entropy(c.x.view(), c.targets.view(), c.row.view(), own);
     }},
    {"entropy", 0,
     [](RaggedCase& c, const RowOptions& o) {
       softfold::EntropyOptions own;
       own.rows = o, own.dx = c.y.view();
       softfold::entropy(c.x.view(), c.row.view(), own);
     }},
    {"kl_divergence", 0,
     [](RaggedCase& c, const RowOptions& o) {
       softfold::KlDivergenceOptions own;
       own.rows = o, own.dp = c.y.view(), own.dq = c.also.view();
       softfold::kl_divergence(c.x.view(), c.other.view(), c.row.view(), own);
     }},
    {"kl_divergence_backward, dq alone", 0,
     [](RaggedCase& c, const RowOptions& o) {
       softfold::state(c.x.view(), c.states.view(), o), softfold::state(c.other.view(), c.other_states.view(), o);
       softfold::kl_divergence_backward(c.x.view(), c.other.view(), c.states.view(), c.other_states.view(),
                                        c.row.view(), {}, c.y.view(), {.rows = o});
     }},
};

/// Elements begin .. end of `whole` are what they are in an x that ends there.
void expect_like_covered(const Array& whole, const Array& covered, std::int64_t begin, double outside) {
  for (std::int64_t k = 0; k < whole.count(); ++k) {
    const bool inside = k >= begin && k < begin + covered.count();
    EXPECT_EQ(number(whole, k), inside ? number(covered, k - begin) : outside) << k;
  }
  EXPECT_TRUE(whole.only_elements_written());
}

TEST(Ragged, WhereNoRowIsResultsAreAsIfHidden) {
  const std::pair<std::vector<std::int64_t>, std::int64_t> kinds[] = {
      {{2, 5, 5, 9}, 12}, {{0, 4, 7}, 7}, {{0, 3}, 8}, {{6, 8}, 8},
      {{3}, 6},           {{0}, 5},       {{4, 4}, 9}, {{1, 2000, 5001}, 6003}};
  for (const auto& [at, n] : kinds)
    for (const DType t : {DType::float32, DType::float64, DType::float16, DType::bfloat16})
      for (const Layout layout : {Layout::contiguous, Layout::every_second})
        for (const RaggedOp& op : kRaggedOps) {
          SCOPED_TRACE(op.name + (" of " + std::to_string(n)) + " " + std::string(name_of(t)));
          const std::int64_t begin = at.front(), end = at.back();
          std::vector<std::int64_t> shifted;
          for (const std::int64_t offset : at) shifted.push_back(offset - begin);
          RaggedCase whole(t, at, n, layout), covered(t, shifted, end - begin, layout);
          for (Array RaggedCase::*of_x : {&RaggedCase::x, &RaggedCase::other})
            for (std::int64_t k = begin; k < end; ++k) (covered.*of_x).set_value(k - begin, number(whole.*of_x, k));
          for (std::int64_t r = 0; r < whole.row.count(); ++r) covered.row.set_value(r, number(whole.row, r));
          for (RaggedCase* c : {&whole, &covered}) op.run(*c, {.offsets = c->offsets.view()});
          expect_like_covered(whole.y, covered.y, begin, op.outside);
          if (op.name == std::string_view("kl_divergence"))
            expect_like_covered(whole.also, covered.also, begin, op.outside);
        }
}

/// Few long rows, which threads share by blocks of the longest: shorter ones have nothing in most of these.
TEST(Ragged, RowsOfUnequalLengthsThatThreadsShare) {
  const std::vector<std::int64_t> at{0, 3, 300000, 300000, 300017, 370000};
  for (const DType t : {DType::float32, DType::float64})
    for (const RaggedOp& op : kRaggedOps) {
      SCOPED_TRACE(op.name);
      RaggedCase whole(t, at, at.back(), Layout::contiguous);
      op.run(whole, {.offsets = whole.offsets.view()});
      for (std::size_t r = 0; r + 1 < at.size(); ++r) {
        const std::int64_t begin = at[r], n = at[r + 1] - begin;
        RaggedCase alone(t, {0, n}, n, Layout::contiguous);
        for (Array RaggedCase::*of_x : {&RaggedCase::x, &RaggedCase::other})
          for (std::int64_t k = 0; k < n; ++k) (alone.*of_x).set_value(k, number(whole.*of_x, begin + k));
        alone.row.set_value(0, number(whole.row, static_cast<std::int64_t>(r)));
        op.run(alone, {.offsets = alone.offsets.view()});
        std::int64_t differ = 0;
        for (std::int64_t k = 0; k < n; ++k) differ += number(whole.y, begin + k) != number(alone.y, k);
        EXPECT_EQ(differ, 0) << "row " << r;
      }
    }
}

/// Data that is refused once a plan runs: nothing is written, not even where no row is.
TEST(Ragged, WhatIsRefusedIsLeftAsItWas) {
  RaggedCase c(DType::float32, {2, 5, 9}, 12, Layout::contiguous);
  const auto before = c.x.elements();
  c.targets.set_value(1, 4);  // of a row of four
  softfold::CrossEntropyOptions own;
  own.rows.offsets = c.offsets.view(), own.reduction = softfold::Reduction::none, own.dx = c.x.view();
  EXPECT_THROW(softfold::cross_entropy(c.x.view(), c.targets.view(), c.row.view(), own), softfold::Error);
  EXPECT_EQ(c.x.elements(), before);
  softfold::state(c.x.view(), c.states.view(), {.scale = 2, .offsets = c.offsets.view()});
  EXPECT_THROW(softfold::finish_softmax(c.x.view(), c.states.view(), c.x.view(), {.offsets = c.offsets.view()}),
               softfold::Error);
  EXPECT_EQ(c.x.elements(), before);
}

TEST(Ragged, InPlaceToo) {
  RaggedCase c(DType::float32, {2, 5, 9}, 12, Layout::contiguous);
  softfold::softmax(c.x.view(), c.y.view(), {.offsets = c.offsets.view()});
  softfold::softmax(c.x.view(), c.x.view(), {.offsets = c.offsets.view()});
  EXPECT_EQ(c.x.elements(), c.y.elements());
}

}  // namespace
}  // namespace softfold_test
