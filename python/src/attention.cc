// attention, into outputs that Python allocated.
#include "rows.hpp"

#include <nanobind/stl/pair.h>

namespace softfold::python {
namespace {

Layout layout_of(const std::string& name) {
  if (name == "bhtd") return Layout::bhtd;
  if (name == "bthd") return Layout::bthd;
  throw Error(Code::option, "layout=\"" + name + "\"", "\"bhtd\" or \"bthd\"");
}

void attention_into(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle scale,
                    bool causal, std::pair<std::int64_t, std::int64_t> window, float softcap, nb::handle sink,
                    nb::handle bias, nb::handle mask, nb::handle slopes, nb::handle lengths, nb::handle starts,
                    const std::string& layout, std::uintptr_t stream) {
  OpenArrays operands;
  AttentionOptions o;
  o.layout = layout_of(layout);
  if (!scale.is_none()) o.scale = nb::cast<double>(scale);
  o.causal = causal;
  o.window = {window.first, window.second};
  o.softcap = softcap;
  o.sink = operands.open(sink, "sink");
  o.bias = operands.open(bias, "bias");
  o.mask = operands.open(mask, "mask");
  o.slopes = operands.open(slopes, "slopes");
  o.kv_lengths = operands.open(lengths, "lengths");
  o.kv_starts = operands.open(starts, "starts");
  o.lse = operands.open(lse, "lse", Access::write);
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
        nb::arg("lse") = none, nb::kw_only(), nb::arg("scale") = none, nb::arg("causal") = false,
        nb::arg("window") = std::pair<std::int64_t, std::int64_t>(-1, -1), nb::arg("softcap") = 0.0F,
        nb::arg("sink") = none, nb::arg("bias") = none, nb::arg("mask") = none, nb::arg("slopes") = none,
        nb::arg("lengths") = none, nb::arg("starts") = none, nb::arg("layout") = "bhtd", nb::arg("stream") = 0,
        "Runs attention on viewable arrays, into out and lse: what softfold.attention and softfold.torch call.");
}

}  // namespace softfold::python
