// Shards of rows: folded into partials and joined, all allocated by Python.
#include "rows.hpp"

#include "softfold/shards.hpp"

namespace softfold::python {
namespace {

using nb::handle;

/// Calls run(context) while other Python threads go on. stream: a cudaStream_t.
template <class Run>
void run_on_threads(std::uintptr_t stream, const Run& run) {
  const std::shared_ptr<Executor> threads = executor();
  const Context context{threads.get(), reinterpret_cast<void*>(stream), nullptr};
  const nb::gil_scoped_release others_run;
  run(context);
}

/// Options of rows that say nothing but what an empty one becomes.
RowOptions rows_with(handle empty) {
  OpenRowOptions rows;
  const nb::none none;
  const nb::float_ one(1.0);
  rows.open_options({{}, {}, {}, one, none, none, none, none, nb::bool_(false), empty});
  return rows.options;
}

Shard shard_of(handle offset, handle size) {
  return {whole<std::int64_t>(offset, "offset"), whole<std::int64_t>(size, "size")};
}

/// Options of a shard's rows: what fold_shard and sample_shard take.
void open_shard_rows(OpenRowOptions& rows, handle axis, handle scale, handle scales, handle lengths, handle mask) {
  const nb::bool_ causal(false);
  const nb::str empty("zero");
  rows.open_options({{}, {}, {}, scale, scales, lengths, nb::none(), mask, causal, empty});
  rows.options.axis = axis_of(axis);
  rows.view_options();
}

void fold_shard_into(handle x, handle partials, handle axis, handle offset, handle size, handle target, handle k,
                     handle scale, handle scales, handle lengths, handle mask, std::uintptr_t stream) {
  OpenRowOptions rows;
  open_shard_rows(rows, axis, scale, scales, lengths, mask);
  OpenArrays arrays;
  ShardOptions o;
  o.rows = rows.options;
  o.shard = shard_of(offset, size);
  o.targets = arrays.open_target(target);
  o.k = whole<std::int64_t>(k, "k");
  const View from = arrays.open(x, "x"), to = arrays.open_result(partials, "partials");
  run_on_threads(stream, [&](const Context& context) { fold_shard(from, to, o, context); });
}

void join_states_into(handle partials, handle states, std::uintptr_t stream) {
  OpenArrays arrays;
  const View from = arrays.open(partials, "partials"), to = arrays.open_result(states, "states");
  run_on_threads(stream, [&](const Context& context) { join_states(from, to, context); });
}

void join_cross_entropy_into(handle partials, handle target, handle loss, handle weight, handle ignore_index,
                             const std::string& reduction, double z_loss, handle empty, handle log_probability,
                             handle states, std::uintptr_t stream) {
  OpenArrays arrays;
  CrossEntropyOptions o;
  o.rows = rows_with(empty);
  o.reduction = reduction_of(reduction);
  o.ignore_index = whole<std::int64_t>(ignore_index, "ignore_index");
  o.z_loss = z_loss;
  o.weight = arrays.open(weight, "weight");
  o.log_probability = arrays.open_result(log_probability, "log_probability");
  o.states = arrays.open_result(states, "states");
  const View from = arrays.open(partials, "partials"), of = arrays.open_target(target);
  const View to = arrays.open_result(loss, "loss");
  run_on_threads(stream, [&](const Context& context) { join_cross_entropy(from, of, to, o, context); });
}

void join_topk_into(handle partials, handle values, handle indices, bool sorted, handle empty, handle probabilities,
                    handle log_probabilities, handle lse, std::uintptr_t stream) {
  OpenArrays arrays;
  TopkOptions o;
  o.rows = rows_with(empty);
  o.sorted = sorted;
  o.probabilities = arrays.open_result(probabilities, "probabilities");
  o.log_probabilities = arrays.open_result(log_probabilities, "log_probabilities");
  o.lse = arrays.open_result(lse, "lse");
  const View from = arrays.open(partials, "partials"), best = arrays.open_result(values, "values");
  const View places = arrays.open_result(indices, "indices", kIntegerDTypes);
  run_on_threads(stream, [&](const Context& context) { join_topk(from, best, places, o, context); });
}

void sample_shard_into(handle x, handle partials, handle tokens, handle axis, handle offset, handle size, handle seed,
                       handle draw, handle row_ids, handle scale, handle scales, handle lengths, handle mask,
                       std::uintptr_t stream) {
  OpenRowOptions rows;
  open_shard_rows(rows, axis, scale, scales, lengths, mask);
  OpenArrays arrays;
  SampleOptions o;
  o.rows = rows.options;
  take(arrays, seed, "seed", o.seed, o.seeds);
  take(arrays, draw, "draw", o.offset, o.offsets);
  o.row_ids = arrays.open(row_ids, "row_ids", Access::read, "int64");
  const View from = arrays.open(x, "x"), parts = arrays.open(partials, "partials");
  const View to = arrays.open_result(tokens, "tokens", kIntegerDTypes);
  const Shard shard = shard_of(offset, size);
  run_on_threads(stream, [&](const Context& context) { sample_shard(from, parts, to, shard, o, context); });
}

}  // namespace

void bind_shards(nb::module_& m) {
  const nb::none none;
  m.def(
      "partial_width",
      [](handle n, handle offset, handle size, handle k) {
        return partial_width(whole<std::int64_t>(n, "n"), shard_of(offset, size), whole<std::int64_t>(k, "k"));
      },
      nb::arg("n"), nb::arg("offset"), nb::arg("size"), nb::arg("k") = 0,
      "How many numbers a row's partial has, of a shard of n elements from offset on, of rows of size.");
  m.def("fold_shard_into", &fold_shard_into, nb::arg("x"), nb::arg("partials"), nb::arg("axis"), nb::arg("offset"),
        nb::arg("size"), nb::kw_only(), nb::arg("target") = none, nb::arg("k") = 0, nb::arg("scale") = 1.0,
        nb::arg("scales") = none, nb::arg("lengths") = none, nb::arg("mask") = none, nb::arg("stream") = 0,
        "Runs fold_shard on viewable arrays, into partials: what softfold.fold_shard calls.");
  m.def("join_states_into", &join_states_into, nb::arg("partials"), nb::arg("states"), nb::kw_only(),
        nb::arg("stream") = 0, "Runs join_states on viewable arrays, into states: what softfold.join_states calls.");
  m.def("join_cross_entropy_into", &join_cross_entropy_into, nb::arg("partials"), nb::arg("target"), nb::arg("loss"),
        nb::kw_only(), nb::arg("weight") = none, nb::arg("ignore_index") = -100, nb::arg("reduction") = "mean",
        nb::arg("z_loss") = 0.0, nb::arg("empty") = "zero", nb::arg("log_probability") = none, nb::arg("states") = none,
        nb::arg("stream") = 0,
        "Runs join_cross_entropy on viewable arrays, into loss: what softfold.join_cross_entropy calls.");
  m.def("join_topk_into", &join_topk_into, nb::arg("partials"), nb::arg("values"), nb::arg("indices"), nb::kw_only(),
        nb::arg("sorted") = true, nb::arg("empty") = "zero", nb::arg("probabilities") = none,
        nb::arg("log_probabilities") = none, nb::arg("lse") = none, nb::arg("stream") = 0,
        "Runs join_topk on viewable arrays, into the results: what softfold.join_topk calls.");
  m.def("sample_shard_into", &sample_shard_into, nb::arg("x"), nb::arg("partials"), nb::arg("tokens"), nb::arg("axis"),
        nb::arg("offset"), nb::arg("size"), nb::kw_only(), nb::arg("seed") = 0, nb::arg("draw") = 0,
        nb::arg("row_ids") = none, nb::arg("scale") = 1.0, nb::arg("scales") = none, nb::arg("lengths") = none,
        nb::arg("mask") = none, nb::arg("stream") = 0,
        "Runs sample_shard on viewable arrays, into tokens: what softfold.sample_shard calls.");
}

}  // namespace softfold::python
