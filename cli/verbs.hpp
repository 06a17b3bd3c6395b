// One function a verb: adds it to the program.
#pragma once

#include "command.hpp"

namespace softfold::cli {

void add_softmax(Program& program);  ///< softmax, log-softmax, logsumexp
void add_state(Program& program);
void add_cross_entropy(Program& program);
void add_linear_cross_entropy(Program& program);
void add_entropy(Program& program);  ///< entropy, kl-divergence
void add_topk(Program& program);
void add_sample(Program& program);
void add_merge(Program& program);
void add_finish(Program& program);
void add_attention(Program& program);
void add_hash(Program& program);
void add_verify(Program& program);
void add_explain(Program& program);
void add_doctor(Program& program);
void add_bench(Program& program);

}  // namespace softfold::cli
