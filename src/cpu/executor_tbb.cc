// An executor over a oneTBB arena: softfold then shares its threads with a program that uses oneTBB itself.
#include "softfold/error.hpp"
#include "softfold/executor.hpp"

#include <algorithm>
#include <string>

#if defined(SOFTFOLD_WITH_TBB)
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#endif

namespace softfold {
inline namespace v0 {

#if defined(SOFTFOLD_WITH_TBB)
namespace {

constexpr int kMost = 4096;

int allowed() {
  using Control = oneapi::tbb::global_control;
  return static_cast<int>(std::min<std::size_t>(Control::active_value(Control::max_allowed_parallelism), kMost));
}

class TbbExecutor final : public Executor {
 public:
  /// More threads than oneTBB allows itself would only make it write a warning.
  explicit TbbExecutor(int threads) : arena_(std::min(threads == 0 ? kMost : threads, allowed())) {
    arena_.initialize();
  }
  int concurrency() const override { return arena_.max_concurrency(); }
  void run(std::int64_t tasks, Task task, void* argument) override {
    if (tasks <= 0) return;
    // Isolated: a thread that waits for this run takes no other task in between, whose scratch could be its own.
    const auto all = [&] {
      oneapi::tbb::this_task_arena::isolate([&] {
        oneapi::tbb::parallel_for(
            std::int64_t{0}, tasks, [=](std::int64_t i) { task(argument, i); }, oneapi::tbb::simple_partitioner());
      });
    };
    arena_.execute(all);
  }

 private:
  oneapi::tbb::task_arena arena_;
};

}  // namespace

std::unique_ptr<Executor> make_tbb_executor(int threads) {
  if (threads < 0 || threads > kMost)
    throw Error(Code::option, std::to_string(threads) + " threads", "0 (the machine's) to " + std::to_string(kMost),
                "0");
  return std::make_unique<TbbExecutor>(threads);
}

#else

std::unique_ptr<Executor> make_tbb_executor(int) {
  throw Error(Code::unsupported, "an executor over oneTBB", "a build that found oneTBB (SOFTFOLD_TBB=ON)",
              "make_thread_executor");
}

#endif

}  // namespace v0
}  // namespace softfold
