// From a bound problem to a plan, whatever options its operation has.
#pragma once

#include "cases.hpp"

#include "softfold/plan.hpp"

namespace softfold_test {

/// cross_entropy: x, targets, dloss, [weight] -> loss, log-probability, states, dx; cross_entropy_backward: x, targets,
/// states, dloss, [weight] -> dx.
inline softfold::Plan plan_of(const Bound& b, Op op, softfold::CrossEntropyOptions o,
                              const softfold::Context& context) {
  const bool backward = op == Op::cross_entropy_backward;
  const std::size_t inputs = backward ? 4 : 2, weight = backward ? 4 : 3;
  o.rows = b.rows;
  if (b.inputs.size() > weight) o.weight = b.inputs[weight];
  if (!backward && b.outputs.size() > 1) {
    o.log_probability = b.outputs[1];
    o.states = b.outputs[2];
    o.dx = b.outputs[3];
    o.dloss = b.inputs[2];
  }
  const std::span<const View> in(b.inputs), out(b.outputs);
  return softfold::plan(op, in.first(std::min(in.size(), inputs)), out.first(1), o, context);
}

inline softfold::Plan plan_of(const Bound& b, Op op, bool merge, const softfold::Context& context = {}) {
  if (const auto* loss = std::get_if<softfold::CrossEntropyOptions>(&b.own)) return plan_of(b, op, *loss, context);
  return merge ? softfold::plan(op, b.inputs, b.outputs, b.merge, context)
               : softfold::plan(op, b.inputs, b.outputs, b.rows, context);
}

}  // namespace softfold_test
