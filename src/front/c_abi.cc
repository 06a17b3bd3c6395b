// The C ABI: plain structs in, views out.
#include "front/c_bridge.hpp"

#include <limits>

namespace softfold {
inline namespace v0 {
namespace c_abi {
namespace {

static_assert(sizeof(Plan) <= sizeof(softfold_plan) && alignof(Plan) <= 16);
static_assert(static_cast<int>(Op::merge_blocks) == SOFTFOLD_OP_MERGE_BLOCKS);
static_assert(static_cast<int>(Op::attention) == SOFTFOLD_OP_ATTENTION);
static_assert(static_cast<int>(Code::verification) == SOFTFOLD_VERIFICATION);

}  // namespace

softfold_row_options default_row_options() {
  return {sizeof(softfold_row_options), 1., nullptr, nullptr, nullptr, nullptr, -1, 0, 0, 0};
}

RowOptions row_options_from(const softfold_row_options* given) {
  if (given == nullptr) return {};
  const auto o = read_struct(given, default_row_options(), "row_options");
  RowOptions r;
  r.axis = o.axis;
  r.scale = o.scale;
  r.scales = view_from(o.scales);
  r.length = view_from(o.length);
  r.offsets = view_from(o.offsets);
  r.mask = view_from(o.mask);
  r.causal = o.causal != 0;
  r.empty = enum_from(o.empty, Empty::nan, "empty");
  r.rung = enum_from(o.rung, Rung::fused, "rung");
  return r;
}

namespace {

MergeOptions merge_options_from(const softfold_merge_options* given) {
  const auto o = read_struct(given, {sizeof(softfold_merge_options), 0, 0}, "merge_options");
  return {enum_from(o.base, LogBase::two, "base"), enum_from(o.statistics, Statistics::max_sum, "statistics")};
}

softfold_attention_options default_attention_options() {
  softfold_attention_options o{};
  o.struct_size = sizeof o;
  o.scale = std::numeric_limits<double>::quiet_NaN();
  o.window_left = o.window_right = -1;
  return o;
}

AttentionOptions attention_options_from(const softfold_attention_options* given) {
  if (given == nullptr) return {};
  const auto o = read_struct(given, default_attention_options(), "attention_options");
  AttentionOptions a;
  a.layout = enum_from(o.layout, Layout::bthd, "layout");
  a.scale = o.scale;
  a.causal = o.causal != 0;
  a.window = {o.window_left, o.window_right};
  a.softcap = o.softcap;
  a.sink = view_from(o.sink);
  a.bias = view_from(o.bias);
  a.mask = view_from(o.mask);
  a.slopes = view_from(o.slopes);
  a.kv_lengths = view_from(o.kv_lengths);
  a.kv_starts = view_from(o.kv_starts);
  a.kv_index = view_from(o.kv_index);
  if (o.page_table != nullptr) {
    a.kv = Paged{view_from(o.page_table), a.kv_lengths};
  } else if (o.q_offsets != nullptr || o.kv_offsets != nullptr) {
    a.kv = Varlen{view_from(o.q_offsets), view_from(o.kv_offsets), o.max_q, o.max_kv};
  } else if (o.max_q != 0 || o.max_kv != 0) {
    throw Error(Code::option, "max_q or max_kv without q_offsets and kv_offsets", "both offsets, or none of the four",
                "leave them 0");
  }
  a.q_positions = view_from(o.q_positions);
  a.kv_positions = view_from(o.kv_positions);
  a.lse = view_from(o.lse);
  a.state = view_from(o.state);
  a.rung = enum_from(o.rung, Rung::merged, "rung");
  return a;
}

softfold_status run_rows(Op op, std::initializer_list<const softfold_tensor*> inputs, const softfold_tensor* output,
                         const softfold_row_options* options, const softfold_context* context) {
  return guarded([&] {
    View in[3];
    std::size_t count = 0;
    for (const softfold_tensor* t : inputs) {
      require(t, "input tensor");
      in[count++] = view_from(t);
    }
    require(output, "output tensor");
    const View out = view_from(output);
    ContextStorage c;
    read_context(c, context);
    plan(op, {in, count}, {&out, 1}, row_options_from(options), c.context).run();
  });
}

softfold_status run_merge(Op op, const softfold_tensor* parts, std::size_t part_count, const softfold_tensor* outputs,
                          const softfold_merge_options* options, const softfold_context* context) {
  return guarded([&] {
    if (part_count > kMaxMergeParts)
      throw Error(Code::shape, std::to_string(part_count) + " parts", "1 to " + std::to_string(kMaxMergeParts),
                  "merge more parts in several calls");
    const bool states = op == Op::merge_states;
    const Views in(parts, (states ? 1 : 2) * part_count);
    const Views out(outputs, states ? 1 : op == Op::merge_attention ? 2 : part_count + 1);
    ContextStorage c;
    read_context(c, context);
    plan(op, in, out, merge_options_from(options), c.context).run();
  });
}

/// Null for a plan that was refused, or copied from where it was made.
const Plan* made_plan(const softfold_plan* plan) {
  if (plan == nullptr) return nullptr;
  const auto* stored = reinterpret_cast<const StoredPlan*>(plan->opaque);
  return stored->self == stored ? &stored->plan : nullptr;
}

}  // namespace
}  // namespace c_abi
}  // namespace v0
}  // namespace softfold

using namespace softfold;
using namespace softfold::c_abi;

void softfold_row_options_init(softfold_row_options* options) { *options = default_row_options(); }
void softfold_merge_options_init(softfold_merge_options* options) { *options = {sizeof(*options), 0, 0}; }
void softfold_attention_options_init(softfold_attention_options* options) { *options = default_attention_options(); }
void softfold_context_init(softfold_context* context) {
  *context = {sizeof(*context), nullptr, nullptr, nullptr, 0, 0};
}

softfold_status softfold_plan_rows(softfold_plan* plan, int op, const softfold_tensor* inputs, size_t input_count,
                                   const softfold_tensor* outputs, size_t output_count,
                                   const softfold_row_options* options, const softfold_context* context) {
  return make_plan(
      plan, op, inputs, input_count, outputs, output_count, [&] { return row_options_from(options); }, context);
}

softfold_status softfold_plan_merge(softfold_plan* plan, int op, const softfold_tensor* inputs, size_t input_count,
                                    const softfold_tensor* outputs, size_t output_count,
                                    const softfold_merge_options* options, const softfold_context* context) {
  return make_plan(
      plan, op, inputs, input_count, outputs, output_count, [&] { return merge_options_from(options); }, context);
}

softfold_status softfold_plan_attention(softfold_plan* plan, const softfold_tensor* inputs, size_t input_count,
                                        const softfold_tensor* outputs, size_t output_count,
                                        const softfold_attention_options* options, const softfold_context* context) {
  return make_plan(
      plan, SOFTFOLD_OP_ATTENTION, inputs, input_count, outputs, output_count,
      [&] { return attention_options_from(options); }, context);
}

softfold_status softfold_plan_run(const softfold_plan* plan) {
  return guarded([&] {
    const Plan* made = made_plan(plan);
    if (made == nullptr)
      throw Error(Code::option, "a plan that was refused, copied or never made", "one that softfold_plan_* made",
                  "look at the status of softfold_plan_rows");
    made->run();
  });
}
const char* softfold_plan_kernel(const softfold_plan* plan) {
  const Plan* made = made_plan(plan);
  return made != nullptr ? made->kernel().data() : "";
}
size_t softfold_plan_workspace_bytes(const softfold_plan* plan) {
  const Plan* made = made_plan(plan);
  size_t bytes = 0;
  guarded([&] { bytes = made != nullptr ? made->workspace_bytes() : 0; });
  return bytes;
}

softfold_status softfold_softmax(const softfold_tensor* x, const softfold_tensor* y,
                                 const softfold_row_options* options, const softfold_context* context) {
  return run_rows(Op::softmax, {x}, y, options, context);
}
softfold_status softfold_log_softmax(const softfold_tensor* x, const softfold_tensor* y,
                                     const softfold_row_options* options, const softfold_context* context) {
  return run_rows(Op::log_softmax, {x}, y, options, context);
}
softfold_status softfold_logsumexp(const softfold_tensor* x, const softfold_tensor* lse,
                                   const softfold_row_options* options, const softfold_context* context) {
  return run_rows(Op::logsumexp, {x}, lse, options, context);
}
softfold_status softfold_state(const softfold_tensor* x, const softfold_tensor* states,
                               const softfold_row_options* options, const softfold_context* context) {
  return run_rows(Op::state, {x}, states, options, context);
}
softfold_status softfold_softmax_backward(const softfold_tensor* y, const softfold_tensor* dy,
                                          const softfold_tensor* dx, const softfold_row_options* options,
                                          const softfold_context* context) {
  return run_rows(Op::softmax_backward, {y, dy}, dx, options, context);
}
softfold_status softfold_log_softmax_backward(const softfold_tensor* y, const softfold_tensor* dy,
                                              const softfold_tensor* dx, const softfold_row_options* options,
                                              const softfold_context* context) {
  return run_rows(Op::log_softmax_backward, {y, dy}, dx, options, context);
}
softfold_status softfold_logsumexp_backward(const softfold_tensor* x, const softfold_tensor* states,
                                            const softfold_tensor* dlse, const softfold_tensor* dx,
                                            const softfold_row_options* options, const softfold_context* context) {
  return run_rows(Op::logsumexp_backward, {x, states, dlse}, dx, options, context);
}
softfold_status softfold_finish_softmax(const softfold_tensor* x, const softfold_tensor* states,
                                        const softfold_tensor* y, const softfold_row_options* options,
                                        const softfold_context* context) {
  return run_rows(Op::finish_softmax, {x, states}, y, options, context);
}
softfold_status softfold_finish_log_softmax(const softfold_tensor* x, const softfold_tensor* states,
                                            const softfold_tensor* y, const softfold_row_options* options,
                                            const softfold_context* context) {
  return run_rows(Op::finish_log_softmax, {x, states}, y, options, context);
}
softfold_status softfold_finish_logsumexp(const softfold_tensor* states, const softfold_tensor* lse,
                                          const softfold_context* context) {
  return run_rows(Op::finish_logsumexp, {states}, lse, nullptr, context);
}
softfold_status softfold_merge_states(const softfold_tensor* parts, size_t part_count, const softfold_tensor* merged,
                                      const softfold_context* context) {
  return run_merge(Op::merge_states, parts, part_count, merged, nullptr, context);
}
softfold_status softfold_merge_attention(const softfold_tensor* parts, size_t part_count,
                                         const softfold_tensor* outputs, const softfold_merge_options* options,
                                         const softfold_context* context) {
  return run_merge(Op::merge_attention, parts, part_count, outputs, options, context);
}
softfold_status softfold_merge_blocks(const softfold_tensor* parts, size_t part_count, const softfold_tensor* outputs,
                                      const softfold_merge_options* options, const softfold_context* context) {
  return run_merge(Op::merge_blocks, parts, part_count, outputs, options, context);
}

softfold_status softfold_attention(const softfold_tensor* q, const softfold_tensor* k, const softfold_tensor* v,
                                   const softfold_tensor* out, const softfold_attention_options* options,
                                   const softfold_context* context) {
  return guarded([&] {
    require(q, "q");
    require(k, "k");
    require(v, "v");
    require(out, "out");
    ContextStorage c;
    read_context(c, context);
    attention(view_from(q), view_from(k), view_from(v), view_from(out), attention_options_from(options), c.context);
  });
}

softfold_status softfold_executor_threads(int threads, softfold_executor** executor) {
  return guarded([&] {
    require(executor, "place for the executor");
    *executor = new softfold_executor{make_thread_executor(threads)};
  });
}
softfold_status softfold_executor_tbb(int threads, softfold_executor** executor) {
  return guarded([&] {
    require(executor, "place for the executor");
    *executor = new softfold_executor{make_tbb_executor(threads)};
  });
}
void softfold_executor_destroy(softfold_executor* executor) { delete executor; }

const char* softfold_version(void) { return version(); }
int softfold_bits_version(void) { return bits_version(); }
