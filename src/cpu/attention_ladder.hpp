// The first rungs of attention's ladder (docs/attention.md).
#pragma once

#include "front/problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cpu {

const char* naive_refuses(const AttentionProblem& p, const Context&);
const char* safe_refuses(const AttentionProblem& p, const Context&);
const char* merged_refuses(const AttentionProblem& p, const Context&);
const char* online_refuses(const AttentionProblem& p, const Context&);
void run_attention_ladder(const AttentionProblem& p, const Context& context);

}  // namespace cpu
}  // namespace v0
}  // namespace softfold
