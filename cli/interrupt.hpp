// Ctrl-C, kill and whatever else would end the process: the work stops at the next block, and what was being written is
// removed on the way out.
#pragma once

#include "softfold/executor.hpp"

namespace softfold::cli {

/// Thrown by check_interrupt. Not an std::exception: nothing keeps it from the program's end, which says the outcome.
struct Interrupted {
  const char* outcome = "nothing was written";
};

/// From here on the first signal that asks a process to end is only noted; a second one of its kind ends it at once.
/// What one write does (SIGPIPE, SIGXFSZ) is an error of that write.
void note_interrupts();

/// Ends the process as SIGPIPE does, without a word, if what was printed was no longer read: when nothing is left to
/// remove.
void end_if_pipe_broke();

/// Throws Interrupted if a signal came.
void check_interrupt();

/// Another executor whose tasks are left out once a signal came. What they make is not whole then: check_interrupt().
class UntilInterrupted final : public Executor {
 public:
  explicit UntilInterrupted(Executor& executor) : executor_(executor) {}
  int concurrency() const override { return executor_.concurrency(); }
  void run(std::int64_t tasks, Task task, void* argument) override;

 private:
  Executor& executor_;
};

}  // namespace softfold::cli
