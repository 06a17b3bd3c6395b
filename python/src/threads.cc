#include "rows.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

namespace softfold::python {
namespace {

struct Pool {
  std::mutex mutex;
  std::shared_ptr<Executor> executor;
};

/// Never destroyed: a call may still be running when the interpreter ends.
Pool& pool() {
  static Pool* const one = new Pool;
  return *one;
}

int threads_asked_for() {
  const char* text = std::getenv("SOFTFOLD_THREADS");
  if (text == nullptr) return 0;
  int threads = -1;
  const auto end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, threads);
  if (error != std::errc() || at != end) threads = -1;
  if (threads < 0)
    throw Error(Code::option, std::string("SOFTFOLD_THREADS=") + text,
                "a number from 0 to " + std::to_string(kMostThreads), "SOFTFOLD_THREADS=0: the machine's");
  return threads;
}

void set_num_threads(nb::handle threads) {
  std::shared_ptr<Executor> made = make_thread_executor(whole<int>(threads, "threads", 0, kMostThreads));
  const std::lock_guard lock(pool().mutex);
  std::swap(pool().executor, made);
}

}  // namespace

std::shared_ptr<Executor> executor() {
  const std::lock_guard lock(pool().mutex);
  if (!pool().executor) pool().executor = make_thread_executor(threads_asked_for());
  return pool().executor;
}

void bind_threads(nb::module_& m) {
  m.def("set_num_threads", &set_num_threads, nb::arg("threads"), nb::sig("def set_num_threads(threads: int) -> None"),
        R"(Fold with this many threads from now on, in the whole process.

threads: 0 takes as many as the process may run on, which is also the default; the environment variable
SOFTFOLD_THREADS sets it before the first call. No result depends on it.)");
  m.def(
      "get_num_threads", [] { return executor()->concurrency(); }, nb::sig("def get_num_threads() -> int"),
      "How many threads a call may use.");
}

}  // namespace softfold::python
