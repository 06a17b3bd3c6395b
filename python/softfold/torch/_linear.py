"""linear_cross_entropy as a custom op with gradients of x, weight and bias."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from softfold import _core
from softfold._errors import Error, UnsupportedError
from softfold._losses import check_classes, returned
from softfold.torch._losses import as_tensors
from softfold.torch._ops import _nan, _new, _operation, current_stream, needs_grad, viewable, writable


_WRITTEN = ("log_probability", "dx", "dweight", "dbias")


def _into(inputs, loss, **options):
    for name, value in options.items():
        if isinstance(value, Tensor):
            options[name] = writable(value) if name in _WRITTEN else viewable(value)
    _core.linear_cross_entropy_into(tuple(map(viewable, inputs)), writable(loss), stream=current_stream(inputs[0]),
                                    **options)  # fmt: skip


def _result(x: Tensor, reduction: str) -> Tensor:
    half = x.dtype in (torch.float16, torch.bfloat16)
    return _new(x, x.shape[:-1] if reduction == "none" else (), torch.float32 if half else None)


def _gradients(x: Tensor, weight: Tensor, bias: Optional[Tensor], wanted: bool):
    if not wanted:
        return [x.new_empty(0) for _ in range(3)]
    return [_new(x), _new(weight), x.new_empty(0) if bias is None else _new(bias)]


@_operation
def _linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, bias: Optional[Tensor],
                          dloss: Optional[Tensor], class_weight: Optional[Tensor], softcap: float, mode: str,
                          ignore_index: int, reduction: str, label_smoothing: float, z_loss: float, scale: float,
                          mask: Optional[Tensor], empty_nan: bool,
                          gradients: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    loss, (dx, dweight, dbias) = _result(x, reduction), _gradients(x, weight, bias, gradients)
    _into((x, weight, target), loss, bias=bias, dloss=dloss, class_weight=class_weight, softcap=softcap, mode=mode,
          ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss, scale=scale,
          mask=mask, empty="nan" if empty_nan else "zero", dx=dx if gradients else None,
          dweight=dweight if gradients else None,
          dbias=dbias if gradients and bias is not None else None)  # fmt: skip
    return loss, dx, dweight, dbias


@_linear_cross_entropy.register_fake
def _(x, weight, target, bias, dloss, class_weight, softcap, mode, ignore_index, reduction, *rest):
    return (_result(x, reduction), *_gradients(x, weight, bias, rest[-1]))


def _save(ctx, inputs, output):
    x, weight, target, bias, _, class_weight, *terms, mask, ctx.empty_nan, with_gradients = inputs
    ctx.terms, ctx.has_bias = terms, bias is not None
    ctx.kept = with_gradients
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    if with_gradients:
        ctx.save_for_backward(*output[1:])
    else:
        ctx.save_for_backward(x, weight, target, bias, class_weight, mask)


def _times(d: Tensor, dloss: Tensor) -> Tensor:
    """d * dloss, in dloss's precision, some rows at a time: neither rounded nor overflowing in 16 bits."""
    product = torch.empty_like(d)
    for to, part in zip(product.split(4096), d.split(4096)):
        to.copy_(part.to(dloss.dtype) * dloss)
    return product


def _vjp(ctx, dloss, *_):
    if dloss is None:
        return (None,) * 16
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise UnsupportedError("unsupported", "a gradient of linear_cross_entropy's gradient", "first derivatives",
                               "create_graph=False")  # fmt: skip
    if ctx.kept:  # those of a loss that counts once
        dx, dweight, dbias = (_times(d, dloss) for d in ctx.saved_tensors)
    else:
        x, weight, target, bias, class_weight, mask = ctx.saved_tensors
        _, dx, dweight, dbias = _linear_cross_entropy(x, weight, target, bias, dloss, class_weight, *ctx.terms, mask,
                                                      ctx.empty_nan, True)  # fmt: skip
    return dx, dweight, None, dbias if ctx.has_bias else None, *(None,) * 12


_linear_cross_entropy.register_autograd(_vjp, setup_context=_save)


def _check(x, weight, target, class_weight):
    check_classes(target, x.dim())
    if class_weight is not None and class_weight.requires_grad:
        raise Error("unsupported", "a class_weight that requires a gradient", "one without", "class_weight.detach()")
    if tuple(target.shape) != tuple(x.shape[:-1]):
        raise Error("shape", f"a target of shape {list(target.shape)} for an input of shape {list(x.shape)}",
                    f"{list(x.shape[:-1])}: one class index a row")  # fmt: skip


def linear_cross_entropy(input, weight, target, bias=None, *, softcap=0.0, mode="fast", class_weight=None,
                         ignore_index=-100, reduction="mean", label_smoothing=0.0, z_loss=0.0, scale=1.0, mask=None,
                         empty="zero"):  # fmt: skip
    """cross_entropy(linear(input, weight, bias), target) with gradients of input, weight and bias, once.

    input: (..., D), weight: (V, D), bias: (V), target: (...): as in softfold.linear_cross_entropy. With reduction
    "mean" or "sum" the gradients come from the forward call and are multiplied by what arrives; with "none" they are
    computed when it does, from input and weight anew. The loss of 16-bit tensors is float32.
    """
    _check(input, weight, target, class_weight)
    wants = any(t is not None and needs_grad(t) for t in (input, weight, bias))
    return _linear_cross_entropy(input, weight, target, bias, None, class_weight, float(softcap), mode, ignore_index,
                                 reduction, float(label_smoothing), float(z_loss), float(scale), mask, _nan(empty),
                                 wants and reduction != "none")[0]  # fmt: skip


def run_linear_cross_entropy(x, weight, target, bias, out, dtype, wanted, options):
    """softfold.linear_cross_entropy, called with tensors: with autograd where it gives the loss alone, and no out."""
    target, options = torch.as_tensor(target, device=x.device), as_tensors(x, options)
    if out is None and dtype is None and not any(wanted):
        return linear_cross_entropy(x, weight, target, bias, **options)
    _check(x, weight, target, options["class_weight"])
    rows = x.shape[:-1]
    loss = _new(x, rows if options["reduction"] == "none" else (), dtype) if out is None else out
    log_probability = _new(x, rows, dtype) if wanted[0] else None
    gradients = [None if t is None or not wanted[1] else _new(t) for t in (x, weight, bias)]
    _into((x, weight, target), loss, bias=bias, log_probability=log_probability, dx=gradients[0],
          dweight=gradients[1], dbias=gradients[2], **options)  # fmt: skip
    return returned((loss, log_probability, *gradients))
