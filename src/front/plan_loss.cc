// cross_entropy, entropy and their backward passes: operands matched and checked.
#include "front/advice.hpp"
#include "front/checks.hpp"
#include "front/loss_operands.hpp"
#include "front/named_views.hpp"
#include "front/plan_build.hpp"
#include "softfold/shown.hpp"

#include <algorithm>
#include <cmath>

namespace softfold {
inline namespace v0 {

using checks::describe;

namespace loss_operands {

void check_terms(const CrossEntropyOptions& o) {
  if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1))
    throw Error(Code::option, "label_smoothing " + detail::shown(o.label_smoothing), "0 .. 1", "label_smoothing 0.1");
  if (!(o.z_loss >= 0 && std::isfinite(o.z_loss)))
    throw Error(Code::option, "z_loss " + detail::shown(o.z_loss), "a finite number, 0 or more", "z_loss 1e-4");
  if (o.reduction > Reduction::mean)
    throw Error(Code::option, "reduction number " + std::to_string(static_cast<int>(o.reduction)), "none, sum, mean");
  if (o.rows.rung != Rung::automatic)
    throw Error(Code::unsupported, "a rung for cross-entropy", "none", leave_at_default("rung"));
}

void add_loss(RowBuilder& b, Operand& o, const char* name, const View& v, Reduction reduction) {
  checks::check_floating(v, name);
  if (reduction == Reduction::none) return b.per_row(o, name, v);
  if (checks::element_count(v) != 1)
    throw Error(Code::shape, std::string(name) + " of shape " + describe(v.shape), "one number: []",
                "Reduction::none gives one a row");
  o = {static_cast<char*>(v.data), v.dtype, true, 0, {}};
}

void add_states(RowBuilder& b, const View& states) {
  if (states.dtype != DType::float64)
    throw Error(Code::dtype, "states of dtype " + std::string(name_of(states.dtype)), "float64 (m, d, scale, digits)",
                "what state gives");
  b.per_row(b.p[Slot::states], "states", states, 4);
}

void begin(LossProblem& p, Op op, const RowOptions& o) {
  p.op = op;
  p.empty = o.empty;
  p.rung = o.rung;
  p.causal = o.causal;
  p.scale = o.scale;
  p.shard = {};
  for (Operand& operand : p.operands) operand.given = false;
  for (Operand& operand : p.more) operand.given = false;
}

namespace {

void add_weight(LossProblem& p, const char* name, const View& v) {
  checks::check_floating(v, name);
  if (v.rank() != 1 || v.shape[0] != p.classes() || p[Slot::offsets].given)
    throw Error(Code::shape, std::string(name) + " of shape " + describe(v.shape),
                p[Slot::offsets].given ? "no weight where rows are ragged"
                                       : "one a class: [" + std::to_string(p.classes()) + "]");
  p[LossSlot::weight] = {static_cast<char*>(v.data),
                         v.dtype,
                         true,
                         checks::stride_of(v, 0) * static_cast<std::int64_t>(size_of(v.dtype)),
                         {}};
}

void add_status(LossProblem& p, const View& v) {
  if (v.dtype != DType::int32) throw Error(Code::dtype, "status of dtype " + std::string(name_of(v.dtype)), "int32");
  if (checks::element_count(v) != 1) throw Error(Code::shape, "status of shape " + describe(v.shape), "one number: []");
  p[LossSlot::status] = {static_cast<char*>(v.data), v.dtype, true, 0, {}};
}

}  // namespace

void add_results(LossProblem& p, RowBuilder& b, const View& loss, const View& dloss, const View& states,
                 const CrossEntropyOptions& o, const char* weight_name) {
  p.reduction = o.reduction;
  p.ignore_index = o.ignore_index;
  p.label_smoothing = o.label_smoothing;
  p.z_loss = o.z_loss;
  if (loss.given()) add_loss(b, p[LossSlot::loss], "loss", loss, o.reduction);
  if (dloss.given()) add_loss(b, p[LossSlot::dloss], "dloss", dloss, o.reduction);
  if (states.given()) add_states(b, states);
  if (o.log_probability.given()) {
    checks::check_floating(o.log_probability, "log_probability");
    b.per_row(p[LossSlot::log_probability], "log_probability", o.log_probability);
  }
  if (o.weight.given()) add_weight(p, weight_name, o.weight);
  if (o.status.given()) add_status(p, o.status);
}

}  // namespace loss_operands

namespace {

using namespace loss_operands;

void add_gradient(RowBuilder& b, const View& dx) {
  checks::check_floating(dx, "dx");
  b.full(b.p[Slot::y], "dx", dx);
}

/// Floating targets have x's shape: those of another, as class indices that were read as floats, meet both kinds.
void check_probabilities(const RowBuilder& b, const View& targets) {
  if (std::ranges::equal(targets.shape, b.shape)) return;
  const bool one_a_row = targets.rank() + 1 == static_cast<int>(b.shape.size());
  throw Error(Code::shape,
              "targets of shape " + describe(targets.shape) + " and dtype " + std::string(name_of(targets.dtype)),
              "class indices (int32, int64), one a row, or class probabilities of x's shape " + describe(b.shape),
              one_a_row ? "convert them to int64" : "class indices");
}

/// Class indices, one a row; or class probabilities, of x's shape.
void add_targets(LossProblem& p, RowBuilder& b, const View& targets, const CrossEntropyOptions& o) {
  if (!is_floating(targets.dtype)) {
    checks::check_integer(targets, "targets");
    return b.per_row(p[LossSlot::targets], "targets", targets);
  }
  if (!o.rows.offsets.given()) check_probabilities(b, targets);
  if (o.log_probability.given() || o.rows.offsets.given())
    throw Error(Code::option, "log_probability or offsets with class probabilities as targets",
                "class indices: int32, int64", "leave them out: no class is the target");
  if (p.shard.size != 0)
    throw Error(Code::unsupported, "class probabilities as targets for a shard", "class indices: int32, int64");
  if ((targets.dtype == DType::float64) != p.is_double())
    throw Error(Code::dtype, "targets of dtype " + std::string(name_of(targets.dtype)) + " with x of another",
                "both float64, or neither", p.is_double() ? "convert them to float64" : "convert them to float32");
  b.full(p[LossSlot::targets], "targets", targets);
}

void add_shard(LossProblem& p, const CrossEntropyOptions& o) {
  const Shard& s = o.shard;
  if (s.size == 0 && s.offset == 0) return;
  if (p.op != Op::cross_entropy_backward)
    throw Error(Code::option, "a shard for cross_entropy", "none: the logits of whole rows",
                "fold_shard and join_cross_entropy (shards.hpp)");
  if (o.label_smoothing != 0 || o.rows.offsets.given())
    throw Error(Code::unsupported, "label_smoothing or offsets for a shard", "neither", "leave them as by default");
  checks::check_shard(s, p.n);
  p.shard = s;
}

void check_counts(Op op, std::size_t wanted, std::size_t inputs, std::size_t outputs) {
  if (inputs != wanted || outputs != 1)
    throw Error(
        Code::shape,
        std::to_string(inputs) + " inputs and " + std::to_string(outputs) + " outputs for " + std::string(name_of(op)),
        std::to_string(wanted) + " inputs and 1 output");
}

/// What the backward pass takes and gives otherwise than by its options.
void refuse_results(const CrossEntropyOptions& o) {
  const std::pair<const View*, const char*> results[] = {
      {&o.log_probability, "log_probability"}, {&o.states, "states"}, {&o.dx, "dx"}, {&o.dloss, "dloss"}};
  for (const auto& [v, name] : results)
    if (v->given())
      throw Error(Code::option, std::string(name) + " among the options of cross_entropy_backward",
                  "x, targets, states, dloss as inputs and dx as output");
}

}  // namespace

void build_loss(LossProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
                const CrossEntropyOptions& o) {
  const bool backward = op == Op::cross_entropy_backward;
  check_counts(op, backward ? 4 : 2, inputs.size(), outputs.size());
  check_terms(o);
  if (backward) refuse_results(o);
  const View none;
  const View &x = inputs[0], &targets = inputs[1], &loss = backward ? none : outputs[0];
  const View &states = backward ? inputs[2] : o.states, &dloss = backward ? inputs[3] : o.dloss;
  const View& dx = backward ? outputs[0] : o.dx;
  NamedViews views;
  views.add("x", x, true);
  views.add("targets", targets, true);
  views.add("loss", loss, !backward, NamedViews::output);
  views.add("states", states, backward, backward ? NamedViews::input : NamedViews::output);
  views.add("dloss", dloss, backward);
  views.add("dx", dx, backward, NamedViews::output_over_x);
  views.add("log_probability", o.log_probability, false, NamedViews::output);
  views.add("weight", o.weight, false);
  views.add("status", o.status, false, NamedViews::output);
  views.add_options(o.rows);
  if (dloss.given() && !dx.given())
    throw Error(Code::option, "dloss without dx", "both, or neither", "give dx, or call cross_entropy_backward");
  checks::check_floating(x, "x");

  begin(p, op, o.rows);
  RowBuilder b(p, x, o.rows);
  checks::check_scale(o.rows.scale, x.dtype == DType::float64);
  b.full(p[Slot::x], "x", x);
  add_shard(p, o);
  add_targets(p, b, targets, o);
  add_results(p, b, loss, dloss, states, o, "weight");
  if (dx.given()) add_gradient(b, dx);
  b.add_options(o.rows);
  views.check_apart();
  collapse(p, p.more);
}

void build_entropy(LossProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
                   const EntropyOptions& o) {
  const bool backward = op == Op::entropy_backward;
  check_counts(op, backward ? 3 : 1, inputs.size(), outputs.size());
  if (o.rows.rung != Rung::automatic)
    throw Error(Code::unsupported, "a rung for the entropy", "none", leave_at_default("rung"));
  if (backward && (o.states.given() || o.dx.given() || o.dentropy.given()))
    throw Error(Code::option, "states, dx or dentropy among the options of entropy_backward",
                "x, states, dentropy as inputs and dx as output");
  const View none;
  const View &x = inputs[0], &entropy = backward ? none : outputs[0];
  const View &states = backward ? inputs[1] : o.states, &dentropy = backward ? inputs[2] : o.dentropy;
  const View& dx = backward ? outputs[0] : o.dx;
  NamedViews views;
  views.add("x", x, true);
  views.add("entropy", entropy, !backward, NamedViews::output);
  views.add("states", states, backward, backward ? NamedViews::input : NamedViews::output);
  views.add("dentropy", dentropy, backward);
  views.add("dx", dx, backward, NamedViews::output_over_x);
  views.add_options(o.rows);
  if (dentropy.given() && !dx.given())
    throw Error(Code::option, "dentropy without dx", "both, or neither", "give dx, or call entropy_backward");
  checks::check_floating(x, "x");

  begin(p, op, o.rows);
  p.reduction = Reduction::none;
  p.ignore_index = 0;
  p.label_smoothing = p.z_loss = 0;
  RowBuilder b(p, x, o.rows);
  checks::check_scale(o.rows.scale, x.dtype == DType::float64);
  b.full(p[Slot::x], "x", x);
  if (entropy.given()) add_loss(b, p[LossSlot::loss], "entropy", entropy, Reduction::none);
  if (dentropy.given()) add_loss(b, p[LossSlot::dloss], "dentropy", dentropy, Reduction::none);
  if (states.given()) add_states(b, states);
  if (dx.given()) add_gradient(b, dx);
  b.add_options(o.rows);
  views.check_apart();
  collapse(p, p.more);
}

}  // namespace v0
}  // namespace softfold
