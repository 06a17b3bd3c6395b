// What the front refuses although each operand by itself is fine, and what it must not mistake for another call.
#include "softfold/softfold.h"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <limits>
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
TEST(FrontOfC, AnOperationsNumberIsNotCutToItsLastByte) {
  CPlan c;
  for (const int op : {256, 257, -256, 19, -1}) EXPECT_EQ(c.make(op), SOFTFOLD_UNSUPPORTED) << op;
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
