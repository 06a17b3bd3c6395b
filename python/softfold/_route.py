"""Arrays that are not NumPy's own floating ones: to the face of their library, or to an array that softfold can fold.

Called by softfold._core when it meets one; nothing here is on the path of a plain NumPy array.
"""

from __future__ import annotations

import difflib
import importlib
import math
import sys

import numpy as np

from softfold import _core
from softfold._errors import DTypeError, Error

_NAMES = ("float64", "float32", "float16", "bfloat16")
_FLOATS = "float64, float32, float16, bfloat16 (ml_dtypes); integers and bools, which become float64"
_DRAWN = "float32, float16, bfloat16 (ml_dtypes)"  # what sample and its kin take
_ROW_RESULTS = {"logsumexp": (), "state": (4,)}


def _library(x) -> str:
    """The library that x's type, or one that it derives from, belongs to."""
    for kind in type(x).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in ("torch", "jax", "jaxlib", "cupy", "numpy"):
            return name
    return type(x).__module__.partition(".")[0]


def _refuse_dtype(dtype, names=_NAMES):
    near = difflib.get_close_matches(dtype, names, 1) if isinstance(dtype, str) else []
    raise DTypeError("dtype", f"dtype={dtype!r}", ", ".join(names), f"dtype={(near or ['float32'])[0]!r}")


def numpy_dtype(dtype) -> np.dtype:
    """A dtype of NumPy, or the one that a name stands for: bfloat16 is that of ml_dtypes, which NumPy does not know."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ImportError:
            raise DTypeError("dtype", "dtype='bfloat16' without ml_dtypes", "float64, float32, float16",
                             "pip install ml_dtypes") from None  # fmt: skip
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        pass
    _refuse_dtype(dtype)


def dtype_like(x, dtype):
    """dtype, or what a name of one stands for, as x's library has it; None stays None."""
    if dtype is None:
        return None
    library = _library(x)
    if library in ("numpy", "builtins", "cupy", "jax", "jaxlib"):
        return numpy_dtype(dtype)
    space = sys.modules["torch"] if library == "torch" else None
    if hasattr(x, "__array_namespace__"):
        space = x.__array_namespace__()
    if space is None or not (isinstance(dtype, str) or library == "torch"):
        return dtype
    if library == "torch" and isinstance(dtype, space.dtype):
        return dtype
    known = [name for name in _NAMES if hasattr(space, name)]
    if isinstance(dtype, str) and dtype in known:
        return getattr(space, dtype)
    _refuse_dtype(dtype, known)


def rows(op: str, inputs: tuple, **options):
    """Runs a row operation on inputs of any kind."""
    library = _library(inputs[0])
    options["dtype"] = dtype_like(inputs[0], options["dtype"])
    if library == "torch":
        return importlib.import_module("softfold.torch").run_rows(op, inputs, **options)
    if library in ("jax", "jaxlib"):
        return importlib.import_module("softfold.jax").run_rows(op, inputs, **options)
    if library != "numpy" and hasattr(inputs[0], "__dlpack__"):
        return _through_dlpack(op, inputs, **options)
    return _call(op, tuple(_as_floating(x) for x in inputs), options)


def _call(op: str, inputs: tuple, options: dict):
    keywords = {k: v for k, v in options.items() if k != "keepdims" or op in _ROW_RESULTS}
    return getattr(_core, op)(*inputs, **keywords)


def _as_floating(x, taken=_FLOATS) -> np.ndarray:
    """x as an array of a dtype that softfold folds: the one place where data is converted, as SciPy does. taken: what a
    refusal says the operation takes."""
    if isinstance(x, np.ma.MaskedArray):
        raise DTypeError("dtype", "a masked array", "an ordinary array", "softfold.softmax(x.data, mask=~x.mask)")
    array = np.asarray(x)
    if not array.dtype.isnative:
        raise DTypeError("dtype", f"a byte-swapped array ({array.dtype.str})", "this machine's byte order",
                         "x.astype(x.dtype.newbyteorder('='))")  # fmt: skip
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    if array.dtype.kind == "c":
        raise DTypeError("dtype", f"a complex array ({array.dtype})", taken, "scipy.special takes complex input")
    if array.dtype.name not in _NAMES:
        raise DTypeError("dtype", f"an array of dtype {array.dtype}", taken, "convert it with astype")
    return array


def _kept_shape(shape: tuple, axis, keepdims: bool) -> tuple:
    rank = len(shape)
    axes = range(rank) if axis is None else [axis] if not isinstance(axis, (tuple, list)) else axis
    folded = {a % rank if -rank <= a < rank else a for a in axes}
    if keepdims:
        return tuple(1 if i in folded else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in folded)


def _ragged_rows(offsets) -> int:
    shape = getattr(offsets, "shape", None)
    if shape is None or len(shape) != 1 or shape[0] < 1:
        got = f", a {type(offsets).__name__}" if shape is None else f" of shape {list(shape)}"
        raise Error("shape", f"offsets{got}", "an array of shape [rows + 1]", "offsets=[0] for no row")
    return shape[0] - 1


def result_shape(op: str, shape: tuple, axis, keepdims: bool, offsets) -> tuple:
    """The shape of op's result on an x of the given shape."""
    if op not in _ROW_RESULTS:
        return tuple(shape)
    kept = (_ragged_rows(offsets),) if offsets is not None else _kept_shape(tuple(shape), axis, keepdims)
    return kept + _ROW_RESULTS[op]


def _through_dlpack(op, inputs, *, axis, keepdims, out, dtype, offsets, **options):
    """CuPy and other libraries of the array API: their own empty() for the result, DLPack for the rest."""
    x = inputs[0]
    space = x.__array_namespace__() if hasattr(x, "__array_namespace__") else sys.modules[_library(x)]
    if out is None:
        kind = dtype if dtype is not None else space.float64 if op == "state" else x.dtype
        shape = result_shape(op, x.shape, axis, keepdims, offsets)
        device = {"device": x.device} if hasattr(x, "__array_namespace__") else {}
        out = space.empty(shape, dtype=kind, **device)
        keepdims = None  # that shape is the one
    run_into(_core.run_into, op, inputs, out, axis, keepdims=keepdims, offsets=offsets, **options)
    return out


def refuse_masked(*operands):
    """The mask that NumPy keeps beside an array would be ignored."""
    for x in operands:
        if isinstance(x, tuple):
            refuse_masked(*x)
        elif isinstance(x, np.ma.MaskedArray):
            raise DTypeError("dtype", "a masked array", "an ordinary array", "x.data, with mask=~x.mask where it is taken")


def run_into(into, *operands, **options):
    """One of softfold._core's functions of viewable arrays; CuPy's arrays on CuPy's current stream, without a wait."""
    refuse_masked(*operands, *options.values())
    if any(_library(x) == "cupy" for x in operands):  # results always are, where the inputs are
        stream = sys.modules["cupy"].cuda.get_current_stream().ptr
        operands = tuple(map(_unsynchronised, operands))
        options = {name: _unsynchronised(value) for name, value in options.items()} | {"stream": stream}
    into(*operands, **options)


def _unsynchronised(x):
    """A CuPy array's DLPack capsule without a wait for another stream: the work goes to the array's own."""
    if isinstance(x, tuple):
        return tuple(map(_unsynchronised, x))
    return x.__dlpack__(stream=-1) if _library(x) == "cupy" else x


def weighted(a, b, return_sign, *, axis, keepdims, out, dtype, **options):
    """logsumexp with weights b, or with the sign of the sum: SciPy's, over softfold's folds in float64."""
    if _library(a) not in ("numpy", "builtins"):
        raise DTypeError("dtype", f"b or return_sign with a {type(a).__name__}", "NumPy arrays",
                         "softfold.logsumexp(numpy.asarray(a), b=numpy.asarray(b))")  # fmt: skip
    if out is not None:
        raise Error("option", "out together with b or return_sign", "one of them")
    a = _as_floating(a)
    kind = numpy_dtype(dtype) if dtype is not None else a.dtype
    if kind.name not in _NAMES:
        _refuse_dtype(dtype)
    if b is None:
        lse = _core.logsumexp(a, axis, keepdims=keepdims, dtype=kind, **options)
        sign = np.where(np.isnan(lse), lse, np.where(lse == -np.inf, 0, 1)).astype(kind)[()]
        return lse, sign
    b = _as_floating(b)
    if dtype is None:
        kind = np.result_type(a.dtype, b.dtype)
    scale = options.pop("scale")
    if options["scales"] is not None or options["offsets"] is not None:
        raise Error("option", "b together with scales or offsets", "b with scale, lengths, mask")
    a, b = np.broadcast_arrays(np.asarray(a, np.float64) * scale, np.asarray(b, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(b == 0, -np.inf, a + np.log(np.abs(b)))
    return _signed(terms, b, return_sign, kind, axis, keepdims, options)


def _signed(terms, b, return_sign, kind, axis, keepdims, options):
    """ln |sum of sign(b) exp(terms)| and the sum's sign, from the sums of both signs."""
    mask = options.pop("mask")
    exists = np.ones(terms.shape, bool) if mask is None else np.broadcast_to(mask, terms.shape)

    def lse(where):
        return np.asarray(_core.logsumexp(terms, axis, keepdims=keepdims, mask=exists & where, **options))

    positive, negative = lse(~(b < 0)), lse(b < 0)
    high, low = np.maximum(positive, negative), np.minimum(positive, negative)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(low == -np.inf, high, high + np.log(-np.expm1(low - high)))
    sign = np.where(size == -np.inf, 0.0, np.where(positive > negative, 1.0, -1.0))
    sign = np.where(np.isnan(size), size, sign)
    if return_sign:
        return size.astype(kind)[()], sign.astype(kind)[()]
    return np.where(sign < 0, math.nan, size).astype(kind)[()]
