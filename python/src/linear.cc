// linear_cross_entropy, into results that Python allocated.
#include "rows.hpp"

namespace softfold::python {
namespace {

using nb::handle;

LinearMode mode_of(const std::string& name) {
  if (name == "fast") return LinearMode::fast;
  if (name == "lean") return LinearMode::lean;
  throw Error(Code::option, "mode=\"" + name + "\"", "\"fast\" or \"lean\"", "mode=\"fast\"");
}

/// A refusal's words with Python's name for the weights of the classes.
std::string in_python(std::string words) {
  constexpr std::string_view kOwn = "loss.weight";
  for (std::size_t at = words.find(kOwn); at != std::string::npos; at = words.find(kOwn, at))
    words.replace(at, kOwn.size(), "class_weight");
  return words;
}

void linear_cross_entropy_into(const nb::tuple& inputs, handle out, handle bias, double softcap,
                               const std::string& mode, handle class_weight, handle ignore_index,
                               const std::string& reduction, double label_smoothing, double z_loss, handle dloss,
                               handle log_probability, handle states, handle dx, handle dweight, handle dbias,
                               handle scale, handle mask, handle empty, std::uintptr_t stream) {
  constexpr const char* kNames[] = {"x", "weight"};
  if (inputs.size() != 3) throw Error(Code::shape, std::to_string(inputs.size()) + " inputs", "x, weight, target");
  const nb::none none;
  const nb::bool_ causal(false);
  OpenRowOptions rows;
  rows.open_options({{}, {}, {}, scale, none, none, none, mask, causal, empty});
  rows.view_options();
  OpenArrays arrays;
  LinearCrossEntropyOptions o;
  o.loss.rows = rows.options;
  o.loss.reduction = reduction_of(reduction);
  o.loss.ignore_index = whole<std::int64_t>(ignore_index, "ignore_index");
  o.loss.label_smoothing = label_smoothing;
  o.loss.z_loss = z_loss;
  o.loss.weight = arrays.open(class_weight, "class_weight");
  o.loss.dloss = arrays.open(dloss, "dloss");
  o.loss.log_probability = arrays.open_result(log_probability, "log_probability");
  o.loss.states = arrays.open_result(states, "states");
  o.bias = arrays.open(bias, "bias");
  o.softcap = softcap;
  o.mode = mode_of(mode);
  o.dx = arrays.open_result(dx, "dx");
  o.dweight = arrays.open_result(dweight, "dweight");
  o.dbias = arrays.open_result(dbias, "dbias");
  View views[3];
  for (std::size_t i = 0; i < 2; ++i) views[i] = arrays.open(inputs[i], kNames[i]);
  views[2] = arrays.open_target(inputs[2]);
  const View loss = arrays.open_result(out, "out");
  const std::shared_ptr<Executor> threads = executor();
  const Context context{threads.get(), reinterpret_cast<void*>(stream), nullptr};
  std::int64_t elements = 1;
  for (const std::int64_t size : views[1].shape) elements *= size;
  try {
    run_plan(elements, [&] { return plan(Op::linear_cross_entropy, views, {&loss, 1}, o, context); });
  } catch (const Error& e) {
    throw Error(e.code, in_python(e.got), in_python(e.allowed), in_python(e.fix));
  }
}

}  // namespace

void bind_linear(nb::module_& m) {
  const nb::none none;
  m.def("linear_cross_entropy_into", &linear_cross_entropy_into, nb::arg("inputs"), nb::arg("out"), nb::kw_only(),
        nb::arg("bias") = none, nb::arg("softcap") = 0.0, nb::arg("mode") = "fast", nb::arg("class_weight") = none,
        nb::arg("ignore_index") = -100, nb::arg("reduction") = "mean", nb::arg("label_smoothing") = 0.0,
        nb::arg("z_loss") = 0.0, nb::arg("dloss") = none, nb::arg("log_probability") = none, nb::arg("states") = none,
        nb::arg("dx") = none, nb::arg("dweight") = none, nb::arg("dbias") = none, nb::arg("scale") = 1.0,
        nb::arg("mask") = none, nb::arg("empty") = "zero", nb::arg("stream") = 0,
        R"(Runs linear_cross_entropy on viewable arrays, into out: what the faces of that name call.

inputs: (x, weight, target), and out is the loss; log_probability, states, dx, dweight, dbias are written where given.)");
}

}  // namespace softfold::python
