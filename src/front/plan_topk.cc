// topk: operands matched and checked. How many are taken is what the results have room for.
#include "front/advice.hpp"
#include "front/checks.hpp"
#include "front/named_views.hpp"
#include "front/plan_build.hpp"
#include "front/row_builder.hpp"

namespace softfold {
inline namespace v0 {
namespace {

using checks::describe;

void check_options(const TopkOptions& o) {
  if (o.rows.offsets.given())
    throw Error(Code::unsupported, "offsets for topk", "rows of one tensor", "pad the rows and give lengths");
  if (o.rows.rung != Rung::automatic)
    throw Error(Code::unsupported, "a rung for topk", "none", leave_at_default("rung"));
}

/// The results' size along x's axis.
std::int64_t size_along(const View& values, const RowBuilder& b) {
  if (values.rank() != static_cast<int>(b.shape.size()))
    throw Error(Code::shape, "values of shape " + describe(values.shape),
                "x's shape " + describe(b.shape) + " with k along the axis");
  const std::int64_t k = values.shape[static_cast<std::size_t>(b.axis)];
  if (k > b.p.n)
    throw Error(Code::shape, "k = " + std::to_string(k) + " of rows of " + std::to_string(b.p.n) + " elements",
                "k from 0 to " + std::to_string(b.p.n), "k = " + std::to_string(b.p.n));
  return k;
}

}  // namespace

void build_topk(TopkProblem& p, std::span<const View> inputs, std::span<const View> outputs, const TopkOptions& o) {
  if (inputs.size() != 1 || outputs.size() != 2)
    throw Error(Code::shape,
                std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) + " outputs for topk",
                "1 input and 2 outputs: x -> values, indices");
  check_options(o);
  const View &x = inputs[0], &values = outputs[0], &indices = outputs[1];
  NamedViews views;
  views.add("x", x, true);
  views.add("values", values, true, NamedViews::output);
  views.add("indices", indices, true, NamedViews::output);
  views.add("probabilities", o.probabilities, false, NamedViews::output);
  views.add("log_probabilities", o.log_probabilities, false, NamedViews::output);
  views.add("lse", o.lse, false, NamedViews::output);
  views.add_options(o.rows);
  checks::check_floating(x, "x");
  checks::check_floating(values, "values");
  checks::check_integer(indices, "indices");

  p.op = Op::topk;
  p.empty = o.rows.empty;
  p.rung = o.rows.rung;
  p.causal = o.rows.causal;
  p.scale = o.rows.scale;
  p.sorted = o.sorted;
  for (Operand& operand : p.operands) operand.given = false;
  for (Operand& operand : p.more) operand.given = false;
  RowBuilder b(p, x, o.rows);
  checks::check_scale(o.rows.scale, x.dtype == DType::float64);
  if (indices.dtype == DType::int32 && p.n > std::int64_t{1} << 31)
    throw Error(Code::dtype, "int32 indices of rows of " + std::to_string(p.n) + " elements", "int64");
  p.k = size_along(values, b);
  b.full(p[Slot::x], "x", x);
  b.full(p[TopkSlot::values], "values", values, false, p.k);
  b.full(p[TopkSlot::indices], "indices", indices, false, p.k);
  const auto add = [&](TopkSlot slot, const char* name, const View& v) {
    if (!v.given()) return;
    checks::check_floating(v, name);
    b.full(p[slot], name, v, false, p.k);
  };
  add(TopkSlot::probabilities, "probabilities", o.probabilities);
  add(TopkSlot::log_probabilities, "log_probabilities", o.log_probabilities);
  if (o.lse.given()) {
    checks::check_floating(o.lse, "lse");
    b.per_row(p[TopkSlot::lse], "lse", o.lse);
  }
  b.add_options(o.rows);
  views.check_apart();
  collapse(p, p.more);
}

}  // namespace v0
}  // namespace softfold
