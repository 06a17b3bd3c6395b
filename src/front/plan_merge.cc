// merge_states, merge_attention, merge_blocks: parts of the same rows, matched and checked.
#include "front/checks.hpp"
#include "front/plan_build.hpp"

namespace softfold {
inline namespace v0 {
namespace {

using checks::describe;
using Operands = MergeProblem::Operands;

/// The axes of a statistic that are rows: all, or all but the (m, d) or state vector at its end.
int row_rank(const MergeProblem& p, const View& v) {
  const bool vector = p.op == Op::merge_states || p.statistics == Statistics::max_sum;
  return v.rank() - (vector ? 1 : 0);
}

void set_view(Operands& to, const View& v, int outer_rank, bool has_values) {
  to.view.given = true;
  to.view.dtype = v.dtype;
  to.view.data = nullptr;
  to.view.axis_stride = has_values ? checks::byte_stride(v, outer_rank) : 0;
  for (int i = 0; i < outer_rank; ++i) to.view.strides[static_cast<std::size_t>(i)] = checks::byte_stride(v, i);
}

/// Every part has the shape, dtype and strides of the first, so that one description serves all.
void add_part(Operands& to, int part, const View& v, const View& first, const char* what) {
  bool same = v.dtype == first.dtype && v.rank() == first.rank();
  for (int i = 0; same && i < v.rank(); ++i)
    same = v.shape[static_cast<std::size_t>(i)] == first.shape[static_cast<std::size_t>(i)];
  if (!same)
    throw Error(Code::shape, std::string(what) + " " + std::to_string(part) + ": " + describe(v),
                "that of part 0: " + describe(first));
  for (int i = 0; i < v.rank(); ++i)
    if (v.shape[static_cast<std::size_t>(i)] > 1 && checks::stride_of(v, i) != checks::stride_of(first, i))
      throw Error(Code::strides, std::string(what) + " " + std::to_string(part) + " with other strides than part 0",
                  "the same strides for every part", "make the parts contiguous");
  to.data[static_cast<std::size_t>(part)] = static_cast<char*>(v.data);
}

void check_statistic(const MergeProblem& p, const View& v, const char* what) {
  checks::check_view(v, what);
  const bool states = p.op == Op::merge_states;
  if (v.dtype != DType::float64 && (states || v.dtype != DType::float32))
    throw Error(Code::dtype, std::string(what) + " of dtype " + std::string(name_of(v.dtype)),
                states ? "float64 (m, d, scale, digits)" : "float32, float64");
  const std::int64_t vector = states ? 4 : p.statistics == Statistics::max_sum ? 2 : 0;
  if (vector == 0) return;
  if (v.rank() < 1 || v.shape.back() != vector || checks::stride_of(v, v.rank() - 1) != 1)
    throw Error(Code::shape, std::string(what) + " of shape " + describe(v.shape),
                "(..., " + std::to_string(vector) + ") with a contiguous last axis");
}

/// A value has the statistic's rows and one axis more.
void check_value(const MergeProblem& p, const View& v, const View& statistic, const char* what) {
  checks::check_view(v, what);
  checks::check_floating(v, what);
  bool fits = v.rank() == row_rank(p, statistic) + 1;
  for (int i = 0; fits && i + 1 < v.rank(); ++i)
    fits = v.shape[static_cast<std::size_t>(i)] == statistic.shape[static_cast<std::size_t>(i)];
  if (!fits)
    throw Error(Code::shape,
                std::string(what) + " of shape " + describe(v.shape) + " beside statistics of shape " +
                    describe(statistic.shape),
                "the statistics' rows and one last axis more");
}

void check_apart(const View& out, const char* name, std::span<const View> inputs) {
  checks::check_output(out, name);
  for (const View& in : inputs) {
    checks::check_device(out, in, "a part");
    checks::check_overlap(out, name, in, "a part", true);
  }
}

/// In place is values over values and statistics over statistics: of one shape, as values of two elements and (m, d)
/// are, either could still be written before the other is read.
void check_kinds_apart(const View& out, std::span<const View> inputs, std::size_t first_of_other_kind,
                       const char* other_kind) {
  for (std::size_t i = first_of_other_kind; i < inputs.size(); i += 2)
    checks::check_overlap(out, "a result", inputs[i], other_kind, false);
}

int count_parts(Op op, std::size_t inputs, std::size_t outputs) {
  const std::size_t per_part = op == Op::merge_states ? 1 : 2;
  const std::size_t parts = inputs / per_part;
  const std::size_t results = op == Op::merge_states ? 1 : op == Op::merge_attention ? 2 : parts + 1;
  if (parts < 1 || parts > MergeProblem::kMaxParts || inputs % per_part != 0 || outputs != results)
    throw Error(
        Code::shape,
        std::to_string(inputs) + " inputs and " + std::to_string(outputs) + " outputs for " + std::string(name_of(op)),
        "1 to " + std::to_string(MergeProblem::kMaxParts) + " parts of " + std::to_string(per_part) +
            " inputs each, and their results",
        "merge more parts in several calls");
  return static_cast<int>(parts);
}

}  // namespace

void build_merge(MergeProblem& p, Op op, std::span<const View> inputs, std::span<const View> outputs,
                 const MergeOptions& options) {
  p.op = op;
  p.base = options.base;
  p.statistics = options.statistics;
  p.parts = count_parts(op, inputs.size(), outputs.size());
  const bool states = op == Op::merge_states;
  const std::size_t per_part = states ? 1 : 2;
  const View& first = inputs[per_part - 1];
  const View& result = outputs.back();
  p.value.view.given = p.out_value.view.given = false;
  for (int i = 0; i < p.parts; ++i) {
    const auto at = static_cast<std::size_t>(i) * per_part;
    const View& statistic = inputs[at + per_part - 1];
    check_statistic(p, statistic, "statistics");
    add_part(p.statistic, i, statistic, first, "statistics");
    if (states) continue;
    check_value(p, inputs[at], statistic, "values");
    add_part(p.value, i, inputs[at], inputs[0], "values");
  }
  check_statistic(p, result, "the result's statistics");
  add_part(p.out_statistic, 0, result, View(result.data, result.dtype, first.shape, result.strides),
           "the result's statistics");

  p.outer_rank = row_rank(p, first);
  p.rows = 1;
  for (int i = 0; i < p.outer_rank; ++i)
    p.rows *= p.outer[static_cast<std::size_t>(i)] = first.shape[static_cast<std::size_t>(i)];
  p.n = states ? 0 : inputs[0].shape.back();
  set_view(p.statistic, first, p.outer_rank, false);
  set_view(p.out_statistic, result, p.outer_rank, false);
  if (!states) {
    check_kinds_apart(result, inputs, 0, "values");
    for (std::size_t i = 0; i + 1 < outputs.size(); ++i) {
      check_value(p, outputs[i], result, "a result");
      check_kinds_apart(outputs[i], inputs, 1, "statistics");
      const View& like = inputs[2 * i];
      add_part(p.out_value, static_cast<int>(i), outputs[i],
               View(like.data, outputs[0].dtype, like.shape, outputs[0].strides), "result");
    }
    set_view(p.value, inputs[0], p.outer_rank, true);
    set_view(p.out_value, outputs[0], p.outer_rank, true);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_apart(outputs[i], "a result", inputs);
    for (std::size_t j = 0; j < i; ++j) checks::check_overlap(outputs[i], "a result", outputs[j], "another", false);
  }
}

}  // namespace v0
}  // namespace softfold
