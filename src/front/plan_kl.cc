// kl_divergence and its backward pass: operands matched and checked.
#include "front/advice.hpp"
#include "front/checks.hpp"
#include "front/kl_problem.hpp"
#include "front/named_views.hpp"
#include "front/row_builder.hpp"

namespace softfold {
inline namespace v0 {
namespace {

/// Every view of a call, from wherever it was given.
struct KlViews {
  const View &p, &q, &kl, &p_states, &q_states, &dkl, &dp, &dq;

  static KlViews of(bool backward, std::span<const View> inputs, std::span<const View> outputs, const View& none,
                    const KlDivergenceOptions& o) {
    if (!backward) return {inputs[0], inputs[1], outputs[0], o.p_states, o.q_states, o.dkl, o.dp, o.dq};
    return {inputs[0], inputs[1], none, inputs[2], inputs[3], inputs[4], outputs[0], outputs[1]};
  }
};

void check_call(Op op, std::size_t inputs, std::size_t outputs, const KlDivergenceOptions& o) {
  const bool backward = op == Op::kl_divergence_backward;
  const std::size_t ins = backward ? 5 : 2, outs = backward ? 2 : 1;
  if (inputs != ins || outputs != outs)
    throw Error(
        Code::shape,
        std::to_string(inputs) + " inputs and " + std::to_string(outputs) + " outputs for " + std::string(name_of(op)),
        std::to_string(ins) + " inputs and " + std::to_string(outs) + (backward ? " outputs" : " output"));
  if (o.rows.rung != Rung::automatic)
    throw Error(Code::unsupported, "a rung for the divergence", "none", leave_at_default("rung"));
  const bool given = o.p_states.given() || o.q_states.given() || o.dp.given() || o.dq.given() || o.dkl.given();
  if (backward && given)
    throw Error(Code::option, "states, dp, dq or dkl among the options of kl_divergence_backward",
                "p, q, p_states, q_states, dkl as inputs and dp, dq as outputs");
}

NamedViews named(const KlViews& v, bool backward, const RowOptions& rows) {
  const auto states = backward ? NamedViews::input : NamedViews::output;
  NamedViews views;
  views.add("p", v.p, true);
  views.add("q", v.q, true);
  views.add("kl", v.kl, !backward, NamedViews::output);
  views.add("p_states", v.p_states, backward, states);
  views.add("q_states", v.q_states, backward, states);
  views.add("dkl", v.dkl, backward);
  views.add("dp", v.dp, false, NamedViews::output_over_x);
  views.add("dq", v.dq, false, NamedViews::output_over_second);
  views.add_options(rows);
  return views;
}

/// What the views' dtypes and devices say, before shapes are matched.
void check_kinds(const KlViews& v, bool backward) {
  if (!v.dp.given() && !v.dq.given() && (backward || v.dkl.given()))
    throw Error(Code::option, backward ? "neither dp nor dq" : "dkl without dp or dq", "one of them, or both",
                backward ? "give what is wanted" : "give dp or dq, or call kl_divergence_backward");
  checks::check_floating(v.p, "p");
  checks::check_floating(v.q, "q");
  if ((v.q.dtype == DType::float64) != (v.p.dtype == DType::float64))
    throw Error(Code::dtype,
                "q of dtype " + std::string(name_of(v.q.dtype)) + " with p of " + std::string(name_of(v.p.dtype)),
                "both float64, or neither", "convert one of them");
}

void add_states(RowBuilder& b, Operand& o, const char* name, const View& states) {
  if (!states.given()) return;
  if (states.dtype != DType::float64)
    throw Error(Code::dtype, std::string(name) + " of dtype " + std::string(name_of(states.dtype)),
                "float64 (m, d, scale, digits)", "what state gives");
  b.per_row(o, name, states, 4);
}

void add_number(RowBuilder& b, Operand& o, const char* name, const View& v) {
  if (!v.given()) return;
  checks::check_floating(v, name);
  b.per_row(o, name, v);
}

void add_gradient(RowBuilder& b, Operand& o, const char* name, const View& v) {
  if (!v.given()) return;
  checks::check_floating(v, name);
  b.full(o, name, v);
}

}  // namespace

void build_kl(KlProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
              const KlDivergenceOptions& o) {
  const bool backward = op == Op::kl_divergence_backward;
  check_call(op, inputs.size(), outputs.size(), o);
  const View none;
  const KlViews v = KlViews::of(backward, inputs, outputs, none, o);
  const NamedViews views = named(v, backward, o.rows);
  check_kinds(v, backward);

  p.op = op;
  p.empty = o.rows.empty;
  p.rung = o.rows.rung;
  p.causal = o.rows.causal;
  p.scale = o.rows.scale;
  for (Operand& operand : p.operands) operand.given = false;
  for (Operand& operand : p.more) operand.given = false;
  RowBuilder b(p, v.p, o.rows);
  checks::check_scale(o.rows.scale, v.p.dtype == DType::float64);
  b.full(p[Slot::x], "p", v.p);
  b.full(p[KlSlot::q], "q", v.q);
  add_number(b, p[KlSlot::kl], "kl", v.kl);
  add_number(b, p[KlSlot::dkl], "dkl", v.dkl);
  add_states(b, p[Slot::states], "p_states", v.p_states);
  add_states(b, p[KlSlot::q_states], "q_states", v.q_states);
  add_gradient(b, p[Slot::y], "dp", v.dp);
  add_gradient(b, p[KlSlot::dq], "dq", v.dq);
  b.add_options(o.rows);
  views.check_apart();
  collapse(p, p.more);
}

}  // namespace v0
}  // namespace softfold
