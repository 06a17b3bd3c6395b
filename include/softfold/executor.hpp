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
  /// How many tasks can run at once.
  virtual int concurrency() const = 0;
  /// Calls task(argument, i) for every i in [0, tasks) and returns when all are done. Tasks do not throw.
  virtual void run(std::int64_t tasks, Task task, void* argument) = 0;
};

/// Runs everything on the calling thread.
SOFTFOLD_API Executor& serial_executor();
/// A pool over std::thread. threads = 0 takes the machine's. Refuses threads < 0.
SOFTFOLD_API std::unique_ptr<Executor> make_thread_executor(int threads = 0);
/// A oneTBB arena. threads = 0 takes the machine's. Refused (Code::unsupported) in a build without oneTBB.
SOFTFOLD_API std::unique_ptr<Executor> make_tbb_executor(int threads = 0);
/// What a Context without an executor uses: oneTBB where the build has it, else the std::thread pool; made once.
SOFTFOLD_API Executor& default_executor();

}  // namespace v0
}  // namespace softfold
