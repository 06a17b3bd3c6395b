"""topk for NumPy arrays and those of the array API; tensors go to softfold.torch."""

from __future__ import annotations

import importlib

import numpy as np

from softfold import _core, _route
from softfold._errors import Error, integer, refusing
from softfold._losses import foldable, returned, row_shape
from softfold._states import _empty_like


def taken_shape(x, k, axis) -> tuple:
    """x's shape with k along the axis; an axis that x lacks is left for the operation to refuse."""
    if not 0 <= k < 2**63:
        raise Error("shape", f"k = {k}", "k from 0 to the size of the axis")
    rank = len(x.shape)
    return tuple(k if axis in (i, i - rank) else n for i, n in enumerate(x.shape))


@refusing
def topk(x, k, axis=-1, *, sorted=True, scale=1.0, scales=None, lengths=None, mask=None, causal=False, empty="zero",
         out=None, dtype=None, return_probabilities=False, return_log_probabilities=False,
         return_lse=False):  # fmt: skip
    """The k largest elements of each row and where they stand, in one read; with their probabilities if asked.

    x: floating, of any strides; k: 0 to the size of the axis. The order is total: NaN first, then from +inf down to
       -inf, of equal elements the one with the lowest index first. sorted: best first, else by ascending index.
    scale, scales: of the probabilities and of lse alone; lengths, mask, causal, empty: as in softmax. Where fewer than
       k elements exist: -inf, index -1, probability 0.
    out: (values, indices) to write to, indices of int64 or int32. dtype: of what follows them, x's by default.
    return_probabilities, return_log_probabilities: softmax's over the whole row, of the elements taken. return_lse: one
       a row, of the whole row.
    Returns (values, indices, ...), with what was asked for in this order; x's shape with k along the axis, indices
    int64. Raises softfold.Error before any work.
    """
    k = integer("k", k)
    options = dict(sorted=sorted, scale=scale, scales=scales, lengths=lengths, mask=mask, causal=causal, empty=empty)
    wanted = (return_probabilities, return_log_probabilities, return_lse)
    dtype = _route.dtype_like(x, dtype)
    if _route._library(x) == "torch":
        return importlib.import_module("softfold.torch").run_topk(x, k, axis, out, dtype, wanted, options)
    x = foldable(x, "topk")
    shape = taken_shape(x, k, axis)
    space = x.__array_namespace__() if hasattr(x, "__array_namespace__") else np
    values, indices = (_empty_like(x, shape), _empty_like(x, shape, space.int64)) if out is None else out
    probabilities, log_probabilities = (_empty_like(x, shape, dtype) if asked else None for asked in wanted[:2])
    lse = _empty_like(x, row_shape(x, axis, None), dtype) if return_lse else None
    _route.run_into(_core.topk_into, x, values, indices, axis, probabilities=probabilities,
                    log_probabilities=log_probabilities, lse=lse, **options)  # fmt: skip
    return returned((values, indices, probabilities, log_probabilities, lse))
