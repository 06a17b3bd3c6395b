"""softmax, log_softmax and logsumexp: against oracles in long double and against scipy.special."""

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import DTYPES, bits, check_logsumexp, check_softmax, wide

import softfold

special = pytest.importorskip("scipy.special")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 7, 1023, 1024, 1025, 5000])
def test_within_the_contract(rng, dtype, n):
    x = (rng.standard_normal((3, n)) * 4).astype(dtype)
    y, lse = softfold.softmax(x, -1), softfold.logsumexp(x, -1)
    assert y.dtype == dtype and lse.dtype == dtype and lse.shape == (3,)
    check_softmax(y, x)
    check_logsumexp(lse, x)
    want = wide(x) - np.logaddexp.reduce(wide(x), axis=-1, keepdims=True)
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-1}[dtype.name]
    np.testing.assert_allclose(wide(softfold.log_softmax(x, -1)), want, rtol=tolerance, atol=tolerance)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=6),
        elements=st.floats(-80, 80, width=32),
    ),
    st.data(),
)
def test_agrees_with_scipy_in_shape_dtype_and_value(x, data):
    rank = x.ndim
    axis = data.draw(st.none() | st.integers(-rank, rank - 1) | st.just(tuple(range(rank))))
    if data.draw(st.booleans()) and isinstance(axis, int):
        x = x[..., ::-1].T
    elif data.draw(st.booleans()):
        x = x.astype(np.float64)
    for name in ("softmax", "log_softmax"):
        mine, theirs = getattr(softfold, name)(x, axis), getattr(special, name)(x, axis=axis)
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    for keepdims in (False, True):
        mine = softfold.logsumexp(x, axis, keepdims=keepdims)
        theirs = special.logsumexp(x, axis, keepdims=keepdims)
        assert np.shape(mine) == np.shape(theirs) and mine.dtype == theirs.dtype and type(mine) is type(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 0, (0, 1), (1, 2), None])
def test_out_has_the_shape_that_keepdims_asks_for(rng, axis):
    x = rng.standard_normal((2, 3, 5))
    for operation, last in ((softfold.logsumexp, ()), (softfold.state, (4,))):
        for keepdims in (False, True):
            want = operation(x, axis, keepdims=keepdims)
            out = np.empty(np.shape(want))
            assert operation(x, axis, keepdims=keepdims, out=out) is out and bits(out) == bits(want)
            with pytest.raises(softfold.Error, match=f"with keepdims={not keepdims}; .*; try: keepdims={keepdims}") as e:
                operation(x, axis, keepdims=not keepdims, out=out)
            assert e.value.code == "shape"
        with pytest.raises(softfold.Error, match="allowed: the shape"):
            operation(x, axis, keepdims=True, out=np.empty((7, *last)))
    rows = np.empty(2)
    assert softfold.logsumexp(x.ravel(), keepdims=True, offsets=[0, 3, 30], out=rows) is rows


@pytest.mark.parametrize("axis", [(0, 2), (0, 1), (2, 0), None])
def test_axes_that_memory_does_not_hold_as_one_have_the_bits_of_a_copy(rng, axis):
    x = rng.standard_normal((7, 3, 900)).astype(np.float32).transpose(2, 1, 0)
    order = [a for a in range(3) if axis is not None and a not in axis]
    folded = sorted(axis) if axis is not None else [0, 1, 2]
    rows = np.ascontiguousarray(x.transpose(order + folded)).reshape([x.shape[a] for a in order] + [-1])
    for name in ("softmax", "log_softmax"):
        got = getattr(softfold, name)(x, axis, scale=0.5)
        want = getattr(softfold, name)(rows, -1, scale=0.5).reshape([x.shape[a] for a in order + folded])
        assert bits(got.transpose(order + folded)) == bits(want)
    assert bits(softfold.logsumexp(x, axis)) == bits(softfold.logsumexp(rows, -1))


@pytest.mark.parametrize(
    "value",
    [5.0, np.float32(3), [1, 2, 3], [[1, 2], [3, 4]], [True, False], np.arange(4, dtype=np.uint8), np.zeros(0)],
    ids=repr,
)
def test_what_scipy_takes(value):
    # SciPy itself subtracts in small integers (and refuses bools): it is given what they are converted to.
    given = np.asarray(value, np.float64) if np.asarray(value).dtype.kind in "biu" else value
    for name in ("softmax", "log_softmax", "logsumexp"):
        mine = getattr(softfold, name)(value)
        if np.size(value) == 0 and name != "logsumexp":
            assert mine.shape == (0,)
            continue
        theirs = getattr(special, name)(given)
        assert mine.dtype == theirs.dtype and type(mine) is type(theirs) and np.shape(mine) == np.shape(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("b", [2.0, [1, 2, 3, 4], [1, -2, 3, -4], [0, 0, 0, 0], [1, 0, -1, 0], [[1], [-3]]], ids=str)
@pytest.mark.parametrize("axis", [None, -1, 0])
def test_weights_and_signs_as_scipy(rng, b, axis):
    a = rng.standard_normal((2, 4))
    with np.errstate(all="ignore"):
        want = special.logsumexp(a, axis, b=b)
        size, sign = special.logsumexp(a, axis, b=b, return_sign=True)
    np.testing.assert_allclose(softfold.logsumexp(a, axis, b), want, rtol=1e-12, atol=1e-12)
    got_size, got_sign = softfold.logsumexp(a, axis, b, return_sign=True)
    np.testing.assert_allclose(got_size, size, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(got_sign, sign)


def test_signs_without_weights():
    # Of infinite sums SciPy's sign changed from version to version; here it is the newest's.
    for a, sign in (([1.0, 2.0], 1), ([-np.inf, -np.inf], 0), ([np.inf, 1.0], 1)):
        got = softfold.logsumexp(a, return_sign=True)
        np.testing.assert_array_equal(got, (special.logsumexp(a), sign))


def test_empty_rows_and_special_values():
    x = np.array([[-np.inf, -np.inf], [1.0, np.inf], [1.0, np.nan], [0.0, -np.inf]])
    y = softfold.softmax(x, -1)
    np.testing.assert_array_equal(y[0], [0, 0])
    assert np.isnan(y[1]).all() and np.isnan(y[2]).all()
    np.testing.assert_array_equal(y[3], [1, 0])
    assert np.isnan(softfold.softmax(x, -1, empty="nan")[0]).all()
    lse = softfold.logsumexp(x, -1)
    assert lse[0] == -np.inf and lse[1] == np.inf and np.isnan(lse[2]) and lse[3] == 0
    assert softfold.logsumexp(np.zeros(0)) == -np.inf


def test_options(rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)
    lengths = np.array([6, 3, 0, 1])
    exists = np.arange(6) < lengths[:, None]
    y = softfold.softmax(x, -1, lengths=lengths)
    assert bits(y) == bits(softfold.softmax(x, -1, mask=exists))
    assert bits(y[1, :3]) == bits(softfold.softmax(x[1, :3])) and not y[2].any() and y[3, 0] == 1
    causal = softfold.softmax(x[:, :4], -1, causal=True)
    assert bits(causal) == bits(softfold.softmax(x[:, :4], -1, mask=np.tri(4, dtype=bool)))
    scales = np.array([0.5, 1, 2, 4])
    for row, s in enumerate(scales):
        assert bits(softfold.softmax(x, -1, scales=scales)[row]) == bits(softfold.softmax(x[row], scale=s))
    flat, offsets = x.ravel(), np.array([0, 5, 5, 24])
    ragged = softfold.softmax(flat, offsets=offsets)
    assert bits(ragged[:5]) == bits(softfold.softmax(flat[:5])) and bits(ragged[5:]) == bits(softfold.softmax(flat[5:]))
    lse = softfold.logsumexp(flat, offsets=offsets)
    assert lse.shape == (3,) and lse[1] == -np.inf
    assert bits(softfold.softmax(x, lengths=[24])) == bits(softfold.softmax(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ragged_rows_that_do_not_cover_x(rng, dtype):
    x, offsets = rng.standard_normal(12).astype(dtype), np.array([2, 5, 5, 9])
    covered = dict(offsets=offsets - 2)
    for name, outside in (("softmax", 0), ("log_softmax", -np.inf)):
        for soil in range(2):  # what new memory holds is what was freed before
            np.full(12, 7 + soil, dtype)
            y = getattr(softfold, name)(x, offsets=offsets)
            assert bits(y[2:9]) == bits(getattr(softfold, name)(x[2:9], **covered))
            assert (y[:2] == outside).all() and (y[9:] == outside).all()
    assert bits(softfold.logsumexp(x, offsets=offsets)) == bits(softfold.logsumexp(x[2:9], **covered))
    assert not softfold.softmax(x, offsets=[4]).any() and softfold.softmax(x, offsets=[12, 12]).shape == (12,)
    _, gradient = softfold.entropy(x, offsets=offsets, return_gradient=True)
    assert not gradient[:2].any() and not gradient[9:].any() and gradient[2:5].any()
    whole = x.copy()
    assert softfold.softmax(whole, offsets=offsets, out=whole) is whole
    assert bits(whole) == bits(softfold.softmax(x, offsets=offsets))


def test_bits_depend_on_the_row_alone(rng):
    x = rng.standard_normal((5, 3000)).astype(np.float32)
    whole = softfold.softmax(x, -1)
    before = softfold.get_num_threads()
    try:
        for threads in (1, 2, 3):
            softfold.set_num_threads(threads)
            assert softfold.get_num_threads() == threads
            assert bits(softfold.softmax(x, -1)) == bits(whole)
            assert bits(softfold.softmax(np.asfortranarray(x), -1)) == bits(whole)
            assert bits(softfold.softmax(x[3])) == bits(whole[3])
    finally:
        softfold.set_num_threads(before)
