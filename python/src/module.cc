// softfold._core: the operations, over anything that can be viewed.
#include "rows.hpp"

namespace softfold::python {

/// softfold::Error becomes softfold.Error, or the subclass that its code names.
void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& e) {
      const nb::object make = nb::module_::import_("softfold._errors").attr("make");
      const nb::object error = make(static_cast<int>(e.code), e.got, e.allowed, e.fix);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    }
  });
}

}  // namespace softfold::python

NB_MODULE(_core, m) {
  namespace py = softfold::python;
  m.doc() = "softfold's operations over NumPy arrays and anything with DLPack. Use them as softfold.softmax and so on.";
  m.attr("__version__") = softfold::version();
  m.attr("bits_version") = softfold::bits_version();
  py::bind_errors(m);
  py::bind_threads(m);
  py::bind_rows(m);
  py::bind_attention(m);
  py::bind_losses(m);
  py::bind_linear(m);
  py::bind_topk(m);
  py::bind_sample(m);
  py::bind_shards(m);
  py::bind_merges(m);
  py::bind_streams(m);
  py::bind_xla(m);
}
