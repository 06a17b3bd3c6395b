"""attention for NumPy arrays, CuPy's and those of the array API; tensors go to softfold.torch."""

from __future__ import annotations

import importlib
import operator

import numpy as np

from softfold import _core, _route
from softfold._errors import DTypeError, Error
from softfold._states import _empty_like


def result_shapes(q_shape, v_shape, layout) -> tuple[tuple, tuple]:
    """The shapes of out and lse: (B, H, T) in either layout, with what q lacks of it missing."""
    if len(q_shape) < 2 or len(v_shape) < 2:
        got = f"q of shape {list(q_shape)} and v of shape {list(v_shape)}"
        raise Error("shape", got, "(B, H, T, D), (H, T, D) or (T, D)")
    rows = tuple(q_shape[:-1])
    if layout == "bthd" and len(rows) > 1:
        rows = (*rows[:-2], rows[-1], rows[-2])
    return (*q_shape[:-1], v_shape[-1]), rows


def _number(name, value) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise Error("option", f"{name}={value!r}", "one number", "scale and softcap are those of every head") from None


def _window(value) -> tuple[int, int]:
    try:
        left, right = map(operator.index, value)
        if max(abs(left), abs(right)) >= 2**63:
            raise ValueError
    except (TypeError, ValueError):
        raise Error("option", f"window={value!r}", "(left, right), two integers", "-1 for no limit") from None
    return left, right


def _softcap(value) -> float:
    cap = _number("softcap", value)
    if cap != 0 and not 2.0**-60 <= cap <= 2.0**60:
        raise Error("option", f"softcap={cap!r}", "0 (none), or 8.67e-19 (2^-60) to 1.15e18 (2^60)")
    return cap


def checked_options(scale, causal, window, softcap, layout) -> dict:
    """The options that are no arrays, as softfold._core takes them."""
    if not isinstance(causal, (bool, np.bool_)):
        raise Error("option", f"causal={causal!r}", "True or False", "mask= for causal limits of your own")
    if layout not in ("bhtd", "bthd"):
        raise Error("option", f"layout={layout!r}", '"bhtd" or "bthd"')
    return dict(scale=None if scale is None else _number("scale", scale), causal=bool(causal), window=_window(window),
                softcap=_softcap(softcap), layout=layout)  # fmt: skip


def _lse_dtype(q, library):
    name = "float64" if str(getattr(q, "dtype", None)).endswith("float64") else "float32"
    space = np if library in ("numpy", "builtins", "cupy") else q.__array_namespace__()
    return getattr(space, name)


def attention(q, k, v, *, scale=None, causal=False, window=(-1, -1), softcap=0.0, sink=None, bias=None, mask=None,
              slopes=None, lengths=None, starts=None, layout="bhtd", out=None, return_lse=False):  # fmt: skip
    """softmax(scale q k^T) v over the keys that each query sees; a query that sees none has the result 0.

    q: (B, H, T, D), k: (B, Hkv, S, D), v: (B, Hkv, S, Dv), or without B, or (T, D) alone; layout="bthd": (B, T, H, D).
       float64, float32, float16 or bfloat16, all of one; any strides but along D. H is a multiple of Hkv.
    scale: 1/sqrt(D) by default. causal: query i sees keys up to i + S - T. window: (left, right) keys around that
    diagonal, -1 for no limit. softcap: scores become softcap tanh(score / softcap); 2^-60 to 2^60, 0 for none.
    bias, mask: broadcast to (B, H, T, S); what is added to the scores, and (bool) which keys exist: a bias of -inf hides
    its key, a finite one beyond 2^126 (float64: 2^1022) counts as that. sink: [H], one more key a head of this score and
    value 0. slopes: float32, [H] or [B, H] (ALiBi).
    lengths, starts: int32 or int64, [B]: keys up to, and from.
    out: where to write, q's shape with v's last axis. Returns out, or with return_lse (out, lse), lse the natural
    logarithm of each query's sum of exponentials: (B, H, T), float32 (float64 for float64).
    Raises softfold.Error before any work. No gradient.
    """
    options = dict(checked_options(scale, causal, window, softcap, layout), sink=sink, bias=bias, mask=mask,
                   slopes=slopes, lengths=lengths, starts=starts)  # fmt: skip
    library = _route._library(q)
    if library == "torch":
        return importlib.import_module("softfold.torch").run_attention(q, k, v, out, return_lse, **options)
    if library in ("jax", "jaxlib"):
        raise DTypeError("dtype", "attention of JAX arrays", "NumPy, PyTorch, CuPy", "numpy.asarray(q) is a view")
    if isinstance(slopes, (list, tuple)):
        options["slopes"] = np.asarray(slopes, np.float32)
    shape, rows = result_shapes(np.shape(q), np.shape(v), layout)
    if out is None:
        out = _empty_like(q, shape)
    lse = _empty_like(q, rows, _lse_dtype(q, library)) if return_lse else None
    _route.run_into(_core.attention_into, q, k, v, out, lse, **options)
    return (out, lse) if return_lse else out
