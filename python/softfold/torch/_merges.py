"""Merges and finishing passes as torch.library custom ops (torch.ops.softfold.*), over softfold._core.

States carry no gradient. The merges of results (merge_attention, merge_blocks) do: with w = exp(lse_i - lse), a part's
output weighs w and its lse collects w (dlse + dout (out_i - out)).
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from softfold import _core, _states
from softfold._errors import Error, UnsupportedError
from softfold.torch._ops import _run, batched_first, current_stream, needs_grad, viewable, writable

_LN2 = 0.6931471805599453


def _merge(op, inputs, outputs, **options):
    _core.merge_into(op, tuple(map(viewable, inputs)), tuple(map(writable, outputs)),
                     stream=current_stream(inputs[0]), **options)  # fmt: skip


def _pairs(values, lses):
    return tuple(a for pair in zip(values, lses, strict=True) for a in pair)


def _fresh(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("softfold::merge_states", mutates_args=())
def _merge_states(states: list[Tensor]) -> Tensor:
    out = _fresh(states[0])
    _merge("merge_states", states, (out,))
    return out


_merge_states.register_fake(lambda states: _fresh(states[0]))


@torch.library.custom_op("softfold::finish_logsumexp", mutates_args=())
def _finish_logsumexp(states: Tensor, dtype: Optional[torch.dtype]) -> Tensor:
    return _run("finish_logsumexp", (states,), states.new_empty(states.shape[:-1], dtype=dtype), None)


_finish_logsumexp.register_fake(lambda states, dtype: states.new_empty(states.shape[:-1], dtype=dtype))


@torch.library.custom_op("softfold::finish_softmax", mutates_args=())
def _finish_softmax(x: Tensor, states: Tensor, dim: list[int], scale: float, log: bool,
                    dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    out = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return _run("finish_log_softmax" if log else "finish_softmax", (x, states), out, dim, scale)


_finish_softmax.register_fake(
    lambda x, states, dim, scale, log, dtype: torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
)


@torch.library.custom_op("softfold::logsumexp_backward", mutates_args=())
def _logsumexp_backward(x: Tensor, states: Tensor, dlse: Tensor, dim: list[int], scale: float) -> Tensor:
    return _run("logsumexp_backward", (x, states, dlse), _fresh(x), dim, scale)


_logsumexp_backward.register_fake(lambda x, states, dlse, dim, scale: _fresh(x))


@torch.library.custom_op("softfold::merge_attention", mutates_args=())
def _merge_attention(outs: list[Tensor], lses: list[Tensor], base2: bool) -> tuple[Tensor, Tensor]:
    out, lse = _fresh(outs[0]), _fresh(lses[0])
    _merge("merge_attention", _pairs(outs, lses), (out, lse), base="2" if base2 else "natural")
    return out, lse


_merge_attention.register_fake(lambda outs, lses, base2: (_fresh(outs[0]), _fresh(lses[0])))


@torch.library.custom_op("softfold::merge_blocks", mutates_args=())
def _merge_blocks(ps: list[Tensor], lses: list[Tensor], base2: bool) -> list[Tensor]:
    outputs = [*map(_fresh, ps), _fresh(lses[0])]
    _merge("merge_blocks", _pairs(ps, lses), outputs, base="2" if base2 else "natural")
    return outputs


_merge_blocks.register_fake(lambda ps, lses, base2: [*map(_fresh, ps), _fresh(lses[0])])


def _save(ctx, inputs, output):
    values, lses, ctx.base2 = inputs
    ctx.count = len(values)
    ctx.save_for_backward(*values, *lses, *output)


def _weights(lses, lse, base2):
    """exp(lse_i - lse), one more axis behind; an empty row's parts weigh 0."""
    unit = _LN2 if base2 else 1.0
    return [torch.where(lse == -torch.inf, 0, torch.exp((part - lse) * unit)).unsqueeze(-1) for part in lses]


def _attention_vjp(ctx, dout, dlse):
    saved, unit = ctx.saved_tensors, _LN2 if ctx.base2 else 1.0
    outs, lses, (out, lse) = saved[: ctx.count], saved[ctx.count : -2], saved[-2:]
    weights = _weights(lses, lse, ctx.base2)
    douts = [(w * dout).to(out.dtype) for w in weights]
    dlses = [
        (w.squeeze(-1) * (dlse + unit * (dout * (part - out)).sum(-1))).to(lse.dtype) for w, part in zip(weights, outs)
    ]
    return douts, dlses, None


def _blocks_vjp(ctx, grads):
    saved, unit = ctx.saved_tensors, _LN2 if ctx.base2 else 1.0
    ps, lses, lse = saved[: ctx.count], saved[ctx.count : 2 * ctx.count], saved[-1]
    weights = _weights(lses, lse, ctx.base2)
    shares = [(w * p * g).sum(-1) * unit for w, p, g in zip(weights, ps, grads)]
    dps = [(w * g).to(p.dtype) for w, p, g in zip(weights, ps, grads)]
    rest = grads[-1] - sum(shares)
    return dps, [(s + w.squeeze(-1) * rest).to(lse.dtype) for s, w in zip(shares, weights)], None


_merge_attention.register_autograd(_attention_vjp, setup_context=_save)
_merge_blocks.register_autograd(_blocks_vjp, setup_context=_save)


# vmap: a batch is one more row axis, in front.


@_merge_states.register_vmap
def _(info, in_dims, states):
    return _merge_states([t.contiguous() for t in batched_first(info, in_dims[0], states)]), 0


@_finish_logsumexp.register_vmap
def _(info, in_dims, states, dtype):
    return _finish_logsumexp(states.movedim(in_dims[0], 0), dtype), 0


@_finish_softmax.register_vmap
def _(info, in_dims, x, states, dim, scale, log, dtype):
    rank = x.dim() - (in_dims[0] is not None)
    x, states = batched_first(info, in_dims, (x, states))
    return _finish_softmax(x, states.contiguous(), [d - rank if d >= 0 else d for d in dim], scale, log, dtype), 0


def _register_parts_vmap(op, several):
    @op.register_vmap
    def _(info, in_dims, values, lses, base2):
        # Parts have the same strides, which batches along different dims have not.
        values, lses = ([t.contiguous() for t in batched_first(info, d, of)] for d, of in zip(in_dims, (values, lses)))
        merged = op(values, lses, base2)
        return merged, [0] * len(merged) if several else (0, 0)


_register_parts_vmap(_merge_attention, False)
_register_parts_vmap(_merge_blocks, True)


def _is_base2(base) -> bool:
    if base not in ("natural", 2):
        raise Error("option", f"base={base!r}", '"natural" or 2')
    return base == 2


def _counted(values, lses, name):
    if not values or len(values) != len(lses):
        raise Error("shape", f"{len(values)} {name} and {len(lses)} lses", "as many of one as of the other, at least 1")
    return list(values), list(lses)


def merge_states(*states: Tensor) -> Tensor:
    """The states of shards (float64, (..., 4)) merged, neighbours first, into the whole rows' states; no gradient."""
    if not states:
        raise Error("shape", "no states", "at least one")
    return _merge_states(list(states))


def finish(states: Tensor, x: Optional[Tensor] = None, dim=-1, *, scale=1.0, log=False, dtype=None) -> Tensor:
    """logsumexp of merged states (float64 by default); given a shard x, its part of the rows' (log-)softmax. No
    gradient: softmax of the whole row has one."""
    if x is None:
        return _finish_logsumexp(states, dtype)
    dims = list(range(x.dim())) if dim is None else list(dim) if isinstance(dim, (tuple, list)) else [dim]
    return _finish_softmax(x.detach(), states, dims, float(scale), log, dtype)


def merge_attention(outs, lses, *, base="natural", statistics="lse") -> tuple[Tensor, Tensor]:
    """Attention outputs (..., D) over disjoint keys and their lses (...), merged; differentiable, but for
    statistics="max_sum". See softfold.merge_attention. Returns (out, lse)."""
    if statistics != "lse":
        if any(map(needs_grad, (*outs, *lses))):
            raise UnsupportedError("unsupported", f'statistics="{statistics}" of tensors that require a gradient',
                                   'statistics="lse"', "torch.no_grad()")  # fmt: skip
        return _states.merge_attention(outs, lses, base=base, statistics=statistics)
    return _merge_attention(*_counted(outs, lses, "outs"), _is_base2(base))


def merge_blocks(ps, lses, *, base="natural") -> tuple[list[Tensor], Tensor]:
    """Softmaxes (..., n) of the blocks of rows and their lses (...), rescaled to the softmax of the whole rows;
    differentiable. Returns (list of rescaled ps, joint lse)."""
    *merged, lse = _merge_blocks(*_counted(ps, lses, "ps"), _is_base2(base))
    return merged, lse
