"""softfold for PyTorch: torch's own signatures, autograd with double backward, torch.compile, on CPU and CUDA.

    import softfold.torch as sf
    p = sf.softmax(scores, dim=-1, scale=0.125, causal=True)

Every operation is a torch.library custom op (torch.ops.softfold.*), registered from Python: libtorch is not linked.
Tensors are viewed, never copied; CUDA work goes to the current stream. scales, lengths, offsets and mask get no
gradient. `routed()` sends torch's own softmax, log_softmax and logsumexp here.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Optional

import torch
from torch import Tensor

from softfold import _core, _route
from softfold._errors import DTypeError, Error

__all__ = ["LogSoftmax", "Softmax", "log_softmax", "logsumexp", "routed", "softmax", "state"]

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def viewable(x):
    """What softfold._core can view without copying: a DLPack capsule of a tensor, anything else as it is."""
    return torch._C._to_dlpack(x.detach() if x.requires_grad else x) if isinstance(x, Tensor) else x


def current_stream(x: Tensor) -> int:
    """The stream that work on x goes to, as a number."""
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0


def _run(op, inputs, out, axis, scale=1.0, scales=None, lengths=None, offsets=None, mask=None, causal=False,
         empty_nan=False):  # fmt: skip
    _core.run_into(
        op, tuple(viewable(x) for x in inputs), viewable(out), axis, scale=scale, scales=viewable(scales),
        lengths=viewable(lengths), offsets=viewable(offsets), mask=viewable(mask), causal=causal,
        empty="nan" if empty_nan else "zero", stream=current_stream(inputs[0]),
    )  # fmt: skip
    return out


def _new(x: Tensor, shape=None, dtype: Optional[torch.dtype] = None) -> Tensor:
    return torch.empty(x.shape if shape is None else shape, dtype=dtype or x.dtype, device=x.device)


def _row_shape(x: Tensor, dim: list[int], keepdim: bool, offsets: Optional[Tensor], op: str):
    return _route.result_shape(op, tuple(x.shape), tuple(dim), keepdim, offsets)


# The operations. One schema for all: x (or y, dy; or x, states), the folded dims, then the options. ---------------


@torch.library.custom_op("softfold::softmax", mutates_args=())
def _softmax(x: Tensor, dim: list[int], scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
             offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool, empty_nan: bool,
             dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    return _run("softmax", (x,), _new(x, dtype=dtype), dim, scale, scales, lengths, offsets, mask, causal, empty_nan)


@torch.library.custom_op("softfold::log_softmax", mutates_args=())
def _log_softmax(x: Tensor, dim: list[int], scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
                 offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool, empty_nan: bool,
                 dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    out = _new(x, dtype=dtype)
    return _run("log_softmax", (x,), out, dim, scale, scales, lengths, offsets, mask, causal, empty_nan)


@torch.library.custom_op("softfold::state", mutates_args=())
def _state(x: Tensor, dim: list[int], keepdim: bool, scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
           offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool) -> Tensor:  # fmt: skip
    out = _new(x, _row_shape(x, dim, keepdim, offsets, "state"), torch.float64)
    return _run("state", (x,), out, dim, scale, scales, lengths, offsets, mask, causal)


@torch.library.custom_op("softfold::logsumexp", mutates_args=())
def _logsumexp(x: Tensor, dim: list[int], keepdim: bool, scale: float, scales: Optional[Tensor],
               lengths: Optional[Tensor], offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool,
               dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    out = _new(x, _row_shape(x, dim, keepdim, offsets, "logsumexp"), dtype)
    return _run("logsumexp", (x,), out, dim, scale, scales, lengths, offsets, mask, causal)


@torch.library.custom_op("softfold::softmax_backward", mutates_args=())
def _softmax_backward(y: Tensor, dy: Tensor, dim: list[int], scale: float, scales: Optional[Tensor],
                      lengths: Optional[Tensor], offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool,
                      dtype: Optional[torch.dtype]) -> Tensor:  # fmt: skip
    return _run("softmax_backward", (y, dy), _new(y, dtype=dtype), dim, scale, scales, lengths, offsets, mask, causal)


@torch.library.custom_op("softfold::log_softmax_backward", mutates_args=())
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


def _spread(rows: Tensor, like: Tensor, dim, keepdim: bool, offsets):
    """One value a row, over the row's elements."""
    if offsets is not None:
        return torch.repeat_interleave(rows, torch.diff(offsets), output_size=like.shape[0])
    if not keepdim:
        for d in sorted(d % like.dim() for d in dim):
            rows = rows.unsqueeze(d)
    return rows


def _sum(values: Tensor, like: Tensor, dim, offsets):
    """The sum over each row, spread over the row again."""
    if offsets is None:
        return values.sum(dim, keepdim=True)
    rows = torch.repeat_interleave(torch.arange(offsets.shape[0] - 1, device=like.device), torch.diff(offsets))
    sums = values.new_zeros(offsets.shape[0] - 1).index_add(0, rows, values)
    return sums[rows]


def _exists(y: Tensor, lengths, mask, causal) -> Optional[Tensor]:
    """A mask of what lengths and causal leave, or None for everything. Along the last axis: see _plain_dim."""
    n = y.shape[-1]
    at = torch.arange(n, device=y.device)
    if lengths is not None:
        kept = at < lengths.reshape(lengths.shape if lengths.dim() == y.dim() else (*lengths.shape, 1))
        mask = kept if mask is None else mask & kept
    if causal:
        kept = at <= torch.arange(y.shape[-2], device=y.device)[:, None] + n - y.shape[-2]
        mask = kept if mask is None else mask & kept
    return mask


def _save_forward(ctx, inputs, output):
    _, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _, _ = inputs
    ctx.dtype = inputs[0].dtype
    ctx.save_for_backward(output, scales, lengths, offsets, mask)


def _softmax_vjp(ctx, dy):
    y, *options = ctx.saved_tensors
    dx = _softmax_backward(y, dy, ctx.dim, ctx.scale, *options, ctx.causal, ctx.dtype)
    return dx, *(None,) * 9


def _log_softmax_vjp(ctx, dy):
    y, *options = ctx.saved_tensors
    dx = _log_softmax_backward(y, dy, ctx.dim, ctx.scale, *options, ctx.causal, ctx.dtype)
    return dx, *(None,) * 9


_softmax.register_autograd(_softmax_vjp, setup_context=_save_forward)
_log_softmax.register_autograd(_log_softmax_vjp, setup_context=_save_forward)


def _save_backward(ctx, inputs, output):
    y, dy, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _ = inputs
    ctx.save_for_backward(y, dy, scales, lengths, offsets, mask)


def _row_scale(ctx, y, scales, offsets):
    return ctx.scale if scales is None else ctx.scale * _spread(scales.to(y.dtype), y, ctx.dim, scales.dim() == y.dim(), offsets)


def _softmax_double_vjp(ctx, g):
    """dx = c y (dy - s) with s = sum y dy, so with h = c g: d/dy = h (dy - s) - dy sum(h y), d/d(dy) = y (h - sum(h y))."""
    y, dy, scales, lengths, offsets, mask = ctx.saved_tensors
    h = g * _row_scale(ctx, y, scales, offsets)
    s, t = _sum(y * dy, y, ctx.dim, offsets), _sum(h * y, y, ctx.dim, offsets)
    exists = _exists(y, lengths, mask, ctx.causal)
    grad_y = h * (dy - s) - dy * t
    if exists is not None:
        grad_y = torch.where(exists, grad_y, 0)
    return grad_y.to(y.dtype), (y * (h - t)).to(dy.dtype), *(None,) * 8


def _log_softmax_double_vjp(ctx, g):
    """dx = c (dy - p s) with p = exp y, s = sum dy, so with h = c g: d/dy = -h p s, d/d(dy) = h - sum(h p)."""
    y, dy, scales, lengths, offsets, mask = ctx.saved_tensors
    h = g * _row_scale(ctx, y, scales, offsets)
    exists = _exists(y, lengths, mask, ctx.causal)
    if exists is not None:
        h, dy = torch.where(exists, h, 0), torch.where(exists, dy, 0)
    p = torch.exp(y)
    return (-h * p * _sum(dy, y, ctx.dim, offsets)).to(y.dtype), (h - _sum(h * p, y, ctx.dim, offsets)).to(dy.dtype), *(None,) * 8


_softmax_backward.register_autograd(_softmax_double_vjp, setup_context=_save_backward)
_log_softmax_backward.register_autograd(_log_softmax_double_vjp, setup_context=_save_backward)


def _save_logsumexp(ctx, inputs, output):
    x, ctx.dim, ctx.keepdim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _ = inputs
    ctx.save_for_backward(x, scales, lengths, offsets, mask)


def _logsumexp_vjp(ctx, dlse):
    """dx = c softmax(x) dlse, through the differentiable softmax, so that it can be differentiated again."""
    x, scales, lengths, offsets, mask = ctx.saved_tensors
    p = _softmax(x, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, False, None)
    g = _spread(dlse, x, ctx.dim, ctx.keepdim, offsets) * _row_scale(ctx, x, scales, offsets)
    return (p * g).to(x.dtype), *(None,) * 9


_logsumexp.register_autograd(_logsumexp_vjp, setup_context=_save_logsumexp)


# vmap and autocast ----------------------------------------------------------------------------------------------


def _register_vmap(op, own):
    """A batch is one more outer axis: dims count from the end. `own`: how many leading tensors fold along dim."""

    def batched(info, in_dims, *args):
        operands, rest = list(args[:own]), args[own:]
        if any(isinstance(a, Tensor) and d is not None for a, d in zip(rest, in_dims[own:])):
            raise Error("unsupported", "vmap over an option of " + op._name, "vmap over its first operands")
        rank = max(a.dim() - (d is not None) for a, d in zip(operands, in_dims))
        operands = [
            a.movedim(d, 0) if d is not None else a.expand(info.batch_size, *a.shape)
            for a, d in zip(operands, in_dims)
        ]
        dim = [d - rank if d >= 0 else d for d in rest[0]]
        return op(*operands, dim, *rest[1:]), 0

    op.register_vmap(batched)


for _op, _own in ((_softmax, 1), (_log_softmax, 1), (_logsumexp, 1), (_state, 1), (_softmax_backward, 2),
                  (_log_softmax_backward, 2)):  # fmt: skip
    _register_vmap(_op, _own)


# Functions with torch's signatures ------------------------------------------------------------------------------


def _dims(x: Tensor, dim) -> list[int]:
    if dim is None:
        return list(range(x.dim()))
    return list(dim) if isinstance(dim, (tuple, list)) else [dim]


def _checked(x: Tensor, dtype, scales) -> tuple[Tensor, Optional[torch.dtype]]:
    """torch's rules: integers need a dtype; with one, the input is taken in that precision; autocast gives float32."""
    if scales is not None and scales.requires_grad:
        raise Error("unsupported", "scales that require a gradient", "scales without one", "softmax(x * scales)")
    if dtype is None and torch.is_autocast_enabled(x.device.type) and x.dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    if x.dtype in _FLOATS:
        if dtype == torch.float64 and x.dtype != torch.float64:
            return x.to(dtype), None  # folded in float64, as asked
        return x, dtype
    if x.dtype.is_complex or dtype is None:
        raise DTypeError("dtype", f"a tensor of {x.dtype}", "float32, float64, float16, bfloat16", "pass dtype=")
    return x.to(dtype), None


def softmax(input, dim=None, _stacklevel=3, dtype=None, *, scale=1.0, scales=None, lengths=None, offsets=None,
            mask=None, causal=False, empty="zero"):  # fmt: skip
    """torch.nn.functional.softmax, with softfold's options.

    input: floating tensor of any strides, on the CPU or CUDA; dim: an integer, a tuple, or None for all. dtype: of the
    result; the fold itself is in float32, or in float64 where input or dtype is. Options as in softfold.softmax.
    """
    x, dtype = _checked(input, dtype, scales)
    return _softmax(x, _dims(x, dim), float(scale), scales, lengths, offsets, mask, causal, _nan(empty), dtype)


def log_softmax(input, dim=None, _stacklevel=3, dtype=None, *, scale=1.0, scales=None, lengths=None, offsets=None,
                mask=None, causal=False, empty="zero"):  # fmt: skip
    """torch.nn.functional.log_softmax, with softfold's options. See softmax."""
    x, dtype = _checked(input, dtype, scales)
    return _log_softmax(x, _dims(x, dim), float(scale), scales, lengths, offsets, mask, causal, _nan(empty), dtype)


def logsumexp(input, dim=None, keepdim=False, *, dtype=None, scale=1.0, scales=None, lengths=None, offsets=None,
              mask=None, causal=False):  # fmt: skip
    """torch.logsumexp, with softfold's options. See softmax."""
    x, dtype = _checked(input, dtype, scales)
    return _logsumexp(x, _dims(x, dim), keepdim, float(scale), scales, lengths, offsets, mask, causal, dtype)


def state(input, dim=None, keepdim=False, *, scale=1.0, scales=None, lengths=None, offsets=None, mask=None,
          causal=False):  # fmt: skip
    """softfold.state of a tensor: float64 of the kept shape plus (4,); no gradient."""
    x, _ = _checked(input, None, scales)
    return _state(x.detach(), _dims(x, dim), keepdim, float(scale), scales, lengths, offsets, mask, causal)


def _nan(empty) -> bool:
    if empty not in ("zero", "nan"):
        raise Error("option", f"empty={empty!r}", '"zero" or "nan"')
    return empty == "nan"


class Softmax(torch.nn.Module):
    """torch.nn.Softmax, with softfold's options as keywords."""

    _function = staticmethod(softmax)

    def __init__(self, dim=None, **options):
        super().__init__()
        self.dim, self.options = dim, options

    def forward(self, input):
        return self._function(input, self.dim, **self.options)

    def extra_repr(self):
        return ", ".join([f"dim={self.dim}", *(f"{k}={v}" for k, v in self.options.items())])


class LogSoftmax(Softmax):
    """torch.nn.LogSoftmax, with softfold's options as keywords."""

    _function = staticmethod(log_softmax)


def run_rows(op, inputs, *, axis, keepdims, out, dtype, empty, **options):
    """softfold.softmax and its kin, called with tensors: the result is a tensor, with autograd where there is no out."""
    x = inputs[0]
    options = {k: torch.as_tensor(v, device=x.device) if isinstance(v, (list, tuple)) else v for k, v in options.items()}
    forward = {"softmax": softmax, "log_softmax": log_softmax}
    if out is None and op in forward:
        return forward[op](x, axis, dtype=dtype, empty=empty, **options)
    if out is None and op == "logsumexp":
        return logsumexp(x, axis, keepdims, dtype=dtype, **options)
    if out is None and op == "state":
        return state(x, axis, keepdims, **options)
    inputs = tuple(i.detach() for i in inputs)
    out = _new(x, dtype=dtype) if out is None else out
    _run(op, inputs, out, axis, empty_nan=_nan(empty), **options)
    return out


# torch's own functions, routed ----------------------------------------------------------------------------------


class routed(contextlib.ContextDecorator):
    """Sends torch's softmax, log_softmax and logsumexp (torch.*, Tensor.*, torch.nn.functional.*) through softfold.

        with softfold.torch.routed() as report:
            model(x)
        print(report)        # what was routed, and what could not be, with the reason

    What softfold refuses runs in torch as before and is counted; a warning at the end names it (warn=False: not).
    Empty rows are NaN here, as in torch. Code inside torch's own kernels (scaled_dot_product_attention, cross_entropy)
    does not pass here.
    """

    def __init__(self, warn=True):
        self.warn, self.routed, self.refused = warn, {}, {}

    def __enter__(self):
        self._mode = _Routing(self)
        self._mode.__enter__()
        return self

    def __exit__(self, *failure):
        self._mode.__exit__(*failure)
        if self.refused and self.warn and failure[0] is None:
            warnings.warn(f"softfold could not route everything: {self}", stacklevel=2)
        return False

    def __str__(self):
        counts = ", ".join(f"{n} {name}" for name, n in sorted(self.routed.items())) or "nothing"
        refused = "".join(f"; not routed: {n} {name} ({why})" for (name, why), n in sorted(self.refused.items()))
        return f"routed {counts}{refused}"


class _Routing(torch.overrides.TorchFunctionMode):
    def __init__(self, report):
        super().__init__()
        self.report = report

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ours = _ROUTES.get(function)
        if ours is None:
            return function(*args, **kwargs)
        name = ours.__name__.removeprefix("_as_")
        try:
            result = ours(*args, **kwargs)
        except (Error, TypeError) as refusal:
            key = name, getattr(refusal, "got", str(refusal))
            self.report.refused[key] = self.report.refused.get(key, 0) + 1
            return function(*args, **kwargs)
        self.report.routed[name] = self.report.routed.get(name, 0) + 1
        return result


def _as_softmax(input, dim=None, _stacklevel=3, dtype=None):
    if dim is None:
        raise Error("option", "no dim", "dim as an integer", "pass dim=-1")
    return softmax(input, dim, dtype=dtype, empty="nan")


def _as_log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    if dim is None:
        raise Error("option", "no dim", "dim as an integer", "pass dim=-1")
    return log_softmax(input, dim, dtype=dtype, empty="nan")


def _as_logsumexp(input, dim, keepdim=False):
    return logsumexp(input, dim, keepdim)


def _torch_signature(ours):
    """torch.softmax and Tensor.softmax have (input, dim, dtype), without torch.nn.functional's _stacklevel."""

    def call(input, dim, dtype=None):
        return ours(input, dim, dtype=dtype)

    call.__name__ = ours.__name__
    return call


_ROUTES = {
    torch.nn.functional.softmax: _as_softmax,
    torch.nn.functional.log_softmax: _as_log_softmax,
    torch.softmax: _torch_signature(_as_softmax),
    torch.log_softmax: _torch_signature(_as_log_softmax),
    torch.logsumexp: _as_logsumexp,
    torch.special.softmax: _torch_signature(_as_softmax),
    torch.special.log_softmax: _torch_signature(_as_log_softmax),
    torch.special.logsumexp: _as_logsumexp,
    Tensor.softmax: _torch_signature(_as_softmax),
    Tensor.log_softmax: _torch_signature(_as_log_softmax),
    Tensor.logsumexp: _as_logsumexp,
}
