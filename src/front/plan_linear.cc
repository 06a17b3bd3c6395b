// linear_cross_entropy: operands matched and checked. What is said of the loss is checked as cross_entropy checks it,
// on rows of V logits that nobody gives.
#include "front/advice.hpp"
#include "front/checks.hpp"
#include "front/linear_problem.hpp"
#include "front/loss_operands.hpp"
#include "front/named_views.hpp"

namespace softfold {
inline namespace v0 {
namespace {

using checks::describe;

void check_options(const LinearCrossEntropyOptions& o) {
  if (o.loss.shard.size != 0 || o.loss.shard.offset != 0)
    throw Error(Code::unsupported, "a shard for linear_cross_entropy", "whole rows",
                "make the shard's logits, then fold_shard and join_cross_entropy (shards.hpp)");
  if (o.loss.dx.given())
    throw Error(Code::option, "loss.dx for linear_cross_entropy", "no gradient of the logits",
                "give dx, dweight, dbias: the gradients of x, weight and bias");
  if (o.loss.rows.axis != -1)
    throw Error(Code::option, "axis " + std::to_string(o.loss.rows.axis) + " for linear_cross_entropy",
                "-1: the logits are a result's last axis", leave_at_default("axis"));
  if (o.loss.rows.offsets.given() || o.loss.rows.causal)
    throw Error(Code::unsupported, "offsets or causal for linear_cross_entropy", "rows of all classes", "give a mask");
  checks::check_softcap(o.softcap);
  if (o.mode > LinearMode::lean)
    throw Error(Code::option, "mode number " + std::to_string(static_cast<int>(o.mode)), "fast, lean");
}

void check_floating(const View& v, const char* name, bool is_double) {
  checks::check_floating(v, name);
  if ((v.dtype == DType::float64) != is_double)
    throw Error(Code::dtype,
                std::string(name) + " of dtype " + std::string(name_of(v.dtype)) +
                    (is_double ? " with float64 x" : " with x of another dtype"),
                "both float64, or neither", "convert one of them");
}

/// Bytes between neighbours of axis i.
std::int64_t stride(const View& v, int i) {
  return checks::stride_of(v, i) * static_cast<std::int64_t>(size_of(v.dtype));
}

/// weight or dweight: [V, D].
Operand per_class(const char* name, const View& v, std::int64_t classes, std::int64_t depth) {
  if (v.rank() != 2 || v.shape[0] != classes || v.shape[1] != depth)
    throw Error(
        Code::shape, std::string(name) + " of shape " + describe(v.shape),
        "one vector of x's D elements a class: [" + std::to_string(classes) + ", " + std::to_string(depth) + "]");
  return {static_cast<char*>(v.data), v.dtype, true, stride(v, 1), {stride(v, 0)}};
}

/// bias or dbias: [V].
Operand one_a_class(const char* name, const View& v, std::int64_t classes) {
  if (v.rank() != 1 || v.shape[0] != classes)
    throw Error(Code::shape, std::string(name) + " of shape " + describe(v.shape),
                "one number a class: [" + std::to_string(classes) + "]");
  return {static_cast<char*>(v.data), v.dtype, true, stride(v, 0), {}};
}

/// x or dx: the rows' outer axes, and D.
Operand per_row(const char* name, const View& v, const View& x) {
  if (v.rank() != x.rank() || !std::equal(v.shape.begin(), v.shape.end(), x.shape.begin()))
    throw Error(Code::shape, std::string(name) + " of shape " + describe(v.shape), "x's shape " + describe(x.shape));
  const int last = v.rank() - 1;
  Operand o{static_cast<char*>(v.data), v.dtype, true, stride(v, last), {}};
  for (int i = 0; i < last; ++i)
    o.strides[static_cast<std::size_t>(i)] = v.shape[static_cast<std::size_t>(i)] == 1 ? 0 : stride(v, i);
  return o;
}

/// The axes of rows joined for the loss's operands, x and dx alike.
void collapse_rows(LinearProblem& p) {
  constexpr auto own = static_cast<std::size_t>(LossSlot::count);
  std::array<Operand, own + 2> all;
  std::copy(p.more.begin(), p.more.end(), all.begin());
  all[own] = p[LinearSlot::x];
  all[own + 1] = p[LinearSlot::dx];
  collapse(p, all);
  std::copy(all.begin(), all.begin() + own, p.more.begin());
  p[LinearSlot::x] = all[own];
  p[LinearSlot::dx] = all[own + 1];
}

void add_views(NamedViews& views, std::span<const View> inputs, const View& loss, const LinearCrossEntropyOptions& o) {
  views.add("x", inputs[0], true);
  views.add("weight", inputs[1], true);
  views.add("targets", inputs[2], true);
  views.add("loss", loss, true, NamedViews::output);
  views.add("bias", o.bias, false);
  views.add("dx", o.dx, false, NamedViews::output);
  views.add("dweight", o.dweight, false, NamedViews::output);
  views.add("dbias", o.dbias, false, NamedViews::output);
  views.add("states", o.loss.states, false, NamedViews::output);
  views.add("dloss", o.loss.dloss, false);
  views.add("log_probability", o.loss.log_probability, false, NamedViews::output);
  views.add("loss.weight", o.loss.weight, false);
  views.add("status", o.loss.status, false, NamedViews::output);
  views.add_options(o.loss.rows);
}

}  // namespace

void build_linear(LinearProblem& p, std::span<const View> inputs, std::span<const View> outputs,
                  const LinearCrossEntropyOptions& o) {
  if (inputs.size() != 3 || outputs.size() != 1)
    throw Error(Code::shape,
                std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) +
                    " outputs for linear_cross_entropy",
                "3 inputs and 1 output: x, weight, targets -> loss");
  loss_operands::check_terms(o.loss);
  check_options(o);
  const View &x = inputs[0], &weight = inputs[1], &targets = inputs[2];
  NamedViews views;
  add_views(views, inputs, outputs[0], o);
  const bool is_double = x.dtype == DType::float64;
  checks::check_floating(x, "x");
  check_floating(weight, "weight", is_double);
  checks::check_integer(targets, "targets");
  if (x.rank() < 1 || weight.rank() != 2 || weight.shape[0] < 1 || x.shape.back() < 1)
    throw Error(Code::shape, "x of shape " + describe(x.shape) + ", weight of shape " + describe(weight.shape),
                "x (..., D) and weight (V, D), D and V 1 or more");
  const std::int64_t classes = weight.shape[0], depth = x.shape.back();
  std::int64_t largest = 0;  // logits, of all rows or as many as a kernel holds at once
  for (const std::int64_t rows : {std::int64_t{1} << 13, checks::element_count(x) / depth})
    if (__builtin_mul_overflow(rows, classes, &largest) || largest > (std::int64_t{1} << 59))
      throw Error(Code::shape,
                  "logits of " + std::to_string(rows) + " rows and " + std::to_string(classes) + " classes",
                  "2^59 in all", "fewer rows at a time");
  std::array<std::int64_t, kMaxRank> shape{};
  std::copy(x.shape.begin(), x.shape.end(), shape.begin());
  shape[x.shape.size() - 1] = classes;
  const View logits(static_cast<void*>(nullptr), x.dtype, std::span(shape).first(x.shape.size()), {}, x.device);

  loss_operands::begin(p, Op::linear_cross_entropy, o.loss.rows);
  p.mode = o.mode;
  p.softcap = o.softcap;
  p.depth = depth;
  for (Operand& operand : p.linear) operand.given = false;
  RowBuilder b(p, logits, o.loss.rows);
  checks::check_scale(o.loss.rows.scale, is_double);
  p[LinearSlot::x] = per_row("x", x, x);
  p[LinearSlot::weight] = per_class("weight", weight, classes, depth);
  b.per_row(p[LossSlot::targets], "targets", targets);
  loss_operands::add_results(p, b, outputs[0], o.loss.dloss, o.loss.states, o.loss, "loss.weight");
  if (o.bias.given()) {
    check_floating(o.bias, "bias", is_double);
    p[LinearSlot::bias] = one_a_class("bias", o.bias, classes);
  }
  if (o.dx.given()) {
    checks::check_floating(o.dx, "dx");
    p[LinearSlot::dx] = per_row("dx", o.dx, x);
  }
  if (o.dweight.given()) {
    checks::check_floating(o.dweight, "dweight");
    p[LinearSlot::dweight] = per_class("dweight", o.dweight, classes, depth);
  }
  if (o.dbias.given()) {
    if (!o.bias.given())
      throw Error(Code::option, "dbias without a bias", "both, or a bias alone", "give the bias too");
    checks::check_floating(o.dbias, "dbias");
    p[LinearSlot::dbias] = one_a_class("dbias", o.dbias, classes);
  }
  if (o.loss.dloss.given() && !p.has_gradient())
    throw Error(Code::option, "dloss without a gradient", "dx, dweight or dbias beside it, or no dloss",
                "leave dloss out");
  b.add_options(o.loss.rows);
  views.check_apart();
  collapse_rows(p);
  p[Slot::x].dtype = x.dtype;
}

}  // namespace v0
}  // namespace softfold
