// sample: operands matched and checked.
#include "front/advice.hpp"
#include "front/checks.hpp"
#include "front/named_views.hpp"
#include "front/plan_build.hpp"
#include "front/row_builder.hpp"
#include "softfold/fold/sample.hpp"
#include "softfold/shown.hpp"

#include <cmath>

namespace softfold {
inline namespace v0 {
namespace {

void check_numbers(const SampleOptions& o) {
  const auto refuse = [](const char* name, double value, const char* allowed, const char* fix) {
    throw Error(Code::option, std::string(name) + " " + detail::shown(value), allowed, std::string(name) + " " + fix);
  };
  if (!(o.temperature >= 0 && std::isfinite(o.temperature)))
    refuse("temperature", o.temperature, "a finite number, 0 (the largest element) or more", "1");
  if (!(o.top_p >= 0 && o.top_p <= 1)) refuse("top_p", o.top_p, "0 .. 1", "0.9");
  if (!(o.min_p >= 0 && o.min_p <= 1)) refuse("min_p", o.min_p, "0 .. 1", "0.05");
  if (!(o.rows.scale > 0)) refuse("scale", o.rows.scale, "a positive number: 1/temperature", "1");
  if (o.top_k < 0) throw Error(Code::option, "top_k " + std::to_string(o.top_k), "0 (all) or more", "top_k 50");
  if (o.order > FilterOrder::min_p_last)
    throw Error(Code::option, "order number " + std::to_string(static_cast<int>(o.order)), "min_p_first, min_p_last");
  if (o.of > Distribution::sampled)
    throw Error(Code::option, "distribution number " + std::to_string(static_cast<int>(o.of)), "raw, sampled");
  if (o.rows.offsets.given())
    throw Error(Code::unsupported, "offsets of ragged rows for sample", "rows of one tensor",
                "pad the rows and give lengths");
  if (o.rows.rung != Rung::automatic)
    throw Error(Code::unsupported, "a rung for sample", "none", leave_at_default("rung"));
}

void check_real(const View& v, const char* name) {
  if (v.dtype != DType::float32 && v.dtype != DType::float64)
    throw Error(Code::dtype, std::string(name) + " of dtype " + std::string(name_of(v.dtype)), "float32, float64");
}

void check_int64(const View& v, const char* name) {
  if (v.dtype != DType::int64)
    throw Error(Code::dtype, std::string(name) + " of dtype " + std::string(name_of(v.dtype)), "int64");
}

using Check = void (*)(const View&, const char*);
struct Given {
  SampleSlot slot;
  const char* name;
  View SampleOptions::*view;
  Check check;
};

/// One a row, or one.
constexpr Given kPerRow[] = {
    {SampleSlot::temperatures, "temperatures", &SampleOptions::temperatures, check_real},
    {SampleSlot::top_ks, "top_ks", &SampleOptions::top_ks, checks::check_integer},
    {SampleSlot::top_ps, "top_ps", &SampleOptions::top_ps, check_real},
    {SampleSlot::min_ps, "min_ps", &SampleOptions::min_ps, check_real},
    {SampleSlot::seeds, "seeds", &SampleOptions::seeds, check_int64},
    {SampleSlot::offsets, "offsets", &SampleOptions::offsets, check_int64},
    {SampleSlot::row_ids, "row_ids", &SampleOptions::row_ids, check_int64},
};

constexpr Given kResults[] = {
    {SampleSlot::log_probability, "log_probability", &SampleOptions::log_probability, checks::check_floating},
    {SampleSlot::rank, "rank", &SampleOptions::rank, checks::check_integer},
};

void check_room(const SampleProblem& p) {
  const std::int64_t most = std::int64_t{1} << 31;
  const auto narrow = [](const Operand& o) { return o.given && o.dtype == DType::int32; };
  if (narrow(p[SampleSlot::tokens]) && p.n > most)
    throw Error(Code::dtype, "int32 tokens of rows of " + std::to_string(p.n) + " elements", "int64");
  if (narrow(p[SampleSlot::rank]) && p.n >= most)
    throw Error(Code::dtype, "an int32 rank of rows of " + std::to_string(p.n) + " elements", "int64");
  if (narrow(p[SampleSlot::top_tokens]) && p.n > most)
    throw Error(Code::dtype, "int32 top_tokens of rows of " + std::to_string(p.n) + " elements", "int64");
  const bool weighs = p.top_p < 1 || p[SampleSlot::top_ps].given;
  if (weighs && p.n > fold::kMostCounted)
    throw Error(Code::shape, "top_p of rows of " + std::to_string(p.n) + " elements",
                "up to " + std::to_string(fold::kMostCounted), "top_p 1");
}

void check_top(const SampleOptions& o) {
  if (o.top_tokens.given() != o.top_log_probabilities.given())
    throw Error(Code::option, "one of top_tokens and top_log_probabilities", "both, or neither",
                std::string("give ") + (o.top_tokens.given() ? "top_log_probabilities" : "top_tokens") + " too");
}

/// The largest elements and their log-probabilities: as many as the results have room for.
void add_top(SampleProblem& p, RowBuilder& b, const SampleOptions& o) {
  p.top = 0;
  if (!o.top_tokens.given()) return;
  checks::check_integer(o.top_tokens, "top_tokens");
  checks::check_floating(o.top_log_probabilities, "top_log_probabilities");
  const auto axis = static_cast<std::size_t>(b.axis);
  if (axis < o.top_tokens.shape.size()) p.top = o.top_tokens.shape[axis];
  if (p.top > p.n)
    throw Error(Code::shape,
                "top_tokens for " + std::to_string(p.top) + " of rows of " + std::to_string(p.n) + " elements",
                "0 to " + std::to_string(p.n));
  b.full(p[SampleSlot::top_tokens], "top_tokens", o.top_tokens, false, p.top);
  b.full(p[SampleSlot::top_log_probabilities], "top_log_probabilities", o.top_log_probabilities, false, p.top);
}

}  // namespace

void build_sample(SampleProblem& p, std::span<const View> inputs, std::span<const View> outputs,
                  const SampleOptions& o) {
  if (inputs.size() != 1 || outputs.size() != 1)
    throw Error(Code::shape,
                std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) + " outputs for sample",
                "1 input and 1 output: x -> tokens");
  check_numbers(o);
  const View &x = inputs[0], &tokens = outputs[0];
  NamedViews views;
  views.add("x", x, true);
  views.add("tokens", tokens, true, NamedViews::output);
  for (const Given& g : kResults) views.add(g.name, o.*g.view, false, NamedViews::output);
  views.add("probabilities", o.probabilities, false, NamedViews::output);
  views.add("masked", o.masked, false, NamedViews::output);
  views.add("top_tokens", o.top_tokens, false, NamedViews::output);
  views.add("top_log_probabilities", o.top_log_probabilities, false, NamedViews::output);
  for (const Given& g : kPerRow) views.add(g.name, o.*g.view, false);
  views.add("bias", o.bias, false);
  views.add("bitmask", o.bitmask, false);
  views.add_options(o.rows);
  checks::check_floating(x, "x");
  if (x.dtype == DType::float64)
    throw Error(Code::dtype, "x of dtype float64 for sample", "float32, float16, bfloat16", "convert it to float32");
  checks::check_integer(tokens, "tokens");
  check_top(o);

  p.op = Op::sample;
  p.empty = o.rows.empty;
  p.rung = o.rows.rung;
  p.causal = o.rows.causal;
  p.scale = o.rows.scale;
  p.temperature = o.temperature, p.top_p = o.top_p, p.min_p = o.min_p, p.top_k = o.top_k;
  p.seed = o.seed, p.offset = o.offset, p.order = o.order, p.of = o.of;
  for (Operand& operand : p.operands) operand.given = false;
  for (Operand& operand : p.more) operand.given = false;
  RowBuilder b(p, x, o.rows);
  checks::check_scale(o.rows.scale, false);
  b.full(p[Slot::x], "x", x);
  b.per_row(p[SampleSlot::tokens], "tokens", tokens);
  const auto add = [&](const Given& g, bool broadcast) {
    if (!(o.*g.view).given()) return;
    g.check(o.*g.view, g.name);
    b.per_row(p[g.slot], g.name, o.*g.view, 0, broadcast);
  };
  for (const Given& g : kResults) add(g, false);
  for (const Given& g : kPerRow) add(g, true);
  const auto add_full = [&](Operand& operand, const char* name, const View& v) {
    if (!v.given()) return;
    checks::check_floating(v, name);
    b.full(operand, name, v);
  };
  add_full(p[Slot::y], "probabilities", o.probabilities);
  add_full(p[SampleSlot::masked], "masked", o.masked);
  add_top(p, b, o);
  if (o.bias.given()) {
    checks::check_floating(o.bias, "bias");
    b.full(p[SampleSlot::bias], "bias", o.bias, true);
  }
  if (o.bitmask.given()) {
    if (o.bitmask.dtype != DType::int32)
      throw Error(Code::dtype, "bitmask of dtype " + std::string(name_of(o.bitmask.dtype)),
                  "int32, 32 elements a word");
    b.full(p[SampleSlot::bitmask], "bitmask", o.bitmask, true, (p.n + 31) / 32);
  }
  b.add_options(o.rows);
  check_room(p);
  views.check_apart();
  collapse(p, p.more);
}

}  // namespace v0
}  // namespace softfold
