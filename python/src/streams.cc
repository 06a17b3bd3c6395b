// Stream and Partial for Python: a row that arrives in pieces, and what travels between those who hold its pieces.
#include "partial_bytes.hpp"
#include "rows.hpp"

#include "softfold/stream.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace softfold::python {
namespace {

const char* dtype_name(const AnyPartial& p) { return p.index() == 0 ? "float32" : "float64"; }

nb::object numpy_state(const std::array<double, 4>& state) {
  const nb::object array = names().empty(nb::make_tuple(4), names().float64);
  Array view;
  view.need(array, "state", Access::write);
  std::copy(state.begin(), state.end(), static_cast<double*>(view.tensor.data));
  return array;
}

DType stream_dtype(nb::handle dtype) {
  const nb::object numpy = nb::module_::import_("numpy").attr("dtype")(numpy_dtype(dtype));
  const std::string name = nb::cast<std::string>(nb::object(numpy.attr("name")));
  for (const DType t : {DType::float32, DType::float64, DType::float16, DType::bfloat16})
    if (name == name_of(t)) return t;
  throw Error(Code::dtype, "a stream of dtype " + name, "float64, float32, float16, bfloat16", "float32");
}

nb::bytes bytes_of(const AnyPartial& p) {
  const std::string b = to_bytes(p);
  return nb::bytes(b.data(), b.size());
}

Stream stream_of(const AnyPartial& p) {
  return std::visit(
      [&p](const auto& part) {
        Stream s(p.index() == 0 ? DType::float32 : DType::float64, part.scale(), part.offset());
        s.push(part);
        return s;
      },
      p);
}

AnyPartial joined(const std::vector<AnyPartial>& parts) {
  const auto of = [&parts]<class T>(T) -> AnyPartial {
    std::vector<Partial<T>> same;
    for (const AnyPartial& p : parts) {
      if (!std::holds_alternative<Partial<T>>(p))
        throw Error(Code::state, "partials of float32 and float64", "one precision for all partials of a row");
      same.push_back(std::get<Partial<T>>(p));
    }
    return join(same);
  };
  if (!parts.empty() && parts[0].index() == 1) return of(double{});
  return of(float{});
}

/// A Stream that several Python threads may use: one at a time, without the GIL.
class PyStream {
 public:
  PyStream(nb::handle dtype, double scale, nb::handle offset)
      : threads_(executor()),
        stream_(stream_dtype(dtype), scale, whole<std::int64_t>(offset, "offset"), Context{threads_.get()}) {}

  void push(nb::handle piece) {
    if (nb::isinstance<AnyPartial>(piece)) return push_partial(nb::cast<const AnyPartial&>(piece));
    if (nb::isinstance<PyStream>(piece)) return push_partial(nb::cast<PyStream&>(piece).partial());
    if (PyFloat_Check(piece.ptr()) || PyLong_Check(piece.ptr())) return push_number(nb::cast<double>(piece));
    Array array;
    array.need(piece, "a piece");
    const Tensor& t = array.tensor;
    if (t.rank == 0 && t.dtype == DType::float64) return push_number(*static_cast<const double*>(t.data));
    if (t.rank != 1)
      throw Error(Code::shape, "a piece, " + t.describe(), "a 1-D piece of the row, or a number", "ravel it");
    const nb::gil_scoped_release others_run;
    const std::lock_guard lock(mutex_);
    stream_.push(t.view());
  }

  AnyPartial partial() {
    const nb::gil_scoped_release others_run;
    const std::lock_guard lock(mutex_);
    if (stream_.dtype() == DType::float64) return stream_.partial<double>();
    return stream_.partial<float>();
  }

  template <class F>
  auto read(const F& f) {
    const nb::gil_scoped_release others_run;
    const std::lock_guard lock(mutex_);
    return f(static_cast<const Stream&>(stream_));
  }

  nb::object finish(bool log, nb::handle x, nb::handle out, const std::string& empty) {
    const Empty rule = empty == "nan" ? Empty::nan : Empty::zero;
    if (empty != "nan" && empty != "zero")
      throw Error(Code::option, "empty=\"" + empty + "\"", "\"zero\" or \"nan\"", "empty=\"zero\"");
    Array in, to;
    in.need(x, "x");
    nb::object result = out.is_none() ? names().empty_like(x) : nb::borrow(out);
    to.need(result, "out", Access::write);
    read([&](const Stream& s) {
      if (log)
        s.log_softmax(in.tensor.view(), to.tensor.view(), rule);
      else
        s.softmax(in.tensor.view(), to.tensor.view(), rule);
    });
    return result;
  }

 private:
  void push_number(double number) {
    const nb::gil_scoped_release others_run;
    const std::lock_guard lock(mutex_);
    if (stream_.dtype() == DType::float64)
      stream_.push(number);
    else
      stream_.push(static_cast<float>(number));
  }

  void push_partial(const AnyPartial& partial) {
    const nb::gil_scoped_release others_run;
    const std::lock_guard lock(mutex_);
    std::visit([this](const auto& p) { stream_.push(p); }, partial);
  }

  std::shared_ptr<Executor> threads_;
  std::mutex mutex_;
  Stream stream_;
};

void bind_partial(nb::module_& m) {
  const auto visit = [](const auto& f) { return [f](const AnyPartial& p) { return std::visit(f, p); }; };
  nb::class_<AnyPartial>(m, "Partial",
                         R"(A piece of a row, anywhere in it: what travels between files, processes and ranks.

Made by Stream.partial(), joined by softfold.merge; adjacent partials join to the whole row's bits however it was cut.
Holds at most 2046 numbers and a few dozen states, whatever the piece's length. Pickles; to_bytes() and from_bytes()
are for other channels.)")
      .def_prop_ro("dtype", &dtype_name, "\"float32\" or \"float64\": what the piece was folded in.")
      .def_prop_ro("scale", visit([](const auto& p) { return p.scale(); }), "Every element was multiplied by it.")
      .def_prop_ro("offset", visit([](const auto& p) { return p.offset(); }), "Where in the row the piece begins.")
      .def_prop_ro("length", visit([](const auto& p) { return p.length(); }), "How many elements it holds.")
      .def_prop_ro("end", visit([](const auto& p) { return p.end(); }), "offset + length.")
      .def(
          "state", [](const AnyPartial& p) { return numpy_state(stream_of(p).state()); },
          "The state (m, d, scale, digits) as softfold.state gives it; the whole row's bits if offset is 0.")
      .def(
          "logsumexp", [](const AnyPartial& p) { return stream_of(p).logsumexp(); },
          "ln sum exp(scale x) of the piece, a float.")
      .def("to_bytes", &bytes_of, "The partial as bytes.")
      .def_static(
          "from_bytes",
          [](const nb::bytes& b) {
            return from_bytes({b.c_str(), b.size()});
          },
          nb::arg("bytes"),
          "A partial from its bytes; softfold.StateError if they are none, or of another bits_version.")
      .def("__getstate__", &bytes_of)
      .def("__setstate__",
           [](AnyPartial& self, const nb::bytes& b) {
             new (&self) AnyPartial(from_bytes({b.c_str(), b.size()}));
           })
      .def("__repr__", [](const AnyPartial& p) {
        return std::visit(
            [&p](const auto& q) {
              return "softfold.Partial(" + std::string(dtype_name(p)) + ", [" + std::to_string(q.offset()) + ", " +
                     std::to_string(q.end()) + "))";
            },
            p);
      });
  m.def("join", &joined, nb::arg("parts"), "The Partial of all parts, given in any order; they must lie end to end.");
}

}  // namespace

void bind_streams(nb::module_& m) {
  bind_partial(m);
  nb::class_<PyStream>(m, "Stream",
                       R"(A row that arrives in pieces of any size: the bits of the whole row, however it was cut.

dtype: of the elements; float64 is folded in float64, the others in float32. scale: multiplies every element.
offset: where in its row the first element stands, for a shard that will be joined to others.

    >>> row = softfold.Stream("float64")
    >>> for piece in pieces: row.push(piece)
    >>> row.logsumexp()
    >>> probabilities = [row.softmax(piece) for piece in pieces]   # the second pass)")
      .def(nb::init<nb::handle, double, nb::handle>(), nb::arg("dtype") = "float32", nb::arg("scale") = 1.0,
           nb::arg("offset") = 0)
      .def("push", &PyStream::push, nb::arg("piece"),
           "Takes the next elements: a number, a 1-D array of any strides, a Partial, or another Stream.")
      .def("partial", &PyStream::partial, "What travels: the Partial of the elements so far.")
      .def(
          "state", [](PyStream& s) { return numpy_state(s.read([](const Stream& r) { return r.state(); })); },
          "The state (m, d, scale, digits), float64 [4], as softfold.state of the whole row.")
      .def(
          "logsumexp", [](PyStream& s) { return s.read([](const Stream& r) { return r.logsumexp(); }); },
          "ln sum exp(scale x) of the elements so far, a float; -inf for none.")
      .def(
          "softmax",
          [](PyStream& s, nb::handle x, nb::handle out, const std::string& empty) {
            return s.finish(false, x, out, empty);
          },
          nb::arg("x"), nb::arg("out") = nb::none(), nb::kw_only(), nb::arg("empty") = "zero",
          "The second pass: the probabilities of a 1-D piece of the row, which may be cut in another way.")
      .def(
          "log_softmax",
          [](PyStream& s, nb::handle x, nb::handle out, const std::string& empty) {
            return s.finish(true, x, out, empty);
          },
          nb::arg("x"), nb::arg("out") = nb::none(), nb::kw_only(), nb::arg("empty") = "zero",
          "The second pass: the log-probabilities of a 1-D piece of the row.")
      .def_prop_ro("dtype",
                   [](PyStream& s) { return s.read([](const Stream& r) { return std::string(name_of(r.dtype())); }); })
      .def_prop_ro("scale", [](PyStream& s) { return s.read([](const Stream& r) { return r.scale(); }); })
      .def_prop_ro(
          "length", [](PyStream& s) { return s.read([](const Stream& r) { return r.length(); }); }, "Elements so far.")
      .def_prop_ro(
          "end", [](PyStream& s) { return s.read([](const Stream& r) { return r.end(); }); },
          "offset + length: where the next element stands.");
}

}  // namespace softfold::python
