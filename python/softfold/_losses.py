"""cross_entropy, entropy, kl_divergence for NumPy arrays and those of the array API; tensors go to softfold.torch."""

from __future__ import annotations

import importlib

import numpy as np

from softfold import _core, _route
from softfold._errors import DTypeError, UnsupportedError, refusing
from softfold._states import _empty_like


def foldable(x, name):
    """x as an array that softfold._core can view, of any library but PyTorch."""
    library = _route._library(x)
    if library in ("jax", "jaxlib"):
        raise DTypeError("dtype", f"{name} of JAX arrays", "NumPy, PyTorch", "numpy.asarray(x) is a view")
    if library != "numpy" and hasattr(x, "__dlpack__"):
        return x
    drawn = name in ("sample", "renormalise", "mask_logits", "sample_shard")
    return _route._as_floating(x, _route._DRAWN if drawn else _route._FLOATS)


def check_classes(target, rank):
    """Refuses what is no class index: floating targets, of which those of the logits' rank are class probabilities."""
    if "float" in str(target.dtype) and len(target.shape) < rank:
        raise DTypeError("dtype", f"a target of {target.dtype}, one a row", "class indices: int64 or int32",
                         "convert it to int64")  # fmt: skip
    if "float" in str(target.dtype):
        raise UnsupportedError("unsupported", f"a target of {target.dtype}: class probabilities",
                               "class indices: int64 or int32", "-(target * log_softmax(x)).sum")  # fmt: skip


def row_shape(x, axis, offsets) -> tuple:
    """The shape of what has one value a row."""
    offsets = np.asarray(offsets) if isinstance(offsets, (list, tuple)) else offsets
    return _route.result_shape("logsumexp", tuple(x.shape), axis, False, offsets)


def returned(results, fresh=True):
    """One result alone, several as a tuple; as NumPy's own functions, a scalar for a new array without axes."""
    results = [r[()] if isinstance(r, np.ndarray) and r.ndim == 0 and (fresh or i) else r
               for i, r in enumerate(results) if r is not None]  # fmt: skip
    return results[0] if len(results) == 1 else tuple(results)


@refusing
def cross_entropy(logits, target, axis=-1, *, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0,
                  z_loss=0.0, scale=1.0, scales=None, lengths=None, offsets=None, mask=None, causal=False,
                  empty="zero", out=None, dtype=None, status=None, return_log_probability=False,
                  return_gradient=False):  # fmt: skip
    """The loss of class logits against targets: -log_softmax(logits)[target], as torch.nn.functional.cross_entropy.

    logits: floating, of any strides; axis: that of the classes (PyTorch's is 1: softfold.torch.cross_entropy).
    target: int64 or int32, class indices, one a row: logits' shape without the axis. On the CPU also class
       probabilities: floating, of logits' shape, float64 if and only if these are.
    weight: floating, [classes]. ignore_index: rows with this target have the loss 0 and do not count.
    reduction: "none" (one loss a row), "sum", "mean" (the sum over the weights of the targets of all rows that count; 0
       if none does, with empty="nan" NaN). label_smoothing: 0 to 1. z_loss: adds z_loss weight[target] lse**2.
    scale, scales, lengths, offsets, mask, causal, empty: as in softmax; classes that do not exist have no part in it.
    out: where to write the loss; dtype: of the loss and log-probability, logits' by default. status: int32, one number,
       where to write how many targets are no class: on a GPU their rows have the loss NaN, on the CPU they are refused.
    return_log_probability: of the target too, one a row. return_gradient: of the loss (of "none": of the losses' sum)
       with respect to logits too, from the same call. Both: (loss, log_probability, gradient).
    Returns the loss, or a tuple. Raises softfold.Error before any work.
    """
    options = dict(weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
                   z_loss=z_loss, scale=scale, scales=scales, lengths=lengths, offsets=offsets, mask=mask,
                   causal=causal, empty=empty, status=status)  # fmt: skip
    wanted = (return_log_probability, return_gradient)
    dtype = _route.dtype_like(logits, dtype)
    if _route._library(logits) == "torch":
        face = importlib.import_module("softfold.torch")
        return face.run_cross_entropy(logits, target, axis, out, dtype, wanted, options)
    logits = foldable(logits, "cross_entropy")
    target = np.asarray(target) if not hasattr(target, "__dlpack__") else target
    rows = row_shape(logits, axis, offsets)
    loss = _empty_like(logits, rows if reduction == "none" else (), dtype) if out is None else out
    log_probability = _empty_like(logits, rows, dtype) if return_log_probability else None
    gradient = _empty_like(logits) if return_gradient else None
    _route.run_into(_core.cross_entropy_into, (logits, target), loss, axis, log_probability=log_probability,
                    gradient=gradient, **options)  # fmt: skip
    return returned((loss, log_probability, gradient), out is None)


@refusing
def entropy(x, axis=-1, *, scale=1.0, scales=None, lengths=None, offsets=None, mask=None, causal=False, empty="zero",
            out=None, dtype=None, return_gradient=False):  # fmt: skip
    """The entropy of softmax(scale x) along axis, -sum p ln p, in nats.

    x: floating logits, of any strides. scale, scales, lengths, offsets, mask, causal, empty: as in softmax; a row with
    nothing in it has the entropy 0 (empty="nan": NaN).
    out: where to write; dtype: of the entropy, x's by default. return_gradient: of the entropies' sum with respect to x
    too, from the same call: (entropy, gradient).
    Returns an array of x's shape without the axis, or a tuple. Raises softfold.Error before any work.
    """
    options = dict(scale=scale, scales=scales, lengths=lengths, offsets=offsets, mask=mask, causal=causal, empty=empty)
    dtype = _route.dtype_like(x, dtype)
    if _route._library(x) == "torch":
        face = importlib.import_module("softfold.torch")
        return face.run_entropy(x, axis, out, dtype, return_gradient, options)
    x = foldable(x, "entropy")
    result = _empty_like(x, row_shape(x, axis, offsets), dtype) if out is None else out
    gradient = _empty_like(x) if return_gradient else None
    _route.run_into(_core.entropy_into, (x,), result, axis, gradient=gradient, **options)
    return returned((result, gradient), out is None)


@refusing
def kl_divergence(p_logits, q_logits, axis=-1, *, scale=1.0, scales=None, lengths=None, offsets=None, mask=None,
                  causal=False, empty="zero", out=None, dtype=None, return_gradients=False):  # fmt: skip
    """KL(p || q) = sum p (ln p - ln q) along axis, in nats, p and q softmaxes of scale times the logits.

    p_logits, q_logits: floating logits of one shape, of any strides, both float64 or neither. scale, scales, lengths,
    offsets, mask, causal, empty: as in softmax, of both. It is never negative, accurate to a few roundings of itself
    also where the rows are close, inf where q_logits alone is -inf, and 0 of a row with nothing in p_logits
    (empty="nan": NaN).
    out: where to write; dtype: of the divergence, p_logits' by default. return_gradients: of the divergences' sum with
    respect to both logits too, from the same call: (divergence, p_gradient, q_gradient).
    Returns an array of p_logits' shape without the axis, or a tuple. Raises softfold.Error before any work.
    """
    options = dict(scale=scale, scales=scales, lengths=lengths, offsets=offsets, mask=mask, causal=causal, empty=empty)
    dtype = _route.dtype_like(p_logits, dtype)
    if _route._library(p_logits) == "torch":
        face = importlib.import_module("softfold.torch")
        return face.run_kl_divergence(p_logits, q_logits, axis, out, dtype, return_gradients, options)
    p, q = foldable(p_logits, "kl_divergence"), foldable(q_logits, "kl_divergence")
    result = _empty_like(p, row_shape(p, axis, offsets), dtype) if out is None else out
    gradients = (_empty_like(p), _empty_like(q)) if return_gradients else (None, None)
    _route.run_into(_core.kl_divergence_into, (p, q), result, axis, p_gradient=gradients[0], q_gradient=gradients[1],
                    **options)  # fmt: skip
    return returned((result, *gradients), out is None)
