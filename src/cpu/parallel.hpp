// The one way in which kernels use an Executor: every task computes in the portable floating-point environment.
#pragma once

#include "cpu/float_env.hpp"
#include "softfold/executor.hpp"
#include "softfold/options.hpp"

#include <cstdint>
#include <memory>

namespace softfold {
inline namespace v0 {

/// The executor that a context means.
inline Executor& executor_of(const Context& context) {
  return context.cpu != nullptr ? *context.cpu : default_executor();
}

/// Calls body(i) for every i in [0, tasks), in any order and on any thread. `body` does not throw.
template <class Body>
void parallel_for(Executor& executor, std::int64_t tasks, Body&& body) {
  using B = std::remove_reference_t<Body>;
  const Executor::Task task = [](void* argument, std::int64_t index) noexcept {
    const FloatEnv environment;
    (*static_cast<B*>(argument))(index);
  };
  void* const argument = const_cast<void*>(static_cast<const void*>(std::addressof(body)));
  if (tasks == 1) {
    task(argument, 0);
  } else if (tasks > 1) {
    executor.run(tasks, task, argument);
  }
}

}  // namespace v0
}  // namespace softfold
