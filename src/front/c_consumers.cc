// The C ABI of the operations on logits that have options of their own.
#include "front/c_bridge.hpp"
#include "softfold/shards.hpp"

namespace softfold {
inline namespace v0 {
namespace c_abi {
namespace {

static_assert(static_cast<int>(Op::topk) == SOFTFOLD_OP_TOPK);
static_assert(static_cast<int>(Op::sample) == SOFTFOLD_OP_SAMPLE);
static_assert(static_cast<int>(Op::entropy) == SOFTFOLD_OP_ENTROPY);
static_assert(static_cast<int>(Op::entropy_backward) == SOFTFOLD_OP_ENTROPY_BACKWARD);
static_assert(static_cast<int>(Op::kl_divergence) == SOFTFOLD_OP_KL_DIVERGENCE);
static_assert(static_cast<int>(Op::kl_divergence_backward) == SOFTFOLD_OP_KL_DIVERGENCE_BACKWARD);
static_assert(static_cast<int>(Op::cross_entropy) == SOFTFOLD_OP_CROSS_ENTROPY);
static_assert(static_cast<int>(Op::linear_cross_entropy) == SOFTFOLD_OP_LINEAR_CROSS_ENTROPY);
static_assert(static_cast<int>(Op::cross_entropy_backward) == SOFTFOLD_OP_CROSS_ENTROPY_BACKWARD);

softfold_cross_entropy_options default_cross_entropy_options() {
  const CrossEntropyOptions o;
  return {sizeof(softfold_cross_entropy_options),
          nullptr,
          o.ignore_index,
          o.label_smoothing,
          o.z_loss,
          nullptr,
          nullptr,
          nullptr,
          nullptr,
          nullptr,
          static_cast<std::int32_t>(o.reduction),
          nullptr,
          0,
          0};
}

CrossEntropyOptions options_from(const softfold_cross_entropy_options* given) {
  const auto o = read_struct(given, default_cross_entropy_options(), "cross_entropy_options");
  CrossEntropyOptions r;
  r.rows = row_options_from(o.rows);
  r.reduction = enum_from(o.reduction, Reduction::mean, "reduction");
  r.ignore_index = o.ignore_index;
  r.label_smoothing = o.label_smoothing;
  r.z_loss = o.z_loss;
  r.weight = view_from(o.weight);
  r.log_probability = view_from(o.log_probability);
  r.states = view_from(o.states);
  r.dx = view_from(o.dx);
  r.dloss = view_from(o.dloss);
  r.status = view_from(o.status);
  r.shard = {o.shard_offset, o.shard_size};
  return r;
}

softfold_linear_cross_entropy_options default_linear_cross_entropy_options() {
  softfold_linear_cross_entropy_options r{};
  r.struct_size = sizeof r;
  return r;
}

LinearCrossEntropyOptions options_from(const softfold_linear_cross_entropy_options* given) {
  const auto o = read_struct(given, default_linear_cross_entropy_options(), "linear_cross_entropy_options");
  LinearCrossEntropyOptions r;
  r.loss = options_from(o.loss);
  r.bias = view_from(o.bias);
  r.softcap = o.softcap;
  r.mode = enum_from(o.mode, LinearMode::lean, "mode");
  r.dx = view_from(o.dx);
  r.dweight = view_from(o.dweight);
  r.dbias = view_from(o.dbias);
  return r;
}

softfold_entropy_options default_entropy_options() {
  return {sizeof(softfold_entropy_options), nullptr, nullptr, nullptr, nullptr};
}

EntropyOptions options_from(const softfold_entropy_options* given) {
  const auto o = read_struct(given, default_entropy_options(), "entropy_options");
  EntropyOptions r;
  r.rows = row_options_from(o.rows);
  r.states = view_from(o.states);
  r.dx = view_from(o.dx);
  r.dentropy = view_from(o.dentropy);
  return r;
}

softfold_kl_divergence_options default_kl_divergence_options() {
  softfold_kl_divergence_options r{};
  r.struct_size = sizeof r;
  return r;
}

KlDivergenceOptions options_from(const softfold_kl_divergence_options* given) {
  const auto o = read_struct(given, default_kl_divergence_options(), "kl_divergence_options");
  KlDivergenceOptions r;
  r.rows = row_options_from(o.rows);
  r.p_states = view_from(o.p_states);
  r.q_states = view_from(o.q_states);
  r.dp = view_from(o.dp);
  r.dq = view_from(o.dq);
  r.dkl = view_from(o.dkl);
  return r;
}

softfold_topk_options default_topk_options() {
  return {sizeof(softfold_topk_options), nullptr, nullptr, nullptr, nullptr, 1};
}

TopkOptions options_from(const softfold_topk_options* given) {
  const auto o = read_struct(given, default_topk_options(), "topk_options");
  TopkOptions r;
  r.rows = row_options_from(o.rows);
  r.sorted = o.sorted != 0;
  r.probabilities = view_from(o.probabilities);
  r.log_probabilities = view_from(o.log_probabilities);
  r.lse = view_from(o.lse);
  return r;
}

softfold_sample_options default_sample_options() {
  const SampleOptions o;
  softfold_sample_options r{};
  r.struct_size = sizeof r;
  r.temperature = o.temperature;
  r.top_p = o.top_p;
  return r;
}

SampleOptions options_from(const softfold_sample_options* given) {
  const auto o = read_struct(given, default_sample_options(), "sample_options");
  SampleOptions r;
  r.rows = row_options_from(o.rows);
  r.temperature = o.temperature;
  r.top_k = o.top_k;
  r.top_p = o.top_p;
  r.min_p = o.min_p;
  r.seed = o.seed;
  r.offset = o.offset;
  r.temperatures = view_from(o.temperatures);
  r.top_ks = view_from(o.top_ks);
  r.top_ps = view_from(o.top_ps);
  r.min_ps = view_from(o.min_ps);
  r.bias = view_from(o.bias);
  r.bitmask = view_from(o.bitmask);
  r.seeds = view_from(o.seeds);
  r.offsets = view_from(o.offsets);
  r.row_ids = view_from(o.row_ids);
  r.log_probability = view_from(o.log_probability);
  r.rank = view_from(o.rank);
  r.probabilities = view_from(o.probabilities);
  r.masked = view_from(o.masked);
  r.order = enum_from(o.order, FilterOrder::min_p_last, "order");
  r.of = enum_from(o.of, Distribution::sampled, "of");
  r.top_tokens = view_from(o.top_tokens);
  r.top_log_probabilities = view_from(o.top_log_probabilities);
  return r;
}

softfold_shard_options default_shard_options() {
  softfold_shard_options r{};
  r.struct_size = sizeof r;
  return r;
}

ShardOptions options_from(const softfold_shard_options* given) {
  const auto o = read_struct(given, default_shard_options(), "shard_options");
  ShardOptions r;
  r.rows = row_options_from(o.rows);
  r.shard = {o.offset, o.size};
  r.targets = view_from(o.targets);
  r.k = o.k;
  return r;
}

/// Calls run(views..., context).
template <class Run, class... Tensors>
softfold_status run_on(const softfold_context* context, const Run& run, const Tensors*... tensors) {
  return guarded([&] {
    (require(tensors, "tensor"), ...);
    ContextStorage c;
    read_context(c, context);
    run(view_from(tensors)..., c.context);
  });
}

/// A plan of these operands, run; none of the pointers may be null, but those of results where some are not wanted.
template <class Options>
softfold_status run_once(Op op, std::initializer_list<const softfold_tensor*> inputs,
                         std::initializer_list<const softfold_tensor*> outputs, const Options* options,
                         const softfold_context* context, bool some_outputs = false) {
  return guarded([&] {
    std::array<View, 5> in, out;
    std::size_t taken = 0, given = 0;
    for (const softfold_tensor* t : inputs) {
      require(t, "input tensor");
      in[taken++] = view_from(t);
    }
    for (const softfold_tensor* t : outputs) {
      if (!some_outputs) require(t, "output tensor");
      out[given++] = view_from(t);
    }
    ContextStorage c;
    read_context(c, context);
    plan(op, {in.data(), taken}, {out.data(), given}, options_from(options), c.context).run();
  });
}

}  // namespace
}  // namespace c_abi
}  // namespace v0
}  // namespace softfold

using namespace softfold;
using namespace softfold::c_abi;

void softfold_cross_entropy_options_init(softfold_cross_entropy_options* options) {
  *options = default_cross_entropy_options();
}

softfold_status softfold_plan_cross_entropy(softfold_plan* plan, int op, const softfold_tensor* inputs,
                                            size_t input_count, const softfold_tensor* outputs, size_t output_count,
                                            const softfold_cross_entropy_options* options,
                                            const softfold_context* context) {
  return make_plan(
      plan, op, inputs, input_count, outputs, output_count, [&] { return options_from(options); }, context);
}

softfold_status softfold_cross_entropy(const softfold_tensor* x, const softfold_tensor* targets,
                                       const softfold_tensor* loss, const softfold_cross_entropy_options* options,
                                       const softfold_context* context) {
  return run_once(Op::cross_entropy, {x, targets}, {loss}, options, context);
}
softfold_status softfold_cross_entropy_backward(const softfold_tensor* x, const softfold_tensor* targets,
                                                const softfold_tensor* states, const softfold_tensor* dloss,
                                                const softfold_tensor* dx,
                                                const softfold_cross_entropy_options* options,
                                                const softfold_context* context) {
  return run_once(Op::cross_entropy_backward, {x, targets, states, dloss}, {dx}, options, context);
}

void softfold_linear_cross_entropy_options_init(softfold_linear_cross_entropy_options* options) {
  *options = default_linear_cross_entropy_options();
}

softfold_status softfold_plan_linear_cross_entropy(softfold_plan* plan, const softfold_tensor* inputs,
                                                   size_t input_count, const softfold_tensor* outputs,
                                                   size_t output_count,
                                                   const softfold_linear_cross_entropy_options* options,
                                                   const softfold_context* context) {
  return make_plan(
      plan, SOFTFOLD_OP_LINEAR_CROSS_ENTROPY, inputs, input_count, outputs, output_count,
      [&] { return options_from(options); }, context);
}

softfold_status softfold_linear_cross_entropy(const softfold_tensor* x, const softfold_tensor* weight,
                                              const softfold_tensor* targets, const softfold_tensor* loss,
                                              const softfold_linear_cross_entropy_options* options,
                                              const softfold_context* context) {
  return run_once(Op::linear_cross_entropy, {x, weight, targets}, {loss}, options, context);
}

void softfold_entropy_options_init(softfold_entropy_options* options) { *options = default_entropy_options(); }

softfold_status softfold_plan_entropy(softfold_plan* plan, int op, const softfold_tensor* inputs, size_t input_count,
                                      const softfold_tensor* outputs, size_t output_count,
                                      const softfold_entropy_options* options, const softfold_context* context) {
  return make_plan(
      plan, op, inputs, input_count, outputs, output_count, [&] { return options_from(options); }, context);
}

softfold_status softfold_entropy(const softfold_tensor* x, const softfold_tensor* entropy,
                                 const softfold_entropy_options* options, const softfold_context* context) {
  return run_once(Op::entropy, {x}, {entropy}, options, context);
}
softfold_status softfold_entropy_backward(const softfold_tensor* x, const softfold_tensor* states,
                                          const softfold_tensor* dentropy, const softfold_tensor* dx,
                                          const softfold_entropy_options* options, const softfold_context* context) {
  return run_once(Op::entropy_backward, {x, states, dentropy}, {dx}, options, context);
}

void softfold_kl_divergence_options_init(softfold_kl_divergence_options* options) {
  *options = default_kl_divergence_options();
}

softfold_status softfold_plan_kl_divergence(softfold_plan* plan, int op, const softfold_tensor* inputs,
                                            size_t input_count, const softfold_tensor* outputs, size_t output_count,
                                            const softfold_kl_divergence_options* options,
                                            const softfold_context* context) {
  return make_plan(
      plan, op, inputs, input_count, outputs, output_count, [&] { return options_from(options); }, context);
}

softfold_status softfold_kl_divergence(const softfold_tensor* p, const softfold_tensor* q, const softfold_tensor* kl,
                                       const softfold_kl_divergence_options* options, const softfold_context* context) {
  return run_once(Op::kl_divergence, {p, q}, {kl}, options, context);
}
softfold_status softfold_kl_divergence_backward(const softfold_tensor* p, const softfold_tensor* q,
                                                const softfold_tensor* p_states, const softfold_tensor* q_states,
                                                const softfold_tensor* dkl, const softfold_tensor* dp,
                                                const softfold_tensor* dq,
                                                const softfold_kl_divergence_options* options,
                                                const softfold_context* context) {
  return run_once(Op::kl_divergence_backward, {p, q, p_states, q_states, dkl}, {dp, dq}, options, context, true);
}

void softfold_topk_options_init(softfold_topk_options* options) { *options = default_topk_options(); }

softfold_status softfold_plan_topk(softfold_plan* plan, const softfold_tensor* inputs, size_t input_count,
                                   const softfold_tensor* outputs, size_t output_count,
                                   const softfold_topk_options* options, const softfold_context* context) {
  return make_plan(
      plan, SOFTFOLD_OP_TOPK, inputs, input_count, outputs, output_count, [&] { return options_from(options); },
      context);
}

softfold_status softfold_topk(const softfold_tensor* x, const softfold_tensor* values, const softfold_tensor* indices,
                              const softfold_topk_options* options, const softfold_context* context) {
  return run_once(Op::topk, {x}, {values, indices}, options, context);
}

void softfold_sample_options_init(softfold_sample_options* options) { *options = default_sample_options(); }

softfold_status softfold_plan_sample(softfold_plan* plan, const softfold_tensor* inputs, size_t input_count,
                                     const softfold_tensor* outputs, size_t output_count,
                                     const softfold_sample_options* options, const softfold_context* context) {
  return make_plan(
      plan, SOFTFOLD_OP_SAMPLE, inputs, input_count, outputs, output_count, [&] { return options_from(options); },
      context);
}

softfold_status softfold_sample(const softfold_tensor* x, const softfold_tensor* tokens,
                                const softfold_sample_options* options, const softfold_context* context) {
  return run_once(Op::sample, {x}, {tokens}, options, context);
}

void softfold_shard_options_init(softfold_shard_options* options) { *options = default_shard_options(); }

softfold_status softfold_partial_width(int64_t n, const softfold_shard_options* options, int64_t* width) {
  return guarded([&] {
    require(width, "width");
    const ShardOptions o = options_from(options);
    *width = partial_width(n, o.shard, o.k);
  });
}

softfold_status softfold_fold_shard(const softfold_tensor* x, const softfold_tensor* partials,
                                    const softfold_shard_options* options, const softfold_context* context) {
  const auto run = [&](const View& from, const View& to, const Context& c) {
    fold_shard(from, to, options_from(options), c);
  };
  return run_on(context, run, x, partials);
}

softfold_status softfold_join_states(const softfold_tensor* partials, const softfold_tensor* states,
                                     const softfold_context* context) {
  return run_on(context, join_states, partials, states);
}

softfold_status softfold_join_cross_entropy(const softfold_tensor* partials, const softfold_tensor* targets,
                                            const softfold_tensor* loss, const softfold_cross_entropy_options* options,
                                            const softfold_context* context) {
  const auto run = [&](const View& from, const View& of, const View& to, const Context& c) {
    join_cross_entropy(from, of, to, options_from(options), c);
  };
  return run_on(context, run, partials, targets, loss);
}

softfold_status softfold_join_topk(const softfold_tensor* partials, const softfold_tensor* values,
                                   const softfold_tensor* indices, const softfold_topk_options* options,
                                   const softfold_context* context) {
  const auto run = [&](const View& from, const View& best, const View& places, const Context& c) {
    join_topk(from, best, places, options_from(options), c);
  };
  return run_on(context, run, partials, values, indices);
}

softfold_status softfold_sample_shard(const softfold_tensor* x, const softfold_tensor* partials,
                                      const softfold_tensor* tokens, int64_t shard_offset, int64_t shard_size,
                                      const softfold_sample_options* options, const softfold_context* context) {
  const auto run = [&](const View& from, const View& parts, const View& to, const Context& c) {
    sample_shard(from, parts, to, {shard_offset, shard_size}, options_from(options), c);
  };
  return run_on(context, run, x, partials, tokens);
}
