// Where CPU work runs. softfold has no global thread pool of its own choosing: a Context names an Executor.
#pragma once

#include "softfold/config.hpp"

#include <cstdint>
#include <memory>

namespace softfold {
inline namespace v0 {

/// Runs independent tasks. Results never depend on which executor runs them, on how many threads it has, or on the
/// order of the tasks.
class SOFTFOLD_API Executor {
 public:
  /// A task: called once for each index in [0, tasks), on any thread.
  using Task = void (*)(void* argument, std::int64_t index);

  virtual ~Executor() = default;
  /// How many tasks can run at once: 1 or more, else plans are refused (Code::option).
  virtual int concurrency() const = 0;
  /// Calls task(argument, i) for every i in [0, tasks) and returns when all are done; what they wrote is then visible
  /// to the caller. Tasks do not throw. A thread that waits inside run() may do other work meanwhile, other softfold
  /// operations too; a thread inside a task may not, until the task is done.
  virtual void run(std::int64_t tasks, Task task, void* argument) = 0;
};

/// The most threads that a pool of softfold's has.
inline constexpr int kMostThreads = 4096;

/// Runs everything on the calling thread.
SOFTFOLD_API Executor& serial_executor();
/// A pool of `threads` - 1 std::threads and the caller of run(). run() may be called from several threads and from
/// inside a task; in a forked child the pool starts anew. threads = 0 takes as many as the process may run on; more
/// than kMostThreads or fewer than 0 are refused (Code::option).
SOFTFOLD_API std::unique_ptr<Executor> make_thread_executor(int threads = 0);
/// A oneTBB arena of at most `threads` threads, no more than oneTBB allows itself. threads = 0 takes all of those.
/// Refused (Code::unsupported) in a build without oneTBB.
SOFTFOLD_API std::unique_ptr<Executor> make_tbb_executor(int threads = 0);
/// What a Context without an executor uses: oneTBB where the build has it, else the std::thread pool; made once, with
/// SOFTFOLD_THREADS threads if the environment says so (Code::option if that is not a number from 0 to kMostThreads).
SOFTFOLD_API Executor& default_executor();

}  // namespace v0
}  // namespace softfold
