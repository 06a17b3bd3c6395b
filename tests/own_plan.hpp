// From a bound problem to a plan, whatever options its operation has.
#pragma once

#include "cases.hpp"

#include "softfold/plan.hpp"

namespace softfold_test {

/// cross_entropy: x, targets, dloss, [weight] -> loss, log-probability, states, dx, or the first one or three of these;
/// cross_entropy_backward: x, targets, states, dloss, [weight] -> dx.
inline softfold::Plan plan_of(const Bound& b, Op op, softfold::CrossEntropyOptions o,
                              const softfold::Context& context) {
  const bool backward = op == Op::cross_entropy_backward;
  const std::size_t inputs = backward ? 4 : 2, weight = backward ? 4 : 3;
  o.rows = b.rows;
  if (b.inputs.size() > weight) o.weight = b.inputs[weight];
  if (!backward && b.outputs.size() > 1) {
    if (!is_floating(b.inputs[1].dtype)) o.log_probability = b.outputs[1];  // of a class, where one is the target
    o.states = b.outputs[2];
  }
  if (!backward && b.outputs.size() > 3) {
    o.dx = b.outputs[3];
    o.dloss = b.inputs[2];
  }
  const std::span<const View> in(b.inputs), out(b.outputs);
  return softfold::plan(op, in.first(std::min(in.size(), inputs)), out.first(1), o, context);
}

/// entropy: x, dentropy -> entropy, states, dx; entropy_backward: x, states, dentropy -> dx.
inline softfold::Plan plan_of(const Bound& b, Op op, softfold::EntropyOptions o, const softfold::Context& context) {
  o.rows = b.rows;
  const std::span<const View> in(b.inputs), out(b.outputs);
  if (op == Op::entropy_backward) return softfold::plan(op, in, out, o, context);
  if (out.size() > 1) {
    o.states = out[1];
    o.dx = out[2];
    o.dentropy = in[1];
  }
  return softfold::plan(op, in.first(1), out.first(1), o, context);
}

/// kl_divergence: p, q, dkl -> kl, states of p, of q, dp, dq; kl_divergence_backward: p, q, states, states, dkl -> dp,
/// dq.
inline softfold::Plan plan_of(const Bound& b, Op op, softfold::KlDivergenceOptions o,
                              const softfold::Context& context) {
  o.rows = b.rows;
  const std::span<const View> in(b.inputs), out(b.outputs);
  if (op == Op::kl_divergence_backward) return softfold::plan(op, in, out, o, context);
  if (out.size() > 1) {
    o.p_states = out[1], o.q_states = out[2];
    o.dp = out[3], o.dq = out[4];
    o.dkl = in[2];
  }
  return softfold::plan(op, in.first(2), out.first(1), o, context);
}

/// topk: x -> values, indices, probabilities, log-probabilities, lse.
inline softfold::Plan plan_of(const Bound& b, Op op, softfold::TopkOptions o, const softfold::Context& context) {
  o.rows = b.rows;
  const std::span<const View> in(b.inputs), out(b.outputs);
  if (out.size() > 2) {
    o.probabilities = out[2];
    o.log_probabilities = out[3];
    o.lse = out[4];
  }
  return softfold::plan(op, in, out.first(std::min<std::size_t>(out.size(), 2)), o, context);
}

/// sample: x, [bias] -> tokens, log-probability, rank, probabilities, masked.
inline softfold::Plan plan_of(const Bound& b, Op op, softfold::SampleOptions o, const softfold::Context& context) {
  o.rows = b.rows;
  const std::span<const View> in(b.inputs), out(b.outputs);
  if (in.size() > 1) o.bias = in[1];
  if (out.size() > 1) o.log_probability = out[1], o.rank = out[2], o.probabilities = out[3], o.masked = out[4];
  return softfold::plan(op, in.first(1), out.first(1), o, context);
}

inline softfold::Plan plan_of(const Bound& b, Op op, bool merge, const softfold::Context& context = {}) {
  if (const auto* loss = std::get_if<softfold::CrossEntropyOptions>(&b.own)) return plan_of(b, op, *loss, context);
  if (const auto* entropy = std::get_if<softfold::EntropyOptions>(&b.own)) return plan_of(b, op, *entropy, context);
  if (const auto* kl = std::get_if<softfold::KlDivergenceOptions>(&b.own)) return plan_of(b, op, *kl, context);
  if (const auto* topk = std::get_if<softfold::TopkOptions>(&b.own)) return plan_of(b, op, *topk, context);
  if (const auto* sample = std::get_if<softfold::SampleOptions>(&b.own)) return plan_of(b, op, *sample, context);
  return merge ? softfold::plan(op, b.inputs, b.outputs, b.merge, context)
               : softfold::plan(op, b.inputs, b.outputs, b.rows, context);
}

}  // namespace softfold_test
