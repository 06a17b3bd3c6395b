// Row operations: operands matched to the operation's signature, checked, and brought to one form.
#include "front/checks.hpp"
#include "front/plan_build.hpp"

#include <algorithm>

namespace softfold {
inline namespace v0 {
namespace {

using checks::describe;

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
    case Slot::length: return "length";
    case Slot::offsets: return "offsets";
    case Slot::mask: return "mask";
    case Slot::count: break;
  }
  return "?";
}

/// Brings operands to the problem's axes: x's own without the folded one, or [rows] for ragged rows.
struct Builder {
  RowProblem& p;
  std::span<const std::int64_t> shape;  ///< x's; empty where there is no x
  int axis;                             ///< of shape; -1 where there is no x
  bool ragged;

  const char* name(Slot s) const { return slot_name(p.op, s); }
  std::int64_t size(int i) const { return shape[static_cast<std::size_t>(i)]; }
  int rank() const { return static_cast<int>(shape.size()); }
  /// 0 where there is no step to take: such a stride may be any number.
  static std::int64_t byte_stride(const View& v, int i) {
    if (v.shape[static_cast<std::size_t>(i)] <= 1) return 0;
    return checks::stride_of(v, i) * static_cast<std::int64_t>(size_of(v.dtype));
  }

  Operand& begin(Slot slot, const View& v) {
    Operand& o = p[slot];
    o.data = static_cast<char*>(v.data);
    o.dtype = v.dtype;
    o.given = true;
    o.axis_stride = 0;
    return o;
  }

  /// An operand of x's shape; with `broadcast`, one that broadcasts to it from the right.
  void full(Slot slot, const View& v, bool broadcast = false) {
    const int lead = rank() - v.rank();
    bool fits = broadcast ? lead >= 0 : lead == 0;
    for (int i = 0; fits && i < v.rank(); ++i) {
      const auto n = v.shape[static_cast<std::size_t>(i)];
      fits = n == size(i + lead) || (broadcast && n == 1);
    }
    if (!fits)
      throw Error(Code::shape, std::string(name(slot)) + " of shape " + describe(v.shape),
                  std::string(broadcast ? "a shape that broadcasts to " : "x's shape ") + describe(shape));
    Operand& o = begin(slot, v);
    o.strides[0] = 0;  // ragged rows are reached through their offsets
    for (int i = 0, j = 0; i < rank(); ++i) {
      const bool absent = i < lead || (v.shape[static_cast<std::size_t>(i - lead)] == 1 && size(i) != 1);
      (i == axis ? o.axis_stride : o.strides[static_cast<std::size_t>(j++)]) = absent ? 0 : byte_stride(v, i - lead);
    }
  }

  /// An operand with one value a row, or with a contiguous vector of `trailing` values.
  void per_row(Slot slot, const View& v, int trailing, bool broadcast) {
    const int v_rank = v.rank() - (trailing != 0 ? 1 : 0);
    const bool keeps_axis = axis >= 0 && !ragged && v_rank == rank() && v.shape[static_cast<std::size_t>(axis)] == 1;
    const int lead = keeps_axis ? 0 : p.outer_rank - v_rank;
    bool fits = v_rank >= 0 && (broadcast ? lead >= 0 : lead == 0);
    if (trailing != 0) fits = fits && v.shape.back() == trailing && checks::stride_of(v, v_rank) == 1;
    Operand& o = begin(slot, v);
    for (int j = 0; fits && j < p.outer_rank; ++j) {
      const int k = keeps_axis && j >= axis ? j + 1 : j - lead;
      const auto outer = p.outer[static_cast<std::size_t>(j)];
      const auto n = k < 0 ? 1 : v.shape[static_cast<std::size_t>(k)];
      fits = n == outer || (broadcast && n == 1);
      o.strides[static_cast<std::size_t>(j)] = n == 1 && outer != 1 ? 0 : k < 0 ? 0 : byte_stride(v, k);
    }
    if (!fits)
      throw Error(Code::shape, std::string(name(slot)) + " of shape " + describe(v.shape),
                  "one " + (trailing != 0 ? "contiguous vector of " + std::to_string(trailing) : std::string("value")) +
                      " a row: " + describe(std::span(p.outer.data(), static_cast<std::size_t>(p.outer_rank))) +
                      (trailing != 0 ? " + [" + std::to_string(trailing) + "]" : ""));
  }
};

int checked_axis(int axis, int rank) {
  if (rank == 0) throw Error(Code::shape, "a 0-dimensional x", "at least one axis to fold", "give it the shape [1]");
  if (axis < -rank || axis >= rank)
    throw Error(Code::shape, "axis " + std::to_string(axis),
                std::to_string(-rank) + " .. " + std::to_string(rank - 1) + " for rank " + std::to_string(rank));
  return axis < 0 ? axis + rank : axis;
}

std::int64_t integer_at(const View& v, std::int64_t i) {
  const std::int64_t at = i * checks::stride_of(v, 0);
  return v.dtype == DType::int32 ? static_cast<const std::int32_t*>(v.data)[at]
                                 : static_cast<const std::int64_t*>(v.data)[at];
}

void check_integer(const View& v, const char* what) {
  if (v.dtype != DType::int32 && v.dtype != DType::int64)
    throw Error(Code::dtype, std::string(what) + " of dtype " + std::string(name_of(v.dtype)), "int32, int64");
}

/// Ragged rows: x is one axis, cut by offsets. What can be read on the host is checked here.
void set_ragged(RowProblem& p, const View& x, const RowOptions& o) {
  checks::check_view(o.offsets, "offsets");
  checks::check_device(x, o.offsets, "offsets");
  check_integer(o.offsets, "offsets");
  if (x.rank() != 1 || o.offsets.rank() != 1 || o.offsets.shape[0] < 1)
    throw Error(Code::shape, "offsets " + describe(o.offsets) + " with x " + describe(x),
                "x of rank 1 and offsets of shape [rows + 1]", "flatten x; offsets count its elements");
  if (o.length.given() || o.causal)
    throw Error(Code::option, "offsets together with length or causal", "one way to say how long a row is");
  p.outer_rank = 1;
  p.ragged_elements = p.elements = x.shape[0];
  p.rows = p.outer[0] = o.offsets.shape[0] - 1;
  if (x.device.kind != DeviceKind::cpu) {
    p.n = x.shape[0];
    return;
  }
  p.n = 0;
  for (std::int64_t i = 0, last = 0; i <= p.rows; ++i) {
    const std::int64_t at = integer_at(o.offsets, i);
    if (at < last || at > x.shape[0])
      throw Error(Code::data, "offsets[" + std::to_string(i) + "] = " + std::to_string(at),
                  "ascending offsets from 0 to x's length " + std::to_string(x.shape[0]));
    if (i > 0) p.n = std::max(p.n, at - last);
    last = at;
  }
}

/// A length that lies outside 0 .. n is refused where the host can read it; kernels on other devices clamp.
void check_lengths(const RowProblem& p) {
  const Operand& v = p[Slot::length];
  std::array<std::int64_t, kMaxRank> at{};
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const char* at_row = v.data;
    for (int i = 0; i < p.outer_rank; ++i)
      at_row += at[static_cast<std::size_t>(i)] * v.strides[static_cast<std::size_t>(i)];
    const std::int64_t n = v.dtype == DType::int32 ? *reinterpret_cast<const std::int32_t*>(at_row)
                                                   : *reinterpret_cast<const std::int64_t*>(at_row);
    if (n < 0 || n > p.n)
      throw Error(Code::data, "length " + std::to_string(n) + " for row " + std::to_string(r),
                  "0 .. " + std::to_string(p.n));
    for (int i = p.outer_rank - 1; i >= 0; --i) {
      if (++at[static_cast<std::size_t>(i)] < p.outer[static_cast<std::size_t>(i)]) break;
      at[static_cast<std::size_t>(i)] = 0;
    }
  }
}

/// Joins neighbouring outer axes that every operand walks as one, so that kernels see few of them. The axis T of a
/// causal problem stays alone: its index is a row's limit.
void collapse(RowProblem& p) {
  if (p.outer_rank <= 1) return;
  const auto joins = [&p](std::size_t left, std::size_t right) {
    if (p.outer[left] == 1) return true;
    return std::all_of(p.operands.begin(), p.operands.end(), [&](const Operand& o) {
      return !o.given || o.strides[left] == o.strides[right] * p.outer[right];
    });
  };
  int kept = 0;
  for (int i = 0; i < p.outer_rank; ++i) {
    const auto right = static_cast<std::size_t>(i), left = static_cast<std::size_t>(kept - 1);
    const bool alone = p.causal && i == p.outer_rank - 1;
    if (!alone && kept > 0 && (p.outer[right] == 1 || joins(left, right))) {
      if (p.outer[right] == 1) continue;
      p.outer[left] *= p.outer[right];
      for (Operand& o : p.operands)
        if (o.given) o.strides[left] = o.strides[right];
      continue;
    }
    const auto to = static_cast<std::size_t>(kept++);
    p.outer[to] = p.outer[right];
    for (Operand& o : p.operands)
      if (o.given) o.strides[to] = o.strides[right];
  }
  p.outer_rank = kept;
}

void check_operand(Op op, Slot slot, const View& v) {
  checks::check_view(v, slot_name(op, slot));
  if (slot != Slot::states) {
    checks::check_floating(v, slot_name(op, slot));
  } else if (v.dtype != DType::float64) {
    throw Error(Code::dtype, "states of dtype " + std::string(name_of(v.dtype)), "float64 (m, d, scale, digits)");
  }
}

void add_operand(Builder& b, Slot slot, const View& v) {
  switch (slot) {
    case Slot::states: return b.per_row(slot, v, 4, false);
    case Slot::row: return b.per_row(slot, v, 0, false);
    default: return b.full(slot, v);
  }
}

void add_options(Builder& b, const RowOptions& o) {
  if (o.scales.given()) {
    checks::check_view(o.scales, "scales");
    if (o.scales.dtype != DType::float32 && o.scales.dtype != DType::float64)
      throw Error(Code::dtype, "scales of dtype " + std::string(name_of(o.scales.dtype)), "float32, float64");
    b.per_row(Slot::scales, o.scales, 0, true);
  }
  if (o.mask.given()) {
    checks::check_view(o.mask, "mask");
    if (o.mask.dtype != DType::boolean)
      throw Error(Code::dtype, "mask of dtype " + std::string(name_of(o.mask.dtype)), "bool",
                  "a bool mask, true where an element exists");
    b.full(Slot::mask, o.mask, true);
  }
  if (o.length.given()) {
    checks::check_view(o.length, "length");
    check_integer(o.length, "length");
    b.per_row(Slot::length, o.length, 0, true);
    if (o.length.device.kind == DeviceKind::cpu) check_lengths(b.p);
  }
  if (o.causal && (b.rank() < 2 || b.axis != b.rank() - 1))
    throw Error(Code::option,
                "causal with x of shape " + describe(b.shape) + " folded along axis " + std::to_string(b.axis),
                "x of shape (..., T, S), folded along its last axis");
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
      {&o.scales, "scales"}, {&o.length, "length"}, {&o.offsets, "offsets"}, {&o.mask, "mask"}};
  for (const auto& [v, what] : options) {
    if (!v->given()) continue;
    checks::check_device(inputs[0], *v, what);
    checks::check_overlap(out, out_name, *v, what, false);
  }
  if (p[Slot::dy].given && (p[Slot::dy].dtype == DType::float64) != p.is_double())
    throw Error(Code::dtype, "float64 mixed with a narrower dtype in one gradient", "y and dy both float64, or neither",
                "convert one of them");
}

/// The outer axes: x's without the folded one; the states' own where there is no x.
void set_outer(RowProblem& p, std::span<const std::int64_t> shape, int axis) {
  p.n = axis < 0 ? 0 : shape[static_cast<std::size_t>(axis)];
  p.rows = 1;
  p.outer_rank = 0;
  for (int i = 0; i < static_cast<int>(shape.size()); ++i) {
    if (i == axis) continue;
    p.outer[static_cast<std::size_t>(p.outer_rank++)] = shape[static_cast<std::size_t>(i)];
    p.rows *= shape[static_cast<std::size_t>(i)];
  }
  p.elements = p.rows * p.n;
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
  Builder b{p, {}, -1, o.offsets.given()};
  if (has_x) {
    b.shape = main.shape;
    b.axis = checked_axis(o.axis, main.rank());
  } else if (main.rank() < 1) {
    throw Error(Code::shape, "states of shape []", "(..., 4)");
  }
  if (b.ragged) {
    set_ragged(p, main, o);
    b.begin(Slot::offsets, o.offsets).strides[0] = Builder::byte_stride(o.offsets, 0);
  } else {
    set_outer(p, has_x ? main.shape : main.shape.first(main.shape.size() - 1), b.axis);
  }
  for (int i = 0; i < sig.inputs; ++i) add_operand(b, sig.in[i], inputs[static_cast<std::size_t>(i)]);
  add_operand(b, sig.out, outputs[0]);
  if (has_x) checks::check_scale(o.scale, p.is_double());
  add_options(b, o);
  check_together(p, sig, inputs, outputs[0], o);
  collapse(p);
}

}  // namespace v0
}  // namespace softfold
