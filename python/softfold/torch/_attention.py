"""attention as a custom op, and torch's scaled_dot_product_attention over it. No gradient yet: it is refused."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from softfold import _core
from softfold._attention import checked_options, result_shapes
from softfold._errors import DTypeError, UnsupportedError
from softfold.torch._ops import _operation, current_stream, is_eager, needs_grad, viewable, writable


def _results(q: Tensor, v: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    shape, rows = result_shapes(q.shape, v.shape, layout)
    return q.new_empty(shape), q.new_empty(rows, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def _into(q, k, v, out, lse, **options):
    options = {name: viewable(value) for name, value in options.items()}
    _core.attention_into(*map(viewable, (q, k, v)), writable(out), lse if lse is None else writable(lse),
                         stream=current_stream(q), **options)  # fmt: skip


@_operation
def _attention(q: Tensor, k: Tensor, v: Tensor, scale: Optional[float], causal: bool, left: int, right: int,
               softcap: float, sink: Optional[Tensor], bias: Optional[Tensor], mask: Optional[Tensor],
               slopes: Optional[Tensor], lengths: Optional[Tensor], starts: Optional[Tensor],
               layout: str) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = _results(q, v, layout)
    _into(q, k, v, out, lse, scale=scale, causal=causal, window=(left, right), softcap=softcap, sink=sink, bias=bias,
          mask=mask, slopes=slopes, lengths=lengths, starts=starts, layout=layout)  # fmt: skip
    return out, lse


_attention.register_fake(lambda q, k, v, *options: _results(q, v, options[-1]))


def _check_tensor(name: str, x) -> None:
    if not isinstance(x, Tensor):
        raise DTypeError("dtype", f"{name}, a {type(x).__name__}", "a torch.Tensor", "torch.as_tensor of it")
    if x.layout != torch.strided:
        raise UnsupportedError("unsupported", f"{name} of layout {x.layout}", "torch.strided", f"{name}.to_dense()")


def _operand(name: str, x, q: Tensor) -> Optional[Tensor]:
    """An option as a tensor: arrays are viewed where they are, numbers go to q's device."""
    if x is None:
        return None
    if not isinstance(x, Tensor):
        try:
            x = torch.as_tensor(x, device=q.device if isinstance(x, (list, tuple, int, float)) else None)
        except (TypeError, ValueError, RuntimeError):
            raise DTypeError("dtype", f"{name}, a {type(x).__name__}", "a tensor, or numbers") from None
    _check_tensor(name, x)
    return x


def attention(q, k, v, *, scale=None, causal=False, window=(-1, -1), softcap=0.0, sink=None, bias=None, mask=None,
              slopes=None, lengths=None, starts=None, layout="bhtd", return_lse=False):  # fmt: skip
    """softfold.attention of tensors. No gradient: tensors that require one are refused."""
    return run_attention(q, k, v, None, return_lse, sink=sink, bias=bias, mask=mask, slopes=slopes, lengths=lengths,
                         starts=starts, **checked_options(scale, causal, window, softcap, layout))  # fmt: skip


def run_attention(q, k, v, out, return_lse, *, scale, causal, window, softcap, layout, **operands):
    """softfold.attention of tensors, its checked_options() apart."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_tensor(name, x)
    operands = {name: _operand(name, x, q) for name, x in operands.items()}
    if any(needs_grad(x) for x in (q, k, v, *operands.values()) if x is not None):
        raise UnsupportedError("unsupported", "attention of tensors that require a gradient", "tensors without one",
                               "torch.no_grad(), or torch's scaled_dot_product_attention")  # fmt: skip
    if out is not None:
        _check_tensor("out", out)
        lse = _results(q, v, layout)[1] if return_lse else None
        _into(q, k, v, out, lse, scale=scale, causal=causal, window=window, softcap=softcap, layout=layout, **operands)
        return (out, lse) if return_lse else out
    now = all(map(is_eager, (q, k, v))) and not q.is_meta
    out, lse = (_attention.now if now else _attention)(q, k, v, scale, causal, *window, softcap, **operands,
                                                       layout=layout)  # fmt: skip
    return (out, lse) if return_lse else out


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
                                 enable_gqa=False):  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention, without dropout and gradient: (..., H, T, D) of rank 2 to 4.

    is_causal is torch's: query i sees keys up to i, also where there are more or fewer keys than queries.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        _check_tensor(name, x)
    if attn_mask is not None:
        _check_tensor("attn_mask", attn_mask)
    if dropout_p != 0:
        raise UnsupportedError("unsupported", f"dropout_p={dropout_p}", "0", "eval()")
    if not enable_gqa and query.dim() > 2 and query.shape[-3] != key.shape[-3]:
        raise UnsupportedError("unsupported", f"{query.shape[-3]} query heads and {key.shape[-3]} key heads",
                               "the same number", "enable_gqa=True")  # fmt: skip
    options = {}
    if attn_mask is not None:
        options["mask" if attn_mask.dtype == torch.bool else "bias"] = attn_mask
    if is_causal:
        if attn_mask is not None:
            raise UnsupportedError("unsupported", "is_causal with attn_mask", "one of them")
        t, s = query.shape[-2], key.shape[-2]
        if t >= s:
            options["window"] = (-1, t - s)  # softfold's diagonal ends at the last key, torch's begins at the first
        else:
            options["mask"] = torch.ones(t, s, dtype=torch.bool, device=query.device).tril()
    return attention(query, key, value, scale=scale, **options)
