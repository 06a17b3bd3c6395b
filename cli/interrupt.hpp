// Ctrl-C and kill: the work stops at the next block, and what was being written is removed on the way out.
#pragma once

namespace softfold::cli {

/// Thrown by check_interrupt. Not an std::exception: nothing but the program's end handles it.
struct Interrupted {};

/// From here on the first SIGINT, SIGTERM or SIGHUP is only noted; a second one ends the process at once.
void note_interrupts();

/// Throws Interrupted if a signal came.
void check_interrupt();

}  // namespace softfold::cli
