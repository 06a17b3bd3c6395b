"""cross_entropy, entropy and kl_divergence as custom ops with gradients, torch's own signature and module over them."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from softfold import _core
from softfold._errors import Error
from softfold._losses import returned
from softfold.torch._ops import _checked, _function, _nan, _new, _operation, _row_shape, current_stream, is_eager
from softfold.torch._ops import needs_grad, viewable, writable


def _loss_into(into, inputs, out, dim, **options):
    """One of softfold._core's functions of tensors; states, gradient, log_probability and status are written."""
    for name, value in options.items():
        if isinstance(value, Tensor):
            written = name.endswith(("states", "gradient", "log_probability", "status"))
            options[name] = writable(value) if written else viewable(value)
    out = None if out is None else writable(out)
    into(tuple(map(viewable, inputs)), out, dim, stream=current_stream(inputs[0]), **options)


def _empty(empty_nan: bool) -> str:
    return "nan" if empty_nan else "zero"


def _loss_shape(x: Tensor, dim: int, offsets: Optional[Tensor], reduction: str):
    return _row_shape(x, [dim], False, offsets, "logsumexp") if reduction == "none" else ()


def _new_states(x: Tensor, dim: int, offsets: Optional[Tensor]) -> Tensor:
    return _new(x, _row_shape(x, [dim], False, offsets, "state"), torch.float64)


@_operation
def _cross_entropy(x: Tensor, target: Tensor, weight: Optional[Tensor], ignore_index: int, reduction: str,
                   label_smoothing: float, z_loss: float, dim: int, scale: float, scales: Optional[Tensor],
                   lengths: Optional[Tensor], offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool,
                   empty_nan: bool, dtype: Optional[torch.dtype]) -> tuple[Tensor, Tensor]:  # fmt: skip
    loss, states = _new(x, _loss_shape(x, dim, offsets, reduction), dtype), _new_states(x, dim, offsets)
    _loss_into(_core.cross_entropy_into, (x, target), loss, dim, weight=weight, ignore_index=ignore_index,
               reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss, states=states, scale=scale,
               scales=scales, lengths=lengths, offsets=offsets, mask=mask, causal=causal,
               empty=_empty(empty_nan))  # fmt: skip
    return loss, states


@_cross_entropy.register_fake
def _(x, target, weight, ignore_index, reduction, label_smoothing, z_loss, dim, scale, scales, lengths, offsets, mask,
      causal, empty_nan, dtype):  # fmt: skip
    return _new(x, _loss_shape(x, dim, offsets, reduction), dtype), _new_states(x, dim, offsets)


@_operation
def _cross_entropy_backward(x: Tensor, target: Tensor, states: Tensor, dloss: Tensor, weight: Optional[Tensor],
                            ignore_index: int, reduction: str, label_smoothing: float, z_loss: float, dim: int,
                            scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
                            offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool) -> Tensor:  # fmt: skip
    dx = _new(x)
    _loss_into(_core.cross_entropy_into, (x, target, states, dloss), dx, dim, weight=weight, ignore_index=ignore_index,
               reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss, scale=scale, scales=scales,
               lengths=lengths, offsets=offsets, mask=mask, causal=causal)  # fmt: skip
    return dx


_cross_entropy_backward.register_fake(lambda x, *options: _new(x))


def _save_cross_entropy(ctx, inputs, output):
    x, target, weight, *ctx.terms, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _, _ = inputs
    ctx.save_for_backward(x, target, output[1], weight, scales, lengths, offsets, mask)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _cross_entropy_vjp(ctx, dloss, _):
    if dloss is None:
        return (None,) * 16
    x, target, states, weight, *options = ctx.saved_tensors
    backward = _cross_entropy_backward
    op = backward.now if is_eager(dloss) and not torch.is_grad_enabled() else backward
    return op(x, target, states, dloss, weight, *ctx.terms, ctx.dim, ctx.scale, *options, ctx.causal), *(None,) * 15


_cross_entropy.register_autograd(_cross_entropy_vjp, setup_context=_save_cross_entropy)
_CrossEntropy = _function(_cross_entropy, _save_cross_entropy, _cross_entropy_vjp)


def _check_operands(input, target, dim, weight, offsets):
    if weight is not None and weight.requires_grad:
        raise Error("unsupported", "a weight that requires a gradient", "a weight without one", "weight.detach()")
    if target.is_floating_point():
        if target.requires_grad:
            raise Error("unsupported", "class probabilities that require a gradient", "a target without one",
                        "target.detach()")  # fmt: skip
        return
    rows = _row_shape(input, [dim], False, offsets, "logsumexp")
    if tuple(target.shape) != tuple(rows):
        raise Error("shape", f"a target of shape {list(target.shape)} for an input of shape {list(input.shape)}",
                    f"{list(rows)}: one class index a row", f"the classes are axis {dim}")  # fmt: skip


def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                  label_smoothing=0.0, *, dim=None, z_loss=0.0, dtype=None, scale=1.0, scales=None, lengths=None,
                  offsets=None, mask=None, causal=False, empty="zero"):  # fmt: skip
    """torch.nn.functional.cross_entropy of class indices, with softfold's options and a gradient.

    input: (C), (N, C) or (N, C, d1, ...), floating, of any strides, on the CPU or CUDA; dim: the axis of the classes,
    where it is not torch's. target: int64 or int32, input's shape without that axis; on the CPU also class
    probabilities of input's shape, without a gradient.
    dtype: of the loss. z_loss and the options of softmax: as in softfold.cross_entropy. empty="nan": the mean over no
    rows is NaN, as torch's.
    """
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    if dim is None:
        dim = 1 if input.dim() > 1 else 0
    x, dtype = _checked(input, dtype, scales)
    _check_operands(x, target, dim, weight, offsets)
    eager = is_eager(x)
    if eager and not needs_grad(x):
        loss = _new(x, _loss_shape(x, dim, offsets, reduction), dtype)
        _loss_into(_core.cross_entropy_into, (x, target), loss, dim, weight=weight, ignore_index=ignore_index,
                   reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss, scale=scale, scales=scales,
                   lengths=lengths, offsets=offsets, mask=mask, causal=causal, empty=empty)  # fmt: skip
        return loss
    op = _CrossEntropy.apply if eager else _cross_entropy
    return op(x, target, weight, ignore_index, reduction, float(label_smoothing), float(z_loss), dim, float(scale),
              scales, lengths, offsets, mask, causal, _nan(empty), dtype)[0]  # fmt: skip


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss of class indices, with softfold's options as keywords."""

    def __init__(self, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                 label_smoothing=0.0, **options):  # fmt: skip
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.options = options

    def forward(self, input, target):
        return cross_entropy(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
                             label_smoothing=self.label_smoothing, **self.options)  # fmt: skip


def as_tensors(x, options):
    """The options with lists as tensors on x's device."""
    return {k: torch.as_tensor(v, device=x.device) if isinstance(v, (list, tuple)) else v for k, v in options.items()}


def run_cross_entropy(x, target, axis, out, dtype, wanted, options):
    """softfold.cross_entropy, called with tensors: with autograd where it gives the loss alone, and no out."""
    target, options = torch.as_tensor(target, device=x.device), as_tensors(x, options)
    status = options.pop("status")
    if out is None and status is None and not any(wanted):
        return cross_entropy(x, target, dim=axis, dtype=dtype, **options)
    _check_operands(x, target, axis, options["weight"], options["offsets"])
    loss = _new(x, _loss_shape(x, axis, options["offsets"], options["reduction"]), dtype) if out is None else out
    log_probability = _new(x, _loss_shape(x, axis, options["offsets"], "none"), dtype) if wanted[0] else None
    gradient = _new(x) if wanted[1] else None
    _loss_into(_core.cross_entropy_into, (x, target), loss, axis, log_probability=log_probability, gradient=gradient,
               status=status, **options)  # fmt: skip
    return returned((loss, log_probability, gradient))


@_operation
def _entropy(x: Tensor, dim: int, scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
             offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool, empty_nan: bool,
             dtype: Optional[torch.dtype]) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, states = _new(x, _loss_shape(x, dim, offsets, "none"), dtype), _new_states(x, dim, offsets)
    _loss_into(_core.entropy_into, (x,), out, dim, states=states, scale=scale, scales=scales, lengths=lengths,
               offsets=offsets, mask=mask, causal=causal, empty=_empty(empty_nan))  # fmt: skip
    return out, states


@_entropy.register_fake
def _(x, dim, scale, scales, lengths, offsets, mask, causal, empty_nan, dtype):
    return _new(x, _loss_shape(x, dim, offsets, "none"), dtype), _new_states(x, dim, offsets)


@_operation
def _entropy_backward(x: Tensor, states: Tensor, dentropy: Tensor, dim: int, scale: float, scales: Optional[Tensor],
                      lengths: Optional[Tensor], offsets: Optional[Tensor], mask: Optional[Tensor],
                      causal: bool) -> Tensor:  # fmt: skip
    dx = _new(x)
    _loss_into(_core.entropy_into, (x, states, dentropy), dx, dim, scale=scale, scales=scales, lengths=lengths,
               offsets=offsets, mask=mask, causal=causal)  # fmt: skip
    return dx


_entropy_backward.register_fake(lambda x, *options: _new(x))


def _save_entropy(ctx, inputs, output):
    x, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _, _ = inputs
    ctx.save_for_backward(x, output[1], scales, lengths, offsets, mask)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _entropy_vjp(ctx, dentropy, _):
    if dentropy is None:
        return (None,) * 10
    x, states, *options = ctx.saved_tensors
    op = _entropy_backward.now if is_eager(dentropy) and not torch.is_grad_enabled() else _entropy_backward
    return op(x, states, dentropy, ctx.dim, ctx.scale, *options, ctx.causal), *(None,) * 9


_entropy.register_autograd(_entropy_vjp, setup_context=_save_entropy)
_Entropy = _function(_entropy, _save_entropy, _entropy_vjp)


def entropy(input, dim=-1, *, dtype=None, scale=1.0, scales=None, lengths=None, offsets=None, mask=None, causal=False,
            empty="zero"):  # fmt: skip
    """softfold.entropy of a tensor, with a gradient: Categorical(logits=input).entropy() along dim."""
    x, dtype = _checked(input, dtype, scales)
    op = _entropy if not is_eager(x) else _Entropy.apply if needs_grad(x) else _entropy.now
    return op(x, dim, float(scale), scales, lengths, offsets, mask, causal, _nan(empty), dtype)[0]


def run_entropy(x, axis, out, dtype, return_gradient, options):
    """softfold.entropy, called with tensors: with autograd where it gives the entropy alone, and no out."""
    options = as_tensors(x, options)
    if out is None and not return_gradient:
        return entropy(x, axis, dtype=dtype, **options)
    out = _new(x, _loss_shape(x, axis, options["offsets"], "none"), dtype) if out is None else out
    gradient = _new(x) if return_gradient else None
    _loss_into(_core.entropy_into, (x,), out, axis, gradient=gradient, **options)
    return returned((out, gradient))


@_operation
def _kl_divergence(p: Tensor, q: Tensor, dim: int, scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
                   offsets: Optional[Tensor], mask: Optional[Tensor], causal: bool, empty_nan: bool,
                   dtype: Optional[torch.dtype]) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    out = _new(p, _loss_shape(p, dim, offsets, "none"), dtype)
    p_states, q_states = _new_states(p, dim, offsets), _new_states(p, dim, offsets)
    _loss_into(_core.kl_divergence_into, (p, q), out, dim, p_states=p_states, q_states=q_states, scale=scale,
               scales=scales, lengths=lengths, offsets=offsets, mask=mask, causal=causal,
               empty=_empty(empty_nan))  # fmt: skip
    return out, p_states, q_states


@_kl_divergence.register_fake
def _(p, q, dim, scale, scales, lengths, offsets, mask, causal, empty_nan, dtype):
    states = _new_states(p, dim, offsets), _new_states(p, dim, offsets)
    return _new(p, _loss_shape(p, dim, offsets, "none"), dtype), *states


@_operation
def _kl_divergence_backward(p: Tensor, q: Tensor, p_states: Tensor, q_states: Tensor, dkl: Tensor, dim: int,
                            scale: float, scales: Optional[Tensor], lengths: Optional[Tensor],
                            offsets: Optional[Tensor], mask: Optional[Tensor],
                            causal: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    dp, dq = _new(p), _new(q)
    _loss_into(_core.kl_divergence_into, (p, q, p_states, q_states, dkl), None, dim, p_gradient=dp, q_gradient=dq,
               scale=scale, scales=scales, lengths=lengths, offsets=offsets, mask=mask, causal=causal)  # fmt: skip
    return dp, dq


_kl_divergence_backward.register_fake(lambda p, q, *options: (_new(p), _new(q)))


def _save_kl_divergence(ctx, inputs, output):
    p, q, ctx.dim, ctx.scale, scales, lengths, offsets, mask, ctx.causal, _, _ = inputs
    ctx.save_for_backward(p, q, *output[1:], scales, lengths, offsets, mask)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _kl_divergence_vjp(ctx, dkl, *_):
    if dkl is None:
        return (None,) * 11
    p, q, p_states, q_states, *options = ctx.saved_tensors
    backward = _kl_divergence_backward
    op = backward.now if is_eager(dkl) and not torch.is_grad_enabled() else backward
    return *op(p, q, p_states, q_states, dkl, ctx.dim, ctx.scale, *options, ctx.causal), *(None,) * 9


_kl_divergence.register_autograd(_kl_divergence_vjp, setup_context=_save_kl_divergence)
_KlDivergence = _function(_kl_divergence, _save_kl_divergence, _kl_divergence_vjp)


def kl_divergence(p_logits, q_logits, dim=-1, *, dtype=None, scale=1.0, scales=None, lengths=None, offsets=None,
                  mask=None, causal=False, empty="zero"):  # fmt: skip
    """softfold.kl_divergence of tensors, with gradients of both: kl_divergence of Categorical(logits=...)."""
    (p, dtype), (q, _) = _checked(p_logits, dtype, scales), _checked(q_logits, dtype, scales)
    op = _kl_divergence
    if is_eager(p) and is_eager(q):
        op = _KlDivergence.apply if needs_grad(p) or needs_grad(q) else op.now
    return op(p, q, dim, float(scale), scales, lengths, offsets, mask, causal, _nan(empty), dtype)[0]


def run_kl_divergence(p, q, axis, out, dtype, return_gradients, options):
    """softfold.kl_divergence, called with tensors: with autograd where it gives the divergence alone, and no out."""
    q, options = torch.as_tensor(q, device=p.device), as_tensors(p, options)
    if out is None and not return_gradients:
        return kl_divergence(p, q, axis, dtype=dtype, **options)
    out = _new(p, _loss_shape(p, axis, options["offsets"], "none"), dtype) if out is None else out
    gradients = (_new(p), _new(q)) if return_gradients else (None, None)
    _loss_into(_core.kl_divergence_into, (p, q), out, axis, p_gradient=gradients[0], q_gradient=gradients[1],
               **options)  # fmt: skip
    return returned((out, *gradients))
