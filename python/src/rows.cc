#include "rows.hpp"
#include "pieces.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

namespace softfold::python {
namespace {

/// What an operand is in relation to x: of its shape, or one value (a state: four) a row.
enum class Role : std::uint8_t { full, row, states };

struct Signature {
  Role in[3];
  const char* names[3];
  Role out;
  std::string_view result = "y";  ///< what the library calls `out`
};

Signature signature_of(Op op) {
  switch (op) {
    case Op::logsumexp: return {{Role::full}, {"a"}, Role::row, "lse"};
    case Op::state: return {{Role::full}, {"x"}, Role::states, "states"};
    case Op::softmax_backward:
    case Op::log_softmax_backward: return {{Role::full, Role::full}, {"y", "dy"}, Role::full, "dx"};
    case Op::logsumexp_backward:
      return {{Role::full, Role::states, Role::row}, {"x", "states", "dlse"}, Role::full, "dx"};
    case Op::finish_logsumexp: return {{Role::states}, {"states"}, Role::row, "lse"};
    case Op::finish_softmax:
    case Op::finish_log_softmax: return {{Role::full, Role::states}, {"x", "states"}, Role::full};
    default: return {{Role::full}, {"x"}, Role::full};
  }
}

const char* dtypes_of(Role role) { return role == Role::states ? "float64" : kFloatingDTypes; }

Empty empty_of(nb::handle name) {
  std::string_view text = PyUnicode_Check(name.ptr()) ? nb::cast<std::string_view>(name) : std::string_view();
  if (text == "zero") return Empty::zero;
  if (text == "nan") return Empty::nan;
  throw Error(Code::option, "empty=" + nb::cast<std::string>(nb::repr(name)), "\"zero\" or \"nan\"", "empty=\"zero\"");
}

/// A refusal that begins with the library's name of the result, with Python's.
Error in_words_of_python(const Error& error, std::string_view result) {
  if (!error.got.starts_with(std::string(result) + " ")) return error;
  return Error(error.code, "out" + error.got.substr(result.size()), error.allowed, error.fix);
}

double number_of(nb::handle value, const char* name) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw Error(Code::option, std::string(name) + "=" + nb::cast<std::string>(nb::repr(value)), "a number",
                std::string(name) == "scale" ? "scales= takes one number a row" : "");
  }
  return number;
}

/// Also 0, 1 and NumPy's; not what Python calls true, as "no" is.
bool truth_of(nb::handle value, const char* name) {
  for (PyObject* truth : {Py_True, Py_False}) {
    if (value.ptr() == truth) return truth == Py_True;
    const int equal = PyObject_RichCompareBool(value.ptr(), truth, Py_EQ);
    if (equal < 0) PyErr_Clear();
    if (equal == 1) return truth == Py_True;
  }
  throw Error(Code::option, std::string(name) + "=" + nb::cast<std::string>(nb::repr(value)), "True or False",
              std::string(name) + "=True");
}

/// One call's operands, opened.
struct Operands : OpenRowOptions {
  Array in[3];
  Array out;
  int count = 0;

  /// Several folded axes become the last one. False if the memory of x or of the result does not hold them as one.
  bool join_axes(Op op, const Axes& axes) {
    const Signature s = signature_of(op);
    if (options.causal)
      throw Error(Code::option, "causal with several folded axes", "axis=-1 of scores (..., T, S)", "pass axis=-1");
    const Tensor x = in[0].tensor;
    bool joined = true;
    const auto move = [&](Tensor& t, Role role, const char* name) {
      if (!t.given) return;
      if (role != Role::full) return drop_folded(t, axes, role == Role::states);
      t = move_folded(t, x, axes, name);
      Tensor one = t;
      joined &= join_last(one, axes.count);
    };
    for (int i = 0; i < count; ++i) move(in[i].tensor, s.in[i], s.names[i]);
    move(out.tensor, s.out, "out");
    move(mask.tensor, Role::full, "mask");
    drop_folded(scales.tensor, axes, 0);
    drop_folded(lengths.tensor, axes, 0);
    if (!joined) return false;
    for (int i = 0; i < count; ++i)
      if (s.in[i] == Role::full) join_last(in[i].tensor, axes.count);
    if (s.out == Role::full) join_last(out.tensor, axes.count);
    if (mask.tensor.given) join_last(mask.tensor, axes.count);
    return true;
  }

  void run(Op op, const Axes& axes, std::uintptr_t stream) {
    const std::shared_ptr<Executor> threads = executor();
    const Context context{threads.get(), reinterpret_cast<void*>(stream), nullptr};
    bool joined = true;
    if (axes.is_plain())
      options.axis = axes.only();
    else if (op != Op::finish_logsumexp)
      joined = join_axes(op, axes);
    view_options();
    if (!joined) {
      if (!scales.tensor.given && !lengths.tensor.given && !mask.tensor.given && count <= 2 &&
          run_in_pieces(op, in[0].tensor, in[1].tensor, out.tensor, axes.count, options, context))
        return;
      throw Error(Code::strides, "several folded axes that do not lie behind each other in memory",
                  "softmax, log_softmax, logsumexp, state and finish without scales, lengths and mask",
                  "fold one axis, or pass a contiguous array");
    }
    const View inputs[] = {in[0].tensor.view(), in[1].tensor.view(), in[2].tensor.view()};
    const View output[] = {out.tensor.view()};
    try {
      run_plan(in[0].tensor.count(), [&] {
        return plan(op, {inputs, static_cast<std::size_t>(count)}, output, options, context);
      });
    } catch (const Error& error) {
      throw in_words_of_python(error, signature_of(op).result);
    }
  }
};

/// Everything that is no plain NumPy array of a floating dtype goes through softfold._route, which calls back.
nb::object reroute(Op op, std::span<const nb::handle> inputs, const RowArguments& a) {
  nb::list operands;
  for (const nb::handle input : inputs) operands.append(input);
  return names().route.attr("rows")(
      std::string(name_of(op)), nb::tuple(operands), nb::arg("axis") = a.axis, nb::arg("keepdims") = a.keepdims,
      nb::arg("out") = a.out, nb::arg("dtype") = a.dtype, nb::arg("scale") = a.scale, nb::arg("scales") = a.scales,
      nb::arg("lengths") = a.lengths, nb::arg("offsets") = a.offsets, nb::arg("mask") = a.mask,
      nb::arg("causal") = a.causal, nb::arg("empty") = a.empty);
}

bool has_shape(const Tensor& t, const nb::tuple& shape) {
  bool same = static_cast<std::size_t>(t.rank) == shape.size();
  for (int i = 0; same && i < t.rank; ++i) same = nb::cast<std::int64_t>(shape[i]) == t.size(i);
  return same;
}

/// Where the library takes a result with the folded axes and without, Python takes the one that keepdims asks for.
void check_kept(Op op, const Operands& o, const Axes& axes, const RowArguments& a) {
  const Role role = signature_of(op).out;
  if (role == Role::full || o.offsets.tensor.given) return;
  const int trailing = role == Role::states ? 4 : 0;
  const nb::tuple wanted = row_shape(o.in[0].tensor, axes, a.keepdims, trailing);
  const bool other = has_shape(o.out.tensor, row_shape(o.in[0].tensor, axes, !a.keepdims, trailing));
  if (has_shape(o.out.tensor, wanted) || !(other || a.keepdims)) return;  // what fits neither way, the library refuses
  const std::string given = a.keepdims ? "keepdims=True" : "keepdims=False";
  const std::string fitting = a.keepdims ? "keepdims=False" : "keepdims=True";
  throw Error(Code::shape, "out, " + o.out.tensor.describe() + ", with " + given,
              "the shape " + nb::cast<std::string>(nb::str(nb::list(wanted))), other ? fitting : "");
}

nb::object allocate(Op op, const Operands& o, nb::handle x, const Axes& axes, const RowArguments& a) {
  const Role role = signature_of(op).out;
  const Tensor& t = o.in[0].tensor;
  if (role == Role::full)
    return a.dtype.is_none() ? names().empty_like(x) : names().empty_like(x, numpy_dtype(a.dtype));
  nb::object dtype =
      a.dtype.is_none() ? role == Role::states ? names().float64 : nb::object(x.attr("dtype")) : numpy_dtype(a.dtype);
  if (!o.offsets.tensor.given)
    return names().empty(row_shape(t, axes, a.keepdims, role == Role::states ? 4 : 0), dtype);
  nb::list shape;
  // Offsets that are none are refused later, with the rest.
  shape.append(o.offsets.tensor.rank == 1 ? std::max<std::int64_t>(o.offsets.tensor.size(0) - 1, 0) : 0);
  if (role == Role::states) shape.append(4);
  return names().empty(nb::tuple(shape), dtype);
}

bool is_numpy(nb::handle x) { return nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(x.ptr()))).is(names().ndarray); }

}  // namespace

void OpenRowOptions::open_options(const RowArguments& a) {
  const auto open = [](Array& to, nb::handle from, const char* name, const char* dtypes) {
    if (!from.is_none()) to.need(from, name, Access::read, dtypes);
  };
  options.scale = number_of(a.scale, "scale");
  options.causal = truth_of(a.causal, "causal");
  options.empty = empty_of(a.empty);
  open(scales, a.scales, "scales", "float32, float64");
  open(lengths, a.lengths, "lengths", kIntegerDTypes);
  open(offsets, a.offsets, "offsets", kIntegerDTypes);
  open(mask, a.mask, "mask", "bool");
}

void OpenRowOptions::view_options() {
  options.scales = scales.tensor.view();
  options.length = lengths.tensor.view();
  options.offsets = offsets.tensor.view();
  options.mask = mask.tensor.view();
}

View OpenArrays::open(nb::handle object, const char* name, Access access, const char* dtypes) {
  if (object.is_none()) return {};
  arrays_.emplace_back().need(object, name, access, dtypes);
  return arrays_.back().tensor.view();
}

View OpenArrays::open_target(nb::handle object, bool takes_probabilities) {
  return open(object, "target", Access::read,
              takes_probabilities ? "int32, int64; of class probabilities float64, float32, float16, bfloat16"
                                  : kIntegerDTypes);
}

Op op_of(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Op::merge_blocks); ++i)
    if (name_of(static_cast<Op>(i)) == name) return static_cast<Op>(i);
  throw Error(Code::option, "operation \"" + std::string(name) + "\"", "the name of one of softfold's operations");
}

nb::object run_rows(Op op, std::span<const nb::handle> inputs, const RowArguments& a) {
  if (!is_numpy(inputs[0])) return reroute(op, inputs, a);
  const Signature s = signature_of(op);
  Operands o;
  if (!o.in[0].open(inputs[0], s.names[0]) || !is_floating(o.in[0].tensor.dtype)) return reroute(op, inputs, a);
  o.count = static_cast<int>(inputs.size());
  for (std::size_t i = 1; i < inputs.size(); ++i) o.in[i].need(inputs[i], s.names[i], Access::read, dtypes_of(s.in[i]));
  o.open_options(a);
  const Axes axes = parse_axes(a.axis, o.in[0].tensor.rank);
  const bool fresh = a.out.is_none();
  if (!fresh && !a.dtype.is_none())
    throw Error(Code::option, "both out and dtype", "one of them", "out's own dtype is the result's");
  nb::object result = fresh ? allocate(op, o, inputs[0], axes, a) : nb::borrow(a.out);
  o.out.need(result, "out", Access::write);
  if (!fresh) check_kept(op, o, axes, a);
  const bool is_scalar = fresh && o.out.tensor.rank == 0;
  o.run(op, axes, 0);
  return is_scalar ? nb::object(result[nb::make_tuple()]) : result;  // as NumPy's own functions
}

void run_rows_into(Op op, std::span<const nb::handle> inputs, const RowArguments& a, std::uintptr_t stream) {
  const Signature s = signature_of(op);
  if (inputs.empty() || inputs.size() > 3)
    throw Error(Code::shape, std::to_string(inputs.size()) + " inputs", "1 to 3 inputs");
  Operands o;
  o.count = static_cast<int>(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    o.in[i].need(inputs[i], s.names[i] != nullptr ? s.names[i] : "input", Access::read, dtypes_of(s.in[i]));
  o.open_options(a);
  o.out.need(a.out, "out", Access::write);
  const Axes axes = op == Op::finish_logsumexp ? Axes{} : parse_axes(a.axis, o.in[0].tensor.rank);
  if (a.out_as_keepdims) check_kept(op, o, axes, a);
  o.run(op, axes, stream);
}

}  // namespace softfold::python
