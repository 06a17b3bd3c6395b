// linear_cross_entropy against its formulas in double and finite differences; a row's bits beside those of any batch,
// of any thread count and SIMD target; operands in any layout; what it refuses.
#include "refuse/refusal.hpp"
#include "support/linear_reference.hpp"
#include "support/thread_counts.hpp"

#include "cpu/targets.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace softfold_test {
namespace {

using softfold::LinearMode;

/// Options by bits: bias, label smoothing, z-loss, class weights, softcap, scale, dloss.
void set_options(LinearCase& c, int bits) {
  c.has_bias = (bits & 1) != 0;
  c.options.loss.label_smoothing = (bits & 2) != 0 ? 0.2 : 0;
  c.options.loss.z_loss = (bits & 4) != 0 ? 1e-2 : 0;
  c.has_class_weight = (bits & 8) != 0;
  c.options.softcap = (bits & 16) != 0 ? 2.5 : 0;
  c.options.loss.rows.scale = (bits & 32) != 0 ? 0.75 : 1;
  c.has_dloss = (bits & 64) != 0;
}

/// The bound is of the results, against the largest of them; 16-bit results are rounded once more.
void expect_right(const LinearCase& c, double bound, const std::string& what) {
  const LinearReference wanted(c);
  const double rounded = c.type == DType::bfloat16  ? bound + 0x1p-8
                         : c.type == DType::float16 ? bound + 0x1p-11
                                                    : bound;
  EXPECT_LE(error_of(c.loss, wanted.loss), bound) << what << " loss";
  EXPECT_LE(error_of(c.log_probability, wanted.log_probability), bound) << what << " log_probability";
  EXPECT_LE(error_of(c.dx, wanted.dx), rounded) << what << " dx";
  EXPECT_LE(error_of(c.dweight, wanted.dweight), rounded) << what << " dweight";
  if (c.has_bias) {
    EXPECT_LE(error_of(c.dbias, wanted.dbias), bound) << what << " dbias";
  }
}

TEST(LinearCrossEntropy, IsTheLossOfTheLogitsAndItsGradients) {
  int index = 0;
  for (const auto& [rows, depth, classes] :
       {std::array<std::int64_t, 3>{5, 7, 11}, {1, 1, 2}, {13, 64, 130}, {300, 20, 33}, {7, 300, 1100}})
    for (const DType t : {DType::float32, DType::float64, DType::bfloat16, DType::float16})
      for (int bits = 0; bits < 128; bits += (rows > 20 ? 17 : 5) * static_cast<int>(kStep)) {
        LinearCase c(t, rows, depth, classes, static_cast<Reduction>(index++ % 3));
        set_options(c, bits);
        if (rows > 3) c.targets.set_value(2, -100.);
        c.plan_here().run();
        expect_right(c, t == DType::float64 ? 1e-13 : 2e-5,
                     std::to_string(rows) + "x" + std::to_string(depth) + "x" + std::to_string(classes) + " " +
                         std::string(name_of(t)) + " options " + std::to_string(bits));
      }
}

TEST(LinearCrossEntropy, GradientsAreTheLosssDerivatives) {
  for (int bits = 0; bits < 128; bits += 7) {
    LinearCase c(DType::float64, 4, 5, 9, Reduction::mean, 3);
    set_options(c, bits & ~64);
    c.targets.set_value(1, -100.);
    c.plan_here().run();
    const auto loss_with = [&](Array& a, std::int64_t k, double h) {
      const double before = number(a, k);
      a.set_value(k, before + h);
      c.plan_here({}, 0).run();
      a.set_value(k, before);
      return number(c.loss, 0);
    };
    const std::pair<Array*, Array*> pairs[] = {{&c.x, &c.dx}, {&c.weight, &c.dweight}, {&c.bias, &c.dbias}};
    for (const auto& [of, gradient] : pairs) {
      if (of == &c.bias && !c.has_bias) continue;
      for (std::int64_t k = 0; k < of->count(); ++k) {
        constexpr double h = 1e-5;
        const double by_difference = (loss_with(*of, k, h) - loss_with(*of, k, -h)) / (2 * h);
        EXPECT_NEAR(number(*gradient, k), by_difference, 1e-8) << "options " << bits << ", element " << k;
      }
    }
  }
}

TEST(LinearCrossEntropy, ARowIsTheSameAloneInAnyBatchOnAnyThreads) {
  constexpr std::int64_t kDepth = 70 / kShrink;
  for (const DType t : {DType::float32, DType::bfloat16}) {
    LinearCase all(t, 530, kDepth, 1300, Reduction::none);
    set_options(all, 1 | 16);
    all.plan_here().run();
    for (const int threads : {1, 3}) {
      const auto executor = softfold::make_thread_executor(threads);
      softfold::Context context;
      context.cpu = executor.get();
      LinearCase again(t, 530, kDepth, 1300, Reduction::none);
      set_options(again, 1 | 16);
      again.plan_here(context).run();
      EXPECT_EQ(again.dweight.bytes(), all.dweight.bytes()) << threads << " threads";
      EXPECT_EQ(again.dx.bytes(), all.dx.bytes()) << threads << " threads";
      EXPECT_EQ(again.dbias.bytes(), all.dbias.bytes()) << threads << " threads";
      EXPECT_EQ(again.loss.bytes(), all.loss.bytes()) << threads << " threads";
    }
    for (const std::int64_t row : {0, 5, 255, 256, 529}) {
      LinearCase one(t, 1, kDepth, 1300, Reduction::none);
      set_options(one, 1 | 16);
      for (std::int64_t d = 0; d < kDepth; ++d) one.x.set_value(d, number(all.x, row * kDepth + d));
      one.weight = all.weight, one.bias = all.bias;
      one.targets.set_value(0, number(all.targets, row));
      one.plan_here().run();
      EXPECT_EQ(number(one.loss, 0), number(all.loss, row)) << row;
      for (int i = 0; i < 4; ++i) EXPECT_EQ(number(one.states, i), number(all.states, row * 4 + i)) << row;
      for (std::int64_t d = 0; d < kDepth; ++d) EXPECT_EQ(number(one.dx, d), number(all.dx, row * kDepth + d)) << row;
    }
  }
}

TEST(LinearCrossEntropy, EveryTargetGivesTheSameBits) {
  const std::string before(softfold::cpu::current_target());
  std::vector<std::vector<unsigned char>> first;
  for (const auto target : softfold::cpu::targets()) {
    ASSERT_TRUE(softfold::cpu::use_target(target));
    LinearCase c(DType::float32, 70, 515, 207, Reduction::mean);
    set_options(c, 1 | 2 | 16);
    c.plan_here().run();
    std::vector<std::vector<unsigned char>> bits;
    for (const Array* a : c.arrays()) bits.push_back(a->bytes());
    if (first.empty()) first = bits;
    EXPECT_TRUE(bits == first) << target;
  }
  softfold::cpu::use_target(before);
}

TEST(LinearCrossEntropy, LossAndBiasAreThoseOfCrossEntropyOnTheSameLogits) {
  // One feature of 1 and weights that are the logits: the products are exact.
  LinearCase c(DType::float32, 40, 1, 3000, Reduction::mean);
  for (std::int64_t r = 0; r < 40; ++r) c.x.set_value(r, 1.);
  set_options(c, 2 | 4 | 8);
  c.plan_here().run();
  Array logits(DType::float32, {40, 3000}), loss(DType::float32, {}), states(DType::float64, {40, 4});
  for (std::int64_t k = 0; k < logits.count(); ++k) logits.set_value(k, number(c.weight, k % 3000));
  softfold::CrossEntropyOptions o = c.options.loss;
  o.weight = c.class_weight.view();
  o.states = states.view();
  softfold::cross_entropy(logits.view(), c.targets.view(), loss.view(), o);
  EXPECT_EQ(loss.bytes(), c.loss.bytes());
  EXPECT_EQ(states.bytes(), c.states.bytes());
}

TEST(LinearCrossEntropy, OperandsMayLieInAnyLayout) {
  for (const DType t : {DType::float32, DType::float16})
    for (const Layout layout : {Layout::transposed, Layout::padded, Layout::every_second, Layout::reversed}) {
      LinearCase plain(t, 19, 23, 37, Reduction::mean), laid(t, 19, 23, 37, Reduction::mean);
      set_options(plain, 1), set_options(laid, 1);
      plain.plan_here().run();
      for (Array* a : {&laid.x, &laid.weight, &laid.bias, &laid.targets, &laid.dx, &laid.dweight, &laid.dbias})
        *a = a->relaid(layout);
      laid.plan_here().run();
      for (const auto& [a, b] : {std::pair<Array*, Array*>{&plain.dx, &laid.dx},
                                 {&plain.dweight, &laid.dweight},
                                 {&plain.dbias, &laid.dbias},
                                 {&plain.loss, &laid.loss}}) {
        EXPECT_EQ(a->elements(), b->elements());
        EXPECT_TRUE(b->only_elements_written());
      }
    }
}

TEST(LinearCrossEntropy, RowsThatAreIgnoredMaskedAwayOrNotThere) {
  LinearCase ignored(DType::float32, 6, 8, 10, Reduction::mean);
  for (std::int64_t r = 0; r < 6; ++r) ignored.targets.set_value(r, -100.);
  ignored.plan_here().run();
  EXPECT_EQ(number(ignored.loss, 0), 0.);
  for (std::int64_t k = 0; k < ignored.dweight.count(); ++k) EXPECT_EQ(number(ignored.dweight, k), 0.);

  // Nor has what an ignored row holds, with a cap or without: its part of dx is 0, and 0 * NaN stays in its column.
  for (const double cap : {0., 2.5}) {
    LinearCase hostile(DType::float32, 6, 8, 10, Reduction::mean);
    hostile.options.softcap = cap;
    hostile.targets.set_value(2, -100.);
    hostile.x.set_value(2 * 8 + 3, std::numeric_limits<double>::quiet_NaN());
    hostile.plan_here().run();
    for (std::int64_t k = 0; k < hostile.dx.count(); ++k) EXPECT_TRUE(std::isfinite(number(hostile.dx, k))) << k;
    for (std::int64_t k = 0; k < hostile.dweight.count(); ++k)
      EXPECT_TRUE(k % 8 == 3 || std::isfinite(number(hostile.dweight, k))) << "cap " << cap << ", element " << k;
  }

  LinearCase none(DType::float32, 0, 8, 10, Reduction::mean);
  none.plan_here().run();
  EXPECT_EQ(number(none.loss, 0), 0.);
  for (std::int64_t k = 0; k < none.dweight.count(); ++k) EXPECT_EQ(number(none.dweight, k), 0.);

  // A class that the mask hides has no part in anything.
  LinearCase masked(DType::float64, 6, 8, 10, Reduction::sum), fewer(DType::float64, 6, 8, 9, Reduction::sum);
  Array mask(DType::boolean, {10});
  for (std::int64_t v = 0; v < 10; ++v) mask.set_value(v, v < 9 ? 1. : 0.);
  for (std::int64_t k = 0; k < 72; ++k) fewer.weight.set_value(k, number(masked.weight, k));
  for (std::int64_t d = 0; d < 8; ++d) masked.weight.set_value(72 + d, 1e300);
  for (std::int64_t r = 0; r < 6; ++r) {
    masked.targets.set_value(r, static_cast<double>(r)), fewer.targets.set_value(r, static_cast<double>(r));
    for (std::int64_t d = 0; d < 8; ++d) fewer.x.set_value(r * 8 + d, number(masked.x, r * 8 + d));
  }
  masked.options.loss.rows.mask = mask.view();
  masked.plan_here().run(), fewer.plan_here().run();
  EXPECT_EQ(number(masked.loss, 0), number(fewer.loss, 0));
  for (std::int64_t k = 0; k < 48; ++k) EXPECT_NEAR(number(masked.dx, k), number(fewer.dx, k), 1e-15);
  for (std::int64_t d = 0; d < 8; ++d) EXPECT_EQ(number(masked.dweight, 72 + d), 0.);
}

TEST(LinearCrossEntropy, ATargetThatIsNoClassIsRefusedBeforeAnythingIsWritten) {
  LinearCase c(DType::float32, 5, 4, 6, Reduction::mean);
  c.targets.set_value(3, 6.);
  const auto dx = c.dx.bytes(), loss = c.loss.bytes();
  expect_refused("target 6", Code::data, {"target 6 for row 3", "0 .. 5", "ignore_index"},
                 [&] { c.plan_here().run(); });
  EXPECT_EQ(c.dx.bytes(), dx);
  EXPECT_EQ(c.loss.bytes(), loss);
}

TEST(LinearCrossEntropy, WhatItRefuses) {
  LinearCase c(DType::float32, 5, 4, 6, Reduction::mean);
  const auto all = c.arrays();
  const auto refused = [&](const std::string& what, Code code, const Words& words, auto&& spoil) {
    LinearCrossEntropyOptions o;
    std::vector<View> in = {all[0]->view(), all[1]->view(), all[3]->view()};
    View loss = all[6]->view();
    spoil(o, in, loss);
    expect_refused(what, code, words, [&] { softfold::plan(softfold::Op::linear_cross_entropy, in, {&loss, 1}, o); });
  };
  using O = LinearCrossEntropyOptions&;
  using In = std::vector<View>&;
  Array wide(DType::float64, {6, 4}), other(DType::float32, {6, 5}), ints(DType::int32, {6, 4}),
      five(DType::float32, {5});
  refused("two inputs", Code::shape, {"2 inputs", "3 inputs"}, [](O, In in, View&) { in.pop_back(); });
  refused("a float64 weight", Code::dtype, {"weight of dtype float64", "both float64"},
          [&](O, In in, View&) { in[1] = wide.view(); });
  refused("an integer weight", Code::dtype, {"weight", "float32"}, [&](O, In in, View&) { in[1] = ints.view(); });
  refused("another D", Code::shape, {"[6, 5]", "[6, 4]"}, [&](O, In in, View&) { in[1] = other.view(); });
  refused("floating targets", Code::dtype, {"targets", "int32"}, [&](O, In in, View&) { in[2] = five.view(); });
  refused("a loss a row", Code::shape, {"loss", "one number", "none"}, [&](O, In, View& loss) { loss = five.view(); });
  refused("a bias of 5", Code::shape, {"bias", "[6]"}, [&](O o, In, View&) { o.bias = five.view(); });
  refused("dx of another shape", Code::shape, {"dx", "[5, 4]"}, [&](O o, In, View&) { o.dx = other.view(); });
  refused("dweight of another shape", Code::shape, {"dweight", "[6, 4]"},
          [&](O o, In, View&) { o.dweight = other.view(); });
  refused("integer dweight", Code::dtype, {"dweight", "float32"}, [&](O o, In, View&) { o.dweight = ints.view(); });
  refused("dbias without bias", Code::option, {"dbias", "bias"}, [&](O o, In, View&) { o.dbias = c.bias.view(); });
  refused("dx over x", Code::strides, {"dx overlaps x"}, [&](O o, In in, View&) { o.dx = in[0]; });
  refused("dweight over weight", Code::strides, {"dweight overlaps weight"},
          [&](O o, In in, View&) { o.dweight = in[1]; });
  refused("the gradient of logits", Code::option, {"loss.dx", "no gradient of the logits", "dweight"},
          [&](O o, In, View&) { o.loss.dx = all[9]->view(); });
  refused("dloss alone", Code::option, {"dloss", "dx"}, [&](O o, In, View&) { o.loss.dloss = all[6]->view(); });
  refused("an axis", Code::option, {"axis 0", "-1"}, [](O o, In, View&) { o.loss.rows.axis = 0; });
  refused("causal", Code::unsupported, {"causal", "rows of all classes", "mask"},
          [](O o, In, View&) { o.loss.rows.causal = true; });
  refused("a rung", Code::unsupported, {"rung"}, [](O o, In, View&) { o.loss.rows.rung = softfold::Rung::fused; });
  refused("a negative cap", Code::option, {"softcap -1", "2^-60"}, [](O o, In, View&) { o.softcap = -1; });
  refused("a cap that float32 takes for none", Code::option, {"softcap 1e-50", "2^-60"},
          [](O o, In, View&) { o.softcap = 1e-50; });
  refused("a cap of NaN", Code::option, {"softcap", "2^60"},
          [](O o, In, View&) { o.softcap = std::numeric_limits<double>::quiet_NaN(); });
  refused("a mode", Code::option, {"mode number 9", "fast, lean"},
          [](O o, In, View&) { o.mode = static_cast<LinearMode>(9); });
  refused("smoothing of 2", Code::option, {"label_smoothing", "0 .. 1"},
          [](O o, In, View&) { o.loss.label_smoothing = 2; });
  refused("class weights of 5", Code::shape, {"loss.weight", "[6]"},
          [&](O o, In, View&) { o.loss.weight = five.view(); });
  expect_refused("other options", Code::unsupported, {"linear_cross_entropy with topk options", "operations"}, [&] {
    const View in[] = {all[0]->view(), all[1]->view(), all[3]->view()}, loss = all[6]->view();
    softfold::plan(softfold::Op::linear_cross_entropy, in, {&loss, 1}, softfold::TopkOptions{});
  });
}

}  // namespace
}  // namespace softfold_test
