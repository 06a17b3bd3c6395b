// The one-shot functions of softfold.hpp: a plan, run.
#include "softfold/softfold.hpp"

namespace softfold {
inline namespace v0 {
namespace {

void run(Op op, std::initializer_list<View> inputs, const View& output, const RowOptions& options,
         const Context& context) {
  plan(op, {inputs.begin(), inputs.size()}, {&output, 1}, options, context).run();
}

}  // namespace

void softmax(const View& x, const View& y, const RowOptions& options, const Context& context) {
  run(Op::softmax, {x}, y, options, context);
}
void log_softmax(const View& x, const View& y, const RowOptions& options, const Context& context) {
  run(Op::log_softmax, {x}, y, options, context);
}
void logsumexp(const View& x, const View& lse, const RowOptions& options, const Context& context) {
  run(Op::logsumexp, {x}, lse, options, context);
}
void state(const View& x, const View& states, const RowOptions& options, const Context& context) {
  run(Op::state, {x}, states, options, context);
}
void softmax_backward(const View& y, const View& dy, const View& dx, const RowOptions& options,
                      const Context& context) {
  run(Op::softmax_backward, {y, dy}, dx, options, context);
}
void log_softmax_backward(const View& y, const View& dy, const View& dx, const RowOptions& options,
                          const Context& context) {
  run(Op::log_softmax_backward, {y, dy}, dx, options, context);
}
void logsumexp_backward(const View& x, const View& states, const View& dlse, const View& dx, const RowOptions& options,
                        const Context& context) {
  run(Op::logsumexp_backward, {x, states, dlse}, dx, options, context);
}
void finish_softmax(const View& x, const View& states, const View& y, const RowOptions& options,
                    const Context& context) {
  run(Op::finish_softmax, {x, states}, y, options, context);
}
void finish_log_softmax(const View& x, const View& states, const View& y, const RowOptions& options,
                        const Context& context) {
  run(Op::finish_log_softmax, {x, states}, y, options, context);
}
void finish_logsumexp(const View& states, const View& lse, const Context& context) {
  run(Op::finish_logsumexp, {states}, lse, {}, context);
}
void merge_states(std::span<const View> parts, const View& merged, const Context& context) {
  plan(Op::merge_states, parts, {&merged, 1}, MergeOptions{}, context).run();
}
void merge_attention(std::span<const View> parts, const View& out, const View& lse, const MergeOptions& options,
                     const Context& context) {
  const View results[] = {out, lse};
  plan(Op::merge_attention, parts, results, options, context).run();
}
void merge_blocks(std::span<const View> parts, std::span<const View> outputs, const MergeOptions& options,
                  const Context& context) {
  plan(Op::merge_blocks, parts, outputs, options, context).run();
}
void cross_entropy(const View& x, const View& targets, const View& loss, const CrossEntropyOptions& options,
                   const Context& context) {
  const View inputs[] = {x, targets};
  plan(Op::cross_entropy, inputs, {&loss, 1}, options, context).run();
}
void linear_cross_entropy(const View& x, const View& weight, const View& targets, const View& loss,
                          const LinearCrossEntropyOptions& options, const Context& context) {
  const View inputs[] = {x, weight, targets};
  plan(Op::linear_cross_entropy, inputs, {&loss, 1}, options, context).run();
}
void entropy(const View& x, const View& entropy, const EntropyOptions& options, const Context& context) {
  plan(Op::entropy, {&x, 1}, {&entropy, 1}, options, context).run();
}
void entropy_backward(const View& x, const View& states, const View& dentropy, const View& dx,
                      const EntropyOptions& options, const Context& context) {
  const View inputs[] = {x, states, dentropy};
  plan(Op::entropy_backward, inputs, {&dx, 1}, options, context).run();
}
void topk(const View& x, const View& values, const View& indices, const TopkOptions& options, const Context& context) {
  const View outputs[] = {values, indices};
  plan(Op::topk, {&x, 1}, outputs, options, context).run();
}
void sample(const View& x, const View& tokens, const SampleOptions& options, const Context& context) {
  plan(Op::sample, {&x, 1}, {&tokens, 1}, options, context).run();
}
void kl_divergence(const View& p, const View& q, const View& kl, const KlDivergenceOptions& options,
                   const Context& context) {
  const View inputs[] = {p, q};
  plan(Op::kl_divergence, inputs, {&kl, 1}, options, context).run();
}
void kl_divergence_backward(const View& p, const View& q, const View& p_states, const View& q_states, const View& dkl,
                            const View& dp, const View& dq, const KlDivergenceOptions& options,
                            const Context& context) {
  const View inputs[] = {p, q, p_states, q_states, dkl}, outputs[] = {dp, dq};
  plan(Op::kl_divergence_backward, inputs, outputs, options, context).run();
}
void cross_entropy_backward(const View& x, const View& targets, const View& states, const View& dloss, const View& dx,
                            const CrossEntropyOptions& options, const Context& context) {
  const View inputs[] = {x, targets, states, dloss};
  plan(Op::cross_entropy_backward, inputs, {&dx, 1}, options, context).run();
}

void attention(const View& q, const View& k, const View& v, const View& out, const AttentionOptions& options,
               const Context& context) {
  const View inputs[] = {q, k, v};
  plan(Op::attention, inputs, {&out, 1}, options, context).run();
}

int bits_version() noexcept { return SOFTFOLD_BITS_VERSION; }
const char* version() noexcept { return SOFTFOLD_VERSION; }

}  // namespace v0
}  // namespace softfold
