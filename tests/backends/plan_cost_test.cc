// Making a plan allocates nothing, and neither does running one of a small row: what a one-shot call costs is its
// checks. And where something must be allocated and cannot, the C ABI says so.
#include "softfold/softfold.h"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> allocations{0};
std::atomic<bool> exhausted{false};
}  // namespace

// Replaces the allocation functions of the whole program, the library's calls included. Not inlined: g++ would see
// free() given what `new` returned, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (exhausted) throw std::bad_alloc();
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  if (exhausted) throw std::bad_alloc();
  const auto a = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

using namespace softfold;

/// Allocations while f runs. GoogleTest's own must stay outside.
template <class F>
long allocations_in(F&& f) {
  const long before = allocations;
  f();
  return allocations - before;
}

// The counter is called by what the library itself allocates.
TEST(PlanCost, TheLibrarysAllocationsAreCounted) {
  float x[4] = {}, y[3] = {};
  const std::int64_t four[] = {4}, three[] = {3};
  EXPECT_GT(allocations_in([&] {
              try {
                softmax({x, DType::float32, four}, {y, DType::float32, three});
              } catch (const Error&) {
              }
            }),
            0);
}

TEST(PlanCost, APlanAllocatesNothing) {
  static float x[8][64], y[8][64], lse[8], scale[8];
  static double states[8][4];
  static std::uint8_t mask[64];
  static std::int32_t length[8], offsets[9];
  const std::int64_t full[] = {8, 64}, rows[] = {8}, four[] = {8, 4}, columns[] = {64}, nine[] = {9}, flat[] = {512};
  const View vx(&x[0][0], DType::float32, full), vy(&y[0][0], DType::float32, full), vl(lse, DType::float32, rows);
  const View vs(&states[0][0], DType::float64, four);
  RowOptions everything;
  everything.scales = View(scale, DType::float32, rows);
  everything.length = View(length, DType::int32, rows);
  everything.mask = View(mask, DType::boolean, columns);
  everything.axis = 1;
  RowOptions ragged;
  ragged.offsets = View(offsets, DType::int32, nine);
  const View packed(&x[0][0], DType::float32, flat), packed_y(&y[0][0], DType::float32, flat);
  const View merged[] = {vx, vl, vy, vl}, two_states[] = {vs, vs};
  const View value_and_lse[] = {vy, vl}, backward[] = {vx, vx};
  const auto plans = [&] {
    (void)plan(Op::softmax, {&vx, 1}, {&vy, 1});
    (void)plan(Op::softmax, {&vx, 1}, {&vy, 1}, everything);
    (void)plan(Op::softmax, {&packed, 1}, {&packed_y, 1}, ragged);
    (void)plan(Op::logsumexp, {&vx, 1}, {&vl, 1});
    (void)plan(Op::state, {&vx, 1}, {&vs, 1});
    (void)plan(Op::softmax_backward, backward, {&vy, 1});
    (void)plan(Op::merge_states, two_states, {&vs, 1}, MergeOptions{});
    (void)plan(Op::merge_attention, merged, value_and_lse, MergeOptions{});
  };
  plans();  // what is found out once (the SIMD target) may allocate
  EXPECT_EQ(allocations_in(plans), 0);
}

TEST(PlanCost, ASmallCallAllocatesNothingAfterTheFirst) {
  float x[64] = {1, 2, 3}, y[64];
  const std::int64_t shape[] = {1, 64};
  const View vx(x, DType::float32, shape), vy(y, DType::float32, shape);
  const auto call = [&] { softmax(vx, vy); };
  call();
  EXPECT_EQ(allocations_in(call), 0);
}

TEST(PlanCost, TheCAbiAnswersAFailedAllocationWithAStatus) {
  float x[4] = {};
  std::int64_t four[] = {4}, three[] = {3};
  const softfold_tensor in{x, {1, 0}, 1, {2, 32, 1}, four, nullptr, 0};
  softfold_tensor out = in;
  out.shape = three;
  softfold_stream* stream = nullptr;
  ASSERT_EQ(softfold_stream_create(2, 32, 1, 0, nullptr, &stream), SOFTFOLD_OK);
  softfold_executor* executor = nullptr;
  exhausted = true;
  const softfold_status refused = softfold_softmax(&in, &out, nullptr, nullptr);  // a refusal's words
  const softfold_status pushed = softfold_stream_push(stream, &in);
  const softfold_status made = softfold_executor_threads(2, &executor);
  softfold_stream* another = nullptr;
  const softfold_status created = softfold_stream_create(2, 32, 1, 0, nullptr, &another);
  exhausted = false;
  for (const softfold_status status : {refused, pushed, made, created}) EXPECT_EQ(status, SOFTFOLD_OUT_OF_MEMORY);
  EXPECT_STREQ(softfold_last_error(),
               "softfold: got an allocation that failed; allowed: a call with enough memory; try: free some");
  EXPECT_EQ(executor, nullptr);
  EXPECT_EQ(another, nullptr);
  EXPECT_EQ(softfold_stream_push(stream, &in), SOFTFOLD_OK);
  softfold_stream_destroy(stream);
}

}  // namespace
