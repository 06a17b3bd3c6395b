// The Python functions of the row operations, with what help() says about them.
#include "exchange.hpp"
#include "rows.hpp"

namespace softfold::python {
namespace {

using nb::arg;
using nb::handle;

/// What every row operation's signature ends with.
constexpr const char* kKeywords =
    "*, out=None, dtype=None, scale=1.0, scales=None, lengths=None, offsets=None, mask=None, causal=False, "
    "empty='zero'";

/// Defines a row operation: its own arguments, then the keywords that all of them take. Behind it stands an overload of
/// whatever else it is called with: such a call is refused in softfold's words, and others do not pass through it.
template <class Function, class... Leading>
void def(nb::module_& m, const char* name, Function function, const char* own, const char* doc,
         const Leading&... leading) {
  const nb::none none;
  const std::string parameters = std::string(own) + ", " + kKeywords, def = "def " + std::string(name) + "(";
  m.def(name, function, leading..., nb::kw_only(), arg("out") = none, arg("dtype") = none, arg("scale") = 1.0,
        arg("scales") = none, arg("lengths") = none, arg("offsets") = none, arg("mask") = none, arg("causal") = false,
        arg("empty") = "zero", nb::sig((def + parameters + ")").c_str()), doc);
  const auto refuse = [name, parameters](const nb::args& given, const nb::kwargs& keywords) {
    nb::module_::import_("softfold._errors").attr("refuse_call")(name, parameters, given, keywords);
  };
  m.def(name, refuse, nb::sig((def + "anything else): softfold.UsageError").c_str()), doc);
}

RowArguments arguments(handle axis, handle out, handle dtype, handle scale, handle scales, handle lengths,
                       handle offsets, handle mask, handle causal, handle empty) {
  return {axis, out, dtype, scale, scales, lengths, offsets, mask, causal, empty};
}

template <Op op>
nb::object of_one(handle x, handle axis, handle out, handle dtype, handle scale, handle scales, handle lengths,
                  handle offsets, handle mask, handle causal, handle empty) {
  return run_rows(op, {&x, 1}, arguments(axis, out, dtype, scale, scales, lengths, offsets, mask, causal, empty));
}

template <Op op>
nb::object of_two(handle a, handle b, handle axis, handle out, handle dtype, handle scale, handle scales,
                  handle lengths, handle offsets, handle mask, handle causal, handle empty) {
  const handle inputs[] = {a, b};
  return run_rows(op, inputs, arguments(axis, out, dtype, scale, scales, lengths, offsets, mask, causal, empty));
}

nb::object logsumexp_backward(handle x, handle states, handle dlse, handle axis, handle out, handle dtype, handle scale,
                              handle scales, handle lengths, handle offsets, handle mask, handle causal, handle empty) {
  const handle inputs[] = {x, states, dlse};
  return run_rows(Op::logsumexp_backward, inputs,
                  arguments(axis, out, dtype, scale, scales, lengths, offsets, mask, causal, empty));
}

nb::object logsumexp(handle a, handle axis, handle b, bool keepdims, handle return_sign, handle out, handle dtype,
                     handle scale, handle scales, handle lengths, handle offsets, handle mask, handle causal,
                     handle empty) {
  RowArguments rows = arguments(axis, out, dtype, scale, scales, lengths, offsets, mask, causal, empty);
  rows.keepdims = keepdims;
  if (b.is_none() && return_sign.ptr() == Py_False) return run_rows(Op::logsumexp, {&a, 1}, rows);
  return names().route.attr("weighted")(a, b, return_sign, arg("axis") = axis, arg("keepdims") = keepdims,
                                        arg("out") = out, arg("dtype") = dtype, arg("scale") = scale,
                                        arg("scales") = scales, arg("lengths") = lengths, arg("offsets") = offsets,
                                        arg("mask") = mask, arg("causal") = causal, arg("empty") = empty);
}

nb::object state(handle x, handle axis, bool keepdims, handle out, handle dtype, handle scale, handle scales,
                 handle lengths, handle offsets, handle mask, handle causal, handle empty) {
  RowArguments rows = arguments(axis, out, dtype, scale, scales, lengths, offsets, mask, causal, empty);
  rows.keepdims = keepdims;
  return run_rows(Op::state, {&x, 1}, rows);
}

/// op(inputs) into `out`: what the faces for other kinds of arrays call.
void run_into(const std::string& op, const nb::tuple& inputs, handle out, handle axis, handle scale, handle scales,
              handle lengths, handle offsets, handle mask, handle causal, handle empty, handle keepdims,
              std::uintptr_t stream) {
  handle operands[3];
  if (inputs.size() < 1 || inputs.size() > 3)
    throw Error(Code::shape, std::to_string(inputs.size()) + " inputs", "1 to 3 inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) operands[i] = inputs[i];
  RowArguments rows = arguments(axis, out, nb::none(), scale, scales, lengths, offsets, mask, causal, empty);
  rows.out_as_keepdims = !keepdims.is_none();
  rows.keepdims = rows.out_as_keepdims && nb::cast<bool>(keepdims);
  run_rows_into(op_of(op), {operands, inputs.size()}, rows, stream);
}

constexpr const char* kSoftmax = R"(exp(scale x) / sum exp(scale x) along axis, as scipy.special.softmax.

x: an array of float64, float32, float16 or bfloat16, any strides; integers and bools are converted to float64.
   NumPy, PyTorch, JAX, CuPy, or anything with DLPack; the result is of the same kind.
axis: None (the default, as in SciPy) folds the whole array, else an integer or a tuple of integers.
out: where to write, of x's shape; may be x itself. dtype: of the result, x's by default; not together with out.
scale: every element is multiplied by it (1/temperature); scales: the same, one float32 or float64 a row, on top.
lengths: int32 or int64, one a row: only the first `length` elements exist.
offsets: int32 or int64, [rows + 1], ascending: x is 1-D and row i is x[offsets[i]:offsets[i + 1]]. Elements of no row
   are not read, and 0 in the result (of log_softmax -inf).
mask: bool, broadcasts to x: only elements where it is True exist. causal: x is (..., T, S) with axis=-1, and row i
   has its first i + 1 + S - T elements.
empty: "zero" makes a row with nothing in it (no elements, all masked, all -inf) 0, "nan" makes it NaN as SciPy does.
Returns an array of x's shape. The bits of a row depend on its values and length alone.
Error: relative, at most (8 + d + 2.5 ln n) u, d the distance to the row's maximum, u = 2**-24 (float64: 2**-53).
Raises softfold.Error, before any work, with what was given, what is allowed and the nearest fix.)";

constexpr const char* kLogSoftmax = R"(scale x - logsumexp(scale x) along axis, as scipy.special.log_softmax.

Computed from the fold's state, never as that difference. Arguments and errors as in softmax; a row with nothing in it
is -inf (empty="nan": NaN).
Error: absolute, at most (3 |y| + 8 + 2 d + 5 ln n) u.)";

constexpr const char* kLogsumexp = R"(ln sum exp(scale a) along axis, as scipy.special.logsumexp; natural logarithm.

a, axis, scale, scales, lengths, offsets, mask, causal: as in softmax. empty has no effect.
b: weights that broadcast to a, also negative ones: ln sum b exp(scale a). Computed in float64 through arrays of a's
   size, and NaN where that sum is negative, unless return_sign.
keepdims: keep the folded axes with size 1; with offsets results are one a row all the same.
return_sign: return (ln |sum|, sign of the sum).
out, dtype: of the result, whose shape is a's without the folded axes, or with keepdims with 1 for each; a's dtype by
   default.
Returns an array, or a scalar if no axis is left. A row with nothing in it is -inf.
Error: absolute, at most u |lse| + (8 + 3 ln n) u.)";

constexpr const char* kState = R"(The state of each row: all that logsumexp, softmax and log_softmax need of it.

Arguments as in softmax, keepdims as in logsumexp.
Returns float64 of the shape without the folded axes plus (4,): m, d, scale, digits. digits 24 (folded in float32):
sum exp(scale x) = d 2**m; digits 53 (in float64): d 2**(2 m), m being halved so that the largest float64 fits.
An ordinary array: pickle it, send it, and merge it elsewhere.
States of adjacent shards merge in any order within the accuracy bound, and to the whole row's bits where each shard is
an aligned power-of-two run of 1024 elements. Partial (see Stream) joins to the whole row's bits however it was cut.)";

constexpr const char* kSoftmaxBackward = R"(The gradient of softmax: scale y (dy - sum y dy) along axis.

y: softmax's result; dy: the gradient that arrives, of y's shape. Keywords as they were in softmax.
Returns dx of y's shape and dtype; 0 where the row has nothing in it.)";

constexpr const char* kLogSoftmaxBackward = R"(The gradient of log_softmax: scale (dy - exp(y) sum dy) along axis.

y: log_softmax's result; dy: the gradient that arrives, of y's shape. Keywords as they were in log_softmax.
Returns dx of y's shape and dtype; 0 where the row has nothing in it.)";

constexpr const char* kLogsumexpBackward = R"(The gradient of logsumexp: scale softmax(x) dlse along axis.

x: logsumexp's argument; states: state(x) with the same keywords; dlse: the gradient that arrives, one a row.
Returns dx of x's shape and dtype; 0 where the row has nothing in it.)";

constexpr const char* kFinishSoftmax =
    R"(softmax of a shard x of longer rows, given the merged states of all their shards.

states: what merge made of state(shard) for every shard; one a row. Other arguments as in softmax, the same scale.
Returns an array of x's shape: the part of the whole row's softmax that belongs to this shard.)";

constexpr const char* kFinishLogSoftmax =
    R"(log_softmax of a shard x of longer rows, given the merged states of all their shards.

Arguments as in finish_softmax.)";

}  // namespace

void bind_rows(nb::module_& m) {
  const auto axis = arg("axis") = nb::none();
  const auto keepdims = arg("keepdims") = false;
  def(m, "softmax", &of_one<Op::softmax>, "x, axis=None", kSoftmax, arg("x"), axis);
  def(m, "log_softmax", &of_one<Op::log_softmax>, "x, axis=None", kLogSoftmax, arg("x"), axis);
  def(m, "logsumexp", &logsumexp, "a, axis=None, b=None, keepdims=False, return_sign=False", kLogsumexp, arg("a"), axis,
      arg("b") = nb::none(), keepdims, arg("return_sign") = false);
  def(m, "state", &state, "x, axis=None, keepdims=False", kState, arg("x"), axis, keepdims);
  def(m, "softmax_backward", &of_two<Op::softmax_backward>, "y, dy, axis=None", kSoftmaxBackward, arg("y"), arg("dy"),
      axis);
  def(m, "log_softmax_backward", &of_two<Op::log_softmax_backward>, "y, dy, axis=None", kLogSoftmaxBackward, arg("y"),
      arg("dy"), axis);
  def(m, "logsumexp_backward", &logsumexp_backward, "x, states, dlse, axis=None", kLogsumexpBackward, arg("x"),
      arg("states"), arg("dlse"), axis);
  def(m, "finish_softmax", &of_two<Op::finish_softmax>, "x, states, axis=None", kFinishSoftmax, arg("x"), arg("states"),
      axis);
  def(m, "finish_log_softmax", &of_two<Op::finish_log_softmax>, "x, states, axis=None", kFinishLogSoftmax, arg("x"),
      arg("states"), axis);
  m.def("run_into", &run_into, arg("op"), arg("inputs"), arg("out"), arg("axis") = nb::none(), nb::kw_only(),
        arg("scale") = 1.0, arg("scales") = nb::none(), arg("lengths") = nb::none(), arg("offsets") = nb::none(),
        arg("mask") = nb::none(), arg("causal") = false, arg("empty") = "zero", arg("keepdims") = nb::none(),
        arg("stream") = 0,
        R"(Runs one operation on viewable arrays, into out: what the faces for other kinds of arrays call.

op: the operation's name; inputs: a tuple of its 1 to 3 inputs; stream: a cudaStream_t as an integer. keepdims:
where it is not None, out has to have the shape that it asks for.)");
  m.def("use_exchange", &use_exchange, arg("type"), nb::sig("def use_exchange(type: type) -> bool"),
        "View objects of exactly this type through its __dlpack_c_exchange_api__; False if it has none.");
}

}  // namespace softfold::python
