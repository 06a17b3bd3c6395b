// softfold explain OP SHAPE DTYPE
#include "attention_arguments.hpp"
#include "cuda.hpp"
#include "fabricated.hpp"
#include "ladder.hpp"
#include "report.hpp"
#include "verbs.hpp"

#include "cpu/attention_tile.hpp"
#include "cpu/targets.hpp"
#include "softfold/lift/tree.hpp"
#include "softfold/softfold.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace softfold::cli {
namespace {

/// What the kernels do well that are preferred over others.
constexpr std::pair<std::string_view, std::string_view> kStrengths[] = {
    {"softmax_fused", "a row's terms stay in a core's cache until their sum is known: one read, one exponential each"},
    {"softmax_tiled", "rows of any length, which threads may share"},
    {"attention_fused", "scores stay in their tile: the memory needed does not grow with T x S"},
};

/// Why a plan has its kernel: of those that can, the first in the backend's order of preference.
std::string reason_for(std::string_view kernel, Rung rung,
                       std::span<const std::pair<std::string, std::string>> others) {
  if (rung != Rung::automatic) return "this rung was asked for";
  const bool alone =
      std::none_of(others.begin(), others.end(), [](const auto& other) { return other.second.starts_with("able"); });
  std::string reason = others.empty() ? "the only kernel of this operation here"
                       : alone        ? "the only one that can of those that run unasked"
                                      : "preferred over the others that can";
  for (const auto& [name, strength] : kStrengths)
    if (name == kernel) reason += fmt::format("; {}", strength);
  return reason;
}

struct ExplainVerb {
  std::string op, shape_text, dtype_text, output, backend = "cpu";
  AttentionArguments arguments;  // of other operations scale, causal and rung
  std::optional<int> axis;
  std::optional<std::int64_t> keys, kv_heads, dv, best;
  int threads = 0;
  bool json = false;

  void declare(Command& command);
  void run() const;
  void explain_attention(DType in, DType out) const;
  void refuse_what_does_not_apply(Op which) const;
  void tell(Op which, const Plan& plan, DType out) const;
};

void ExplainVerb::declare(Command& command) {
  command.positional("OP", op, "an operation: softmax, log_softmax, logsumexp, state, softmax_backward, ...");
  command.positional("SHAPE", shape_text, "the shape of its input, as 4096x128256; of attention that of q");
  command.positional("DTYPE", dtype_text, "float32, float64, float16, bfloat16");
  command.option("--dtype", output, "of the output; default DTYPE");
  command.option("--axis", axis, "the axis that is folded; default -1");
  declare_threads(command, threads);
  command.option("--backend", backend, "cpu or cuda");
  command.option("-k", best, fmt::format("of topk: how many; default {}", Fabricated::kBest), Among{0});
  command.option("--keys", keys, "of attention: keys a sequence (of packed sequences: all keys); default T", Among{0});
  command.option("--kv-heads", kv_heads, "of attention: heads of k and v; default H", Among{1});
  command.option("--dv", dv, "of attention: v's D; default D", Among{0});
  arguments.declare(command, "of attention: ");
  command.flag("--json", json, "print an object");
  command.footer(
      "Nothing is computed: the plan that a call with such tensors would make is shown. --bias and --mask may be\n"
      "shapes, as 8x1x4096; what else `softfold attention` takes as files or numbers is read as there.");
}

/// What would be ignored is refused.
void ExplainVerb::refuse_what_does_not_apply(Op which) const {
  const auto refuse = [&](std::string_view option, const char* allowed) {
    throw Error(Code::option, fmt::format("{} for {}", option, name_of(which)), allowed,
                fmt::format("leave out {}", option));
  };
  if (!output.empty() && (which == Op::state || which == Op::merge_states || which == Op::sample))
    refuse("--dtype", "an output of the one dtype that this operation has");
  if (best && which != Op::topk) refuse("-k", "an option of topk alone");
  if (which == Op::attention) {
    if (axis) refuse("--axis", "--layout, which says which axis is which");
    return;
  }
  const std::pair<bool, std::string_view> own[] = {
      {keys.has_value(), "--keys"}, {kv_heads.has_value(), "--kv-heads"}, {dv.has_value(), "--dv"}};
  for (const auto& [given, name] : own)
    if (given) refuse(name, "an option of attention alone");
  if (const std::string_view name = arguments.first_given(); !name.empty())
    refuse(name, "an option of attention alone");
}

void ExplainVerb::run() const {
  const Op which = parse_op(op);
  const DType in = parse_dtype(dtype_text), out = output.empty() ? in : parse_dtype(output);
  const DeviceKind device = parse_backend(backend);
  if (device == DeviceKind::cuda) require_cuda_build();
  refuse_what_does_not_apply(which);
  if (which == Op::attention) return explain_attention(in, out);
  const Fabricated o(which, parse_shape(shape_text), axis.value_or(-1), in, out, {device, 0}, best);
  const Workers workers(threads);
  RowOptions options;
  options.axis = axis.value_or(-1);
  options.scale = arguments.scale.value_or(1);
  options.causal = arguments.causal;
  options.rung = parse_rung(arguments.rung);
  tell(which, plan(which, o.inputs(), o.outputs(), options, workers.context()), o.outputs()[0].dtype);
}

void ExplainVerb::explain_attention(DType in, DType out) const {
  Fabricated o({parse_backend(backend), 0});
  AttentionOperands given(arguments, &o);
  const bool packed = std::holds_alternative<Varlen>(given.options.kv);
  const bool heads_first = given.options.layout == Layout::bhtd;
  const std::vector<std::int64_t> q = parse_shape(shape_text);
  if (q.size() != (packed ? 3u : 4u))
    throw Error(Code::shape, "attention of q " + shape_text,
                fmt::format("q's shape {}{}", packed ? "" : "Bx", heads_first ? "HxTxD" : "TxHxD"),
                packed ? "32x4096x128" : "1x32x4096x128");
  std::vector<std::int64_t> k = q;
  std::int64_t &heads = k[k.size() - (heads_first ? 3 : 2)], &tokens = k[k.size() - (heads_first ? 2 : 3)];
  heads = kv_heads.value_or(heads);
  tokens = keys.value_or(tokens);
  if (!packed) k[0] = given.cache_size(k[0]);
  std::vector<std::int64_t> v = k, y = q;
  v.back() = y.back() = dv.value_or(q.back());
  o.add_input(in, q), o.add_input(in, k), o.add_input(in, v), o.add_output(out, y);
  given.move_to({parse_backend(backend), 0});
  const Workers workers(threads);
  tell(Op::attention, plan(Op::attention, o.inputs(), o.outputs(), given.options, workers.context()), out);
}

/// `out`: of the first result, which may have a dtype of its own.
void ExplainVerb::tell(Op which, const Plan& plan, DType out) const {
  const DType in = parse_dtype(dtype_text);
  const auto traffic = traffic_of(which, plan.kernel(), size_of(in), size_of(out));
  const auto rejected = plan.rejected();
  const std::string why = reason_for(plan.kernel(), parse_rung(arguments.rung, which == Op::attention), rejected);
  if (json) {
    Json others = Json::object();
    for (const auto& [name, reason] : rejected) others.set(name, reason);
    Json object{{"op", name_of(which)},
                {"shape", parse_shape(shape_text)},
                {"dtype", name_of(in)},
                {"output_dtype", name_of(out)},
                {"backend", backend},
                {"kernel", plan.kernel()},
                {"why", why},
                {"rejected", others},
                {"workspace_bytes", plan.workspace_bytes()}};
    if (traffic) {
      object.set("reads", traffic->reads);
      object.set("bytes_per_element", traffic->bytes_per_element);
    }
    return print(object);
  }
  fmt::print("{} of {} {} -> {} on {}\n", name_of(which), shape_text, name_of(in), name_of(out), backend);
  fmt::print("kernel     {}\n", plan.kernel());
  fmt::print("why        {}\n", why);
  if (traffic)
    fmt::print("traffic    {} of x{}: {} bytes an element\n",
               traffic->reads == 1 ? "one read" : fmt::format("{} reads", traffic->reads),
               traffic->writes == 0 ? "" : ", one write", traffic->bytes_per_element);
  if (plan.kernel() == "attention_fused") {
    const bool amx = in == DType::bfloat16 && cpu::current_target() == "avx512_amx";
    fmt::print("tiles      {} rows x {} keys{}, in chunks of {} keys that merge in one tree; in {} on {}\n",
               cpu::kTileRows, cpu::kTileKeys, amx ? fmt::format(" (up to {} rows on AMX)", cpu::kAmxTileRows) : "",
               lift::kChunk, in == DType::float64 ? "float64" : "float32", cpu::current_target());
  }
  fmt::print("workspace  {}\n", human_bytes(static_cast<double>(plan.workspace_bytes())));
  for (const auto& [name, reason] : rejected) fmt::print("not        {}: {}\n", name, reason);
}

}  // namespace

void add_explain(Program& program) {
  program.add<ExplainVerb>("explain", "the kernel that a call would use, why, and why not the others");
}

}  // namespace softfold::cli
