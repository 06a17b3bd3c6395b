#include "interrupt.hpp"

#include <atomic>
#include <csignal>

namespace softfold::cli {
namespace {

// Set by handlers, read by every thread.
std::atomic<int> interrupted{0}, pipe_broken{0};
static_assert(std::atomic<int>::is_always_lock_free);

// Those that ask a process to end. Faults (SIGSEGV, SIGABRT, ...) end it where they happen.
constexpr int kEnding[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGALRM, SIGVTALRM,
                           SIGPROF, SIGUSR1, SIGUSR2, SIGPOLL, SIGPWR,  SIGSTKFLT};

void interrupt(int) { interrupted = 1; }

/// Unless the signal is ignored (nohup) or already has a handler (a profiler's).
void note(int signal, int flags, void (*handler)(int)) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | flags;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void note_interrupts() {
  for (const int signal : kEnding) note(signal, static_cast<int>(SA_RESETHAND), interrupt);
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) note(signal, static_cast<int>(SA_RESETHAND), interrupt);
  note(SIGXCPU, 0, interrupt);    // the system repeats it every second
  std::signal(SIGXFSZ, SIG_IGN);  // the write fails, and says why
  note(SIGPIPE, 0, [](int) { pipe_broken = 1; });
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
