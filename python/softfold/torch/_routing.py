"""torch's own softmax, logsumexp, cross_entropy, attention, sent through softfold for the time of a with block."""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch import Tensor

import softfold.torch as face
from softfold._errors import Error


class routed(contextlib.ContextDecorator):
    """Sends torch's softmax, log_softmax and logsumexp (torch.*, Tensor.*, torch.nn.functional.*) through softfold,
    cross_entropy of class indices, and scaled_dot_product_attention where no gradient is needed.

        with softfold.torch.routed() as report:
            model(x)
        print(report)        # what was routed, and what could not be, with the reason

    What softfold refuses runs in torch as before and is counted, as is what has a softmax inside where this cannot
    reach (MultiheadAttention, gumbel_softmax, ...); a warning at the end names both (warn=False: not).
    Empty rows are NaN here, as in torch.
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
            if function in _OUT_OF_REACH:
                self._refuse(function.__name__, "the softmax inside it is out of reach")
            return function(*args, **kwargs)
        name = ours.__name__.removeprefix("_as_")
        try:
            result = ours(*args, **kwargs)
        except (Error, TypeError) as refusal:
            self._refuse(name, getattr(refusal, "got", str(refusal)))
            return function(*args, **kwargs)
        self.report.routed[name] = self.report.routed.get(name, 0) + 1
        return result

    def _refuse(self, name, why):
        self.report.refused[name, why] = self.report.refused.get((name, why), 0) + 1


def _as_softmax(input, dim=None, _stacklevel=3, dtype=None):
    if dim is None:
        raise Error("option", "no dim", "dim as an integer", "pass dim=-1")
    return face.softmax(input, dim, dtype=dtype, empty="nan")


def _as_log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    if dim is None:
        raise Error("option", "no dim", "dim as an integer", "pass dim=-1")
    return face.log_softmax(input, dim, dtype=dtype, empty="nan")


def _as_softmin(input, dim=None, _stacklevel=3, dtype=None):
    if dim is None:
        raise Error("option", "no dim", "dim as an integer", "pass dim=-1")
    return face.softmax(input, dim, dtype=dtype, scale=-1.0, empty="nan")


def _as_logsumexp(input, dim, keepdim=False):
    return face.logsumexp(input, dim, keepdim)


def _as_cross_entropy(*args, **kwargs):
    return face.cross_entropy(*args, **kwargs, empty="nan")


def _as_scaled_dot_product_attention(*args, **kwargs):
    return face.scaled_dot_product_attention(*args, **kwargs)


def _torch_signature(ours):
    """torch.softmax and Tensor.softmax have (input, dim, dtype), without torch.nn.functional's _stacklevel."""

    def call(input, dim, dtype=None):
        return ours(input, dim, dtype=dtype)

    call.__name__ = ours.__name__
    return call


_ROUTES = {
    torch.nn.functional.softmax: _as_softmax,
    torch.nn.functional.log_softmax: _as_log_softmax,
    torch.nn.functional.softmin: _as_softmin,
    torch.nn.functional.cross_entropy: _as_cross_entropy,
    torch.nn.functional.scaled_dot_product_attention: _as_scaled_dot_product_attention,
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

# Functions that compute a softmax where no other function of torch's is called, or none that a mode sees.
_OUT_OF_REACH = {
    getattr(space, name)
    for space, names in (
        (torch.nn.functional, ("gumbel_softmax", "multi_head_attention_forward")),
        (torch, ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")),
    )
    for name in names
    if hasattr(space, name)
}  # fmt: skip
