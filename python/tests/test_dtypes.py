"""A dtype by its name, wherever one is taken; and which dtypes a refusal says are taken."""

import sys

import numpy as np
import pytest
from conftest import BFLOAT16, DTYPES, bits

import softfold

F = np.arange(6, dtype=np.float32).reshape(2, 3)
LONG = F.astype(np.longdouble)
FLOATS = "float64, float32, float16, bfloat16"


def partials(**options):
    return softfold.fold_shard(F, 0, 3, **options)[None]


BY_DTYPE = {
    "softmax": lambda d: softfold.softmax(F, -1, dtype=d),
    "of a list": lambda d: softfold.log_softmax([1, 2], dtype=d),
    "logsumexp": lambda d: softfold.logsumexp(F, -1, dtype=d),
    "logsumexp with weights": lambda d: softfold.logsumexp(F, -1, b=F + 1, dtype=d),
    "softmax_backward": lambda d: softfold.softmax_backward(F, F, -1, dtype=d),
    "cross_entropy": lambda d: softfold.cross_entropy(F, [0, 1], dtype=d),
    "linear_cross_entropy": lambda d: softfold.linear_cross_entropy(F, F, [0, 1], dtype=d),
    "entropy": lambda d: softfold.entropy(F, dtype=d),
    "kl_divergence": lambda d: softfold.kl_divergence(F, F, dtype=d),
    "topk": lambda d: softfold.topk(F, 2, dtype=d, return_lse=True)[2],
    "sample": lambda d: softfold.sample(F, dtype=d, return_log_probability=True)[1],
    "renormalise": lambda d: softfold.renormalise(F, dtype=d),
    "mask_logits": lambda d: softfold.mask_logits(F, dtype=d),
    "finish": lambda d: softfold.finish(softfold.state(F, -1), dtype=d),
    "join_topk": lambda d: softfold.join_topk(partials(k=2), 2, dtype=d)[0],
    "join_cross_entropy": lambda d: softfold.join_cross_entropy(partials(target=[0, 1]), [0, 1], dtype=d),
}


@pytest.mark.parametrize("name", BY_DTYPE)
def test_a_dtype_by_its_name(name):
    for dtype in DTYPES:
        got = BY_DTYPE[name](dtype.name)
        assert got.dtype == dtype and bits(got) == bits(BY_DTYPE[name](dtype))
    for none in ("float23", "f4 4(", 3.5, object(), ()):
        with pytest.raises(softfold.DTypeError) as caught:
            BY_DTYPE[name](none)
        assert caught.value.got == f"dtype={none!r}" and caught.value.allowed == FLOATS
        assert caught.value.fix == "dtype='float32'"
    with pytest.raises(softfold.DTypeError, match="try: dtype='bfloat16'"):
        BY_DTYPE[name]("bfloat61")
    for other in ("int32", np.int32, np.longdouble, np.complex128):
        with pytest.raises(softfold.DTypeError) as caught:
            BY_DTYPE[name](other)
        assert sorted(caught.value.allowed.split(", ")) == sorted(FLOATS.split(", "))


def test_a_stream_of_a_dtype_by_its_name():
    with pytest.raises(softfold.DTypeError, match="got dtype='float23'"):
        softfold.Stream(dtype="float23")
    if BFLOAT16 is not None:
        by_name, by_dtype = softfold.Stream(dtype="bfloat16"), softfold.Stream(dtype=BFLOAT16)
        for s in (by_name, by_dtype):
            s.push(F[1])
        assert bits(by_name.partial().state()) == bits(by_dtype.partial().state())


def test_bfloat16_without_ml_dtypes_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(softfold.DTypeError, match="without ml_dtypes; .*; try: pip install ml_dtypes"):
        softfold.softmax(F, -1, dtype="bfloat16")


TAKEN = {
    "gradient": (lambda: softfold.softmax_backward(F, LONG, -1), FLOATS),
    "query": (lambda: softfold.attention(LONG, LONG, LONG), FLOATS),
    "weight": (lambda: softfold.cross_entropy(F, [0, 1], weight=LONG[0]), FLOATS),
    "bias": (lambda: softfold.sample(F, bias=LONG[0]), FLOATS),
    "out": (lambda: softfold.softmax(F, -1, out=LONG), FLOATS),
    "piece": (lambda: softfold.Stream().push(LONG[0]), FLOATS),
    "states": (lambda: softfold.finish(LONG), "float64"),
    "temperature": (lambda: softfold.sample(F, temperature=LONG[:, 0]), "float32, float64"),
    "top_k": (lambda: softfold.sample(F, top_k=LONG[:, 0]), "int32, int64"),
    "seed": (lambda: softfold.sample(F, seed=LONG[:, 0]), "int64"),
    "row_ids": (lambda: softfold.sample(F, row_ids=LONG[:, 0]), "int64"),
    "bitmask": (lambda: softfold.sample(F, bitmask=LONG[:, :1]), "int32"),
    "tokens": (lambda: softfold.sample(F, out=LONG[:, 0]), "int32, int64"),
    "indices": (lambda: softfold.topk(F, 3, out=(F.copy(), LONG)), "int32, int64"),
    "drawn": (lambda: softfold.sample(LONG), "float32, float16, bfloat16 (ml_dtypes)"),
    "renormalised": (lambda: softfold.renormalise(LONG), "float32, float16, bfloat16 (ml_dtypes)"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_no_dtype_of_softfold_is_meets_those_that_are_taken(name):
    call, allowed = TAKEN[name]
    with pytest.raises(softfold.DTypeError) as caught:
        call()
    assert caught.value.allowed == allowed and str(LONG.dtype) in caught.value.got


def test_class_indices_that_are_floats_meet_both_kinds_of_targets():
    for logits in (F, F.astype(np.float64)):
        for target in ([0.0, 1.0], np.array([0, 1], np.float32)):
            with pytest.raises(softfold.Error, match="targets of shape .2. and dtype float") as caught:
                softfold.cross_entropy(logits, target)
            assert caught.value.allowed == (
                "class indices (int32, int64), one a row, or class probabilities of x's shape [2, 3]"
            )
            assert caught.value.fix == "convert them to int64"
    with pytest.raises(softfold.DTypeError, match="a target of float64, one a row; allowed: class indices"):
        softfold.linear_cross_entropy(F, F, [0.0, 1.0])
    with pytest.raises(softfold.DTypeError, match="both float64, or neither; try: convert them to float32"):
        softfold.cross_entropy(F, [[0.0, 1.0, 0.0]] * 2)
