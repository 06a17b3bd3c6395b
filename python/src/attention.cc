// attention, into outputs that Python allocated.
#include "rows.hpp"

#include <nanobind/stl/pair.h>

namespace softfold::python {
namespace {

Layout layout_of(const std::string& name) {
  if (name == "bhtd") return Layout::bhtd;
  if (name == "bthd") return Layout::bthd;
  throw Error(Code::option, "layout=\"" + name + "\"", "\"bhtd\" or \"bthd\"", "layout=\"bhtd\"");
}

/// Offsets of packed sequences, which come in pairs.
void pack(AttentionOptions& o, OpenArrays& operands, nb::handle q_offsets, nb::handle kv_offsets, std::int64_t max_q,
          std::int64_t max_kv) {
  if (q_offsets.is_none() != kv_offsets.is_none())
    throw Error(Code::option, q_offsets.is_none() ? "kv_offsets without q_offsets" : "q_offsets without kv_offsets",
                "both, of packed sequences, or neither");
  if (!q_offsets.is_none()) {
    o.kv = Varlen{operands.open(q_offsets, "q_offsets", Access::read, kIntegerDTypes),
                  operands.open(kv_offsets, "kv_offsets", Access::read, kIntegerDTypes), max_q, max_kv};
  } else if (max_q != 0 || max_kv != 0) {
    throw Error(Code::option, "max_q or max_kv without q_offsets and kv_offsets", "them with packed sequences",
                "leave them out");
  }
}

void attention_into(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle state,
                    nb::handle scale, bool causal, std::pair<std::int64_t, std::int64_t> window, float softcap,
                    nb::handle sink, nb::handle bias, nb::handle mask, nb::handle slopes, nb::handle lengths,
                    nb::handle starts, nb::handle index, nb::handle q_offsets, nb::handle kv_offsets,
                    std::int64_t max_q, std::int64_t max_kv, const std::string& layout, std::uintptr_t stream) {
  OpenArrays operands;
  AttentionOptions o;
  o.layout = layout_of(layout);
  if (!scale.is_none()) o.scale = nb::cast<double>(scale);
  o.causal = causal;
  o.window = {window.first, window.second};
  o.softcap = softcap;
  o.sink = operands.open(sink, "sink");
  o.bias = operands.open(bias, "bias");
  o.mask = operands.open(mask, "mask", Access::read, "bool");
  o.slopes = operands.open(slopes, "slopes", Access::read, "float32");
  o.kv_lengths = operands.open(lengths, "lengths", Access::read, kIntegerDTypes);
  o.kv_starts = operands.open(starts, "starts", Access::read, kIntegerDTypes);
  o.kv_index = operands.open(index, "index", Access::read, kIntegerDTypes);
  pack(o, operands, q_offsets, kv_offsets, max_q, max_kv);
  o.lse = operands.open_result(lse, "lse");
  o.state = operands.open_result(state, "state");
  const View inputs[] = {operands.open(q, "q"), operands.open(k, "k"), operands.open(v, "v")};
  const View output[] = {operands.open(out, "out", Access::write)};
  const std::shared_ptr<Executor> threads = executor();
  const Context context{threads.get(), reinterpret_cast<void*>(stream), nullptr};
  run_plan(kGilElements, [&] { return plan(Op::attention, inputs, output, o, context); });
}

}  // namespace

void bind_attention(nb::module_& m) {
  const nb::none none;
  m.def("attention_into", &attention_into, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
        nb::arg("lse") = none, nb::kw_only(), nb::arg("state") = none, nb::arg("scale") = none,
        nb::arg("causal") = false, nb::arg("window") = std::pair<std::int64_t, std::int64_t>(-1, -1),
        nb::arg("softcap") = 0.0F, nb::arg("sink") = none, nb::arg("bias") = none, nb::arg("mask") = none,
        nb::arg("slopes") = none, nb::arg("lengths") = none, nb::arg("starts") = none, nb::arg("index") = none,
        nb::arg("q_offsets") = none, nb::arg("kv_offsets") = none, nb::arg("max_q") = 0, nb::arg("max_kv") = 0,
        nb::arg("layout") = "bhtd", nb::arg("stream") = 0,
        "Runs attention on viewable arrays, into out, lse and state: what softfold.attention and softfold.torch call.");
}

}  // namespace softfold::python
