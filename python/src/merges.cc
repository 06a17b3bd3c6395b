// merge_states, merge_attention, merge_blocks and finish_logsumexp, into outputs that Python allocated.
#include "rows.hpp"

#include <deque>
#include <vector>

namespace softfold::python {
namespace {

LogBase base_of(nb::handle base) {
  const std::string text = nb::cast<std::string>(nb::steal<nb::object>(PyObject_Str(base.ptr())));
  if (text == "natural") return LogBase::natural;
  if (text == "2" || text == "two") return LogBase::two;
  throw Error(Code::option, "base=" + text, "\"natural\" or 2", "base=\"natural\"");
}

Statistics statistics_of(const std::string& text) {
  if (text == "lse") return Statistics::lse;
  if (text == "max_sum") return Statistics::max_sum;
  throw Error(Code::option, "statistics=\"" + text + "\"", "\"lse\" or \"max_sum\"", "statistics=\"lse\"");
}

/// A tuple's arrays, opened and viewed.
struct Opened {
  std::deque<Array> arrays;
  std::vector<View> views;
  std::int64_t elements = 0;

  Opened(const nb::tuple& objects, const char* name, Access access) {
    for (const nb::handle object : objects) arrays.emplace_back().need(object, name, access);
    for (const Array& a : arrays) {
      views.push_back(a.tensor.view());
      elements += a.tensor.count();
    }
  }
};

void merge_into(const std::string& op, const nb::tuple& inputs, const nb::tuple& outputs, nb::handle base,
                const std::string& statistics, std::uintptr_t stream) {
  const Opened in(inputs, "parts", Access::read), out(outputs, "out", Access::write);
  const MergeOptions options{base_of(base), statistics_of(statistics)};
  const std::shared_ptr<Executor> threads = executor();
  const Context context{threads.get(), reinterpret_cast<void*>(stream), nullptr};
  run_plan(in.elements, [&] { return plan(op_of(op), in.views, out.views, options, context); });
}

}  // namespace

void bind_merges(nb::module_& m) {
  m.def("merge_into", &merge_into, nb::arg("op"), nb::arg("inputs"), nb::arg("outputs"), nb::kw_only(),
        nb::arg("base") = "natural", nb::arg("statistics") = "lse", nb::arg("stream") = 0,
        "Runs one merge on viewable arrays, into outputs: what softfold.merge and its kin call.");
}

}  // namespace softfold::python
