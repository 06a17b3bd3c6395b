// What the front refuses although each operand by itself is fine, and what it must not mistake for another call.
#include "softfold/softfold.h"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

namespace {

using namespace softfold;

constexpr std::int64_t kTwoByTwo[] = {2, 2};

View floats(float* data, std::span<const std::int64_t> shape) { return {data, DType::float32, shape}; }

template <class F>
Code code_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.code;
  }
  return Code::ok;
}

// Values of two elements and (m, d) have one shape, but neither may be overwritten by the other's result.
TEST(Front, MergeInPlaceIsValuesOverValuesAndStatisticsOverStatistics) {
  float values[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}}, sums[2][4] = {{0, 1, 0, 1}, {0, 1, 0, 1}}, out[4], joint[4];
  const View parts[] = {floats(values[0], kTwoByTwo), floats(sums[0], kTwoByTwo), floats(values[1], kTwoByTwo),
                        floats(sums[1], kTwoByTwo)};
  const MergeOptions options{LogBase::natural, Statistics::max_sum};
  const auto merge = [&](float* to, float* statistics) {
    return code_of([&] { merge_attention(parts, floats(to, kTwoByTwo), floats(statistics, kTwoByTwo), options); });
  };
  EXPECT_EQ(merge(out, values[1]), Code::strides);
  EXPECT_EQ(merge(sums[0], joint), Code::strides);
  EXPECT_EQ(merge(values[1], sums[0]), Code::ok);
  EXPECT_EQ(values[1][0], 3.F);
  EXPECT_EQ(sums[0][1], 2.F);
}

// Offsets are read while the plan is made, so that they lie elsewhere must be seen before.
TEST(Front, OffsetsOnAnotherDeviceAreNotRead) {
  float x[4] = {}, y[4];
  const std::int64_t four[] = {4}, three[] = {3};
  RowOptions options;
  options.offsets =
      View(reinterpret_cast<void*>(std::uintptr_t{1} << 16), DType::int64, three, {}, {DeviceKind::cuda, 0});
  EXPECT_EQ(code_of([&] { softmax(floats(x, four), floats(y, four), options); }), Code::device);
}

// NumPy gives such strides to axes of one element on purpose.
TEST(Front, TheStrideOfAnAxisOfOneElementMayBeAnyNumber) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t shape[] = {1, 3, 1}, strides[] = {most, 1, most};
  float x[3] = {1, 1, 1}, y[3] = {};
  RowOptions options;
  options.axis = 1;
  softmax({x, DType::float32, shape, strides}, {y, DType::float32, shape, strides}, options);
  for (const float p : y) EXPECT_NEAR(p, 1 / 3., 1e-7);
  options.axis = 2;
  softmax({x, DType::float32, shape, strides}, {y, DType::float32, shape, strides}, options);
  for (const float p : y) EXPECT_EQ(p, 1.F);
}

TEST(Front, AViewOfNoElementsOverlapsNothing) {
  float lse[3] = {};
  const std::int64_t empty[] = {3, 0}, rows[] = {3};
  logsumexp(floats(lse + 1, empty), floats(lse, rows));
  for (const float v : lse) EXPECT_EQ(v, -std::numeric_limits<float>::infinity());
}

struct CPlan {
  float x[2] = {0, 0}, y[2] = {7, 7};
  std::int64_t shape[1] = {2};
  softfold_tensor in{x, {1, 0}, 1, {2, 32, 1}, shape, nullptr, 0}, out{y, {1, 0}, 1, {2, 32, 1}, shape, nullptr, 0};
  softfold_plan plan;

  softfold_status make(int op) { return softfold_plan_rows(&plan, op, &in, 1, &out, 1, nullptr, nullptr); }
};

// Op has eight bits: 256 must not become softmax.
// Checked when the plan is made; what happens to them before it runs may spoil the rows, but no other memory.
TEST(Front, OffsetsThatChangeBeforeTheRunTouchNothingElse) {
  constexpr std::int64_t kGuard = 64, kCount = 96;
  std::vector<float> x(kCount + 2 * kGuard, 1.F), y(x.size(), -7.F);
  const std::int64_t shape[] = {kCount}, three[] = {3};
  std::int64_t offsets[] = {0, 40, kCount};
  RowOptions options;
  options.offsets = View(offsets, DType::int64, three);
  const View in(x.data() + kGuard, DType::float32, shape), out(y.data() + kGuard, DType::float32, shape);
  const Plan plan = softfold::plan(Op::softmax, {&in, 1}, {&out, 1}, options);
  const std::int64_t lies[][3] = {{-50, 40, 150}, {0, kCount + 50, 20}, {INT64_MIN, INT64_MAX, 0}, {INT64_MAX, 0, 96}};
  for (const auto& lie : lies) {
    std::copy(std::begin(lie), std::end(lie), offsets);
    plan.run();
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(y[i], -7.F);
      EXPECT_EQ(y[y.size() - 1 - i], -7.F);
    }
  }
}

// A scale of one row alone is data: too small for float32, it keeps its sign.
TEST(Front, AScaleTooSmallForFloat32IsNotZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float x[2][2] = {{0, -infinity}, {0, infinity}};
  const double scales[] = {1e-46, -1e-46};
  const std::int64_t two[] = {2};
  float y[2][2];
  RowOptions options;
  options.scales = View(scales, DType::float64, two);
  softmax({x, DType::float32, kTwoByTwo}, {y, DType::float32, kTwoByTwo}, options);
  for (const auto& row : y) {
    EXPECT_EQ(row[0], 1.F);
    EXPECT_EQ(row[1], 0.F);
  }
}

// An infinite lse would say that the row is empty, or that it holds +inf.
TEST(Front, ARowOfFiniteNumbersHasAFiniteLogSumExp) {
  const float largest = std::numeric_limits<float>::max();
  const float x[2][2] = {{largest, 0}, {-largest, -largest}};
  const std::int64_t two[] = {2};
  float lse[2];
  double wide[2];
  RowOptions options;
  options.scale = 4;
  logsumexp({x, DType::float32, kTwoByTwo}, {lse, DType::float32, two}, options);
  logsumexp({x, DType::float32, kTwoByTwo}, {wide, DType::float64, two}, options);
  EXPECT_EQ(lse[0], largest);
  EXPECT_EQ(lse[1], -largest);
  EXPECT_EQ(wide[0], static_cast<double>(largest));
  EXPECT_EQ(wide[1], -static_cast<double>(largest));
}

// A thread that waits for its tasks begins another operation.
TEST(Front, AnExecutorMayStealWorkWhileItWaits) {
  struct Stealing final : Executor {
    std::function<void()> other;
    int concurrency() const override { return 2; }
    void run(std::int64_t tasks, Task task, void* argument) override {
      for (std::int64_t i = 0; i < tasks / 2; ++i) task(argument, i);
      if (const auto stolen = std::exchange(other, nullptr)) stolen();
      for (std::int64_t i = tasks / 2; i < tasks; ++i) task(argument, i);
    }
  } executor;
  constexpr std::int64_t n = 1 << 20;
  std::vector<float> a(n), b(n), y(n), want(n), dx(n), want_dx(n);
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<float>(i % 1009) * 0.01F, b[i] = static_cast<float>(i % 733) * 0.02F;
  const std::int64_t shape[] = {n}, one[] = {1};
  float lse = 0;
  const auto view = [&](std::vector<float>& v) { return View(v.data(), DType::float32, shape); };
  const Context stealing{&executor, nullptr, nullptr}, serial{&serial_executor(), nullptr, nullptr};
  softmax(view(a), view(want), {}, serial);
  softmax_backward(view(want), view(b), view(want_dx), {}, serial);
  const auto other = [&] { logsumexp(view(b), {&lse, DType::float32, one}, {}, stealing); };
  executor.other = other;
  softmax(view(a), view(y), {}, stealing);
  EXPECT_EQ(executor.other, nullptr) << "no work was stolen";
  EXPECT_EQ(y, want);
  executor.other = [&] { softmax_backward(view(want), view(a), view(y), {}, stealing); };
  softmax_backward(view(want), view(b), view(dx), {}, stealing);
  EXPECT_EQ(dx, want_dx);
}

TEST(FrontOfC, AnOperationsNumberIsNotCutToItsLastByte) {
  CPlan c;
  for (const int op : {256, 257, -256, static_cast<int>(kLastOp) + 1, -1})
    EXPECT_EQ(c.make(op), SOFTFOLD_UNSUPPORTED) << op;
  EXPECT_EQ(c.make(SOFTFOLD_OP_SOFTMAX), SOFTFOLD_OK);
}

TEST(FrontOfC, APlanThatWasRefusedOrCopiedDoesNotRun) {
  CPlan c;
  ASSERT_EQ(c.make(SOFTFOLD_OP_SOFTMAX), SOFTFOLD_OK);
  const softfold_plan copy = c.plan;
  EXPECT_EQ(softfold_plan_run(&copy), SOFTFOLD_OPTION);
  ASSERT_NE(c.make(99), SOFTFOLD_OK);
  EXPECT_EQ(softfold_plan_run(&c.plan), SOFTFOLD_OPTION);
  EXPECT_STREQ(softfold_plan_kernel(&c.plan), "");
  EXPECT_EQ(softfold_plan_workspace_bytes(&c.plan), 0U);
  EXPECT_EQ(softfold_plan_run(nullptr), SOFTFOLD_OPTION);
  EXPECT_EQ(c.y[0], 7.F);
  ASSERT_EQ(c.make(SOFTFOLD_OP_SOFTMAX), SOFTFOLD_OK);
  EXPECT_EQ(softfold_plan_run(&c.plan), SOFTFOLD_OK);
  EXPECT_EQ(c.y[0], 0.5F);
}

}  // namespace
