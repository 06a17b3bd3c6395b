"""Rows in pieces: states, partials, streams, and the merges that other libraries' users know."""

import concurrent.futures
import functools
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import bits, check_logsumexp, oracle_logsumexp

import softfold


def cuts_of(n):
    return st.lists(st.integers(0, n), max_size=6).map(lambda cuts: [0, *sorted(cuts), n])


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.integers(1, 9000), st.data(), st.sampled_from(["float32", "float64", "float16"]))
def test_partials_join_to_the_whole_row_s_bits_however_it_is_cut(n, data, dtype):
    x = (np.random.default_rng(n).standard_normal(n) * 5).astype(dtype)
    cuts = data.draw(cuts_of(n))
    scale = data.draw(st.sampled_from([1.0, 0.125, 3.7]))
    partials = []
    for begin, end in zip(cuts, cuts[1:]):
        stream = softfold.Stream(dtype, scale, begin)
        stream.push(x[begin:end])
        partials.append(pickle.loads(pickle.dumps(stream.partial())))
    assert bits(functools.reduce(softfold.merge, partials).state()) == bits(softfold.state(x, scale=scale))
    data.draw(st.randoms()).shuffle(partials)
    whole = softfold.merge(*partials)
    assert whole.offset == 0 and whole.length == n and whole.scale == scale
    assert bits(whole.state()) == bits(softfold.state(x, scale=scale))
    y = softfold.softmax(x, scale=scale)
    for begin, end in zip(cuts, cuts[1:]):
        assert bits(softfold.finish(whole, x[begin:end])) == bits(y[begin:end])


def test_stream_takes_pieces_of_every_kind(rng):
    x = rng.standard_normal(5000)
    other = softfold.Stream("float64", offset=4000)
    other.push(x[4000:4500])
    stream = softfold.Stream("float64")
    stream.push(x[:1500])
    stream.push(float(x[1500]))
    stream.push(x[1501])
    stream.push(np.repeat(x[1502:4000], 2)[::2])
    stream.push(other)
    stream.push(list(x[4500:]))
    assert stream.length == stream.end == 5000 and stream.scale == 1 and stream.dtype == "float64"
    assert stream.logsumexp() == softfold.logsumexp(x)
    y = softfold.softmax(x)
    assert bits(np.concatenate([stream.softmax(x[:999]), stream.softmax(x[999:])])) == bits(y)
    assert bits(stream.log_softmax(x)) == bits(softfold.log_softmax(x))
    assert softfold.finish(stream) == stream.logsumexp()


def test_states_merge_in_any_order_within_the_bound(rng):
    x = rng.standard_normal((3, 4000)).astype(np.float32)
    states = [softfold.state(x[:, i : i + 777], -1) for i in range(0, 4000, 777)]
    for order in (states, states[::-1]):
        merged = functools.reduce(softfold.merge, pickle.loads(pickle.dumps(order)))
        lse = softfold.finish(merged)
        assert lse.shape == (3,) and lse.dtype == np.float64
        check_logsumexp(lse.astype(np.float32), x)
    aligned = [softfold.state(x[:, i : i + 1024], -1) for i in range(0, 4000, 1024)]
    assert bits(softfold.merge(*aligned)) == bits(softfold.state(x, -1))
    out = np.empty((3, 4))
    assert softfold.merge(*aligned, out=out) is out and bits(out) == bits(softfold.state(x, -1))


def test_workers_reduce_a_row(rng):
    x = rng.standard_normal(40_000).astype(np.float32)

    def fold(begin):
        stream = softfold.Stream(offset=begin)
        stream.push(x[begin : begin + 3333])
        return stream.partial()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        whole = softfold.merge(*pool.map(fold, range(0, x.size, 3333)))
    assert bits(whole.state()) == bits(softfold.state(x))


def test_a_stream_may_be_pushed_by_several_threads(rng):
    stream = softfold.Stream("float64")
    x = np.zeros(1000)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: stream.push(x), range(64)))
    assert stream.length == 64_000
    np.testing.assert_allclose(stream.logsumexp(), np.log(64_000), rtol=1e-14)


@pytest.mark.parametrize("base", ["natural", 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_merge_attention(rng, base, dtype):
    scores, values = rng.standard_normal((5, 90)).astype(dtype), rng.standard_normal((90, 8)).astype(dtype)
    unit = 1 if base == "natural" else np.log(2)
    outs, lses = [], []
    for begin, end in ((0, 30), (30, 31), (31, 31), (31, 90)):
        outs.append(softfold.softmax(scores[:, begin:end], -1) @ values[begin:end])
        lses.append((softfold.logsumexp(scores[:, begin:end], -1) / unit).astype(dtype))
    out, lse = softfold.merge_attention(outs, lses, base=base)
    np.testing.assert_allclose(out, softfold.softmax(scores, -1) @ values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse * unit, oracle_logsumexp(scores).astype(float), rtol=1e-5)


def test_merge_blocks(rng):
    x = rng.standard_normal((4, 60))
    blocks = [x[:, :20], x[:, 20:40], x[:, 40:]]
    ps, lse = softfold.merge_blocks(
        [softfold.softmax(b, -1) for b in blocks], [softfold.logsumexp(b, -1) for b in blocks]
    )
    np.testing.assert_allclose(np.concatenate(ps, -1), softfold.softmax(x, -1), rtol=1e-13)
    np.testing.assert_allclose(lse, softfold.logsumexp(x, -1), rtol=1e-14)


REFUSED = {
    "another scale": lambda: softfold.merge(softfold.state(np.ones(3)), softfold.state(np.ones(3), scale=2.0)),
    "another precision": lambda: softfold.merge(
        softfold.state(np.ones(3)), softfold.state(np.ones(3, np.float32))
    ),
    "a gap": lambda: softfold.merge(softfold.Stream(), softfold.Stream(offset=1)),
    "partials of two precisions": lambda: softfold.merge(softfold.Stream(), softfold.Stream("float64")),
    "bytes of nothing": lambda: softfold.Partial.from_bytes(b"nothing"),
    "bytes cut short": lambda: softfold.Partial.from_bytes(softfold.Stream().partial().to_bytes()[:-1]),
    "finishing with another scale": lambda: softfold.finish(softfold.state(np.ones(3)), np.ones(3), scale=2.0),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_belong_together_is_refused(case):
    with pytest.raises(softfold.StateError):
        REFUSED[case]()


def test_bytes_of_any_damage_are_refused_or_read(rng):
    stream = softfold.Stream(offset=100)
    stream.push(rng.standard_normal(5000).astype(np.float32))
    good = stream.partial().to_bytes()
    for at in range(64):
        damaged = bytearray(good)
        damaged[at] ^= 0xFF
        try:
            softfold.Partial.from_bytes(bytes(damaged)).logsumexp()
        except softfold.Error:
            continue
        assert at >= 12, f"byte {at} of the header changed unnoticed"


def test_pieces_that_are_none():
    stream = softfold.Stream()
    for piece, code in ((np.ones((2, 2), np.float32), "shape"), (np.ones(3), "dtype"), ("text", "dtype")):
        with pytest.raises(softfold.Error) as caught:
            stream.push(piece)
        assert caught.value.code == code
    with pytest.raises(softfold.DTypeError):
        softfold.Stream("int32")
    assert stream.length == 0 and stream.logsumexp() == -np.inf
