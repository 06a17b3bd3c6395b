// cross_entropy, entropy, kl_divergence and their backward passes, into results that Python allocated.
#include "rows.hpp"

namespace softfold::python {

Reduction reduction_of(const std::string& name) {
  if (name == "none") return Reduction::none;
  if (name == "sum") return Reduction::sum;
  if (name == "mean") return Reduction::mean;
  throw Error(Code::option, "reduction=\"" + name + "\"", "\"none\", \"sum\" or \"mean\"", "reduction=\"mean\"");
}

namespace {

using nb::handle;

/// Runs op; the first of its inputs is of the size of the work.
template <class Options>
void run_loss(Op op, std::span<const View> inputs, std::span<const View> outputs, const Options& options,
              std::uintptr_t stream) {
  const std::shared_ptr<Executor> threads = executor();
  const Context context{threads.get(), reinterpret_cast<void*>(stream), nullptr};
  std::int64_t elements = 1;
  for (const std::int64_t size : inputs[0].shape) elements *= size;
  run_plan(elements, [&] { return plan(op, inputs, outputs, options, context); });
}

void cross_entropy_into(const nb::tuple& inputs, handle out, handle axis, handle weight, handle ignore_index,
                        const std::string& reduction, double label_smoothing, double z_loss, handle log_probability,
                        handle states, handle gradient, handle status, handle scale, handle scales, handle lengths,
                        handle offsets, handle mask, handle causal, handle empty, handle shard_offset,
                        handle shard_size, std::uintptr_t stream) {
  constexpr const char* kNames[] = {"logits", "target", "states", "dloss"};
  const bool backward = inputs.size() == 4;
  if (inputs.size() != 2 && !backward)
    throw Error(Code::shape, std::to_string(inputs.size()) + " inputs", "logits, target; or with states, dloss");
  OpenRowOptions rows;
  rows.open_options({{}, {}, {}, scale, scales, lengths, offsets, mask, causal, empty});
  rows.options.axis = axis_of(axis);
  rows.view_options();
  OpenArrays arrays;
  CrossEntropyOptions o;
  o.rows = rows.options;
  o.reduction = reduction_of(reduction);
  o.ignore_index = whole<std::int64_t>(ignore_index, "ignore_index");
  o.label_smoothing = label_smoothing;
  o.z_loss = z_loss;
  o.weight = arrays.open(weight, "weight");
  o.log_probability = arrays.open_result(log_probability, "log_probability");
  o.states = arrays.open_result(states, "states");
  o.dx = arrays.open_result(gradient, "gradient");
  o.status = arrays.open_result(status, "status", "int32");
  o.shard = {whole<std::int64_t>(shard_offset, "offset"), whole<std::int64_t>(shard_size, "size")};
  View views[4];
  for (std::size_t i = 0; i < inputs.size(); ++i)
    views[i] = i == 1 ? arrays.open_target(inputs[i], true) : arrays.open(inputs[i], kNames[i]);
  const View result = arrays.open_result(out, "out");
  run_loss(backward ? Op::cross_entropy_backward : Op::cross_entropy, {views, inputs.size()}, {&result, 1}, o, stream);
}

void entropy_into(const nb::tuple& inputs, handle out, handle axis, handle states, handle gradient, handle scale,
                  handle scales, handle lengths, handle offsets, handle mask, handle causal, handle empty,
                  std::uintptr_t stream) {
  constexpr const char* kNames[] = {"x", "states", "dentropy"};
  const bool backward = inputs.size() == 3;
  if (inputs.size() != 1 && !backward)
    throw Error(Code::shape, std::to_string(inputs.size()) + " inputs", "x; or x, states, dentropy");
  OpenRowOptions rows;
  rows.open_options({{}, {}, {}, scale, scales, lengths, offsets, mask, causal, empty});
  rows.options.axis = axis_of(axis);
  rows.view_options();
  OpenArrays arrays;
  EntropyOptions o;
  o.rows = rows.options;
  o.states = arrays.open_result(states, "states");
  o.dx = arrays.open_result(gradient, "gradient");
  View views[3];
  for (std::size_t i = 0; i < inputs.size(); ++i) views[i] = arrays.open(inputs[i], kNames[i]);
  const View result = arrays.open_result(out, "out");
  run_loss(backward ? Op::entropy_backward : Op::entropy, {views, inputs.size()}, {&result, 1}, o, stream);
}

void kl_divergence_into(const nb::tuple& inputs, handle out, handle axis, handle p_states, handle q_states,
                        handle p_gradient, handle q_gradient, handle scale, handle scales, handle lengths,
                        handle offsets, handle mask, handle causal, handle empty, std::uintptr_t stream) {
  constexpr const char* kNames[] = {"p", "q", "p_states", "q_states", "dkl"};
  const bool backward = inputs.size() == 5;
  if (inputs.size() != 2 && !backward)
    throw Error(Code::shape, std::to_string(inputs.size()) + " inputs", "p, q; or with p_states, q_states, dkl");
  OpenRowOptions rows;
  rows.open_options({{}, {}, {}, scale, scales, lengths, offsets, mask, causal, empty});
  rows.options.axis = axis_of(axis);
  rows.view_options();
  OpenArrays arrays;
  KlDivergenceOptions o;
  o.rows = rows.options;
  View views[5], gradients[2];
  for (std::size_t i = 0; i < inputs.size(); ++i) views[i] = arrays.open(inputs[i], kNames[i]);
  gradients[0] = arrays.open_result(p_gradient, "p_gradient");
  gradients[1] = arrays.open_result(q_gradient, "q_gradient");
  if (backward) return run_loss(Op::kl_divergence_backward, {views, 5}, {gradients, 2}, o, stream);
  o.dp = gradients[0];
  o.dq = gradients[1];
  o.p_states = arrays.open_result(p_states, "p_states");
  o.q_states = arrays.open_result(q_states, "q_states");
  const View kl = arrays.open_result(out, "out");
  run_loss(Op::kl_divergence, {views, 2}, {&kl, 1}, o, stream);
}

}  // namespace

void bind_losses(nb::module_& m) {
  const nb::none none;
  m.def("cross_entropy_into", &cross_entropy_into, nb::arg("inputs"), nb::arg("out"), nb::arg("axis") = -1,
        nb::kw_only(), nb::arg("weight") = none, nb::arg("ignore_index") = -100, nb::arg("reduction") = "mean",
        nb::arg("label_smoothing") = 0.0, nb::arg("z_loss") = 0.0, nb::arg("log_probability") = none,
        nb::arg("states") = none, nb::arg("gradient") = none, nb::arg("status") = none, nb::arg("scale") = 1.0,
        nb::arg("scales") = none, nb::arg("lengths") = none, nb::arg("offsets") = none, nb::arg("mask") = none,
        nb::arg("causal") = false, nb::arg("empty") = "zero", nb::arg("shard_offset") = 0, nb::arg("shard_size") = 0,
        nb::arg("stream") = 0,
        R"(Runs cross_entropy on viewable arrays, into out: what softfold.cross_entropy and softfold.torch call.

inputs: (logits, target), and out is the loss; or (logits, target, states, dloss), and out is the logits' gradient.)");
  m.def("entropy_into", &entropy_into, nb::arg("inputs"), nb::arg("out"), nb::arg("axis") = -1, nb::kw_only(),
        nb::arg("states") = none, nb::arg("gradient") = none, nb::arg("scale") = 1.0, nb::arg("scales") = none,
        nb::arg("lengths") = none, nb::arg("offsets") = none, nb::arg("mask") = none, nb::arg("causal") = false,
        nb::arg("empty") = "zero", nb::arg("stream") = 0,
        R"(Runs entropy on viewable arrays, into out: what softfold.entropy and softfold.torch call.

inputs: (x,), and out is the entropy; or (x, states, dentropy), and out is x's gradient.)");
  m.def("kl_divergence_into", &kl_divergence_into, nb::arg("inputs"), nb::arg("out").none(), nb::arg("axis") = -1,
        nb::kw_only(), nb::arg("p_states") = none, nb::arg("q_states") = none, nb::arg("p_gradient") = none,
        nb::arg("q_gradient") = none, nb::arg("scale") = 1.0, nb::arg("scales") = none, nb::arg("lengths") = none,
        nb::arg("offsets") = none, nb::arg("mask") = none, nb::arg("causal") = false, nb::arg("empty") = "zero",
        nb::arg("stream") = 0,
        R"(Runs kl_divergence on viewable arrays: what softfold.kl_divergence and softfold.torch call.

inputs: (p, q), and out is the divergence; or (p, q, p_states, q_states, dkl), and out is None: the gradients alone.)");
}

}  // namespace softfold::python
