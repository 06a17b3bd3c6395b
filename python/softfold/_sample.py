"""sample, and what it draws from, for NumPy arrays and those of the array API; tensors go to softfold.torch."""

from __future__ import annotations

import importlib
import numbers

import numpy as np

from softfold import _core, _route
from softfold._errors import DTypeError, Error, integer, refusing, whole
from softfold._losses import foldable, returned, row_shape
from softfold._states import _empty_like
from softfold._topk import taken_shape

# What may be a number or one a row, and the dtype that a list of Python numbers becomes.
PER_ROW = {"temperature": "float64", "top_k": "int64", "top_p": "float64", "min_p": "float64", "seed": "int64",
           "offset": "int64", "row_ids": "int64"}  # fmt: skip


def number_of(name, value):
    """A Python number as an operation takes it: whole where it counts, and words of 64 bits without a sign."""
    if name in ("seed", "offset", "draw"):
        return whole(name, value, 0, 2**64 - 1)
    return whole(name, value) if name in ("top_k", "row_ids") else float(value)


def _as_array(name, value, kind):
    try:
        return np.asarray(value, kind)
    except (TypeError, ValueError):
        wanted = "numbers that broadcast to logits" if name == "bias" else "a number, or an array with one a row"
        raise DTypeError("dtype", f"{name}={value!r}", wanted) from None


def _arrays(logits, name, options):
    """The logits as an array that softfold._core can view, their library, and the options as numbers and arrays."""
    x = foldable(logits, name)
    options = dict(options)
    for option, kind in {**PER_ROW, "bias": "float32"}.items():
        value = options.get(option)
        if isinstance(value, numbers.Number):
            options[option] = number_of(option, value)
        elif value is not None and not hasattr(value, "__dlpack__"):
            options[option] = _as_array(option, value, kind)
    return x, x.__array_namespace__() if hasattr(x, "__array_namespace__") else np, options


@refusing
def sample(logits, axis=-1, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, order="min_p_first", bias=None,
           bitmask=None, seed=0, offset=0, row_ids=None, of="raw", scale=1.0, scales=None, lengths=None, mask=None,
           causal=False, out=None, return_log_probability=False, return_rank=False, return_probabilities=False,
           return_masked=False, return_top_log_probabilities=0, dtype=None):  # fmt: skip
    """One element of each row, drawn from softmax(scale (logits + bias) / temperature) of what the filters leave.

    logits: float32, float16 or bfloat16, of any strides. Nothing here is random but by the seed: the same row, seed,
       offset and row id draw the same on any machine, in any batch.
    temperature: 0 takes the largest element. top_k: only the k largest; 0 is off. top_p: only the fewest largest with
       that share of the probability. min_p: only those at least this probable beside the largest. Each a number, or an
       array with one a row; what equals the last element kept is kept too.
    order: "min_p_first" ("vllm") or "min_p_last" ("hugging_face"). bias: added to logits, broadcasts to them, -inf
       forbids. bitmask: int32, 32 elements a word along the axis, 1 allows. scale, scales, lengths, mask, causal: as in
       softmax.
    seed, offset: 0 to 2**64 - 1, or int64 arrays with one a row; a new offset is a new draw. row_ids: int64, one a row;
       the rows' indices by default, or 0 where rows have seeds of their own.
    out: int64 or int32, where to write the tokens. return_log_probability: of the tokens, in dtype (logits' by default),
       return_rank: how many elements are at least as large; `of` the "raw" logits or of what was "sampled" from.
    return_probabilities: what was drawn from, renormalised; return_masked: logits + bias, -inf for what is gone. Both of
       logits' shape, in dtype.
    return_top_log_probabilities: how many of the largest elements of what `of` says are told of, best first: their
       tokens (int64) and log-probabilities, two arrays of logits' shape with so many along the axis; -1 and -inf where
       there are fewer.
    Returns tokens (int64, -1 where nothing can be drawn), or a tuple. Raises softfold.Error before any work.
    """
    options = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, bias=bias,
                   bitmask=bitmask, seed=seed, offset=offset, row_ids=row_ids, of=of, scale=scale, scales=scales,
                   lengths=lengths, mask=mask, causal=causal)  # fmt: skip
    wanted = (return_log_probability, return_rank, return_probabilities, return_masked)
    dtype = _route.dtype_like(logits, dtype)
    top = integer("return_top_log_probabilities", return_top_log_probabilities)
    if _route._library(logits) == "torch":
        return importlib.import_module("softfold.torch").run_sample(logits, axis, out, dtype, wanted, top, options)
    x, space, options = _arrays(logits, "sample", options)
    shape = row_shape(x, axis, None)
    tokens = _empty_like(x, shape, space.int64) if out is None else out
    log_probability = _empty_like(x, shape, dtype) if return_log_probability else None
    rank = _empty_like(x, shape, space.int64) if return_rank else None
    probabilities, masked = (_empty_like(x, tuple(x.shape), dtype) if asked else None for asked in wanted[2:])
    top_shape = taken_shape(x, top, axis)
    top_tokens = _empty_like(x, top_shape, space.int64) if top else None
    top_log_probabilities = _empty_like(x, top_shape, dtype) if top else None
    _route.run_into(_core.sample_into, x, tokens, axis, log_probability=log_probability, rank=rank,
                    probabilities=probabilities, masked=masked, top_tokens=top_tokens,
                    top_log_probabilities=top_log_probabilities, **options)  # fmt: skip
    results = tokens, log_probability, rank, probabilities, masked, top_tokens, top_log_probabilities
    return returned(results, fresh=out is None)


def _filtered(result, name, logits, axis, out, dtype, options):
    """A result of sample that has logits' shape, by its name there; the tokens are dropped."""
    if out is not None and dtype is not None:
        raise Error("option", "both out and dtype", "one of them", "out's own dtype is the result's")
    dtype = _route.dtype_like(logits, dtype)
    if _route._library(logits) == "torch":
        return importlib.import_module("softfold.torch").run_filtered(result, logits, axis, out, dtype, options)
    x, space, options = _arrays(logits, name, options)
    tokens = _empty_like(x, row_shape(x, axis, None), space.int64)
    out = _empty_like(x, tuple(x.shape), dtype) if out is None else out
    _route.run_into(_core.sample_into, x, tokens, axis, **{result: out}, **options)
    return out


@refusing
def renormalise(logits, axis=-1, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, order="min_p_first", bias=None,
                bitmask=None, scale=1.0, scales=None, lengths=None, mask=None, causal=False, out=None,
                dtype=None):  # fmt: skip
    """The probabilities that sample draws from: softmax(scale (logits + bias) / temperature) of what the filters leave.

    They are sample's return_probabilities, bit for bit; elements that were taken away have 0, what is left sums to 1. Of
    probabilities p, give log(p). FlashInfer's top_k_renorm_probs(p, k) is renormalise(log(p), top_k=k), its
    top_p_renorm_probs(p, q) top_p=q; vLLM's apply_top_k_top_p and a softmax after it are top_k=, top_p=.

    logits: float32, float16 or bfloat16, of any strides; float64 is refused. temperature, top_k, top_p, min_p: a number,
       or an array with one a row; at temperature 0 the token that sample takes has 1. order, bias, bitmask, scale, scales,
       lengths, mask, causal: as in sample.
    out: where to write, floating, of logits' shape and in memory of its own; or dtype: of the result, logits' by default.
    Returns an array of logits' shape. A row with nothing in it is 0, one with NaN or +inf is NaN (at temperature 0 +inf
    is the largest). Raises softfold.Error before any work.
    """
    options = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, bias=bias,
                   bitmask=bitmask, scale=scale, scales=scales, lengths=lengths, mask=mask, causal=causal)  # fmt: skip
    return _filtered("probabilities", "renormalise", logits, axis, out, dtype, options)


@refusing
def mask_logits(logits, axis=-1, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, order="min_p_first", bias=None,
                bitmask=None, scale=1.0, scales=None, lengths=None, mask=None, causal=False, out=None,
                dtype=None):  # fmt: skip
    """logits + bias, with -inf for what the filters of sample take away.

    They are sample's return_masked, bit for bit, before scale and temperature, which only decide what top_p and min_p
    take away: of a float32 result, softmax(masked, scale=scale / temperature) is what is drawn from. FlashInfer's
    top_k_mask_logits(x, k) is mask_logits(x, top_k=k); vLLM's apply_top_k_top_p(x, k, p) is top_k=k, top_p=p, its
    logit_bias bias=, its apply_grammar_bitmask and XGrammar's apply_token_bitmask_inplace bitmask=. Those may write in
    place; this does not.

    logits: float32, float16 or bfloat16, of any strides; float64 is refused. temperature, top_k, top_p, min_p: a number,
       or an array with one a row; at temperature 0 only the token that sample takes is left. order, bias, bitmask, scale,
       scales, lengths, mask, causal: as in sample.
    out: where to write, floating, of logits' shape and in memory of its own; or dtype: of the result, logits' by default.
    Returns an array of logits' shape. NaN stays NaN. Raises softfold.Error before any work.
    """
    options = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order, bias=bias,
                   bitmask=bitmask, scale=scale, scales=scales, lengths=lengths, mask=mask, causal=causal)  # fmt: skip
    return _filtered("masked", "mask_logits", logits, axis, out, dtype, options)
