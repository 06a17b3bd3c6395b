// Row operations: operands matched to the operation's signature, checked, and brought to one form.
#include "front/checks.hpp"
#include "front/plan_build.hpp"
#include "front/row_builder.hpp"

namespace softfold {
inline namespace v0 {
namespace {

/// Which operands an operation takes and gives, in the order of the Op's comment.
struct Signature {
  int inputs;
  Slot in[3];
  Slot out;
};

constexpr Signature signature_of(Op op) {
  switch (op) {
    case Op::logsumexp: return {1, {Slot::x}, Slot::row};
    case Op::state: return {1, {Slot::x}, Slot::states};
    case Op::softmax_backward:
    case Op::log_softmax_backward: return {2, {Slot::x, Slot::dy}, Slot::y};
    case Op::logsumexp_backward: return {3, {Slot::x, Slot::states, Slot::row}, Slot::y};
    case Op::finish_softmax:
    case Op::finish_log_softmax: return {2, {Slot::x, Slot::states}, Slot::y};
    case Op::finish_logsumexp: return {1, {Slot::states}, Slot::row};
    default: return {1, {Slot::x}, Slot::y};
  }
}

constexpr const char* slot_name(Op op, Slot slot) {
  const bool backward = op == Op::softmax_backward || op == Op::log_softmax_backward || op == Op::logsumexp_backward;
  switch (slot) {
    case Slot::x: return backward && op != Op::logsumexp_backward ? "y" : "x";
    case Slot::y: return backward ? "dx" : "y";
    case Slot::dy: return "dy";
    case Slot::states: return "states";
    case Slot::row: return op == Op::logsumexp_backward ? "dlse" : "lse";
    case Slot::scales: return "scales";
    case Slot::length: return "lengths";
    case Slot::offsets: return "offsets";
    case Slot::mask: return "mask";
    case Slot::count: break;
  }
  return "?";
}

void check_operand(Op op, Slot slot, const View& v) {
  checks::check_view(v, slot_name(op, slot));
  if (slot != Slot::states) {
    checks::check_floating(v, slot_name(op, slot));
  } else if (v.dtype != DType::float64) {
    throw Error(Code::dtype, "states of dtype " + std::string(name_of(v.dtype)), "float64 (m, d, scale, digits)",
                op == Op::state ? "an array of float64" : "what state gives");
  }
}

void add_operand(RowBuilder& b, Slot slot, const View& v) {
  const char* name = slot_name(b.p.op, slot);
  switch (slot) {
    case Slot::states: return b.per_row(b.p[slot], name, v, 4);
    case Slot::row: return b.per_row(b.p[slot], name, v);
    default: return b.full(b.p[slot], name, v);
  }
}

/// What must hold between operands: one device, outputs apart from inputs, one precision.
void check_together(const RowProblem& p, const Signature& sig, std::span<const View> inputs, const View& out,
                    const RowOptions& o) {
  const char* out_name = slot_name(p.op, sig.out);
  checks::check_output(out, out_name);
  checks::check_device(inputs[0], out, out_name);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const char* in_name = slot_name(p.op, sig.in[i]);
    checks::check_device(inputs[0], inputs[i], in_name);
    checks::check_overlap(out, out_name, inputs[i], in_name, sig.out == Slot::y && sig.in[i] != Slot::states);
  }
  const std::pair<const View*, const char*> options[] = {
      {&o.scales, "scales"}, {&o.length, "lengths"}, {&o.offsets, "offsets"}, {&o.mask, "mask"}};
  for (const auto& [v, what] : options) {
    if (!v->given()) continue;
    checks::check_device(inputs[0], *v, what);
    checks::check_overlap(out, out_name, *v, what, false);
  }
  if (p[Slot::dy].given && (p[Slot::dy].dtype == DType::float64) != p.is_double())
    throw Error(Code::dtype, "float64 mixed with a narrower dtype in one gradient", "y and dy both float64, or neither",
                "convert one of them");
}

}  // namespace

void build_rows(RowProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
                const RowOptions& o) {
  const Signature sig = signature_of(op);
  if (std::ssize(inputs) != sig.inputs || outputs.size() != 1)
    throw Error(Code::shape,
                std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) + " outputs for " +
                    std::string(name_of(op)),
                std::to_string(sig.inputs) + " inputs and 1 output");
  p.op = op;
  p.empty = o.empty;
  p.rung = o.rung;
  p.causal = o.causal;
  p.scale = o.scale;
  for (Operand& operand : p.operands) operand.given = false;
  for (int i = 0; i < sig.inputs; ++i) check_operand(op, sig.in[i], inputs[static_cast<std::size_t>(i)]);
  check_operand(op, sig.out, outputs[0]);

  const View& main = inputs[0];
  const bool has_x = sig.in[0] == Slot::x;
  if (!has_x && main.rank() < 1) throw Error(Code::shape, "states of shape []", "(..., 4)");
  RowBuilder b = has_x ? RowBuilder(p, main, o) : RowBuilder(p, main.shape.first(main.shape.size() - 1));
  for (int i = 0; i < sig.inputs; ++i) add_operand(b, sig.in[i], inputs[static_cast<std::size_t>(i)]);
  add_operand(b, sig.out, outputs[0]);
  if (has_x) checks::check_scale(o.scale, p.is_double());
  b.add_options(o);
  check_together(p, sig, inputs, outputs[0], o);
  collapse(p);
}

}  // namespace v0
}  // namespace softfold
