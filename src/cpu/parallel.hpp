// The one way in which kernels use an Executor: every task computes in the portable floating-point environment.
#pragma once

#include "softfold/executor.hpp"
#include "softfold/float_env.hpp"
#include "softfold/options.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>

namespace softfold {
inline namespace v0 {

/// The executor that a context means.
inline Executor& executor_of(const Context& context) {
  return context.cpu != nullptr ? *context.cpu : default_executor();
}

/// Calls body(i) for every i in [0, tasks), in any order and on any thread. What a body throws (an allocation that
/// failed) is thrown again here, once every other task is done.
template <class Body>
void parallel_for(Executor& executor, std::int64_t tasks, Body&& body) {
  struct Job {
    std::remove_reference_t<Body>* body;
    std::atomic_flag failed;
    std::exception_ptr error;
  };
  Job job{std::addressof(body), {}, {}};
  const Executor::Task task = [](void* argument, std::int64_t index) noexcept {
    const FloatEnv environment;
    auto& own = *static_cast<Job*>(argument);
    try {
      (*own.body)(index);
    } catch (...) {
      if (!own.failed.test_and_set()) own.error = std::current_exception();
    }
  };
  if (tasks == 1) {
    task(&job, 0);
  } else if (tasks > 1) {
    executor.run(tasks, task, &job);
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace v0
}  // namespace softfold
