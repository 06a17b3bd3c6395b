"""softfold for PyTorch: torch's own signatures, autograd with double backward, torch.compile, on CPU and CUDA.

    import softfold.torch as sf
    p = sf.softmax(scores, dim=-1, scale=0.125, causal=True)

Every operation is a torch.library custom op (torch.ops.softfold.*), registered from Python: libtorch is not linked.
Tensors are viewed, never copied; CUDA work goes to the current stream. scales, lengths, offsets and mask get no
gradient. `routed()` sends torch's own functions here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softfold.torch._attention import attention, run_attention, scaled_dot_product_attention
from softfold.torch._linear import linear_cross_entropy, run_linear_cross_entropy
from softfold.torch._losses import CrossEntropyLoss, cross_entropy, entropy, kl_divergence, run_cross_entropy
from softfold.torch._losses import run_entropy, run_kl_divergence
from softfold.torch._merges import finish, merge_attention, merge_blocks, merge_states
from softfold.torch._ops import _checked, _log_softmax, _LogSoftmax, _logsumexp, _LogSumExp, _nan, _new, _row_shape
from softfold.torch._ops import _run, _softmax, _Softmax, _state, current_stream, is_eager, needs_grad, run_plain
from softfold.torch._ops import viewable, writable
from softfold.torch._routing import routed
from softfold.torch._sample import mask_logits, renormalise, run_filtered, run_sample, sample
from softfold.torch._topk import run_topk, topk

__all__ = [
    "CrossEntropyLoss", "LogSoftmax", "Softmax", "attention", "cross_entropy", "current_stream", "entropy", "finish",
    "kl_divergence", "linear_cross_entropy", "log_softmax", "logsumexp", "mask_logits", "merge_attention", "merge_blocks",
    "merge_states", "renormalise", "routed", "sample",
    "scaled_dot_product_attention", "softmax", "state", "topk", "viewable", "writable",
]  # fmt: skip

def _dims(x: Tensor, dim) -> list[int]:
    if dim is None:
        return list(range(x.dim()))
    return list(dim) if isinstance(dim, (tuple, list)) else [dim]


def softmax(input, dim=None, _stacklevel=3, dtype=None, *, scale=1.0, scales=None, lengths=None, offsets=None,
            mask=None, causal=False, empty="zero"):  # fmt: skip
    """torch.nn.functional.softmax, with softfold's options.

    input: floating tensor of any strides, on the CPU or CUDA; dim: an integer, a tuple, or None for all. dtype: of the
    result; the fold itself is in float32, or in float64 where input or dtype is. Options as in softfold.softmax.
    """
    x, dtype = _checked(input, dtype, scales)
    eager = is_eager(x)
    if eager and not needs_grad(x):
        out = _new(x, dtype=dtype)
        return run_plain("softmax", x, out, dim, scale, scales, lengths, offsets, mask, causal, _nan(empty))
    op = _Softmax.apply if eager else _softmax
    return op(x, _dims(x, dim), float(scale), scales, lengths, offsets, mask, causal, _nan(empty), dtype)


def log_softmax(input, dim=None, _stacklevel=3, dtype=None, *, scale=1.0, scales=None, lengths=None, offsets=None,
                mask=None, causal=False, empty="zero"):  # fmt: skip
    """torch.nn.functional.log_softmax, with softfold's options. See softmax."""
    x, dtype = _checked(input, dtype, scales)
    eager = is_eager(x)
    if eager and not needs_grad(x):
        out = _new(x, dtype=dtype)
        return run_plain("log_softmax", x, out, dim, scale, scales, lengths, offsets, mask, causal, _nan(empty))
    op = _LogSoftmax.apply if eager else _log_softmax
    return op(x, _dims(x, dim), float(scale), scales, lengths, offsets, mask, causal, _nan(empty), dtype)


def logsumexp(input, dim=None, keepdim=False, *, dtype=None, scale=1.0, scales=None, lengths=None, offsets=None,
              mask=None, causal=False):  # fmt: skip
    """torch.logsumexp, with softfold's options. See softmax."""
    x, dtype = _checked(input, dtype, scales)
    dims = _dims(x, dim)
    eager = is_eager(x)
    if eager and not needs_grad(x):
        out = _new(x, _row_shape(x, dims, keepdim, offsets, "logsumexp"), dtype)
        return run_plain("logsumexp", x, out, dims, scale, scales, lengths, offsets, mask, causal, False)
    op = _LogSumExp.apply if eager else _logsumexp
    return op(x, dims, keepdim, float(scale), scales, lengths, offsets, mask, causal, dtype)


def state(input, dim=None, keepdim=False, *, scale=1.0, scales=None, lengths=None, offsets=None, mask=None,
          causal=False):  # fmt: skip
    """softfold.state of a tensor: float64 of the kept shape plus (4,); no gradient."""
    x, _ = _checked(input, None, scales)
    return _state(x.detach(), _dims(x, dim), keepdim, float(scale), scales, lengths, offsets, mask, causal)


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
    """softfold.softmax and its kin, called with tensors: a tensor results, with autograd where there is no out."""
    x = inputs[0]
    for name, value in options.items():
        if isinstance(value, (list, tuple)):
            options[name] = torch.as_tensor(value, device=x.device)
    forward = {"softmax": softmax, "log_softmax": log_softmax}
    if out is None and op in forward:
        return forward[op](x, axis, dtype=dtype, empty=empty, **options)
    if out is None and op == "logsumexp":
        return logsumexp(x, axis, keepdims, dtype=dtype, **options)
    if out is None and op == "state":
        return state(x, axis, keepdims, **options)
    inputs = tuple(i.detach() for i in inputs)
    kept = None if out is None else keepdims
    out = _new(x, dtype=dtype) if out is None else out
    _run(op, inputs, out, axis, empty_nan=_nan(empty), keepdims=kept, **options)
    return out
