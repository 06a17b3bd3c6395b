"""linear_cross_entropy for NumPy arrays and those of the array API; tensors go to softfold.torch."""

from __future__ import annotations

import importlib

import numpy as np

from softfold import _core, _route
from softfold._errors import refusing
from softfold._losses import check_classes, foldable, returned
from softfold._states import _empty_like


@refusing
def linear_cross_entropy(x, weight, target, bias=None, *, softcap=0.0, mode="fast", class_weight=None,
                         ignore_index=-100, reduction="mean", label_smoothing=0.0, z_loss=0.0, scale=1.0, mask=None,
                         empty="zero", out=None, dtype=None, return_log_probability=False,
                         return_gradients=False):  # fmt: skip
    """The cross-entropy of the logits x @ weight.T + bias against targets; the logits are never a result.

    x: floating, (..., D); weight: floating, (V, D), float64 if and only if x is; bias: floating, (V).
    target: int64 or int32, class indices, x's shape without its last axis.
    softcap: logits become softcap * tanh(logits / softcap); 0: off. mode: "fast" holds all logits, "lean" those of a
       block of classes (on the CPU both hold those of 256 rows).
    class_weight: floating, (V). ignore_index, reduction, label_smoothing, z_loss, scale, mask (of the logits), empty,
       out, dtype: as in cross_entropy.
    return_log_probability: of the target too, one a row. return_gradients: of the loss (of "none": of the losses' sum)
       with respect to x, weight, and bias if there is one, from the same call, of their dtypes.
    Returns the loss, or a tuple. Raises softfold.Error before any work.
    """
    options = dict(softcap=softcap, mode=mode, class_weight=class_weight, ignore_index=ignore_index,
                   reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss, scale=scale, mask=mask,
                   empty=empty)  # fmt: skip
    wanted = (return_log_probability, return_gradients)
    dtype = _route.dtype_like(x, dtype)
    if _route._library(x) == "torch":
        face = importlib.import_module("softfold.torch")
        return face.run_linear_cross_entropy(x, weight, target, bias, out, dtype, wanted, options)
    x, weight = foldable(x, "linear_cross_entropy"), foldable(weight, "linear_cross_entropy")
    target = np.asarray(target) if not hasattr(target, "__dlpack__") else target
    check_classes(target, len(x.shape))
    _route.refuse_masked(target, bias, class_weight, mask, out)
    rows = tuple(x.shape[:-1])
    loss = _empty_like(x, rows if reduction == "none" else (), dtype) if out is None else out
    log_probability = _empty_like(x, rows, dtype) if return_log_probability else None
    operands = (x, weight, bias) if return_gradients else ()
    gradients = [None if a is None else _empty_like(a) for a in operands] or [None] * 3
    _route.run_into(_core.linear_cross_entropy_into, (x, weight, target), loss, bias=bias,
                    log_probability=log_probability, dx=gradients[0], dweight=gradients[1], dbias=gradients[2],
                    **options)  # fmt: skip
    return returned((loss, log_probability, *gradients), out is None)
