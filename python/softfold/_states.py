"""Rows that lie in pieces: merge what the pieces' holders know, and finish."""

from __future__ import annotations

import importlib
import sys

import numpy as np

from softfold import _core, _route
from softfold._errors import DTypeError, Error, refusing


def _empty_like(x, shape=None, dtype=None):
    """An array of x's kind to write to."""
    library = _route._library(x)
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(x.shape if shape is None else shape, dtype=dtype or x.dtype, device=x.device)
    if library == "cupy":
        return sys.modules["cupy"].empty(x.shape if shape is None else shape, dtype or x.dtype)
    if library in ("jax", "jaxlib"):
        raise DTypeError("dtype", "a JAX array, which cannot be written to", "NumPy, PyTorch, CuPy arrays",
                         "pass numpy.asarray(x): it is a view")  # fmt: skip
    if library not in ("numpy", "builtins") and hasattr(x, "__array_namespace__"):
        return x.__array_namespace__().empty(x.shape if shape is None else shape, dtype=dtype or x.dtype, device=x.device)
    return np.empty(np.shape(x) if shape is None else shape, dtype or np.asarray(x).dtype)


def _operands(inputs, outputs):
    """What softfold._core can view and write, and the stream to run on."""
    if inputs and _route._library(inputs[0]) == "torch":
        face = importlib.import_module("softfold.torch")
        viewed = tuple(map(face.viewable, inputs)), tuple(map(face.writable, outputs))
        return *viewed, face.current_stream(inputs[0])
    return tuple(inputs), tuple(outputs), 0


def _merge(op, inputs, outputs, **options):
    *operands, stream = _operands(inputs, outputs)
    _core.merge_into(op, *operands, stream=stream, **options)


def merge(*parts, out=None):
    """What all parts hold together.

    parts: states (float64, (..., 4), of one shape, as state() gives them), neighbours first, or Partials and Streams of
    one row in any order. out: for states, where to write; may be one of the parts.
    Returns a state array, or a Partial. Two-argument calls are what functools.reduce, Dask and Spark want:

        functools.reduce(softfold.merge, states)

    Raises softfold.StateError for parts of another scale or precision, or partials that do not lie end to end.
    """
    if not parts:
        raise Error("shape", "no parts", "at least one")
    if isinstance(parts[0], (_core.Partial, _core.Stream)):
        if out is not None:
            raise Error("option", "out with partials", "out with states")
        return _core.join([p.partial() if isinstance(p, _core.Stream) else p for p in parts])
    out = _empty_like(parts[0]) if out is None else out
    _merge("merge_states", parts, (out,))
    return out


@refusing
def finish_logsumexp(states, *, out=None, dtype=None):
    """ln sum exp of what merged states hold.

    states: float64, (..., 4). Returns an array of shape (...), a scalar if that is (). dtype: float64 by default; a
    state folded in float32 has a float32's logsumexp, which float64 holds exactly.
    """
    fresh = out is None
    if fresh:
        out = _empty_like(states, tuple(np.shape(states))[:-1], _route.dtype_like(states, dtype))
    viewed, (viewed_out,), stream = _operands((states,), (out,))
    _core.run_into("finish_logsumexp", viewed, viewed_out, stream=stream)
    return out[()] if fresh and isinstance(out, np.ndarray) else out


def finish(whole, x=None, axis=None, *, log=False, **keywords):
    """The result for one shard x, or for all of them, given what all shards hold together.

    whole: merged states, or the Partial or Stream of a whole row. Without x: logsumexp. With x, a shard: its part of
    the whole row's softmax (log=True: of its log_softmax); axis and keywords as in softmax, the same scale.
    """
    if isinstance(whole, (_core.Partial, _core.Stream)):
        keywords.setdefault("scale", whole.scale) if x is not None else None
        whole = whole.state()
    if x is None:
        return finish_logsumexp(whole, **keywords)
    return (_core.finish_log_softmax if log else _core.finish_softmax)(x, whole, axis, **keywords)


@refusing
def merge_attention(outs, lses, *, out=None, lse=None, base="natural", statistics="lse"):
    """Attention outputs over disjoint keys, merged into the output over all keys.

    outs: arrays (..., D); lses: float32 or float64, (...), the logarithms of the parts' sums of exponentials.
    base: "natural" or 2, of the lses given and returned. statistics: "lse", or "max_sum" for lses (..., 2) that hold
    (m, d) with sum exp = d exp(m). out, lse: where to write; may be one part's own.
    Returns (out, lse). Known elsewhere as merge_attn_states or _update_out_and_lse. Empty parts (lse -inf) are right.
    """
    _check_pairs(outs, lses, "outs")
    out = _empty_like(outs[0]) if out is None else out
    lse = _empty_like(lses[0]) if lse is None else lse
    parts = tuple(a for pair in zip(outs, lses, strict=True) for a in pair)
    _merge("merge_attention", parts, (out, lse), base=base, statistics=statistics)
    return out, lse


@refusing
def merge_blocks(ps, lses, *, base="natural", statistics="lse"):
    """Softmaxes of the blocks of rows, rescaled to the softmax of the whole rows.

    ps: arrays (..., n) of one shape, each the softmax of its block; lses: (...), as in merge_attention.
    Returns (list of rescaled ps, joint lse).
    """
    _check_pairs(ps, lses, "ps")
    outputs = [_empty_like(p) for p in ps]
    lse = _empty_like(lses[0])
    parts = tuple(a for pair in zip(ps, lses, strict=True) for a in pair)
    _merge("merge_blocks", parts, (*outputs, lse), base=base, statistics=statistics)
    return outputs, lse


def _check_pairs(values, lses, name):
    if not values or len(values) != len(lses):
        raise Error("shape", f"{len(values)} {name} and {len(lses)} lses", "as many of one as of the other, at least 1")
