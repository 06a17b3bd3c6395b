"""The operations as torch.library custom ops (torch.ops.softfold.*), with fakes, gradients and vmap.

One schema for all: x (or y, dy; or x), the folded dims, then the options. Registered from Python, over softfold._core.
"""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from softfold import _core, _route
from softfold._errors import DTypeError, Error, UnsupportedError


_IS_EXCHANGED = _core.use_exchange(Tensor)  # torch 2.10 and newer: no capsule is needed


def viewable(x):
    """What softfold._core can view: a tensor, a DLPack capsule of one, anything else as it is. Nothing is copied but a
    tensor that torch negates lazily, as torch's own functions do."""
    if x is None or not isinstance(x, Tensor):  # isinstance of another class asks Tensor's metaclass: slow
        return x
    if x.is_neg():
        x = x.resolve_neg()
    if _IS_EXCHANGED and type(x) is Tensor:
        return x
    return torch._C._to_dlpack(x.detach() if x.requires_grad else x)


def writable(out):
    """viewable() of what will be written."""
    if out.is_neg():
        raise UnsupportedError("unsupported", "out, a tensor that is negated lazily", "a tensor that holds its values")
    return viewable(out)


def current_stream(x: Tensor) -> int:
    """The stream that work on x goes to, as a number."""
    return torch._C._cuda_getCurrentRawStream(x.get_device()) if x.is_cuda else 0


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _checked(x: Tensor, dtype, scales) -> tuple[Tensor, Optional[torch.dtype]]:
    """torch's rules: integers need a dtype; with one, the input is taken in that precision; autocast gives float32."""
    if scales is not None and scales.requires_grad:
        raise Error("unsupported", "scales that require a gradient", "scales without one", "softmax(x * scales)")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        dtype = _route.dtype_like(x, dtype)
    if x.dtype in _FLOATS:
        if dtype is None:
            half = x.dtype not in (torch.float32, torch.float64)
            return x, torch.float32 if half and torch.is_autocast_enabled(x.device.type) else None
        if dtype == torch.float64 and x.dtype != torch.float64:
            return x.to(dtype), None  # folded in float64, as asked
        return x, dtype
    if x.dtype.is_complex or dtype is None:
        raise DTypeError("dtype", f"a tensor of {x.dtype}", "float32, float64, float16, bfloat16", "pass dtype=")
    return x.to(dtype), None


def _nan(empty) -> bool:
    if empty not in ("zero", "nan"):
        raise Error("option", f"empty={empty!r}", '"zero" or "nan"')
    return empty == "nan"


def _run(op, inputs, out, axis, scale=1.0, scales=None, lengths=None, offsets=None, mask=None, causal=False,
         empty_nan=False, keepdims=None):  # fmt: skip
    options = {} if keepdims is None else {"keepdims": keepdims}
    if not (scales is lengths is offsets is mask is None):
        options |= {"scales": viewable(scales), "lengths": viewable(lengths), "offsets": viewable(offsets),
                    "mask": viewable(mask)}  # fmt: skip
    _core.run_into(op, tuple(map(viewable, inputs)), writable(out), axis, scale=scale, causal=causal,
                   empty="nan" if empty_nan else "zero", stream=current_stream(inputs[0]), **options)  # fmt: skip
    return out


def run_plain(op, x, out, axis, scale, scales, lengths, offsets, mask, causal, empty_nan):
    """_run of a tensor that is_eager(), without a gradient; the straight way where no option is a tensor."""
    if not (_IS_EXCHANGED and scales is lengths is offsets is mask is None):
        return _run(op, (x,), out, axis, scale, scales, lengths, offsets, mask, causal, empty_nan)
    _core.run_into(op, (x,), out, axis, scale=scale, causal=causal, empty="nan" if empty_nan else "zero",
                   stream=current_stream(x))  # fmt: skip
    return out


_transform = torch._C._functorch.peek_interpreter_stack
_modes = torch._C._len_torch_dispatch_stack
_trace = torch._C._get_tracing_state


def is_eager(x: Tensor) -> bool:
    """Whether nothing but autograd watches x: no tracing, transform or mode, no lazy negation. The custom op's
    machinery (30 to 100 microseconds) then has nothing to do, and the operation may run at once."""
    return (
        type(x) is Tensor
        and not torch.compiler.is_compiling()
        and not x.is_neg()
        and _transform() is None
        and _modes() == 0
        and forward_ad._current_level < 0
        and _trace() is None
    )


def needs_grad(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _operation(body):
    """The custom op of a function named _NAME. Its attribute `now` is that function: the operation without autograd."""
    op = torch.library.custom_op("softfold::" + body.__name__.removeprefix("_"), body, mutates_args=())
    op.now = body
    return op


def _in_backward(op, y, dy, *options):
    """op of a gradient that arrived: at once where it will not be differentiated again."""
    return (op.now if is_eager(dy) and not torch.is_grad_enabled() else op)(y, dy, *options)


def _new(x: Tensor, shape=None, dtype: Optional[torch.dtype] = None) -> Tensor:
    """A contiguous tensor on x's device."""
    if shape is not None:
        return x.new_empty(shape, dtype=dtype)
    if dtype is None and x.is_contiguous():
        return torch.empty_like(x)  # each keyword costs a tenth of the call
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _row_shape(x: Tensor, dim: list[int], keepdim: bool, offsets: Optional[Tensor], op: str):
    return _route.result_shape(op, tuple(x.shape), tuple(dim), keepdim, offsets)


@_operation
def _softmax(x: Tensor, dim: list[int], scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
             offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool, empty_nan: bool,
             dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    return _run("softmax", (x,), _new(x, dtype=dtype), dim, scale, scales, lengths, offsets, mask, causal, empty_nan)


@_operation
def _log_softmax(x: Tensor, dim: list[int], scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
                 offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool, empty_nan: bool,
                 dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    out = _new(x, dtype=dtype)
    return _run("log_softmax", (x,), out, dim, scale, scales, lengths, offsets, mask, causal, empty_nan)


@_operation
def _state(x: Tensor, dim: list[int], keepdim: bool, scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
           offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool) -> Tensor:  # fmt: skip
    out = _new(x, _row_shape(x, dim, keepdim, offsets, "state"), torch.float64)
    return _run("state", (x,), out, dim, scale, scales, lengths, offsets, mask, causal)


@_operation
def _logsumexp(x: Tensor, dim: list[int], keepdim: bool, scale: float, scales: Optional[Tensor],
               lengths: Optional[Tensor], offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool,
               dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    out = _new(x, _row_shape(x, dim, keepdim, offsets, "logsumexp"), dtype)
    return _run("logsumexp", (x,), out, dim, scale, scales, lengths, offsets, mask, causal)


@_operation
def _softmax_backward(y: Tensor, dy: Tensor, dim: list[int], scale: float, scales: Optional[Tensor],
                      lengths: Optional[Tensor], offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool,
                      dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    return _run("softmax_backward", (y, dy), _new(y, dtype=dtype), dim, scale, scales, lengths, offsets, mask, causal)


@_operation
def _log_softmax_backward(y: Tensor, dy: Tensor, dim: list[int], scale: float, scales: Optional[Tensor],
                          lengths: Optional[Tensor], offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool,
                          dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    out = _new(y, dtype=dtype)
    return _run("log_softmax_backward", (y, dy), out, dim, scale, scales, lengths, offsets, mask, causal)


for _op in (_softmax, _log_softmax, _softmax_backward, _log_softmax_backward):
    # dtype is the last argument of each.
    _op.register_fake(lambda x, *options: _new(x, dtype=options[-1]))


@_state.register_fake
def _(x, dim, keepdim, scale, scales, lengths, offsets, mask, causal):
    return _new(x, _row_shape(x, dim, keepdim, offsets, "state"), torch.float64)


@_logsumexp.register_fake
def _(x, dim, keepdim, scale, scales, lengths, offsets, mask, causal, dtype):
    return _new(x, _row_shape(x, dim, keepdim, offsets, "logsumexp"), dtype)


# Gradients. The backward operations have gradients of their own, written in differentiable terms. ----------------


def _ragged_place(offsets: Tensor, n: int) -> Tensor:
    """Where each of n elements lies: 1 + its row; 0 before the first row, rows + 1 behind the last one."""
    return torch.searchsorted(offsets, torch.arange(n, device=offsets.device, dtype=offsets.dtype), right=True)


def _spread(rows: Tensor, like: Tensor, dim, keepdim: bool, offsets):
    """One value a row, over the row's elements; 0 where no ragged row is."""
    if offsets is not None:
        rows = torch.nn.functional.pad(rows.expand(offsets.shape[0] - 1), (1, 1))
        return rows.index_select(0, _ragged_place(offsets, like.shape[0]))
    if not keepdim:
        for d in sorted(d % like.dim() for d in dim):
            rows = rows.unsqueeze(d)
    return rows


def _sum(values: Tensor, like: Tensor, dim, offsets):
    """The sum over each row, spread over the row again."""
    if offsets is None:
        return values.sum(dim, keepdim=True)
    places = _ragged_place(offsets, like.shape[0])
    return values.new_zeros(offsets.shape[0] + 1).index_add(0, places, values).index_select(0, places)


def _exists(y: Tensor, dim, lengths, offsets, mask, causal) -> Optional[Tensor]:
    """A mask of the elements that lengths, offsets, mask and causal leave, or None for all of them."""
    folded = {d % y.dim() for d in dim}
    sizes = [n if i in folded else 1 for i, n in enumerate(y.shape)]
    at = torch.arange(math.prod(sizes), device=y.device).reshape(sizes)
    if lengths is not None:
        kept = at < _spread(lengths, y, dim, lengths.dim() == y.dim(), None)
        mask = kept if mask is None else mask & kept
    if offsets is not None:
        kept = (at >= offsets[0]) & (at < offsets[-1])
        mask = kept if mask is None else mask & kept
    if causal:
        kept = at <= torch.arange(y.shape[-2], device=y.device)[:, None] + (y.shape[-1] - y.shape[-2])
        mask = kept if mask is None else mask & kept
    return mask


def _save_forward(ctx, inputs, output):
    _, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _, _ = inputs
    ctx.dtype = inputs[0].dtype
    ctx.save_for_backward(output, scales, lengths, offsets, mask)


def _softmax_vjp(ctx, dy):
    y, *options = ctx.saved_tensors
    dx = _in_backward(_softmax_backward, y, dy, ctx.dim, ctx.scale, *options, ctx.causal, ctx.dtype)
    return dx, *(None,) * 9


def _log_softmax_vjp(ctx, dy):
    y, *options = ctx.saved_tensors
    dx = _in_backward(_log_softmax_backward, y, dy, ctx.dim, ctx.scale, *options, ctx.causal, ctx.dtype)
    return dx, *(None,) * 9


_softmax.register_autograd(_softmax_vjp, setup_context=_save_forward)
_log_softmax.register_autograd(_log_softmax_vjp, setup_context=_save_forward)


def _save_backward(ctx, inputs, output):
    y, dy, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _ = inputs
    ctx.save_for_backward(y, dy, scales, lengths, offsets, mask)


def _row_scale(ctx, y, scales, offsets):
    if scales is None:
        return ctx.scale
    return ctx.scale * _spread(scales.to(y.dtype), y, ctx.dim, scales.dim() == y.dim(), offsets)


def _double_operands(ctx, g):
    """y, dy and h = c g, with what does not exist as 0, and the sum over rows."""
    y, dy, scales, lengths, offsets, mask = ctx.saved_tensors
    h = g * _row_scale(ctx, y, scales, offsets)
    exists = _exists(y, ctx.dim, lengths, offsets, mask, ctx.causal)
    if exists is not None:
        h, dy = torch.where(exists, h, 0), torch.where(exists, dy, 0)
    return y, dy, h, lambda values: _sum(values, y, ctx.dim, offsets)


def _softmax_double_vjp(ctx, g):
    """dx = c y (dy - sum y dy): to y goes h (dy - sum y dy) - dy sum h y, to dy goes y (h - sum h y)."""
    y, dy, h, total = _double_operands(ctx, g)
    t = total(h * y)
    return (h * (dy - total(y * dy)) - dy * t).to(y.dtype), (y * (h - t)).to(dy.dtype), *(None,) * 8


def _log_softmax_double_vjp(ctx, g):
    """dx = c (dy - exp(y) sum dy): to y goes -h exp(y) sum dy, to dy goes h - sum h exp(y)."""
    y, dy, h, total = _double_operands(ctx, g)
    p = torch.exp(y)
    return (-h * p * total(dy)).to(y.dtype), (h - total(h * p)).to(dy.dtype), *(None,) * 8


_softmax_backward.register_autograd(_softmax_double_vjp, setup_context=_save_backward)
_log_softmax_backward.register_autograd(_log_softmax_double_vjp, setup_context=_save_backward)


def _save_logsumexp(ctx, inputs, output):
    x, ctx.dim, ctx.keepdim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _ = inputs
    ctx.save_for_backward(x, scales, lengths, offsets, mask)


def _logsumexp_vjp(ctx, dlse):
    """dx = c softmax(x) dlse, through the differentiable softmax, so that it can be differentiated again."""
    x, scales, lengths, offsets, mask = ctx.saved_tensors
    softmax = _softmax.now if is_eager(dlse) and not torch.is_grad_enabled() else _softmax
    p = softmax(x, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, False, None)
    g = _spread(dlse, x, ctx.dim, ctx.keepdim, offsets) * _row_scale(ctx, x, scales, offsets)
    return (p * g).to(x.dtype), *(None,) * 9


_logsumexp.register_autograd(_logsumexp_vjp, setup_context=_save_logsumexp)


def _function(op, save, vjp):
    """op as torch.autograd.Function: all that a tensor needs that is_eager(), at a tenth of the custom op's cost."""

    def forward(ctx, *inputs):  # with setup_context apart, torch inspects the signature at every call
        output = op.now(*inputs)
        save(ctx, inputs, output)
        return output

    parts = {"forward": staticmethod(forward), "backward": staticmethod(vjp)}
    return type(op._name, (torch.autograd.Function,), parts)


_Softmax = _function(_softmax, _save_forward, _softmax_vjp)
_LogSoftmax = _function(_log_softmax, _save_forward, _log_softmax_vjp)
_LogSumExp = _function(_logsumexp, _save_logsumexp, _logsumexp_vjp)


# vmap and autocast ----------------------------------------------------------------------------------------------


def batched_first(info, in_dims, tensors):
    """The tensors with vmap's axis in front, which those that are not batched gain."""
    return [
        t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape) for t, d in zip(tensors, in_dims)
    ]


def _register_vmap(op, own):
    """A batch is one more outer axis: dims count from the end. `own`: how many leading tensors fold along dim."""

    def batched(info, in_dims, *args):
        operands, rest = list(args[:own]), args[own:]
        if any(isinstance(a, Tensor) and d is not None for a, d in zip(rest, in_dims[own:])):
            raise Error("unsupported", "vmap over an option of " + op._name, "vmap over its first operands")
        rank = max(a.dim() - (d is not None) for a, d in zip(operands, in_dims))
        operands = batched_first(info, in_dims, operands)
        dim = [d - rank if d >= 0 else d for d in rest[0]]
        return op(*operands, dim, *rest[1:]), 0

    op.register_vmap(batched)


for _op, _own in ((_softmax, 1), (_log_softmax, 1), (_logsumexp, 1), (_state, 1), (_softmax_backward, 2),
                  (_log_softmax_backward, 2)):  # fmt: skip
    _register_vmap(_op, _own)
