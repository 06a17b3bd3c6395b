"""attention for NumPy arrays, CuPy's and those of the array API; tensors go to softfold.torch."""

from __future__ import annotations

import importlib
import math
import operator

import numpy as np

from softfold import _core, _route
from softfold._errors import DTypeError, Error, refusing
from softfold._states import _empty_like


def result_shapes(q_shape, v_shape, layout) -> tuple[tuple, tuple]:
    """The shapes of out and lse: (B, H, T) in either layout, with what q lacks of it missing; packed (H, total T)."""
    if len(q_shape) < 2 or len(v_shape) < 2:
        got = f"q of shape {list(q_shape)} and v of shape {list(v_shape)}"
        raise Error("shape", got, "(B, H, T, D), (H, T, D) or (T, D)")
    rows = tuple(q_shape[:-1])
    if layout == "bthd" and len(rows) > 1:
        rows = (*rows[:-2], rows[-1], rows[-2])
    return (*q_shape[:-1], v_shape[-1]), rows


def hide_rows(out, lse, state):
    """New results hold what a query that sees nothing gets: what lies in no packed sequence stays so."""
    if out is not None:
        out[...] = 0
    if lse is not None:
        lse[...] = -math.inf
    if state is not None:
        state[...] = 0
        state[..., 0] = -math.inf


def results(out, lse, state):
    """What was asked for: out alone, or a tuple of it and what is not None."""
    asked = tuple(x for x in (lse, state) if x is not None)
    return (out, *asked) if asked else out


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


def _most(name, value) -> int:
    try:
        if not 0 <= operator.index(value) < 2**63:
            raise ValueError
    except (TypeError, ValueError):
        raise Error("option", f"{name}={value!r}", "an integer, 0 where it is not known") from None
    return operator.index(value)


def checked_options(scale, causal, window, softcap, layout, max_q=0, max_kv=0) -> dict:
    """The options that are no arrays, as softfold._core takes them."""
    if not isinstance(causal, (bool, np.bool_)):
        raise Error("option", f"causal={causal!r}", "True or False", "mask= for causal limits of your own")
    if layout not in ("bhtd", "bthd"):
        raise Error("option", f"layout={layout!r}", '"bhtd" or "bthd"')
    return dict(scale=None if scale is None else _number("scale", scale), causal=bool(causal), window=_window(window),
                softcap=_softcap(softcap), layout=layout, max_q=_most("max_q", max_q),
                max_kv=_most("max_kv", max_kv))  # fmt: skip


def _lse_dtype(q, library):
    name = "float64" if str(getattr(q, "dtype", None)).endswith("float64") else "float32"
    space = np if library in ("numpy", "builtins", "cupy") else q.__array_namespace__()
    return getattr(space, name)


@refusing
def attention(q, k, v, *, scale=None, causal=False, window=(-1, -1), softcap=0.0, sink=None, bias=None, mask=None,
              slopes=None, lengths=None, starts=None, index=None, q_offsets=None, kv_offsets=None, max_q=0, max_kv=0,
              layout="bhtd", out=None, return_lse=False, return_state=False):  # fmt: skip
    """softmax(scale q k^T) v over the keys that each query sees; a query that sees none has the result 0.

    q: (B, H, T, D), k: (B, Hkv, S, D), v: (B, Hkv, S, Dv), or without B, or (T, D) alone; layout="bthd": (B, T, H, D).
       float64, float32, float16 or bfloat16, all of one; any strides but along D. H is a multiple of Hkv.
    scale: 1/sqrt(D) by default. causal: query i sees keys up to i + S - T. window: (left, right) keys around that
    diagonal, -1 for no limit. softcap: scores become softcap tanh(score / softcap); 2^-60 to 2^60, 0 for none.
    bias, mask: broadcast to (B, H, T, S); what is added to the scores, and (bool) which keys exist: a bias of -inf hides
    its key, a finite one beyond 2^126 (float64: 2^1022) counts as that. sink: [H], one more key a head of this score and
    value 0. slopes: float32, [H] or [B, H] (ALiBi).
    lengths, starts: int32 or int64, [B]: keys up to (seqused_k of others), and from, counted in each sequence.
    index: int32 or int64, [B]: k and v are a cache, sequence b's keys are k[index[b]]; not of packed sequences.
    q_offsets, kv_offsets: int32 or int64, [B + 1], ascending (cu_seqlens of others): B sequences packed one after the
    other. q is then (H, total T, D), k and v (Hkv, total S, D); layout="bthd": (total T, H, D), (total S, Hkv, D).
    Tokens of no sequence are neither read nor, in out=, written; new results hold 0 there, lse -inf. max_q, max_kv:
    no sequence has more tokens, 0 if not known; on the CPU they are checked, on CUDA believed. bias and mask are then
    (B, H, max_q, max_kv).
    out: where to write, q's shape with v's last axis. Returns out; with return_lse, return_state a tuple: (out, lse),
    (out, state), (out, lse, state). lse: the natural logarithm of each query's sum of exponentials, (B, H, T) in either
    layout, of packed sequences (H, total T), float32 (float64 for float64). state: lse's shape + (2 + Dv,), of lse's
    dtype: the fold's m, d and unnormalised o, with sum exp = d 2^m and out = o / d. merge_attention takes parts back as

        merge_attention([s[..., 2:] / s[..., 1:2] for s in states], [s[..., :2] for s in states],
                        base=2, statistics="max_sum")

    Raises softfold.Error before any work. No gradient.
    """
    options = dict(checked_options(scale, causal, window, softcap, layout, max_q, max_kv), sink=sink, bias=bias,
                   mask=mask, slopes=slopes, lengths=lengths, starts=starts, index=index, q_offsets=q_offsets,
                   kv_offsets=kv_offsets)  # fmt: skip
    library = _route._library(q)
    if library == "torch":
        return importlib.import_module("softfold.torch").run_attention(q, k, v, out, return_lse, return_state, **options)
    if library in ("jax", "jaxlib"):
        raise DTypeError("dtype", "attention of JAX arrays", "NumPy, PyTorch, CuPy", "numpy.asarray(q) is a view")
    if isinstance(slopes, (list, tuple)):
        options["slopes"] = np.asarray(slopes, np.float32)
    shape, rows = result_shapes(np.shape(q), np.shape(v), layout)
    fresh = out is None
    if fresh:
        out = _empty_like(q, shape)
    dtype = _lse_dtype(q, library)
    lse = _empty_like(q, rows, dtype) if return_lse else None
    state = _empty_like(q, (*rows, 2 + shape[-1]), dtype) if return_state else None
    if q_offsets is not None:
        hide_rows(out if fresh else None, lse, state)
    _route.run_into(_core.attention_into, q, k, v, out, lse, state=state, **options)
    return results(out, lse, state)
