#include "interrupt.hpp"

#include <csignal>
#include <initializer_list>

namespace softfold::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

void note_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
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
