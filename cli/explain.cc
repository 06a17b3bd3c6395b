// softfold explain OP SHAPE DTYPE
#include "arguments.hpp"
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

namespace softfold::cli {
namespace {

struct ExplainVerb {
  std::string op, shape_text, dtype_text, output, rung = "automatic", backend = "cpu";
  int axis = -1, threads = 0;
  std::int64_t keys = 0, kv_heads = 0, dv = 0;
  double scale = 1;
  bool causal = false, json = false;

  void declare(Command& command) {
    command.positional("OP", op, "an operation: softmax, log_softmax, logsumexp, state, softmax_backward, ...");
    command.positional("SHAPE", shape_text, "the shape of its input, as 4096x128256");
    command.positional("DTYPE", dtype_text, "float32, float64, float16, bfloat16");
    command.option("--dtype", output, "of the output; default DTYPE");
    command.option("--axis", axis, "the axis that is folded; default -1");
    command.option("--scale", scale, "every element is multiplied by it; default 1");
    command.option("--rung", rung, "automatic, naive, safe, online, tiled, fused");
    command.option("--threads", threads, "threads that compute; 0: all of the machine");
    command.option("--backend", backend, "cpu or cuda");
    command.flag("--causal", causal, "row i of the last two axes has its first i + 1 + S - T elements");
    command.option("--keys", keys, "of attention, whose SHAPE is q's BxHxTxD: keys a sequence; default T");
    command.option("--kv-heads", kv_heads, "of attention: heads of k and v; default H");
    command.option("--dv", dv, "of attention: v's D; default D");
    command.flag("--json", json, "print an object");
    command.footer("Nothing is computed: the plan that a call with such tensors would make is shown.");
  }

  void run() const;
  void explain_attention(DType in, DType out) const;
  void tell(Op which, const Plan& plan) const;
};

void ExplainVerb::run() const {
  const Op which = parse_op(op);
  const DType in = parse_dtype(dtype_text), out = output.empty() ? in : parse_dtype(output);
  const DeviceKind device = parse_backend(backend);
  if (device == DeviceKind::cuda) require_cuda_build();
  if (which == Op::attention) return explain_attention(in, out);
  const Fabricated o(which, parse_shape(shape_text), axis, in, out, {device, 0});
  const Workers workers(threads);
  RowOptions options;
  options.axis = axis;
  options.scale = scale;
  options.causal = causal;
  options.rung = parse_rung(rung);
  tell(which, plan(which, o.inputs(), o.outputs(), options, workers.context()));
}

void ExplainVerb::explain_attention(DType in, DType out) const {
  const std::vector<std::int64_t> q = parse_shape(shape_text);
  if (q.size() != 4) throw Error(Code::shape, "attention of q " + shape_text, "q's shape BxHxTxD", "1x32x4096x128");
  const AttentionSizes sizes{
      q[0], q[1], kv_heads != 0 ? kv_heads : q[1], q[2], keys != 0 ? keys : q[2], q[3], dv != 0 ? dv : q[3]};
  const Fabricated o(sizes, in, out, {parse_backend(backend), 0});
  const Workers workers(threads);
  AttentionOptions options;
  if (scale != 1) options.scale = scale;
  options.causal = causal;
  options.rung = parse_rung(rung);
  tell(Op::attention, plan(Op::attention, o.inputs(), o.outputs(), options, workers.context()));
}

void ExplainVerb::tell(Op which, const Plan& plan) const {
  const DType in = parse_dtype(dtype_text), out = output.empty() ? in : parse_dtype(output);
  const auto traffic = traffic_of(which, plan.kernel(), size_of(in), size_of(out));
  const auto rejected = plan.rejected();
  if (json) {
    Json others = Json::object();
    for (const auto& [name, why] : rejected) others[name] = why;
    Json object{{"op", name_of(which)}, {"shape", parse_shape(shape_text)},
                {"dtype", name_of(in)}, {"output_dtype", name_of(out)},
                {"backend", backend},   {"kernel", plan.kernel()},
                {"rejected", others},   {"workspace_bytes", plan.workspace_bytes()}};
    if (traffic) object["reads"] = traffic->reads, object["bytes_per_element"] = traffic->bytes_per_element;
    return print(object);
  }
  fmt::print("{} of {} {} -> {} on {}\n", name_of(which), shape_text, name_of(in), name_of(out), backend);
  fmt::print("kernel     {}\n", plan.kernel());
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
  for (const auto& [name, why] : rejected) fmt::print("not        {}: {}\n", name, why);
}

}  // namespace

void add_explain(Program& program) {
  program.add<ExplainVerb>("explain", "the kernel that a call would use, and why not the others");
}

}  // namespace softfold::cli
