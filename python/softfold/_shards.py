"""Rows whose elements are held in shards, a vocabulary cut over ranks: folded, brought together by anyone, joined."""

from __future__ import annotations

import importlib
import numbers
import sys

import numpy as np

from softfold import _core, _route
from softfold._errors import Error, integer, refusing
from softfold._losses import foldable, returned, row_shape
from softfold._sample import number_of
from softfold._states import _empty_like
from softfold._topk import taken_shape


def _array(x, name):
    """x as something that softfold._core can view, of any library."""
    return x if _route._library(x) == "torch" else foldable(x, name)


def _new(like, shape, dtype):
    """An array of like's kind. dtype: "float64", "int64", or one of like's library."""
    if isinstance(dtype, str):
        library = _route._library(like)
        space = sys.modules["torch"] if library == "torch" else np
        if library != "torch" and hasattr(like, "__array_namespace__"):
            space = like.__array_namespace__()
        dtype = getattr(space, dtype)
    return _empty_like(like, shape, dtype)


def _run(into, inputs, outputs, *rest, **options):
    """One of softfold._core's functions of viewable arrays; tensors are brought into that form. What options have
    written is new, outputs may be the caller's."""
    tensors = [x for x in (*inputs, *outputs) if _route._library(x) == "torch"]
    if tensors:
        face = importlib.import_module("softfold.torch")
        stream = face.current_stream(tensors[0])
        inputs = tuple(map(face.viewable, inputs))
        outputs = tuple(face.writable(y) if _route._library(y) == "torch" else y for y in outputs)
        options = {name: face.viewable(value) for name, value in options.items()} | {"stream": stream}
    _route.run_into(into, *inputs, *outputs, *rest, **options)


def _targets(target):
    return target if hasattr(target, "__dlpack__") else np.asarray(target)


@refusing
def fold_shard(x, offset, size, axis=-1, *, target=None, k=0, scale=1.0, scales=None, lengths=None, mask=None,
               width=None, out=None):  # fmt: skip
    """The partials of a shard: what the joins need to know of x, elements [offset, offset + n) of rows of `size`.

    x: floating; the elements of the rows lie along axis. target: int64 or int32, one a row, class indices of the whole
       rows, for join_cross_entropy. k: for join_topk, the k largest.
    scale, scales, mask: as in softmax; lengths: only the shard's first so many elements exist.
    width: numbers a row, float64; by default as many as this shard needs. Where a transport wants one size, the largest
       of the ranks' own (softfold.partial_width(n, offset, size, k)). out: where to write.
    Returns float64, the rows' shape + (width,). Gather those of all ranks to (P,) + rows + (width,), in any order, and
    join them on every rank: the bits are those of the whole rows. Raises softfold.Error before any work.
    """
    x = _array(x, "fold_shard")
    if out is None:
        rank, axis = len(x.shape), integer("axis", axis)
        if not -rank <= axis < rank:
            raise Error("shape", f"axis {axis}", f"{-rank} .. {rank - 1} for rank {rank}")
        rows = row_shape(x, axis, None)
        needed = _core.partial_width(x.shape[axis], offset, size, k)
        out = _new(x, (*rows, needed if width is None else width), "float64")
    target = None if target is None else _targets(target)
    _run(_core.fold_shard_into, (x,), (out,), axis, offset, size, target=target, k=k, scale=scale, scales=scales,
         lengths=lengths, mask=mask)  # fmt: skip
    return out


@refusing
def join_states(partials, *, out=None):
    """The states of whole rows, as softfold.state gives them, from the partials of all shards: (P,) + rows + (width,).

    softfold.finish(states) is the rows' logsumexp, softfold.finish(states, x, axis) the softmax of any shard x of them,
    given the scale that they were folded with. Returns float64, rows + (4,); out: where to write. Raises
    softfold.StateError for a gap, an overlap, another scale, precision or size.
    """
    partials = _array(partials, "join_states")
    states = _new(partials, (*partials.shape[1:-1], 4), "float64") if out is None else out
    _run(_core.join_states_into, (partials,), (states,))
    return states


@refusing
def join_cross_entropy(partials, target, *, weight=None, ignore_index=-100, reduction="mean", z_loss=0.0, empty="zero",
                       dtype=None, return_log_probability=False, return_states=False):  # fmt: skip
    """The loss of whole rows, as cross_entropy gives it, from the partials of all shards, folded with the same target.

    partials: (P,) + rows + (width,). target, weight, ignore_index, reduction, z_loss, empty: as in cross_entropy, of
    the whole rows. dtype: of the loss and log-probability, the logits' own for the same bits; float64 by default.
    return_log_probability: of the target, one a row. return_states: for cross_entropy_backward on each shard.
    Returns the loss, or a tuple. Raises softfold.Error before any work.
    """
    partials, target = _array(partials, "join_cross_entropy"), _targets(target)
    rows, dtype = tuple(partials.shape[1:-1]), _route.dtype_like(partials, "float64" if dtype is None else dtype)
    loss = _new(partials, rows if reduction == "none" else (), dtype)
    log_probability = _new(partials, rows, dtype) if return_log_probability else None
    states = _new(partials, (*rows, 4), "float64") if return_states else None
    _run(_core.join_cross_entropy_into, (partials, target), (loss,), weight=weight, ignore_index=ignore_index,
         reduction=reduction, z_loss=z_loss, empty=empty, log_probability=log_probability,
         states=states)  # fmt: skip
    return returned((loss, log_probability, states))


@refusing
def cross_entropy_backward(logits, target, states, dloss=1.0, axis=-1, *, offset=0, size=0, weight=None,
                           ignore_index=-100, reduction="mean", label_smoothing=0.0, z_loss=0.0, scale=1.0,
                           scales=None, lengths=None, mask=None, causal=False, out=None):  # fmt: skip
    """The gradient of cross_entropy with respect to logits, from the rows' states; also of a shard of the rows.

    states: float64, rows + (4,), of logits' rows (softfold.state), or joined (join_cross_entropy). dloss: what comes in,
       of the loss's shape, floating; a number becomes one of logits' dtype.
    offset, size: logits are elements [offset, offset + n) of rows of `size`; 0, 0: whole rows. target and weight are of
       the whole rows, lengths of the shard. No label smoothing for a shard. The rest is as in cross_entropy.
    Returns an array like logits; out: where to write. Raises softfold.Error before any work.
    """
    logits, target = _array(logits, "cross_entropy_backward"), _targets(target)
    if not hasattr(dloss, "shape"):
        shape = row_shape(logits, axis, None) if reduction == "none" else ()
        number, dloss = dloss, _empty_like(logits, shape, logits.dtype)
        dloss[...] = number
    dx = _empty_like(logits) if out is None else out
    options = dict(weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
                   z_loss=z_loss, scale=scale, scales=scales, lengths=lengths, mask=mask, causal=causal)  # fmt: skip
    if _route._library(logits) == "torch":
        face = importlib.import_module("softfold.torch")
        target, states, dloss = map(face.viewable, (target, states, dloss))
        options = {name: face.viewable(value) for name, value in options.items()}
        options["stream"] = face.current_stream(logits)
        inputs, written = (face.viewable(logits), target, states, dloss), face.writable(dx)
    else:
        inputs, written = (logits, target, states, dloss), dx
    _route.run_into(_core.cross_entropy_into, inputs, written, axis, shard_offset=offset, shard_size=size, **options)
    return dx


@refusing
def join_topk(partials, k, *, sorted=True, empty="zero", dtype=None, return_probabilities=False,
              return_log_probabilities=False, return_lse=False):  # fmt: skip
    """The k largest elements of whole rows, as topk gives them, from the partials of all shards, folded with k or more.

    partials: (P,) + rows + (width,). sorted, empty: as in topk; the scale is that of the partials. dtype: of the values
    and what follows the indices, x's own for the same bits; float64 by default.
    Returns (values, indices, ...) with what was asked for in this order; rows + (k,), indices int64 of the whole rows.
    Raises softfold.Error before any work.
    """
    partials = _array(partials, "join_topk")
    rows, dtype = tuple(partials.shape[1:-1]), _route.dtype_like(partials, "float64" if dtype is None else dtype)
    shape = taken_shape(partials, k, -1)[1:]
    values, indices = _new(partials, shape, dtype), _new(partials, shape, "int64")
    probabilities = _new(partials, shape, dtype) if return_probabilities else None
    log_probabilities = _new(partials, shape, dtype) if return_log_probabilities else None
    lse = _new(partials, rows, dtype) if return_lse else None
    _run(_core.join_topk_into, (partials,), (values, indices), sorted=sorted, empty=empty, probabilities=probabilities,
         log_probabilities=log_probabilities, lse=lse)  # fmt: skip
    return returned((values, indices, probabilities, log_probabilities, lse))


@refusing
def sample_shard(x, partials, offset, size, axis=-1, *, seed=0, draw=0, row_ids=None, scale=1.0, scales=None,
                 lengths=None, mask=None):  # fmt: skip
    """What softfold.sample draws from whole rows, where this shard has it, else -1: the largest of all ranks' is the
    row's token.

    x, offset, size, axis, scales, lengths, mask: as they were for fold_shard; scale: 1 / temperature, there too.
    partials: (P,) + rows + (width,), of all shards, folded from float32, float16 or bfloat16.
    seed, draw, row_ids: seed, offset and row_ids of softfold.sample. No filters: join_topk(partials, 1) is temperature 0.
    Returns int64, one a row. Raises softfold.Error before any work.
    """
    x, partials = _array(x, "sample_shard"), _array(partials, "sample_shard")
    tokens = _new(x, row_shape(x, axis, None), "int64")
    seed, draw = (number_of(name, v) if isinstance(v, numbers.Number) else v if hasattr(v, "__dlpack__")
                  else np.asarray(v, "int64") for name, v in (("seed", seed), ("draw", draw)))  # fmt: skip
    if row_ids is not None and not hasattr(row_ids, "__dlpack__"):
        row_ids = np.asarray(row_ids, "int64")
    _run(_core.sample_shard_into, (x, partials), (tokens,), axis, offset, size, seed=seed, draw=draw, row_ids=row_ids,
         scale=scale, scales=scales, lengths=lengths, mask=mask)  # fmt: skip
    return returned((tokens,))
