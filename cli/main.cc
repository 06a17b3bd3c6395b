// The command `softfold`.
#include "interrupt.hpp"
#include "verbs.hpp"

#include <fcntl.h>

namespace {

/// A closed standard stream's number would go to the next file that is opened, and what is printed into that file. A
/// closed standard output stays one that cannot be written.
void occupy_closed_streams() {
  for (const int stream : {0, 1, 2})
    if (::fcntl(stream, F_GETFD) == -1) static_cast<void>(::open("/dev/null", stream == 2 ? O_WRONLY : O_RDONLY));
}

}  // namespace

int main(int count, char** arguments) {
  using namespace softfold::cli;
  occupy_closed_streams();
  note_interrupts();
  Program program;
  for (const auto add :
       {add_softmax, add_cross_entropy, add_linear_cross_entropy, add_entropy, add_topk, add_sample, add_state,
        add_merge, add_finish, add_attention, add_hash, add_verify, add_explain, add_doctor, add_bench})
    add(program);
  return program.run(count, arguments);
}
