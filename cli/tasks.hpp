// Work split over an executor's threads.
#pragma once

#include "softfold/executor.hpp"

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

namespace softfold::cli {

/// Calls body(i) for every i in [0, tasks), in any order and on any thread; throws the first exception that one threw.
template <class Body>
void run_tasks(Executor& executor, std::int64_t tasks, const Body& body) {
  struct Shared {
    const Body& body;
    std::mutex mutex;
    std::exception_ptr error;
  } shared{body, {}, nullptr};
  executor.run(
      tasks,
      [](void* argument, std::int64_t index) {
        auto& s = *static_cast<Shared*>(argument);
        try {
          s.body(index);
        } catch (...) {
          const std::lock_guard lock(s.mutex);
          if (!s.error) s.error = std::current_exception();
        }
      },
      &shared);
  if (shared.error) std::rethrow_exception(shared.error);
}

}  // namespace softfold::cli
