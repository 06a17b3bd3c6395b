"""Every bad argument is refused before any work, with what was given, what is allowed and the nearest fix."""

import pickle

import numpy as np
import pytest

import softfold

X = np.arange(6.0).reshape(2, 3)

REFUSED = {
    "complex": (lambda: softfold.softmax(X.astype(complex)), "dtype", "complex128"),
    "byte-swapped": (lambda: softfold.softmax(X.astype(X.dtype.newbyteorder())), "dtype", "byte-swapped"),
    "longdouble": (lambda: softfold.softmax(X.astype("g").astype(np.clongdouble)), "dtype", "complex"),
    "object": (lambda: softfold.softmax(np.array([None])), "dtype", "object"),
    "text": (lambda: softfold.softmax("abc"), "dtype", "<U3"),
    "axis too high": (lambda: softfold.softmax(X, 2), "shape", "axis 2"),
    "axis twice": (lambda: softfold.softmax(X, (0, -2)), "shape", "twice"),
    "no axis": (lambda: softfold.softmax(X, ()), "option", "axis ()"),
    "axis no integer": (lambda: softfold.softmax(X, 1.5), "option", "axis 1.5"),
    "axis of a scalar": (lambda: softfold.softmax(1.0, 0), "shape", "axis 0"),
    "rank 9": (lambda: softfold.softmax(np.zeros((1,) * 9)), "shape", "rank 9"),
    "strides within an element": (
        lambda: softfold.softmax(np.zeros(4, [("a", "i4"), ("b", "f8")])["b"], -1),
        "strides",
        "12 bytes",
    ),
    "misaligned": (lambda: softfold.softmax(np.frombuffer(bytes(33), np.float64, 4, 1)), "strides", "multiple"),
    "out of another shape": (lambda: softfold.softmax(X, -1, out=np.empty((3, 2))), "shape", "[3, 2]"),
    "out of integers": (lambda: softfold.softmax(X, -1, out=np.empty((2, 3), int)), "dtype", "int64"),
    "out and dtype": (lambda: softfold.softmax(X, out=X, dtype="f4"), "option", "out and dtype"),
    "out a list": (lambda: softfold.softmax(X, out=[0.0] * 6), "option", "list"),
    "dtype integer": (lambda: softfold.softmax(X, -1, dtype=np.int32), "dtype", "int32"),
    "mask of integers": (lambda: softfold.softmax(X, -1, mask=np.ones((2, 3), int)), "dtype", "int64"),
    "mask of another shape": (lambda: softfold.softmax(X, -1, mask=np.ones(2, bool)), "shape", "[2]"),
    "lengths too long": (lambda: softfold.softmax(X, -1, lengths=[3, 4]), "data", "length 4"),
    "lengths of floats": (lambda: softfold.softmax(X, -1, lengths=[3.0, 1.0]), "dtype", "float64"),
    "offsets descending": (lambda: softfold.softmax(X.ravel(), offsets=[0, 4, 2]), "data", "offsets[2]"),
    "length too long": (lambda: softfold.softmax(X, -1, lengths=[9, 1]), "data", "length 9 for row 0"),
    "masked logits": (lambda: softfold.topk(np.ma.masked_array(X), 1), "dtype", "masked"),
    "masked targets": (lambda: softfold.cross_entropy(X, np.ma.masked_array([0, 1])), "dtype", "masked"),
    "masked weights": (lambda: softfold.cross_entropy(X, [0, 1], weight=np.ma.masked_array(X[0])), "dtype", "masked"),
    "masked entropy": (lambda: softfold.entropy(np.ma.masked_array(X)), "dtype", "masked"),
    "masked bias": (lambda: softfold.sample(X.astype("f4"), bias=np.ma.masked_array(X[0])), "dtype", "masked"),
    "masked classes": (
        lambda: softfold.linear_cross_entropy(X, X, np.ma.masked_array([0, 1])),
        "dtype",
        "masked",
    ),
    "scale text": (lambda: softfold.softmax(X, scale="hot"), "option", "'hot'"),
    "scale infinite": (lambda: softfold.softmax(X, scale=np.inf), "option", "inf"),
    "causal along another axis": (lambda: softfold.softmax(X, 0, causal=True), "option", "causal"),
    "causal and all axes": (lambda: softfold.softmax(X, causal=True), "option", "causal"),
    "empty of another name": (lambda: softfold.softmax(X, empty="one"), "option", "'one'"),
    "gradient of another shape": (lambda: softfold.softmax_backward(X, X[:1], -1), "shape", "[1, 3]"),
    "axis beyond 64 bits": (lambda: softfold.softmax(X, 2**70), "shape", "axis 1180591620717411303424"),
    "axis far below": (lambda: softfold.softmax(X, (0, -(2**70))), "shape", "axis -1180591620717411303424"),
    "axis of a loss beyond 64 bits": (
        lambda: softfold.cross_entropy(X, [0, 1], 2**70),
        "shape",
        "axis 1180591620717411303424",
    ),
    "axis of topk beyond 64 bits": (lambda: softfold.topk(X, 1, 2**70), "shape", "axis 1180591620717411303424"),
    "k beyond 64 bits": (lambda: softfold.topk(X, 2**70), "shape", "k = 1180591620717411303424"),
    "ignore_index beyond 64 bits": (
        lambda: softfold.cross_entropy(X, [0, 1], ignore_index=2**63),
        "option",
        "ignore_index=9223372036854775808",
    ),
    "ignore_index no integer": (
        lambda: softfold.linear_cross_entropy(X, X, [0, 1], ignore_index=1.5),
        "option",
        "ignore_index=1.5",
    ),
    "offset of a shard beyond 64 bits": (lambda: softfold.fold_shard(X, 2**64, 6), "option", "offset=1844"),
    "axis of a shard": (lambda: softfold.fold_shard(X, 0, 6, 2**70), "shape", "axis 1180591620717411303424"),
    "width of a partial beyond 64 bits": (lambda: softfold.partial_width(3, 0, 2**64), "option", "size=1844"),
    "offset of a stream beyond 64 bits": (lambda: softfold.Stream(offset=2**64), "option", "offset=1844"),
    "seed of a shard below 0": (
        lambda: softfold.sample_shard(X, softfold.fold_shard(X, 0, 3)[None], 0, 3, seed=-1),
        "option",
        "seed=-1",
    ),
    "draw of a shard below 0": (
        lambda: softfold.sample_shard(X, softfold.fold_shard(X, 0, 3)[None], 0, 3, draw=-1),
        "option",
        "draw=-1",
    ),
    "threads beyond 64 bits": (lambda: softfold.set_num_threads(2**70), "option", "threads=1180591620717411303424"),
    "threads below 0": (lambda: softfold.set_num_threads(-1), "option", "threads=-1"),
    "more threads than a pool has": (lambda: softfold.set_num_threads(4097), "option", "threads=4097"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, code, words = REFUSED[case]
    with pytest.raises(softfold.Error) as caught:
        call()
    error = caught.value
    assert error.code == code and words in error.got and error.allowed
    assert str(error).startswith("softfold: got ")


def test_a_row_without_classes_has_no_target():
    with pytest.raises(softfold.Error, match="got target 1 for row 1; allowed: ignore_index -100, as the row has no"):
        softfold.cross_entropy(np.arange(6.0), [0, 1, 0], offsets=[0, 3, 3, 6])


def test_options_of_another_dtype_meet_those_that_are_taken():
    taken = {"offsets": "int32, int64", "lengths": "int32, int64", "scales": "float32, float64", "mask": "bool"}
    for name, dtypes in taken.items():
        with pytest.raises(softfold.DTypeError, match=f"{name} of dtype uint64; allowed: {dtypes}; try"):
            softfold.softmax(X.ravel(), **{name: np.array([0, 6], np.uint64)})
    for name in ("q_offsets", "index", "lengths", "starts"):
        both = {"kv_offsets": np.array([0])} if name == "q_offsets" else {}
        with pytest.raises(softfold.DTypeError, match=f"{name} of dtype uint64; allowed: int32, int64; try"):
            softfold.attention(X, X, X, **{name: np.array([0], np.uint64)}, **both)
    for operation in (softfold.softmax, softfold.logsumexp, softfold.state, softfold.entropy):
        for none in ([], np.array(3), np.array([[0, 3]])):
            with pytest.raises(softfold.Error, match="offsets .*rows . 1"):
                operation(X.ravel(), offsets=none)
    with pytest.raises(softfold.Error, match="offsets, a int"):
        softfold.entropy(X.ravel(), offsets=3)


def test_targets_of_another_dtype_meet_those_that_are_taken():
    target = np.zeros(2, np.uint64)
    for call, allowed in (
        (
            lambda: softfold.cross_entropy(X, target),
            "int32, int64; of class probabilities float64, float32, float16, bfloat16",
        ),
        (lambda: softfold.linear_cross_entropy(X, X, target), "int32, int64"),
        (lambda: softfold.fold_shard(X, 0, 3, target=target), "int32, int64"),
    ):
        with pytest.raises(softfold.DTypeError, match="target of dtype uint64") as caught:
            call()
        assert caught.value.allowed == allowed


def test_the_range_of_threads_is_theirs_not_an_integer_type_s():
    for threads in (-1, 4097, 2**40, 2**70):
        with pytest.raises(softfold.Error, match="allowed: a whole number, 0 .. 4096"):
            softfold.set_num_threads(threads)


A = "x, axis, out, dtype, scale, scales, lengths, offsets, mask, causal, empty"
CALLS = {
    "dim": (lambda: softfold.softmax(X, dim=1), "the keyword dim for softmax", A, "axis=1"),
    "axes": (lambda: softfold.log_softmax(X, axes=(0, 1)), "the keyword axes for log_softmax", A, "axis=(0, 1)"),
    "keepdims": (lambda: softfold.softmax(X, keepdims=True), "the keyword keepdims for softmax", A, "leave it out, or"),
    "keepdim": (lambda: softfold.logsumexp(X, keepdim=True), "the keyword keepdim for", "return_sign", "keepdims=True"),
    "temperature": (lambda: softfold.softmax(X, temperature=2), "the keyword temperature", A, "scale=1/2"),
    "lengths": (lambda: softfold.softmax(X, length=[1, 2]), "the keyword length for", A, "lengths=..."),
    "no array": (lambda: softfold.softmax(), "no x for softmax", "an array", "softfold.softmax(x)"),
    "None": (lambda: softfold.softmax(None), "no x for softmax", "an array", "softfold.softmax(x)"),
    "one of two": (lambda: softfold.softmax_backward(X), "no dy for", "an array", "softfold.softmax_backward(y, dy)"),
    "another's name": (lambda: softfold.softmax(logits=X), "the keyword logits for softmax", A, "x=..."),
    "where": (lambda: softfold.softmax(X, where=X > 0), "the keyword where for softmax", A, "mask=..."),
    "topk's dim": (lambda: softfold.topk(X, 2, dim=1), "the keyword dim for topk", "x, k, axis", "axis=1"),
    "topk without k": (lambda: softfold.topk(X), "no k for topk", "a whole number", "softfold.topk(x, k)"),
    "no target": (lambda: softfold.cross_entropy(X), "no target for", "an array", "softfold.cross_entropy(logits, target)"),
    "singular": (lambda: softfold.kl_divergence(X, X, return_gradient=True), "the keyword return_gradient for",
                 "return_gradients", "return_gradients=True"),
    "plural": (lambda: softfold.entropy(X, return_gradients=True), "the keyword return_gradients for",
               "return_gradient", "return_gradient=True"),
    "sample's size": (lambda: softfold.sample(X, size=3), "the keyword size for sample", "temperature", "leave it out"),
    "a window": (lambda: softfold.attention(X, X, X, windows=3), "the keyword windows for attention", "window",
                 "window=3"),
    "of attention": (lambda: softfold.attention(X, X), "no v for attention", "an array", "softfold.attention(q, k, v)"),
    "of a shard": (lambda: softfold.fold_shard(X, 0), "no size for fold_shard", "a whole number", "softfold.fold_shard("),
    "too many for one": (lambda: softfold.renormalise(X, 1, 2), "other arguments than renormalise", "renormalise(logits",
                         "help("),
    "too many": (lambda: softfold.state(X, 1, True, 2), "other arguments than state", "state(x, axis=None, k", "help("),
    "twice": (lambda: softfold.softmax(X, x=X), "other arguments than softmax", "softmax(x, axis=None, *", "help("),
}


@pytest.mark.parametrize(
    "call, got",
    [
        (lambda: softfold.topk(X, 2.5), "k=2.5"),
        (lambda: softfold.topk(X, "two"), "k='two'"),
        (lambda: softfold.topk(X, None), "k=None"),
        (lambda: softfold.sample(X, top_k=2.5), "top_k=2.5"),
        (lambda: softfold.sample(X, temperature="hot"), "temperature='hot'"),
        (lambda: softfold.renormalise(X, top_p=[0.5, "x"]), "top_p=[0.5, 'x']"),
    ],
)
def test_what_is_no_number_is_refused(call, got):
    with pytest.raises(softfold.DTypeError) as caught:
        call()
    assert caught.value.got == got and "number" in caught.value.allowed


@pytest.mark.parametrize("case", CALLS)
def test_a_call_that_no_signature_takes_is_refused(case):
    call, got, allowed, fix = CALLS[case]
    with pytest.raises(softfold.UsageError) as caught:
        call()
    error = caught.value
    assert isinstance(error, TypeError) and error.code == "usage"
    assert got in error.got and allowed in error.allowed and error.fix.startswith(fix)


def test_help_says_what_other_calls_meet():
    lines = softfold.softmax.__doc__.splitlines()
    assert lines[0].startswith("softmax(x, axis=None, *, out=None")
    assert lines[1] == "softmax(anything else): softfold.UsageError"
    assert softfold.softmax.__doc__.count("exp(scale x) / sum") == 1


def test_the_result_is_called_out():
    for call in (
        lambda: softfold.softmax(X, -1, dtype=np.int32),
        lambda: softfold.logsumexp(X, -1, dtype=np.int32),
        lambda: softfold.state(X, -1, dtype=np.float32),
        lambda: softfold.softmax_backward(X, X, -1, out=np.empty((3, 2))),
    ):
        with pytest.raises(softfold.Error, match="got out of (dtype|shape)"):
            call()
    with pytest.raises(softfold.Error, match="got dy of shape"):
        softfold.softmax_backward(X, X[:1], -1)
    with pytest.raises(softfold.Error, match="got lengths of shape"):
        softfold.softmax(X, -1, lengths=[1, 2, 3])


def test_a_value_that_is_none_of_an_option_s_meets_one_that_is():
    for call, fix in (
        (lambda: softfold.softmax(X, 2), "axis=-1"),
        (lambda: softfold.softmax(X, ()), "axis=None for all of them"),
        (lambda: softfold.softmax(X, empty="one"), 'empty="zero"'),
        (lambda: softfold.cross_entropy(X, [0, 1], reduction="avg"), 'reduction="mean"'),
        (lambda: softfold.cross_entropy(X, [0, 1], label_smoothing=2), "label_smoothing 0.1"),
        (lambda: softfold.sample(X.astype("f4"), top_p=2), "top_p 0.9"),
        (lambda: softfold.sample(X.astype("f4"), order="last"), 'order="min_p_first"'),
        (lambda: softfold.partial_width(3, 0, 6, k=7), "k = 6"),
    ):
        with pytest.raises(softfold.Error) as caught:
            call()
        assert caught.value.fix == fix


def test_causal_is_true_or_false_not_what_python_calls_true():
    square = np.zeros((3, 3))
    for yes, no in ((True, False), (1, 0), (np.True_, np.False_)):
        got = [softfold.softmax(square, -1, causal=causal)[0, 1] for causal in (yes, no)]
        assert got == [0, 1 / 3]
    for other in ("no", [], 2, square):
        with pytest.raises(softfold.Error) as caught:
            softfold.softmax(square, -1, causal=other)
        assert caught.value.fix == "causal=True"


def test_errors_are_python_s_own_too():
    with pytest.raises(TypeError):
        softfold.softmax(X.astype(complex))
    with pytest.raises(ValueError):
        softfold.softmax(X, 5)
    with pytest.raises(TypeError):
        softfold.softmax()
    with pytest.raises(TypeError):
        softfold.softmax(X, temperature=2)


class Unready:
    def __index__(self):
        raise ValueError("not ready")


@pytest.mark.parametrize(
    "call",
    [
        lambda: softfold.softmax(X, Unready()),
        lambda: softfold.softmax(X, (0, Unready())),
        lambda: softfold.topk(X, 1, Unready()),
        lambda: softfold.cross_entropy(X, [0, 1], ignore_index=Unready()),
        lambda: softfold.fold_shard(X, Unready(), 6),
        lambda: softfold.Stream(offset=Unready()),
        lambda: softfold.set_num_threads(Unready()),
    ],
)
def test_what_an_index_raises_is_the_caller_s(call):
    with pytest.raises(ValueError, match="^not ready$") as caught:
        call()
    assert caught.type is ValueError


def test_errors_travel_between_processes():
    with pytest.raises(softfold.Error) as caught:
        softfold.softmax(X, 5)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value) and str(again) == str(caught.value) and again.code == "shape"
