// sample, into results that Python allocated.
#include "rows.hpp"

namespace softfold::python {
namespace {

using nb::handle;

FilterOrder order_of(const std::string& name) {
  if (name == "min_p_first" || name == "vllm") return FilterOrder::min_p_first;
  if (name == "min_p_last" || name == "hugging_face") return FilterOrder::min_p_last;
  throw Error(Code::option, "order=\"" + name + "\"", "\"min_p_first\" (\"vllm\") or \"min_p_last\" (\"hugging_face\")",
              "order=\"min_p_first\"");
}

Distribution distribution_of(const std::string& name) {
  if (name == "raw") return Distribution::raw;
  if (name == "sampled") return Distribution::sampled;
  throw Error(Code::option, "of=\"" + name + "\"", "\"raw\" or \"sampled\"", "of=\"raw\"");
}

void sample_into(handle x, handle tokens, handle axis, handle temperature, handle top_k, handle top_p, handle min_p,
                 const std::string& order, handle bias, handle bitmask, handle seed, handle offset, handle row_ids,
                 const std::string& of, handle log_probability, handle rank, handle probabilities, handle masked,
                 handle top_tokens, handle top_log_probabilities, handle scale, handle scales, handle lengths,
                 handle mask, handle causal, std::uintptr_t stream) {
  OpenRowOptions rows;
  rows.open_options({{}, {}, {}, scale, scales, lengths, nb::none(), mask, causal, nb::str("zero")});
  rows.options.axis = axis_of(axis);
  rows.view_options();
  OpenArrays arrays;
  SampleOptions o;
  o.rows = rows.options;
  take(arrays, temperature, "temperature", o.temperature, o.temperatures);
  take(arrays, top_k, "top_k", o.top_k, o.top_ks);
  take(arrays, top_p, "top_p", o.top_p, o.top_ps);
  take(arrays, min_p, "min_p", o.min_p, o.min_ps);
  take(arrays, seed, "seed", o.seed, o.seeds);
  take(arrays, offset, "offset", o.offset, o.offsets);
  o.order = order_of(order);
  o.of = distribution_of(of);
  o.bias = arrays.open(bias, "bias");
  o.bitmask = arrays.open(bitmask, "bitmask", Access::read, "int32");
  o.row_ids = arrays.open(row_ids, "row_ids", Access::read, "int64");
  o.log_probability = arrays.open_result(log_probability, "log_probability");
  o.rank = arrays.open_result(rank, "rank", kIntegerDTypes);
  o.probabilities = arrays.open_result(probabilities, "probabilities");
  o.masked = arrays.open_result(masked, "masked");
  o.top_tokens = arrays.open_result(top_tokens, "top_tokens", kIntegerDTypes);
  o.top_log_probabilities = arrays.open_result(top_log_probabilities, "top_log_probabilities");
  const View input = arrays.open(x, "logits"), output = arrays.open_result(tokens, "tokens", kIntegerDTypes);
  const std::shared_ptr<Executor> threads = executor();
  const Context context{threads.get(), reinterpret_cast<void*>(stream), nullptr};
  std::int64_t elements = 1;
  for (const std::int64_t size : input.shape) elements *= size;
  run_plan(elements, [&] { return plan(Op::sample, {&input, 1}, {&output, 1}, o, context); });
}

}  // namespace

void bind_sample(nb::module_& m) {
  const nb::none none;
  m.def("sample_into", &sample_into, nb::arg("logits"), nb::arg("tokens"), nb::arg("axis") = -1, nb::kw_only(),
        nb::arg("temperature") = 1.0, nb::arg("top_k") = 0, nb::arg("top_p") = 1.0, nb::arg("min_p") = 0.0,
        nb::arg("order") = "min_p_first", nb::arg("bias") = none, nb::arg("bitmask") = none, nb::arg("seed") = 0,
        nb::arg("offset") = 0, nb::arg("row_ids") = none, nb::arg("of") = "raw", nb::arg("log_probability") = none,
        nb::arg("rank") = none, nb::arg("probabilities") = none, nb::arg("masked") = none, nb::arg("top_tokens") = none,
        nb::arg("top_log_probabilities") = none, nb::arg("scale") = 1.0, nb::arg("scales") = none,
        nb::arg("lengths") = none, nb::arg("mask") = none, nb::arg("causal") = false, nb::arg("stream") = 0,
        "Runs sample on viewable arrays, into the results: what softfold.sample and softfold.torch call.");
}

}  // namespace softfold::python
