"""topk as a custom op; the values have a gradient."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from softfold import _core
from softfold._errors import UnsupportedError
from softfold._losses import returned
from softfold._topk import taken_shape
from softfold.torch._losses import as_tensors
from softfold.torch._ops import _checked, _function, _nan, _new, _operation, _row_shape, current_stream, is_eager
from softfold.torch._ops import needs_grad, viewable, writable


def _results(x: Tensor, k: int, dim: int, wanted: list[bool], dtype: Optional[torch.dtype]):
    """values, indices, probabilities, log_probabilities, lse: what is not wanted has no elements."""
    shape = taken_shape(x, k, dim)
    shapes = shape, shape, _row_shape(x, [dim], False, None, "logsumexp")
    asked = (_new(x, s if w else (0,), dtype) for s, w in zip(shapes, wanted))
    return _new(x, shape), _new(x, shape, torch.int64), *asked


def _into(x, results, wanted, dim, **options):
    values, indices, *asked = results
    probabilities, log_probabilities, lse = (writable(t) if w else None for t, w in zip(asked, wanted))
    options = {name: viewable(value) for name, value in options.items()}
    _core.topk_into(viewable(x), writable(values), writable(indices), dim, probabilities=probabilities,
                    log_probabilities=log_probabilities, lse=lse, stream=current_stream(x), **options)  # fmt: skip


@_operation
def _topk(x: Tensor, k: int, dim: int, sorted: bool, wanted: list[bool], scale: float, scales: Optional[Tensor],
          lengths: Optional[Tensor], mask: Optional[Tensor], causal: bool, empty_nan: bool,
          dtype: Optional[torch.dtype]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    results = _results(x, k, dim, wanted, dtype)
    _into(x, results, wanted, dim, sorted=sorted, scale=scale, scales=scales, lengths=lengths, mask=mask,
          causal=causal, empty="nan" if empty_nan else "zero")  # fmt: skip
    return results


@_topk.register_fake
def _(x, k, dim, sorted, wanted, scale, scales, lengths, mask, causal, empty_nan, dtype):
    return _results(x, k, dim, wanted, dtype)


def _save(ctx, inputs, output):
    ctx.shape, ctx.dim = inputs[0].shape, inputs[2]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _vjp(ctx, dvalues, *_):
    if dvalues is None:
        return (None,) * 12
    (indices,) = ctx.saved_tensors
    exists = indices >= 0  # where no k elements do, index 0 gains 0
    dx = dvalues.new_zeros(ctx.shape).scatter_add(ctx.dim, indices.clamp(min=0), torch.where(exists, dvalues, 0))
    return dx, *(None,) * 11


_topk.register_autograd(_vjp, setup_context=_save)
_TopK = _function(_topk, _save, _vjp)


def topk(input, k, dim=-1, largest=True, sorted=True, *, dtype=None, scale=1.0, scales=None, lengths=None, mask=None,
         causal=False, empty="zero", return_probabilities=False, return_log_probabilities=False,
         return_lse=False):  # fmt: skip
    """torch.topk of the largest elements, as softfold.topk gives them: (values, indices, ...).

    The values have a gradient; probabilities, log-probabilities and lse of an input that requires one are refused.
    """
    wanted = [bool(w) for w in (return_probabilities, return_log_probabilities, return_lse)]
    if not largest:
        raise UnsupportedError("unsupported", "largest=False", "True", "topk(-input, k)")
    if needs_grad(input) and any(wanted):
        raise UnsupportedError("unsupported", "probabilities or lse of topk with a gradient", "values and indices",
                               "log_softmax(input).gather(dim, indices), or input.detach()")  # fmt: skip
    x, dtype = _checked(input, dtype, scales)
    op = _topk if not is_eager(x) else _TopK.apply if needs_grad(x) else _topk.now
    results = op(x, k, dim, sorted, wanted, float(scale), scales, lengths, mask, causal, _nan(empty), dtype)
    return returned(r for r, w in zip(results, [True, True, *wanted]) if w)


def run_topk(x, k, axis, out, dtype, wanted, options):
    """softfold.topk, called with tensors: with autograd where there is no out."""
    options = as_tensors(x, options)
    if out is None:
        names = ("return_probabilities", "return_log_probabilities", "return_lse")
        return topk(x, k, axis, dtype=dtype, **options, **dict(zip(names, wanted)))
    results = *out, *_results(x, k, axis, wanted, dtype)[2:]
    _into(x, results, wanted, axis, **options)
    return returned(r for r, w in zip(results, [True, True, *wanted]) if w)
