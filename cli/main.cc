// The command `softfold`.
#include "interrupt.hpp"
#include "verbs.hpp"

int main(int count, char** arguments) {
  using namespace softfold::cli;
  note_interrupts();
  Program program;
  for (const auto add :
       {add_softmax, add_state, add_merge, add_finish, add_hash, add_verify, add_explain, add_doctor, add_bench})
    add(program);
  return program.run(count, arguments);
}
