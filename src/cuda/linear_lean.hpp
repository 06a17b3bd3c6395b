// linear_cross_entropy of mode lean: the logits of a block of classes at a time.
#pragma once

#include "front/linear_problem.hpp"

namespace softfold {
inline namespace v0 {
namespace cuda {

const char* lean_refuses(const LinearProblem& p, const Context& context);
std::size_t lean_workspace(const LinearProblem& p, const Context& context);
void lean_run(const LinearProblem& p, const Context& context);

}  // namespace cuda
}  // namespace v0
}  // namespace softfold
