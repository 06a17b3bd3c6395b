// topk, into results that Python allocated.
#include "rows.hpp"

namespace softfold::python {
namespace {

using nb::handle;

void topk_into(handle x, handle values, handle indices, handle axis, bool sorted, handle probabilities,
               handle log_probabilities, handle lse, handle scale, handle scales, handle lengths, handle mask,
               handle causal, handle empty, std::uintptr_t stream) {
  OpenRowOptions rows;
  rows.open_options({{}, {}, {}, scale, scales, lengths, nb::none(), mask, causal, empty});
  rows.options.axis = axis_of(axis);
  rows.view_options();
  OpenArrays arrays;
  TopkOptions o;
  o.rows = rows.options;
  o.sorted = sorted;
  o.probabilities = arrays.open_result(probabilities, "probabilities");
  o.log_probabilities = arrays.open_result(log_probabilities, "log_probabilities");
  o.lse = arrays.open_result(lse, "lse");
  const View input[] = {arrays.open(x, "x")};
  const View outputs[] = {arrays.open_result(values, "values"), arrays.open_result(indices, "indices", kIntegerDTypes)};
  const std::shared_ptr<Executor> threads = executor();
  const Context context{threads.get(), reinterpret_cast<void*>(stream), nullptr};
  std::int64_t elements = 1;
  for (const std::int64_t size : input[0].shape) elements *= size;
  run_plan(elements, [&] { return plan(Op::topk, input, outputs, o, context); });
}

}  // namespace

void bind_topk(nb::module_& m) {
  const nb::none none;
  m.def("topk_into", &topk_into, nb::arg("x"), nb::arg("values"), nb::arg("indices"), nb::arg("axis") = -1,
        nb::kw_only(), nb::arg("sorted") = true, nb::arg("probabilities") = none, nb::arg("log_probabilities") = none,
        nb::arg("lse") = none, nb::arg("scale") = 1.0, nb::arg("scales") = none, nb::arg("lengths") = none,
        nb::arg("mask") = none, nb::arg("causal") = false, nb::arg("empty") = "zero", nb::arg("stream") = 0,
        "Runs topk on viewable arrays, into the results: what softfold.topk and softfold.torch call.");
}

}  // namespace softfold::python
