// The C ABI: the same refusals as status codes, a message for each thread, nothing thrown, and the same results.
#include "softfold/softfold.h"

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

/// A float32 tensor as a C caller has it.
struct CTensor {
  std::vector<float> data;
  std::vector<std::int64_t> shape, strides;
  softfold_tensor tensor;

  explicit CTensor(std::vector<std::int64_t> s) : shape(std::move(s)) {
    std::int64_t count = 1;
    for (const auto n : shape) count *= n;
    data.assign(static_cast<std::size_t>(count), 0.25F);
    tensor = {data.data(), {1, 0}, static_cast<std::int32_t>(shape.size()), {2, 32, 1}, shape.data(), nullptr, 0};
  }
};

std::string last() { return softfold_last_error(); }

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
  for (const int op : {13, 18, 200, -1}) {
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
