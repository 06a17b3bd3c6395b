// Every option, with values that it cannot have: axis, scale, scales, length, offsets, mask, causal, rungs, states.
#include "refuse/refusal.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace softfold_test {
namespace {

constexpr Op kWithX[] = {Op::softmax,           Op::log_softmax,          Op::logsumexp,          Op::state,
                         Op::softmax_backward,  Op::log_softmax_backward, Op::logsumexp_backward, Op::finish_softmax,
                         Op::finish_log_softmax};

RowCase matrix(Op op, DType t = DType::float32) {
  RowCase c;
  c.op = op;
  c.in = c.out = t;
  c.shape = {4, 6};
  c.kind = Kind::gaussian;
  return c;
}

const Shape kRows{4}, kThree{3}, kFull{4, 6}, kSwapped{6, 4}, kFive{5}, kColumn{4, 1}, kCube{2, 4, 6};

TEST(RefuseOptions, AnAxisOutOfRange) {
  for (const Op op : kWithX) {
    Spoilt s(matrix(op));
    for (const int axis : {2, -3, 100, std::numeric_limits<int>::min()})
      s.expect("axis " + std::to_string(axis), Code::shape, {"axis " + std::to_string(axis), "-2 .. 1"},
               [&](Bound& b) { b.rows.axis = axis; });
  }
}

TEST(RefuseOptions, NothingToFold) {
  float x = 1, y = 0;
  const View in(&x, DType::float32, {}), out(&y, DType::float32, {});
  expect_refused("a number", Code::shape, {"0-dimensional", "one axis", "[1]"}, [&] {
    softfold::plan(Op::softmax, {&in, 1}, {&out, 1});
  });
}

TEST(RefuseOptions, AScaleThatIsNone) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Op op : kWithX) {
    Spoilt narrow(matrix(op)), wide(matrix(op, DType::float64));
    for (const double scale : {inf, -inf, std::nan("")}) {
      const Words words{"scale", "finite"};
      narrow.expect("scale", Code::option, words, [&](Bound& b) { b.rows.scale = scale; });
      wide.expect("scale", Code::option, words, [&](Bound& b) { b.rows.scale = scale; });
    }
    narrow.expect("a scale beyond float32", Code::option, {"scale", "log2(e)"}, [](Bound& b) { b.rows.scale = 3e38; });
    wide.expect("a scale beyond float64", Code::option, {"scale", "log2(e)"}, [](Bound& b) { b.rows.scale = 1.5e308; });
    for (const double tiny : {1e-46, -1e-46, 8e-39})
      narrow.expect("a scale below float32", Code::option, {"scale", "at least 8.2e-39", "float64"},
                    [&](Bound& b) { b.rows.scale = tiny; });
    wide.expect("a scale below float64", Code::option, {"scale", "at least 1.6e-308", "0"},
                [](Bound& b) { b.rows.scale = -1.5e-308; });
  }
}

TEST(RefuseOptions, ScalesOfAnotherKind) {
  std::vector<double> scales(24, 1.);
  for (const Op op : kWithX) {
    Spoilt s(matrix(op));
    s.expect("int64 scales", Code::dtype, {"scales of dtype int64", "float32, float64"},
             [&](Bound& b) { b.rows.scales = View(scales.data(), DType::int64, kRows); });
    for (const Shape* shape : {&kThree, &kFull, &kCube})
      s.expect("scales of another shape", Code::shape, {"scales", "a row"},
               [&](Bound& b) { b.rows.scales = View(scales.data(), DType::float64, *shape); });
    s.expect("scales at null", Code::shape, {"scales at a null pointer"},
             [&](Bound& b) { b.rows.scales = View(static_cast<void*>(nullptr), DType::float64, kRows); });
  }
}

TEST(RefuseOptions, AMaskOfAnotherKind) {
  const std::vector<float> mask(48);
  for (const Op op : kWithX) {
    Spoilt s(matrix(op));
    s.expect("a float mask", Code::dtype, {"mask of dtype float32", "bool", "true where"},
             [&](Bound& b) { b.rows.mask = View(mask.data(), DType::float32, kFull); });
    for (const Shape* shape : {&kSwapped, &kRows, &kFive, &kCube})
      s.expect("a mask of another shape", Code::shape, {"mask of shape", "broadcasts to [4, 6]"},
               [&](Bound& b) { b.rows.mask = View(mask.data(), DType::boolean, *shape); });
  }
}

TEST(RefuseOptions, LengthsThatLie) {
  std::vector<std::int64_t> length{6, 0, 3, 6};
  for (const Op op : kWithX) {
    Spoilt s(matrix(op));
    const auto give = [&](Bound& b) { b.rows.length = View(length.data(), DType::int64, kRows); };
    for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{7}, std::numeric_limits<std::int64_t>::max()}) {
      length[2] = bad;
      s.expect("a length", Code::data, {"length " + std::to_string(bad) + " for row 2", "0 .. 6"}, give);
    }
    length[2] = 3;
    s.expect("float lengths", Code::dtype, {"lengths of dtype float64", "int32, int64"},
             [&](Bound& b) { b.rows.length = View(length.data(), DType::float64, kRows); });
    s.expect("lengths of another shape", Code::shape, {"lengths of shape [3]", "a row"},
             [&](Bound& b) { b.rows.length = View(length.data(), DType::int64, kThree); });
  }
}

TEST(RefuseOptions, OffsetsThatDoNotAscend) {
  RowCase c = matrix(Op::softmax);
  c.ragged = true;
  Spoilt s(c);
  const std::int64_t n = s.problem().inputs[0].count();
  std::vector<std::int64_t> offsets{0, 2, 5, 5, n};
  const auto give = [&](Bound& b) { b.rows.offsets = View(offsets.data(), DType::int64, kFive); };
  const auto with = [&](std::size_t i, std::int64_t value) {
    offsets = {0, 2, 5, 5, n};
    offsets[i] = value;
    s.expect("offsets[" + std::to_string(i) + "]", Code::data,
             {"offsets[", "ascending offsets from 0 to x's length " + std::to_string(n)}, give);
  };
  with(1, 6), with(2, 1), with(0, -1), with(4, n + 1), with(3, -7), with(4, std::int64_t{1} << 62);
  offsets = {0, 2, 5, 5, n};
  s.expect("float offsets", Code::dtype, {"offsets of dtype float32", "int32, int64"},
           [&](Bound& b) { b.rows.offsets = View(offsets.data(), DType::float32, kFive); });
  s.expect("no offsets at all", Code::shape, {"offsets", "[rows + 1]"},
           [&](Bound& b) { b.rows.offsets = View(offsets.data(), DType::int64, std::span(kFive).first(0)); });
  s.expect("offsets and lengths", Code::option, {"offsets together with lengths", "one way", "offsets alone"},
           [&](Bound& b) { give(b), b.rows.length = View(offsets.data(), DType::int64, kRows); });
  s.expect("offsets and causal", Code::option, {"causal", "one way"}, [&](Bound& b) { give(b), b.rows.causal = true; });
  Spoilt flat(matrix(Op::softmax));
  flat.expect("offsets into a matrix", Code::shape, {"offsets", "rank 1", "flatten"}, give);
}

TEST(RefuseOptions, CausalWithoutScores) {
  for (const Op op : kWithX) {
    RowCase square = matrix(op);
    square.shape = {4, 4};
    Spoilt s(square);
    s.expect("causal along axis 0", Code::option, {"causal", "(..., T, S)", "axis -1"},
             [](Bound& b) { b.rows.causal = true, b.rows.axis = 0; });
  }
  RowCase c = matrix(Op::softmax);
  c.shape = {6};
  Spoilt s(c);
  s.expect("causal in one row", Code::option, {"causal", "(..., T, S)"}, [](Bound& b) { b.rows.causal = true; });
}

TEST(RefuseOptions, OptionsInTheOutput) {
  Spoilt s(matrix(Op::softmax));
  const auto in_output = [](const Bound& b, DType t, const Shape& shape) { return View(b.outputs[0].data, t, shape); };
  s.expect("scales", Code::strides, {"overlaps scales"},
           [&](Bound& b) { b.rows.scales = in_output(b, DType::float32, kRows); });
  s.expect("mask", Code::strides, {"overlaps mask"},
           [&](Bound& b) { b.rows.mask = in_output(b, DType::boolean, kFull); });
  std::vector<std::int64_t> both(24);
  const View length(both.data(), DType::int64, kRows);
  s.expect("lengths", Code::strides, {"overlaps lengths"}, [&](Bound& b) {
    b.rows.length = length;
    b.outputs[0].data = both.data();
  });
}

// A mask or lengths that are laid over the input are only read: no refusal.
TEST(RefuseOptions, NotAMaskOverTheInput) {
  Spoilt s(matrix(Op::softmax));
  Bound b = s.good();
  b.rows.mask = View(b.inputs[0].data, DType::boolean, kFull);
  EXPECT_NO_THROW(plan_of(b, Op::softmax, false));
}

TEST(RefuseOptions, ARungThatTheOperationDoesNotHave) {
  Spoilt s(matrix(Op::state));
  for (const auto rung : {softfold::Rung::naive, softfold::Rung::fused, static_cast<softfold::Rung>(77)})
    s.expect("a rung", Code::unsupported, {"state"}, [&](Bound& b) { b.rows.rung = rung; });
}

/// States that no row has led to, or of another scale or precision: found when the plan runs, before any writing.
TEST(RefuseOptions, StatesThatAreNone) {
  for (const Op op : {Op::finish_softmax, Op::finish_log_softmax, Op::logsumexp_backward}) {
    Spoilt s(matrix(op));
    const auto spoil = [&](std::int64_t k, double value, const Words& words) {
      const double good = s.problem().inputs[1].get<double>(k);
      s.problem().inputs[1].set(k, value);
      s.expect("states[" + std::to_string(k) + "] = " + std::to_string(value), Code::state, words, [](Bound&) {});
      s.problem().inputs[1].set(k, good);
    };
    const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
    spoil(4 * 2 + 2, 0.5, {"scale 0.5", "the scale asked for", "one scale"});
    spoil(4 * 3 + 3, 53, {"digits 53", "24", "dtype"});
    spoil(4 * 1 + 3, 11, {"digits 11", "24", ""});
    for (const double d : {-1., 0., inf, nan, 1. + 0x1p-40, 0x1p-149, 0x1p-100, 0.6875, 0x1p65})
      spoil(4 * 1 + 1, d, {"row 1", "a state"});
    for (const double m : {0.5, nan, inf}) spoil(0, m, {"row 0", "a state"});
    spoil(4, -inf, {"row 1", "a state"});
  }
}

TEST(RefuseOptions, MergedStatesThatDoNotBelongTogether) {
  const auto merge = [](std::vector<double> a, std::vector<double> b) {
    static const Shape four{4};
    double out[4];
    const View in[] = {View(a.data(), DType::float64, four), View(b.data(), DType::float64, four)};
    const View to(static_cast<void*>(out), DType::float64, four);
    softfold::plan(Op::merge_states, in, {&to, 1}, softfold::MergeOptions{}).run();
  };
  const std::vector<double> good{3, 1.5, 1, 24};
  EXPECT_NO_THROW(merge(good, good));
  expect_refused("two scales", Code::state, {"scale 2", "one scale", "same scale"}, [&] {
    merge(good, {3, 1.5, 2, 24});
  });
  expect_refused("two precisions", Code::state, {"digits 53", "one precision", "same dtype"}, [&] {
    merge(good, {3, 1.5, 1, 53});
  });
  expect_refused("no state", Code::state, {"part 1", "a state"}, [&] { merge(good, {3, -1, 1, 24}); });
  expect_refused("half an m", Code::state, {"part 0", "a state"}, [&] { merge({0.5, 1, 1, 24}, good); });
  // float64 from |t| = 2^51 on has states that no other row has.
  const std::vector<double> far{0x1p52, 0x1p-256, 1, 53}, near{3, 0x1p-256, 1, 53};
  EXPECT_NO_THROW(merge(far, far));
  expect_refused("a small d near 0", Code::state, {"part 0", "a state"}, [&] { merge(near, far); });
}

TEST(RefuseOptions, LogsumexpOfWhatIsNoState) {
  for (const double d : {0x1p-149, 0x1p-100, 0.6875}) {
    std::vector<double> states{0, d, 1, 24}, lse{-7};
    const Shape four{1, 4}, one{1};
    expect_refused("d = " + std::to_string(d), Code::state, {"row 0", "a state"}, [&] {
      const View in(states.data(), DType::float64, four), out(lse.data(), DType::float64, one);
      softfold::plan(Op::finish_logsumexp, {&in, 1}, {&out, 1}).run();
    });
    EXPECT_EQ(lse[0], -7);
  }
}

TEST(RefuseOptions, RowOptionsWhereThereAreOnlyStates) {
  std::vector<double> states{3, 1.5, 1, 24}, out(4);
  const Shape four{1, 4}, one{1};
  std::vector<std::int64_t> length{2};
  for (const Op op : {Op::merge_states, Op::finish_logsumexp}) {
    const View in(states.data(), DType::float64, four);
    const View to(out.data(), DType::float64, op == Op::merge_states ? four : one);
    EXPECT_NO_THROW(softfold::plan(op, {&in, 1}, {&to, 1}));
    softfold::RowOptions scaled, limited, causal, axis, rung;
    scaled.scale = 2;
    limited.length = View(length.data(), DType::int64, one);
    causal.causal = true;
    axis.axis = 0;
    rung.rung = softfold::Rung::tiled;
    const std::pair<const char*, const softfold::RowOptions*> all[] = {
        {"scale", &scaled}, {"lengths", &limited}, {"causal", &causal}, {"axis", &axis}, {"rung", &rung}};
    for (const auto& [name, given] : all) {
      const softfold::RowOptions& o = *given;
      expect_refused(std::string(softfold::name_of(op)), given == &rung ? Code::unsupported : Code::option,
                     {std::string(name) + " for " + std::string(softfold::name_of(op)), "none", name}, [&] {
                       softfold::plan(op, {&in, 1}, {&to, 1}, o);
                     });
    }
  }
}

TEST(RefuseOptions, AnExecutorThatRunsNothing) {
  struct Idle final : softfold::Executor {
    int concurrency() const override { return 0; }
    void run(std::int64_t, Task, void*) override {}
  } idle;
  Problem p = make_problem(matrix(Op::softmax));
  const Bound b = bind(p);
  expect_refused("an idle executor", Code::option, {"concurrency 0", "1 or more", "serial_executor"}, [&] {
    softfold::plan(Op::softmax, b.inputs, b.outputs, b.rows, {&idle, nullptr, nullptr});
  });
}

TEST(RefuseOptions, ExecutorsOfNegativeSize) {
  expect_refused("-1 threads", Code::option, {"-1"}, [] { softfold::make_thread_executor(-1); });
  try {
    softfold::make_tbb_executor(-2);
    ADD_FAILURE() << "-2 oneTBB threads: not refused";
  } catch (const softfold::Error& e) {
    EXPECT_TRUE(e.code == Code::option || e.code == Code::unsupported) << e.what();
  }
}

}  // namespace
}  // namespace softfold_test
