// Elements of x that lie in no ragged row, before the first one and behind the last: a result of x's shape holds there
// what it would if they were hidden.
#pragma once

#include "front/problem.hpp"

#include <limits>

namespace softfold {
inline namespace v0 {

inline double outside_value(Op op) {
  return op == Op::log_softmax || op == Op::finish_log_softmax ? -std::numeric_limits<double>::infinity() : 0.;
}
/// Write outside_value() to those of y; p has offsets and y. Beside what the rows' kernel writes, in any order.
void cpu_fill_outside(const RowProblem& p);
void cuda_fill_outside(const RowProblem& p, const Context& context);

}  // namespace v0
}  // namespace softfold
