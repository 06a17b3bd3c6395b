"""softfold for JAX: jit-able through XLA's foreign function interface, with first and second gradients.

    import softfold.jax as sf
    p = jax.jit(lambda s: sf.softmax(s, -1, scale=0.125, causal=True))(scores)

Works under jit, grad (reverse mode, twice) and vmap, on the CPU (and on CUDA where softfold and JAX have it). What
depends on values only (a length out of range) is refused when the computation runs, as JAX's own runtime error with
softfold's message. scales, lengths, offsets and mask get no gradient.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softfold import _core, _route
from softfold._errors import DTypeError, Error, UnsupportedError

__all__ = ["log_softmax", "logsumexp", "softmax", "state"]

_FLOATS = ("float64", "float32", "float16", "bfloat16")

for _platform in ("cpu", "CUDA"):
    jax.ffi.register_ffi_target("softfold_rows", _core.xla_handler(_platform), platform=_platform)


class _Call(NamedTuple):
    """What is known when a computation is traced. axis counts from the end, so that vmap may add axes in front."""

    op: str
    axis: int
    scale: float
    causal: bool
    empty_nan: bool
    dtype: str
    keepdims: bool = False


def _ffi(call: _Call, inputs, options):
    """One operation; options: (scales, lengths, offsets, mask), each an array or None."""
    x = inputs[0]
    shape = _route.result_shape(call.op, x.shape, call.axis, call.keepdims, options[2])
    method = "broadcast_all" if options[2] is None else "sequential"
    run = jax.ffi.ffi_call("softfold_rows", jax.ShapeDtypeStruct(shape, call.dtype), vmap_method=method)
    number = np.int64
    return run(
        *inputs, *(o for o in options if o is not None), op=number(_core.op_number(call.op)), axis=number(call.axis),
        inputs=number(len(inputs)), given=number(sum(1 << i for i, o in enumerate(options) if o is not None)),
        scale=np.float64(call.scale), causal=number(call.causal), empty_nan=number(call.empty_nan), device=number(0),
    )  # fmt: skip


# Gradients: the backward operations, and theirs in jax.numpy. ----------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _forward(call, x, options):
    return _ffi(call, (x,), options)


def _forward_fwd(call, x, options):
    y = _forward(call, x, options)  # itself, so that this too can be differentiated
    return y, (y, options, jnp.zeros((0,), x.dtype))


def _forward_bwd(call, saved, dy):
    y, options, like_x = saved
    back = call._replace(op=call.op + "_backward", dtype=like_x.dtype.name)
    return _backward(back, y, dy, options), None


_forward.defvjp(_forward_fwd, _forward_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _backward(call, y, dy, options):
    return _ffi(call, (y, dy), options)


def _backward_fwd(call, y, dy, options):
    return _backward(call, y, dy, options), (y, dy, options)


def _backward_bwd(call, saved, g):
    y, dy, options = saved
    scales, _, offsets, _ = options
    h = g * call.scale * (1 if scales is None else _spread(call, scales.astype(g.dtype), y, offsets))
    exists = _exists(call, y, options)
    h, dy = jnp.where(exists, h, 0), jnp.where(exists, dy, 0)

    def total(values):
        if offsets is None:
            return values.sum(call.axis, keepdims=True)
        places = _ragged_place(y, offsets)
        return jax.ops.segment_sum(values, places, offsets.shape[0] + 1)[places]

    if call.op == "softmax_backward":
        t = total(h * y)
        grad_y, grad_dy = h * (dy - total(y * dy)) - dy * t, y * (h - t)
    else:
        p = jnp.exp(y)
        grad_y, grad_dy = -h * p * total(dy), h - total(h * p)
    return grad_y.astype(y.dtype), grad_dy.astype(dy.dtype), None


_backward.defvjp(_backward_fwd, _backward_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduce(call, x, options):
    return _ffi(call, (x,), options)


def _reduce_fwd(call, x, options):
    return _reduce(call, x, options), (x, options)


def _reduce_bwd(call, saved, dlse):
    x, options = saved
    scales, _, offsets, _ = options
    p = _forward(call._replace(op="softmax", dtype=x.dtype.name, empty_nan=False), x, options)
    if offsets is None and not call.keepdims:
        dlse = jnp.expand_dims(dlse, call.axis)
    if offsets is not None:
        dlse = _spread(call, dlse, x, offsets)
    g = dlse * call.scale * (1 if scales is None else _spread(call, scales.astype(dlse.dtype), x, offsets))
    return (p * g).astype(x.dtype), None


_reduce.defvjp(_reduce_fwd, _reduce_bwd)


def _ragged_place(x, offsets):
    """Where each element lies: 1 + its row; 0 before the first row, rows + 1 behind the last one."""
    return jnp.searchsorted(offsets, jnp.arange(x.shape[0]), side="right")


def _spread(call, rows, x, offsets):
    """One value a row, over the row's elements; 0 where no ragged row is."""
    if offsets is None:
        return jnp.expand_dims(rows, call.axis)
    return jnp.pad(jnp.broadcast_to(rows, (offsets.shape[0] - 1,)), 1)[_ragged_place(x, offsets)]


def _exists(call, x, options):
    _, lengths, offsets, mask = options
    exists = True if mask is None else mask
    if offsets is not None:
        at = jnp.arange(x.shape[0])
        exists = exists & (at >= offsets[0]) & (at < offsets[-1])
    if lengths is not None:
        at = jnp.arange(x.shape[call.axis]).reshape((-1,) + (1,) * (-call.axis - 1))
        exists = exists & (at < jnp.expand_dims(lengths, call.axis))
    if call.causal:
        exists = exists & jnp.tri(*x.shape[-2:], k=x.shape[-1] - x.shape[-2], dtype=bool)
    return exists


# Functions ------------------------------------------------------------------------------------------------------


def _prepared(op, x, axis, dtype, scale, scales, lengths, offsets, mask, causal, empty, keepdims=False):
    """x with the folded axes as one, the call, the options in forms that keep their meaning under vmap, and the way
    back to x's own axes."""
    x = jnp.asarray(x)
    if x.dtype.name not in _FLOATS:
        if x.dtype.kind not in "iub":
            raise DTypeError("dtype", f"a JAX array of {x.dtype}", ", ".join(_FLOATS))
        x = x.astype(jnp.result_type(float))
    if empty not in ("zero", "nan"):
        raise Error("option", f"empty={empty!r}", '"zero" or "nan"')
    shape, rank = x.shape, x.ndim
    axes = tuple(range(rank)) if axis is None else tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    for a in axes:
        if not -rank <= a < rank:
            raise Error("shape", f"axis {a}", f"{-rank} .. {rank - 1} for rank {rank}")
    folded = sorted({a % rank for a in axes})
    options = [None if o is None else jnp.asarray(o) for o in (scales, lengths, offsets, mask)]
    if len(folded) == 1:
        at, back = folded[0] - rank, None
    else:
        if causal or any(o is not None for o in options):
            raise Error("option", "several axes with causal, scales, lengths, offsets or mask", "one axis")
        kept = [i for i in range(rank) if i not in folded]
        order = kept + folded
        x = x.transpose(order).reshape([shape[i] for i in kept] + [math.prod(shape[i] for i in folded)])
        at, back = -1, (tuple(shape[i] for i in order), tuple(np.argsort(order)))
    rows = x.ndim - 1 if offsets is None else 1
    for i, want in ((0, rows), (1, rows), (3, x.ndim)):
        if options[i] is not None:
            if options[i].ndim == x.ndim and i != 3 and offsets is None:
                options[i] = jnp.squeeze(options[i], at)
            options[i] = options[i].reshape((1,) * (want - options[i].ndim) + options[i].shape)
    result = "float64" if op == "state" else _route.numpy_dtype(dtype).name if dtype is not None else x.dtype.name
    if result == "float64" and not jax.config.jax_enable_x64:
        raise UnsupportedError("unsupported", "float64 while JAX has it switched off", "jax_enable_x64",
                               'jax.config.update("jax_enable_x64", True)')  # fmt: skip
    call = _Call(op, at, float(scale), bool(causal), empty == "nan", result, keepdims and back is None)
    return x, call, tuple(options), (shape, folded, back)


def _elementwise(op, x, axis, dtype, keywords):
    x, call, options, (shape, _, back) = _prepared(op, x, axis, dtype, **keywords)
    y = _forward(call, x, options)
    return y if back is None else y.reshape(back[0]).transpose(back[1])


def softmax(x, axis=-1, *, dtype=None, scale=1.0, scales=None, lengths=None, offsets=None, mask=None, causal=False,
            empty="zero"):  # fmt: skip
    """jax.nn.softmax with softfold's options; see softfold.softmax.

    axis: an integer, a tuple, or None for all. mask is what jax.nn.softmax calls where; a row of nothing is 0.
    Returns an array of x's shape and dtype (or dtype).
    """
    return _elementwise("softmax", x, axis, dtype, dict(scale=scale, scales=scales, lengths=lengths, offsets=offsets,
                                                        mask=mask, causal=causal, empty=empty))  # fmt: skip


def log_softmax(x, axis=-1, *, dtype=None, scale=1.0, scales=None, lengths=None, offsets=None, mask=None, causal=False,
                empty="zero"):  # fmt: skip
    """jax.nn.log_softmax with softfold's options; see softmax."""
    return _elementwise("log_softmax", x, axis, dtype, dict(scale=scale, scales=scales, lengths=lengths,
                                                            offsets=offsets, mask=mask, causal=causal,
                                                            empty=empty))  # fmt: skip


def _rowwise(op, x, axis, keepdims, dtype, trailing, keywords):
    x, call, options, (shape, folded, back) = _prepared(op, x, axis, dtype, empty="zero", keepdims=keepdims, **keywords)
    y = _reduce(call, x, options) if op == "logsumexp" else _ffi(call, (jax.lax.stop_gradient(x),), options)
    if back is not None and keepdims:
        y = y.reshape(tuple(1 if i in folded else n for i, n in enumerate(shape)) + trailing)
    return y


def logsumexp(a, axis=None, keepdims=False, *, dtype=None, scale=1.0, scales=None, lengths=None, offsets=None,
              mask=None, causal=False):  # fmt: skip
    """jax.scipy.special.logsumexp with softfold's options; see softfold.logsumexp."""
    return _rowwise("logsumexp", a, axis, keepdims, dtype, (), dict(scale=scale, scales=scales, lengths=lengths,
                    offsets=offsets, mask=mask, causal=causal))  # fmt: skip


def state(x, axis=None, keepdims=False, *, scale=1.0, scales=None, lengths=None, offsets=None, mask=None,
          causal=False):  # fmt: skip
    """softfold.state of a JAX array: float64, the kept shape plus (4,); needs jax_enable_x64; no gradient."""
    return _rowwise("state", x, axis, keepdims, None, (4,), dict(scale=scale, scales=scales, lengths=lengths,
                    offsets=offsets, mask=mask, causal=causal))  # fmt: skip


def run_rows(op, inputs, *, axis, keepdims, out, dtype, **keywords):
    """softfold.softmax and its kin, called with JAX arrays."""
    if out is not None:
        raise Error("option", "out, a JAX array", "no out: JAX's arrays never change", "take the result")
    if op in ("softmax", "log_softmax"):
        return _elementwise(op, inputs[0], axis, dtype, keywords)
    empty = keywords.pop("empty")
    if op in ("logsumexp", "state"):
        return _rowwise(op, inputs[0], axis, keepdims, dtype, (4,) if op == "state" else (), keywords)
    x, call, options, (_, _, back) = _prepared(op, inputs[0], axis, dtype, empty=empty, **keywords)
    if back is not None:
        raise Error("option", f"{op} of a JAX array along several axes", "one axis", "softfold.jax has gradients")
    return _ffi(call, (x, *(jnp.asarray(i) for i in inputs[1:])), options)
