// Executors: every index once, from several threads, nested, across a fork, and in the portable environment.
#include "softfold/executor.hpp"

#include "cpu/parallel.hpp"
#include "softfold/error.hpp"
#include "support/sanitized.hpp"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace {

using softfold::Executor;
using softfold::FloatEnv;
using softfold::parallel_for;
using softfold_test::kSanitized;

using Make = std::function<std::unique_ptr<Executor>(int)>;

struct Kind {
  const char* name;
  Make make;
};

class ExecutorTest : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Executor> make(int threads) {
    try {
      return GetParam().make(threads);
    } catch (const softfold::Error& e) {
      if (e.code != softfold::Code::unsupported) throw;
      return nullptr;
    }
  }
};

/// How this thread rounds, seen in arithmetic (std::fegetround reads another unit's control word on x86).
bool rounds_to_nearest() {
  volatile double one = 1., tiny = 0x1p-60;
  return one + tiny == 1. && -one - tiny == -1.;
}

void expect_every_index_once(Executor& executor, std::int64_t tasks) {
  std::vector<int> seen(static_cast<std::size_t>(tasks), 0);
  parallel_for(executor, tasks, [&](std::int64_t i) { ++seen[static_cast<std::size_t>(i)]; });
  for (const int n : seen) ASSERT_EQ(n, 1);
}

TEST_P(ExecutorTest, EveryIndexOnceAndTheResultIsVisible) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    const auto executor = make(threads);
    if (executor == nullptr) GTEST_SKIP() << "this build has no such executor";
    EXPECT_GE(executor->concurrency(), 1);
    for (int repeat = 0; repeat < 200; ++repeat)
      for (const std::int64_t tasks : {0, 1, 2, 3, 7, 64}) expect_every_index_once(*executor, tasks);
    expect_every_index_once(*executor, 10000);
  }
}

TEST_P(ExecutorTest, SeveralCallersAtOnce) {
  const auto executor = make(3);
  if (executor == nullptr) GTEST_SKIP() << "this build has no such executor";
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> sum{0};
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 200; ++repeat) {
        std::vector<std::int64_t> values(17, 0);
        parallel_for(*executor, 17, [&](std::int64_t i) { values[static_cast<std::size_t>(i)] = i; });
        for (const auto v : values) sum += v;
      }
    });
  for (auto& t : callers) t.join();
  EXPECT_EQ(sum, 4 * 200 * (16 * 17 / 2));
}

TEST_P(ExecutorTest, Nested) {
  const auto executor = make(3);
  if (executor == nullptr) GTEST_SKIP() << "this build has no such executor";
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<int> count{0};
    parallel_for(*executor, 5, [&](std::int64_t) {
      parallel_for(*executor, 6, [&](std::int64_t) { parallel_for(*executor, 7, [&](std::int64_t) { ++count; }); });
    });
    ASSERT_EQ(count, 5 * 6 * 7);
  }
}

TEST_P(ExecutorTest, AfterParking) {
  const auto executor = make(2);
  if (executor == nullptr) GTEST_SKIP() << "this build has no such executor";
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    expect_every_index_once(*executor, 9);
  }
}

TEST_P(ExecutorTest, TasksComputeInThePortableEnvironment) {
  const auto executor = make(2);
  if (executor == nullptr) GTEST_SKIP() << "this build has no such executor";
  std::atomic<int> wrong{0};
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  parallel_for(*executor, 50, [&](std::int64_t) {
    if (!rounds_to_nearest()) ++wrong;
  });
  EXPECT_FALSE(rounds_to_nearest());
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(wrong, 0);
}

TEST_P(ExecutorTest, RefusesNegativeThreads) {
  if (make(1) == nullptr) GTEST_SKIP() << "this build has no such executor";
  try {
    GetParam().make(-1);
    FAIL() << "a negative number of threads was taken";
  } catch (const softfold::Error& e) {
    EXPECT_EQ(e.code, softfold::Code::option);
    EXPECT_EQ(e.got, "-1 threads");
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExecutorTest,
                         testing::Values(Kind{"Threads", softfold::make_thread_executor},
                                         Kind{"Tbb", softfold::make_tbb_executor}),
                         [](const auto& test) { return test.param.name; });

TEST(ThreadExecutor, TakesAsManyThreadsAsAskedFor) {
  EXPECT_EQ(softfold::make_thread_executor(5)->concurrency(), 5);
  EXPECT_GE(softfold::make_thread_executor()->concurrency(), 1);
}

TEST(ThreadExecutor, WorksInAForkedChild) {
  if (kSanitized) GTEST_SKIP() << "the sanitizers' own locks do not survive a fork beside running threads";
  const auto executor = softfold::make_thread_executor(3);
  expect_every_index_once(*executor, 100);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    for (int repeat = 0; repeat < 50; ++repeat) expect_every_index_once(*executor, 100);
    softfold::make_thread_executor(2).reset();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  expect_every_index_once(*executor, 100);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SerialExecutor, RunsInOrderOnTheCaller) {
  auto& executor = softfold::serial_executor();
  EXPECT_EQ(executor.concurrency(), 1);
  std::vector<std::int64_t> order;
  const auto caller = std::this_thread::get_id();
  parallel_for(executor, 4, [&](std::int64_t i) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(i);
  });
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

/// In a child, because the default executor is made once in a process.
int default_concurrency(const char* threads) {
  int channel[2];
  EXPECT_EQ(pipe(channel), 0);
  const pid_t child = fork();
  if (child == 0) {
    setenv("SOFTFOLD_THREADS", threads, 1);
    int result = -1;
    try {
      result = softfold::default_executor().concurrency();
    } catch (const softfold::Error& e) {
      result = -static_cast<int>(e.code);
    }
    const auto written = write(channel[1], &result, sizeof result);
    _exit(written == sizeof result ? 0 : 1);
  }
  int result = 0;
  EXPECT_EQ(read(channel[0], &result, sizeof result), static_cast<ssize_t>(sizeof result));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(channel[0]);
  close(channel[1]);
  return result;
}

TEST(DefaultExecutor, HonoursTheEnvironment) {
  if (kSanitized) GTEST_SKIP() << "the sanitizers' own locks do not survive a fork beside running threads";
  EXPECT_EQ(default_concurrency("1"), 1);
  EXPECT_EQ(default_concurrency("2"), 2);
  for (const char* bad : {"-1", "two", "2x", "99999"})
    EXPECT_EQ(default_concurrency(bad), -static_cast<int>(softfold::Code::option)) << bad;
}

TEST(ParallelFor, ThrowsAgainWhatATaskThrew) {
  const auto executor = softfold::make_thread_executor(3);
  for (const std::int64_t tasks : {1, 50}) {
    std::atomic<int> ran{0};
    const auto body = [&](std::int64_t i) {
      ++ran;
      if (i == tasks / 2) throw std::bad_alloc();
    };
    EXPECT_THROW(parallel_for(*executor, tasks, body), std::bad_alloc);
    EXPECT_EQ(ran, tasks);
  }
}

TEST(FloatEnv, RestoresTheCallers) {
  ASSERT_EQ(std::fesetround(FE_DOWNWARD), 0);
  bool inside, nested, again;
  {
    const FloatEnv environment;
    inside = rounds_to_nearest();
    {
      const FloatEnv inner;
      nested = rounds_to_nearest();
    }
    again = rounds_to_nearest();
  }
  const bool outside = rounds_to_nearest();
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(inside && nested && again);
  EXPECT_FALSE(outside);
}

#if defined(__x86_64__)
TEST(FloatEnv, SubnormalsCountInside) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // FTZ and DAZ
  volatile float tiny = 0x1p-140F, one = 1.F;
  float inside, outside;
  {
    const FloatEnv environment;
    inside = tiny * one;
  }
  outside = tiny * one;
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(inside, 0x1p-140F);
  EXPECT_EQ(outside, 0.F);
  EXPECT_EQ(after & 0x8040U, 0x8040U);
}
#endif

}  // namespace
