// The C ABI: the same refusals as status codes, a message for each thread, nothing thrown, and the same results.
#include "refuse/c_tensor.hpp"

#include "softfold/error.hpp"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace softfold_test {
namespace {

TEST(CAbi, OneShotCallsGiveTheCppFrontsBits) {
  CTensor x({3, 5}), y({3, 5}), log_y({3, 5}), lse({3});
  for (std::size_t i = 0; i < x.data.size(); ++i) x.data[i] = 0.3F * static_cast<float>(i % 7);
  softfold_row_options options;
  softfold_row_options_init(&options);
  options.scale = 0.5;
  ASSERT_EQ(softfold_softmax(&x.tensor, &y.tensor, &options, nullptr), SOFTFOLD_OK) << last();
  ASSERT_EQ(softfold_log_softmax(&x.tensor, &log_y.tensor, &options, nullptr), SOFTFOLD_OK) << last();
  ASSERT_EQ(softfold_logsumexp(&x.tensor, &lse.tensor, &options, nullptr), SOFTFOLD_OK) << last();
  std::vector<float> expected(15);
  const std::int64_t shape[] = {3, 5}, rows[] = {3};
  softfold::RowOptions o;
  o.scale = 0.5;
  const softfold::View in(x.data.data(), softfold::DType::float32, shape);
  softfold::softmax(in, softfold::View(expected.data(), softfold::DType::float32, shape), o);
  EXPECT_EQ(y.data, expected);
  softfold::log_softmax(in, softfold::View(expected.data(), softfold::DType::float32, shape), o);
  EXPECT_EQ(log_y.data, expected);
  expected.resize(3);
  softfold::logsumexp(in, softfold::View(expected.data(), softfold::DType::float32, rows), o);
  EXPECT_EQ(lse.data, expected);
}

// Each beside a plan of the same operands, which the other tests judge.
TEST(CAbi, EveryOperationHasAOneShotCall) {
  CTensor x({2, 4}), dy({2, 4}), y({2, 4}), rows({2}), rows_b({2}), planned({2, 4});
  x.data = {1, 2, 3, 4, 4, 3, 2, -1};
  dy.data = {1, 0, 0, 2, -1, 5, 0, 0.5};
  std::vector<double> stored(8), merged(8);
  std::int64_t shape[] = {2, 4};
  softfold_tensor s{stored.data(), {1, 0}, 2, {2, 64, 1}, shape, nullptr, 0}, m = s;
  m.data = merged.data();
  ASSERT_EQ(softfold_state(&x.tensor, &s, nullptr, nullptr), SOFTFOLD_OK) << last();

  const auto expect_as_planned = [&](int op, std::vector<softfold_tensor> inputs, softfold_status status,
                                     const CTensor& result) {
    ASSERT_EQ(status, SOFTFOLD_OK) << op << last();
    softfold_tensor out = planned.tensor;
    out.ndim = result.tensor.ndim;
    softfold_plan plan;
    ASSERT_EQ(softfold_plan_rows(&plan, op, inputs.data(), inputs.size(), &out, 1, nullptr, nullptr), SOFTFOLD_OK)
        << op << last();
    ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << op << last();
    EXPECT_EQ(std::memcmp(result.data.data(), planned.data.data(), result.data.size() * sizeof(float)), 0) << op;
  };
  expect_as_planned(SOFTFOLD_OP_FINISH_SOFTMAX, {x.tensor, s},
                    softfold_finish_softmax(&x.tensor, &s, &y.tensor, nullptr, nullptr), y);
  expect_as_planned(SOFTFOLD_OP_SOFTMAX_BACKWARD, {x.tensor, dy.tensor},
                    softfold_softmax_backward(&x.tensor, &dy.tensor, &y.tensor, nullptr, nullptr), y);
  expect_as_planned(SOFTFOLD_OP_LOG_SOFTMAX_BACKWARD, {x.tensor, dy.tensor},
                    softfold_log_softmax_backward(&x.tensor, &dy.tensor, &y.tensor, nullptr, nullptr), y);
  expect_as_planned(SOFTFOLD_OP_FINISH_LOGSUMEXP, {s}, softfold_finish_logsumexp(&s, &rows.tensor, nullptr), rows);
  expect_as_planned(SOFTFOLD_OP_LOGSUMEXP_BACKWARD, {x.tensor, s, rows.tensor},
                    softfold_logsumexp_backward(&x.tensor, &s, &rows.tensor, &y.tensor, nullptr, nullptr), y);
  expect_as_planned(SOFTFOLD_OP_FINISH_LOG_SOFTMAX, {x.tensor, s},
                    softfold_finish_log_softmax(&x.tensor, &s, &y.tensor, nullptr, nullptr), y);

  const softfold_tensor twice[] = {s, s};
  ASSERT_EQ(softfold_merge_states(twice, 2, &m, nullptr), SOFTFOLD_OK) << last();
  EXPECT_EQ(merged[1], 2 * stored[1]);
  softfold_merge_options two;
  softfold_merge_options_init(&two);
  two.base = SOFTFOLD_BASE_TWO;
  // Two parts of one weight: their mean, 1 more in base 2.
  const softfold_tensor parts[] = {x.tensor, rows.tensor, dy.tensor, rows.tensor};
  const softfold_tensor results[] = {y.tensor, rows_b.tensor};
  ASSERT_EQ(softfold_merge_attention(parts, 2, results, &two, nullptr), SOFTFOLD_OK) << last();
  EXPECT_EQ(y.data[0], (x.data[0] + dy.data[0]) / 2);
  EXPECT_EQ(rows_b.data[1], rows.data[1] + 1);
  const softfold_tensor blocks[] = {y.tensor, planned.tensor, rows_b.tensor};
  ASSERT_EQ(softfold_merge_blocks(parts, 2, blocks, &two, nullptr), SOFTFOLD_OK) << last();
  EXPECT_EQ(y.data[3], x.data[3] / 2);
  EXPECT_EQ(planned.data[3], dy.data[3] / 2);

  EXPECT_EQ(softfold_merge_states(twice, 0, &m, nullptr), SOFTFOLD_SHAPE);
  const std::vector<softfold_tensor> many(SOFTFOLD_MAX_MERGE_PARTS + 1, s);
  EXPECT_EQ(softfold_merge_states(many.data(), many.size() - 1, &m, nullptr), SOFTFOLD_OK) << last();
  EXPECT_EQ(softfold_merge_states(many.data(), many.size(), &m, nullptr), SOFTFOLD_SHAPE);
  EXPECT_EQ(softfold_merge_attention(parts, SIZE_MAX / 2 + 2, results, &two, nullptr), SOFTFOLD_SHAPE);
  EXPECT_EQ(softfold_merge_blocks(parts, 2, nullptr, &two, nullptr), SOFTFOLD_SHAPE);
  EXPECT_EQ(softfold_softmax_backward(&x.tensor, nullptr, &y.tensor, nullptr, nullptr), SOFTFOLD_SHAPE);
}

TEST(CAbi, CrossEntropyOnceAndAsAPlan) {
  CTensor x({2, 4}), dx({2, 4}), loss({1}), planned({1});
  x.data = {1, 2, 3, 4, 4, 3, 2, 1};
  std::vector<std::int64_t> classes{2, 0}, two{2};
  softfold_tensor targets{classes.data(), {1, 0}, 1, {0, 64, 1}, two.data(), nullptr, 0};
  softfold_cross_entropy_options options;
  softfold_cross_entropy_options_init(&options);
  options.dx = &dx.tensor;
  ASSERT_EQ(softfold_cross_entropy(&x.tensor, &targets, &loss.tensor, &options, nullptr), SOFTFOLD_OK) << last();
  EXPECT_NEAR(loss.data[0], (1.4401897 + 0.4401897) / 2, 1e-6);
  EXPECT_NEAR(dx.data[2], (0.23688282 - 1) / 2, 1e-6);
  const softfold_tensor inputs[] = {x.tensor, targets};
  softfold_plan plan;
  ASSERT_EQ(
      softfold_plan_cross_entropy(&plan, SOFTFOLD_OP_CROSS_ENTROPY, inputs, 2, &planned.tensor, 1, nullptr, nullptr),
      SOFTFOLD_OK)
      << last();
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << last();
  EXPECT_EQ(planned.data, loss.data);
  classes[1] = 4;
  EXPECT_EQ(softfold_plan_run(&plan), SOFTFOLD_DATA);
  options.reduction = 3;
  EXPECT_EQ(softfold_cross_entropy(&x.tensor, &targets, &loss.tensor, &options, nullptr), SOFTFOLD_OPTION);
}

TEST(CAbi, LinearCrossEntropyOnceAndAsAPlan) {
  CTensor x({3, 5}), weight({4, 5}), bias({4}), dx({3, 5}), dweight({4, 5}), dbias({4}), loss({});
  for (std::size_t i = 0; i < 15; ++i) x.data[i] = 0.3F * static_cast<float>(i % 7);
  for (std::size_t i = 0; i < 20; ++i) weight.data[i] = 0.2F * static_cast<float>(i % 5);
  CTensor targets({3});
  std::int32_t classes[] = {1, 3, 0};
  targets.tensor.data = classes;
  targets.tensor.dtype = {0, 32, 1};
  softfold_cross_entropy_options of_loss;
  softfold_cross_entropy_options_init(&of_loss);
  of_loss.label_smoothing = 0.1;
  softfold_linear_cross_entropy_options options;
  softfold_linear_cross_entropy_options_init(&options);
  options.loss = &of_loss;
  options.bias = &bias.tensor;
  options.dx = &dx.tensor, options.dweight = &dweight.tensor, options.dbias = &dbias.tensor;
  options.softcap = 3;
  ASSERT_EQ(softfold_linear_cross_entropy(&x.tensor, &weight.tensor, &targets.tensor, &loss.tensor, &options, nullptr),
            SOFTFOLD_OK)
      << last();
  const auto once = loss.data, once_dx = dx.data, once_dweight = dweight.data, once_dbias = dbias.data;
  EXPECT_GT(once[0], 1.F);
  for (auto* t : {&loss, &dx, &dweight, &dbias}) std::fill(t->data.begin(), t->data.end(), 7.F);
  const softfold_tensor inputs[] = {x.tensor, weight.tensor, targets.tensor};
  softfold_plan plan;
  ASSERT_EQ(softfold_plan_linear_cross_entropy(&plan, inputs, 3, &loss.tensor, 1, &options, nullptr), SOFTFOLD_OK);
  EXPECT_STREQ(softfold_plan_kernel(&plan), "linear_cross_entropy_rows");
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK);
  EXPECT_EQ(loss.data, once);
  EXPECT_EQ(dx.data, once_dx);
  EXPECT_EQ(dweight.data, once_dweight);
  EXPECT_EQ(dbias.data, once_dbias);
  options.mode = 7;
  EXPECT_EQ(softfold_plan_linear_cross_entropy(&plan, inputs, 3, &loss.tensor, 1, &options, nullptr), SOFTFOLD_OPTION);
}

TEST(CAbi, TopkAndEntropyOnceAndAsPlans) {
  CTensor x({2, 4}), values({2, 2}), planned({2, 2}), h({2}), planned_h({2});
  x.data = {1, 2, 3, 4, 4, 3, 2, 1};
  std::vector<std::int64_t> places(4), shape{2, 2};
  softfold_tensor indices{places.data(), {1, 0}, 2, {0, 64, 1}, shape.data(), nullptr, 0};
  ASSERT_EQ(softfold_topk(&x.tensor, &values.tensor, &indices, nullptr, nullptr), SOFTFOLD_OK) << last();
  EXPECT_EQ(values.data, (std::vector<float>{4, 3, 4, 3}));
  EXPECT_EQ(places, (std::vector<std::int64_t>{3, 2, 0, 1}));
  softfold_topk_options options;
  softfold_topk_options_init(&options);
  options.sorted = 0;
  const softfold_tensor results[] = {planned.tensor, indices};
  softfold_plan plan;
  ASSERT_EQ(softfold_plan_topk(&plan, &x.tensor, 1, results, 2, &options, nullptr), SOFTFOLD_OK) << last();
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << last();
  EXPECT_EQ(places, (std::vector<std::int64_t>{2, 3, 0, 1}));

  ASSERT_EQ(softfold_entropy(&x.tensor, &h.tensor, nullptr, nullptr), SOFTFOLD_OK) << last();
  EXPECT_NEAR(h.data[0], 0.94753693, 1e-6);
  ASSERT_EQ(softfold_plan_entropy(&plan, SOFTFOLD_OP_ENTROPY, &x.tensor, 1, &planned_h.tensor, 1, nullptr, nullptr),
            SOFTFOLD_OK)
      << last();
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << last();
  EXPECT_EQ(planned_h.data, h.data);
  EXPECT_EQ(softfold_plan_entropy(&plan, SOFTFOLD_OP_TOPK, &x.tensor, 1, &h.tensor, 1, nullptr, nullptr),
            SOFTFOLD_UNSUPPORTED);
}

TEST(CAbi, KlDivergenceOnceAndAsAPlan) {
  CTensor p({2, 2}), q({2, 2}), kl({2}), planned({2}), dp({2, 2}), dq({2, 2}), again({2, 2});
  p.data = {1, 0, 3, 3}, q.data = {0, 0, 3, 3};
  std::vector<double> of_p(8), of_q(8);
  std::int64_t four[] = {2, 4};
  softfold_tensor p_states{of_p.data(), {1, 0}, 2, {2, 64, 1}, four, nullptr, 0}, q_states = p_states;
  q_states.data = of_q.data();
  softfold_kl_divergence_options options;
  softfold_kl_divergence_options_init(&options);
  options.p_states = &p_states, options.q_states = &q_states;
  options.dp = &dp.tensor, options.dq = &dq.tensor;
  ASSERT_EQ(softfold_kl_divergence(&p.tensor, &q.tensor, &kl.tensor, &options, nullptr), SOFTFOLD_OK) << last();
  EXPECT_NEAR(kl.data[0], 0.11094407, 1e-7);
  EXPECT_EQ(kl.data[1], 0.F);
  const softfold_tensor inputs[] = {p.tensor, q.tensor};
  softfold_plan plan;
  ASSERT_EQ(
      softfold_plan_kl_divergence(&plan, SOFTFOLD_OP_KL_DIVERGENCE, inputs, 2, &planned.tensor, 1, nullptr, nullptr),
      SOFTFOLD_OK)
      << last();
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << last();
  EXPECT_EQ(planned.data, kl.data);
  CTensor ones({2});
  ones.data = {1, 1};
  ASSERT_EQ(softfold_kl_divergence_backward(&p.tensor, &q.tensor, &p_states, &q_states, &ones.tensor, nullptr,
                                            &again.tensor, nullptr, nullptr),
            SOFTFOLD_OK)
      << last();
  EXPECT_EQ(again.data, dq.data);
  EXPECT_EQ(softfold_kl_divergence_backward(&p.tensor, &q.tensor, &p_states, &q_states, &ones.tensor, nullptr, nullptr,
                                            nullptr, nullptr),
            SOFTFOLD_OPTION);
}

TEST(CAbi, SampleOnceAndAsAPlan) {
  CTensor x({2, 3}), lp({2});
  x.data = {0, 9, 1, 5, 0, 0};
  std::int32_t tokens[2] = {-7, -7}, planned[2] = {-7, -7}, rank[2];
  std::int64_t shape[] = {2};
  softfold_tensor t{tokens, {1, 0}, 1, {0, 32, 1}, shape, nullptr, 0}, again = t, ranks = t;
  again.data = planned, ranks.data = rank;
  softfold_sample_options options;
  softfold_sample_options_init(&options);
  options.top_k = 1;
  options.log_probability = &lp.tensor;
  options.rank = &ranks;
  CTensor top_lp({2, 1});
  std::int32_t top[2];
  std::int64_t one_each[] = {2, 1};
  softfold_tensor tops{top, {1, 0}, 2, {0, 32, 1}, one_each, nullptr, 0};
  options.top_tokens = &tops;
  options.top_log_probabilities = &top_lp.tensor;
  ASSERT_EQ(softfold_sample(&x.tensor, &t, &options, nullptr), SOFTFOLD_OK) << last();
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(tokens[1], 0);
  EXPECT_NEAR(lp.data[0], -0.00045869, 1e-7);
  EXPECT_EQ(rank[1], 1);
  EXPECT_TRUE(top[0] == 1 && top[1] == 0 && top_lp.data == lp.data);
  softfold_plan plan;
  ASSERT_EQ(softfold_plan_sample(&plan, &x.tensor, 1, &again, 1, &options, nullptr), SOFTFOLD_OK) << last();
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << last();
  EXPECT_EQ(planned[0], 1);
  options.top_p = 2;
  EXPECT_EQ(softfold_sample(&x.tensor, &t, &options, nullptr), SOFTFOLD_OPTION);
}

TEST(CAbi, PlansStatesAndMerges) {
  CTensor x({2, 4}), y({2, 4});
  x.data = {1, 2, 3, 4, 4, 3, 2, 1};
  double states[2][4], merged[2][4];
  std::int64_t shape[] = {2, 4};
  softfold_tensor s{states, {1, 0}, 2, {2, 64, 1}, shape, nullptr, 0}, m = s;
  m.data = merged;
  softfold_plan plan;
  ASSERT_EQ(softfold_plan_rows(&plan, SOFTFOLD_OP_STATE, &x.tensor, 1, &s, 1, nullptr, nullptr), SOFTFOLD_OK) << last();
  EXPECT_STRNE(softfold_plan_kernel(&plan), "");
  EXPECT_EQ(softfold_plan_workspace_bytes(&plan), 0U);
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << last();
  ASSERT_EQ(softfold_plan_merge(&plan, SOFTFOLD_OP_MERGE_STATES, &s, 1, &m, 1, nullptr, nullptr), SOFTFOLD_OK)
      << last();
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << last();
  EXPECT_EQ(std::memcmp(states, merged, sizeof states), 0);
  const softfold_tensor inputs[] = {x.tensor, m};
  ASSERT_EQ(softfold_plan_rows(&plan, SOFTFOLD_OP_FINISH_SOFTMAX, inputs, 2, &y.tensor, 1, nullptr, nullptr),
            SOFTFOLD_OK)
      << last();
  ASSERT_EQ(softfold_plan_run(&plan), SOFTFOLD_OK) << last();
  EXPECT_NEAR(y.data[3], 0.6439142F, 1e-6F);
  EXPECT_EQ(y.data[3], y.data[4]);
  merged[1][2] = 0.5;
  EXPECT_EQ(softfold_plan_run(&plan), SOFTFOLD_STATE);
  EXPECT_NE(last().find("scale"), std::string::npos);
}

TEST(CAbi, RefusesWhatIsNoTensor) {
  CTensor x({3, 5}), y({3, 5});
  const auto code = [&](auto&& spoil) {
    CTensor bad = x;
    bad.tensor.data = bad.data.data();
    bad.tensor.shape = bad.shape.data();
    spoil(bad.tensor);
    return softfold_softmax(&bad.tensor, &y.tensor, nullptr, nullptr);
  };
  ASSERT_EQ(code([](softfold_tensor&) {}), SOFTFOLD_OK) << last();
  EXPECT_EQ(code([](softfold_tensor& t) { t.dtype.bits = 8; }), SOFTFOLD_DTYPE);
  EXPECT_NE(std::string(softfold_last_error_got()).find("bits 8"), std::string::npos);
  EXPECT_NE(std::string(softfold_last_error_allowed()).find("float32"), std::string::npos);
  EXPECT_EQ(code([](softfold_tensor& t) { t.dtype.code = 5; }), SOFTFOLD_DTYPE);
  EXPECT_EQ(code([](softfold_tensor& t) { t.dtype.lanes = 4; }), SOFTFOLD_DTYPE);
  EXPECT_EQ(code([](softfold_tensor& t) { t.ndim = -1; }), SOFTFOLD_SHAPE);
  EXPECT_EQ(code([](softfold_tensor& t) { t.ndim = 9; }), SOFTFOLD_SHAPE);
  EXPECT_EQ(code([](softfold_tensor& t) { t.ndim = 0; }), SOFTFOLD_SHAPE);
  EXPECT_EQ(code([](softfold_tensor& t) { t.shape = nullptr; }), SOFTFOLD_SHAPE);
  EXPECT_EQ(code([](softfold_tensor& t) { t.data = nullptr; }), SOFTFOLD_SHAPE);
  EXPECT_EQ(code([](softfold_tensor& t) { t.byte_offset = 2; }), SOFTFOLD_STRIDES);
  EXPECT_EQ(code([](softfold_tensor& t) { t.device.device_type = 2; }), SOFTFOLD_DEVICE);
  EXPECT_EQ(softfold_softmax(nullptr, &y.tensor, nullptr, nullptr), SOFTFOLD_SHAPE);
  EXPECT_EQ(softfold_softmax(&x.tensor, nullptr, nullptr, nullptr), SOFTFOLD_SHAPE);
}

TEST(CAbi, RefusesOptionsThatAreNone) {
  CTensor x({3, 5}), y({3, 5}), mask({3, 4});
  const auto code = [&](auto&& spoil) {
    softfold_row_options o;
    softfold_row_options_init(&o);
    spoil(o);
    return softfold_softmax(&x.tensor, &y.tensor, &o, nullptr);
  };
  ASSERT_EQ(code([](softfold_row_options&) {}), SOFTFOLD_OK) << last();
  EXPECT_EQ(code([](softfold_row_options& o) { o.struct_size = 0; }), SOFTFOLD_OPTION);
  EXPECT_NE(std::string(softfold_last_error_fix()).find("init"), std::string::npos);
  EXPECT_EQ(code([](softfold_row_options& o) { o.struct_size = 4096; }), SOFTFOLD_OPTION);
  EXPECT_EQ(code([](softfold_row_options& o) { o.axis = 2; }), SOFTFOLD_SHAPE);
  EXPECT_EQ(code([](softfold_row_options& o) { o.scale = NAN; }), SOFTFOLD_OPTION);
  EXPECT_EQ(code([](softfold_row_options& o) { o.empty = 2; }), SOFTFOLD_OPTION);
  EXPECT_EQ(code([](softfold_row_options& o) { o.empty = -1; }), SOFTFOLD_OPTION);
  EXPECT_EQ(code([](softfold_row_options& o) { o.rung = 6; }), SOFTFOLD_OPTION);
  EXPECT_EQ(code([&](softfold_row_options& o) { o.mask = &mask.tensor; }), SOFTFOLD_DTYPE);
  // A caller compiled against an older, shorter struct gets the defaults of what it does not have.
  EXPECT_EQ(code([](softfold_row_options& o) {
              o.rung = 99;
              o.struct_size = offsetof(softfold_row_options, rung);
            }),
            SOFTFOLD_OK)
      << last();
  EXPECT_EQ(softfold_softmax(&x.tensor, &x.tensor, nullptr, nullptr), SOFTFOLD_OK) << "in place: " << last();

  softfold_merge_options m;
  softfold_merge_options_init(&m);
  m.base = 7;
  softfold_plan plan;
  EXPECT_EQ(softfold_plan_merge(&plan, SOFTFOLD_OP_MERGE_ATTENTION, &x.tensor, 1, &y.tensor, 1, &m, nullptr),
            SOFTFOLD_OPTION);
  softfold_context c;
  softfold_context_init(&c);
  c.struct_size = 1;
  EXPECT_EQ(softfold_softmax(&x.tensor, &y.tensor, nullptr, &c), SOFTFOLD_OPTION);
}

TEST(CAbi, RefusesPlansThatAreNone) {
  CTensor x({3, 5}), y({3, 5});
  softfold_plan plan;
  EXPECT_EQ(softfold_plan_rows(nullptr, SOFTFOLD_OP_SOFTMAX, &x.tensor, 1, &y.tensor, 1, nullptr, nullptr),
            SOFTFOLD_SHAPE);
  EXPECT_EQ(softfold_plan_rows(&plan, SOFTFOLD_OP_SOFTMAX, nullptr, 1, &y.tensor, 1, nullptr, nullptr), SOFTFOLD_SHAPE);
  EXPECT_EQ(softfold_plan_rows(&plan, SOFTFOLD_OP_SOFTMAX, &x.tensor, 0, &y.tensor, 1, nullptr, nullptr),
            SOFTFOLD_SHAPE);
  EXPECT_EQ(softfold_plan_rows(&plan, SOFTFOLD_OP_SOFTMAX, &x.tensor, 1000, &y.tensor, 1, nullptr, nullptr),
            SOFTFOLD_SHAPE);
  for (const int op : {18, 200, -1}) {
    EXPECT_EQ(softfold_plan_rows(&plan, static_cast<softfold_op>(op), &x.tensor, 1, &y.tensor, 1, nullptr, nullptr),
              SOFTFOLD_UNSUPPORTED)
        << op;
    EXPECT_NE(last(), "");
  }
}

TEST(CAbi, Executors) {
  softfold_executor* executor = nullptr;
  EXPECT_EQ(softfold_executor_threads(-1, &executor), SOFTFOLD_OPTION);
  EXPECT_EQ(softfold_executor_threads(2, nullptr), SOFTFOLD_SHAPE);
  ASSERT_EQ(softfold_executor_threads(2, &executor), SOFTFOLD_OK) << last();
  softfold_context context;
  softfold_context_init(&context);
  context.cpu = executor;
  CTensor x({300, 700}), y({300, 700});
  EXPECT_EQ(softfold_softmax(&x.tensor, &y.tensor, nullptr, &context), SOFTFOLD_OK) << last();
  EXPECT_NEAR(y.data[12345], 1.F / 700.F, 1e-8F);
  softfold_executor_destroy(executor);
  softfold_executor_destroy(nullptr);
}

TEST(CAbi, EveryThreadHasItsOwnMessage) {
  CTensor x({3, 5}), y({3, 4});
  ASSERT_EQ(softfold_softmax(&x.tensor, &y.tensor, nullptr, nullptr), SOFTFOLD_SHAPE);
  const std::string here = last();
  EXPECT_NE(here.find("[3, 4]"), std::string::npos);
  std::string there = "unset";
  std::thread([&] { there = last(); }).join();
  EXPECT_EQ(there, "");
  EXPECT_EQ(last(), here);
}

TEST(CAbi, Versions) {
  EXPECT_EQ(softfold_bits_version(), SOFTFOLD_BITS_VERSION);
  EXPECT_STREQ(softfold_version(), SOFTFOLD_VERSION);
}

}  // namespace
}  // namespace softfold_test
