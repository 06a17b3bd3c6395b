"""sample as a custom op, and what it draws from."""

from __future__ import annotations

import operator
from numbers import Number
from typing import Optional

import torch
from torch import Tensor

from softfold import _core
from softfold._losses import returned
from softfold._sample import PER_ROW, number_of
from softfold._topk import taken_shape
from softfold.torch._losses import as_tensors
from softfold.torch._ops import _checked, _new, _operation, _row_shape, current_stream, is_eager, viewable, writable


def _results(x: Tensor, dim: int, wanted: list[bool], top: int, dtype: Optional[torch.dtype]):
    """tokens, log_probability, rank, probabilities, masked, top_tokens, top_log_probabilities: what is not wanted has
    no elements."""
    shape, taken = _row_shape(x, [dim], False, None, "logsumexp"), taken_shape(x, top, dim)
    shapes = shape, shape, x.shape, x.shape, taken, taken
    dtypes = dtype, torch.int64, dtype, dtype, torch.int64, dtype
    asked = (_new(x, s if w else (0,), t) for s, t, w in zip(shapes, dtypes, _asked(wanted, top)))
    return _new(x, shape, torch.int64), *asked


def _asked(wanted, top):
    """Which of the results after the tokens are wanted."""
    return [*wanted, top != 0, top != 0]


def _into(x, results, wanted, dim, **options):
    tokens, *asked = results
    log_probability, rank, probabilities, masked, top_tokens, top_log_probabilities = (
        writable(t) if w else None for t, w in zip(asked, wanted))  # fmt: skip
    options = {name: viewable(value) if isinstance(value, Tensor) else value for name, value in options.items()}
    _core.sample_into(viewable(x), writable(tokens), dim, log_probability=log_probability, rank=rank,
                      probabilities=probabilities, masked=masked, top_tokens=top_tokens,
                      top_log_probabilities=top_log_probabilities, stream=current_stream(x), **options)  # fmt: skip


@_operation
def _sample(x: Tensor, dim: int, wanted: list[bool], top: int, temperature: float, top_k: int, top_p: float, min_p: float,
            seed: int, offset: int, temperatures: Optional[Tensor], top_ks: Optional[Tensor], top_ps: Optional[Tensor],
            min_ps: Optional[Tensor], seeds: Optional[Tensor], offsets: Optional[Tensor], row_ids: Optional[Tensor],
            bias: Optional[Tensor], bitmask: Optional[Tensor], order: str, of: str, scale: float,
            scales: Optional[Tensor], lengths: Optional[Tensor], mask: Optional[Tensor], causal: bool,
            dtype: Optional[torch.dtype]) -> tuple[
                Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    results = _results(x, dim, wanted, top, dtype)
    either = lambda number, tensor: number if tensor is None else tensor  # noqa: E731
    _into(x, results, _asked(wanted, top), dim, temperature=either(temperature, temperatures), top_k=either(top_k, top_ks),
          top_p=either(top_p, top_ps), min_p=either(min_p, min_ps), seed=either(seed % 2**64, seeds),
          offset=either(offset % 2**64, offsets), row_ids=row_ids, bias=bias, bitmask=bitmask, order=order, of=of,
          scale=scale, scales=scales, lengths=lengths, mask=mask, causal=causal)  # fmt: skip
    return results


@_sample.register_fake
def _(x, dim, wanted, top, temperature, top_k, top_p, min_p, seed, offset, temperatures, top_ks, top_ps, min_ps, seeds,
      offsets, row_ids, bias, bitmask, order, of, scale, scales, lengths, mask, causal, dtype):  # fmt: skip
    return _results(x, dim, wanted, top, dtype)


def sample(input, dim=-1, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, order="min_p_first", bias=None,
           bitmask=None, seed=0, offset=0, row_ids=None, of="raw", scale=1.0, scales=None, lengths=None, mask=None,
           causal=False, dtype=None, return_log_probability=False, return_rank=False, return_probabilities=False,
           return_masked=False, return_top_log_probabilities=0):  # fmt: skip
    """softfold.sample of a tensor; per-row options are tensors. Nothing has a gradient."""
    x, dtype = _checked(input.detach(), dtype, scales)
    wanted = [bool(w) for w in (return_log_probability, return_rank, return_probabilities, return_masked)]
    top = operator.index(return_top_log_probabilities)
    numbers, tensors = {}, {}
    given = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, offset=offset)
    for (name, value), default in zip(given.items(), (1.0, 0, 1.0, 0.0, 0, 0)):
        is_tensor = isinstance(value, Tensor)
        number = number_of(name, default if is_tensor else value)
        # An op's integers have 64 bits and a sign.
        numbers[name] = (number + 2**63) % 2**64 - 2**63 if name in ("seed", "offset") else number
        tensors[name + "s"] = value if is_tensor else None
    op = _sample.now if is_eager(x) else _sample
    results = op(x, dim, wanted, top, *numbers.values(), *tensors.values(), row_ids, bias, bitmask, order, of, float(scale),
                 scales, lengths, mask, causal, dtype)  # fmt: skip
    return returned(r for r, w in zip(results, [True, *_asked(wanted, top)]) if w)


def renormalise(input, dim=-1, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, order="min_p_first", bias=None,
                bitmask=None, scale=1.0, scales=None, lengths=None, mask=None, causal=False, dtype=None):  # fmt: skip
    """softfold.renormalise of a tensor: what sample draws from. Per-row options are tensors. Nothing has a gradient.

    FlashInfer's top_k_renorm_probs and top_p_renorm_probs, of logits instead of probabilities.
    """
    return sample(input, dim, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, bias=bias,
                  bitmask=bitmask, scale=scale, scales=scales, lengths=lengths, mask=mask, causal=causal, dtype=dtype,
                  return_probabilities=True)[1]  # fmt: skip


def mask_logits(input, dim=-1, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, order="min_p_first", bias=None,
                bitmask=None, scale=1.0, scales=None, lengths=None, mask=None, causal=False, dtype=None):  # fmt: skip
    """softfold.mask_logits of a tensor: input + bias, -inf for what is gone. Per-row options are tensors. Nothing has a
    gradient.

    FlashInfer's top_k_mask_logits, vLLM's apply_top_k_top_p and token bitmasks, into a new tensor.
    """
    return sample(input, dim, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, bias=bias,
                  bitmask=bitmask, scale=scale, scales=scales, lengths=lengths, mask=mask, causal=causal, dtype=dtype,
                  return_masked=True)[1]  # fmt: skip


def _with_tensors(x, options):
    """softfold.sample's options, lists as tensors of the dtypes that these have there."""
    rows = {name: torch.tensor(options[name], dtype=getattr(torch, kind), device=x.device)
            for name, kind in PER_ROW.items() if isinstance(options.get(name), (list, tuple))}  # fmt: skip
    return as_tensors(x, options | rows)


def _numbers(options):
    """The options with numbers as softfold._core takes them."""
    numbers = {name: v for name, v in options.items() if name in PER_ROW and isinstance(v, Number)}
    return options | {name: number_of(name, v) for name, v in numbers.items()}


def run_sample(x, dim, out, dtype, wanted, top, options):
    """softfold.sample, called with tensors."""
    options = _with_tensors(x, options)
    if out is None:
        names = ("return_log_probability", "return_rank", "return_probabilities", "return_masked")
        return sample(x, dim, dtype=dtype, return_top_log_probabilities=top, **options, **dict(zip(names, wanted)))
    x = x.detach()
    results, asked = (out, *_results(x, dim, wanted, top, dtype)[1:]), _asked(wanted, top)
    _into(x, results, asked, dim, **_numbers(options))
    return returned(r for r, w in zip(results, [True, *asked]) if w)


def run_filtered(result, x, dim, out, dtype, options):
    """softfold.renormalise ("probabilities") and softfold.mask_logits ("masked"), called with tensors."""
    options = _with_tensors(x, options)
    if out is None:
        face = {"probabilities": renormalise, "masked": mask_logits}
        return face[result](x, dim, dtype=dtype, **options)
    x = x.detach()
    asked = [False, False, result == "probabilities", result == "masked", False, False]
    tokens = _results(x, dim, [False] * 4, 0, None)[0]
    _into(x, (tokens, *(out if a else None for a in asked)), asked, dim, **_numbers(options))
    return out
