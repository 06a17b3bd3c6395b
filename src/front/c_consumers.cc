// The C ABI of the operations on logits that have options of their own.
#include "front/c_bridge.hpp"

namespace softfold {
inline namespace v0 {
namespace c_abi {
namespace {

static_assert(static_cast<int>(Op::cross_entropy) == SOFTFOLD_OP_CROSS_ENTROPY);
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
          static_cast<std::int32_t>(o.reduction)};
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
  return r;
}

/// A plan of these operands, run; none of the pointers may be null.
template <class Options>
softfold_status run_once(Op op, std::initializer_list<const softfold_tensor*> inputs, const softfold_tensor* output,
                         const Options* options, const softfold_context* context) {
  return guarded([&] {
    std::array<View, 4> in;
    std::size_t count = 0;
    for (const softfold_tensor* t : inputs) {
      require(t, "input tensor");
      in[count++] = view_from(t);
    }
    require(output, "output tensor");
    const View out = view_from(output);
    ContextStorage c;
    read_context(c, context);
    plan(op, {in.data(), count}, {&out, 1}, options_from(options), c.context).run();
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
  return run_once(Op::cross_entropy, {x, targets}, loss, options, context);
}
softfold_status softfold_cross_entropy_backward(const softfold_tensor* x, const softfold_tensor* targets,
                                                const softfold_tensor* states, const softfold_tensor* dloss,
                                                const softfold_tensor* dx,
                                                const softfold_cross_entropy_options* options,
                                                const softfold_context* context) {
  return run_once(Op::cross_entropy_backward, {x, targets, states, dloss}, dx, options, context);
}
