#include "interrupt.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace softfold::cli {
namespace {

// Set by handlers, read by every thread.
std::atomic<int> interrupted{0}, pipe_broken{0};
static_assert(std::atomic<int>::is_always_lock_free);

// Those that ask a process to end. Faults (SIGSEGV, SIGABRT, ...) end it where they happen.
constexpr int kEnding[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGALRM, SIGVTALRM,
                           SIGPROF, SIGUSR1, SIGUSR2, SIGPOLL, SIGPWR,  SIGSTKFLT};

/// Of each signal when it came first, in ms from some moment on; 0: it has not.
std::array<std::atomic<std::int64_t>, NSIG> came{};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

/// A second one ends the process at once, unless it belongs to the first: who signals a process and then its group, as
/// timeout(1) does, means one.
void interrupt(int signal) {
  constexpr std::int64_t kOne = 500;
  interrupted = 1;
  std::timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t ms = std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000 + 1;
  std::int64_t first = 0;
  if (came[static_cast<std::size_t>(signal)].compare_exchange_strong(first, ms) || ms - first < kOne) return;
  std::signal(signal, SIG_DFL);
  static_cast<void>(std::raise(signal));  // as soon as this handler has returned
}

/// Unless the signal is ignored (nohup) or already has a handler (a profiler's).
void note(int signal, void (*handler)(int)) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void note_interrupts() {
  for (const int signal : kEnding) note(signal, interrupt);
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) note(signal, interrupt);
  note(SIGXCPU, [](int) { interrupted = 1; });  // the system repeats it every second
  std::signal(SIGXFSZ, SIG_IGN);                // the write fails, and says why
  note(SIGPIPE, [](int) { pipe_broken = 1; });
}

void end_if_pipe_broke() {
  if (pipe_broken == 0) return;
  std::signal(SIGPIPE, SIG_DFL);
  static_cast<void>(std::raise(SIGPIPE));
}

void check_interrupt() {
  if (interrupted != 0) throw Interrupted();
}

void UntilInterrupted::run(std::int64_t tasks, Task task, void* argument) {
  struct Call {
    Task task;
    void* argument;
  } call{task, argument};
  const Task unless_interrupted = [](void* c, std::int64_t i) {
    const Call& to = *static_cast<const Call*>(c);
    if (interrupted == 0) to.task(to.argument, i);
  };
  executor_.run(tasks, unless_interrupted, &call);
}

}  // namespace softfold::cli
