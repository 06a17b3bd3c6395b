"""attention as a custom op, and torch's scaled_dot_product_attention over it. No gradient yet: it is refused."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from softfold import _core
from softfold._attention import checked_options, hide_rows, result_shapes, results
from softfold._errors import DTypeError, UnsupportedError
from softfold.torch._ops import _operation, current_stream, is_eager, needs_grad, viewable, writable


def _results(q: Tensor, v: Tensor, with_state: bool, layout: str) -> tuple[Tensor, Tensor, Tensor]:
    """out, lse and the state, which is empty where it is not asked for: an op's results are tensors."""
    shape, rows = result_shapes(q.shape, v.shape, layout)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    state = (*rows, 2 + shape[-1]) if with_state else (0,)
    return q.new_empty(shape), q.new_empty(rows, dtype=dtype), q.new_empty(state, dtype=dtype)


def _into(q, k, v, out, lse, state, **options):
    options = {name: viewable(value) for name, value in options.items()}
    options["state"] = state if state is None else writable(state)
    _core.attention_into(*map(viewable, (q, k, v)), writable(out), lse if lse is None else writable(lse),
                         stream=current_stream(q), **options)  # fmt: skip


@_operation
def _attention(q: Tensor, k: Tensor, v: Tensor, scale: Optional[float], causal: bool, left: int, right: int,
               softcap: float, sink: Optional[Tensor], bias: Optional[Tensor], mask: Optional[Tensor],
               slopes: Optional[Tensor], lengths: Optional[Tensor], starts: Optional[Tensor], index: Optional[Tensor],
               q_offsets: Optional[Tensor], kv_offsets: Optional[Tensor], max_q: int, max_kv: int, with_state: bool,
               layout: str) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    out, lse, state = _results(q, v, with_state, layout)
    if q_offsets is not None:
        hide_rows(out, lse, state if with_state else None)
    _into(q, k, v, out, lse, state if with_state else None, scale=scale, causal=causal, window=(left, right),
          softcap=softcap, sink=sink, bias=bias, mask=mask, slopes=slopes, lengths=lengths, starts=starts, index=index,
          q_offsets=q_offsets, kv_offsets=kv_offsets, max_q=max_q, max_kv=max_kv, layout=layout)  # fmt: skip
    return out, lse, state


_attention.register_fake(lambda q, k, v, *options: _results(q, v, *options[-2:]))


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
              slopes=None, lengths=None, starts=None, index=None, q_offsets=None, kv_offsets=None, max_q=0, max_kv=0,
              layout="bhtd", return_lse=False, return_state=False):  # fmt: skip
    """softfold.attention of tensors. No gradient: tensors that require one are refused."""
    return run_attention(q, k, v, None, return_lse, return_state, sink=sink, bias=bias, mask=mask, slopes=slopes,
                         lengths=lengths, starts=starts, index=index, q_offsets=q_offsets, kv_offsets=kv_offsets,
                         **checked_options(scale, causal, window, softcap, layout, max_q, max_kv))  # fmt: skip


def run_attention(q, k, v, out, return_lse, return_state, *, scale, causal, window, softcap, layout, max_q, max_kv,
                  **operands):  # fmt: skip
    """softfold.attention of tensors, its checked_options() apart."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_tensor(name, x)
    operands = {name: _operand(name, x, q) for name, x in operands.items()}
    if any(needs_grad(x) for x in (q, k, v, *operands.values()) if x is not None):
        raise UnsupportedError("unsupported", "attention of tensors that require a gradient", "tensors without one",
                               "torch.no_grad(), or torch's scaled_dot_product_attention")  # fmt: skip
    if out is not None:
        _check_tensor("out", out)
        _, lse, state = _results(q, v, return_state, layout)
        lse, state = lse if return_lse else None, state if return_state else None
        if operands["q_offsets"] is not None:
            hide_rows(None, lse, state)
        _into(q, k, v, out, lse, state, scale=scale, causal=causal, window=window, softcap=softcap, max_q=max_q,
              max_kv=max_kv, layout=layout, **operands)  # fmt: skip
        return results(out, lse, state)
    now = all(map(is_eager, (q, k, v))) and not q.is_meta
    out, lse, state = (_attention.now if now else _attention)(
        q, k, v, scale, causal, *window, softcap, **operands, max_q=max_q, max_kv=max_kv, with_state=return_state,
        layout=layout)  # fmt: skip
    return results(out, lse if return_lse else None, state if return_state else None)


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
