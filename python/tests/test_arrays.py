"""What softfold takes and gives: layouts, dtypes, out, and nothing copied or overwritten unasked."""

import tracemalloc

import numpy as np
import pytest
from conftest import BFLOAT16, bits

import softfold


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1, ::-1],
        lambda x: x[:, ::3],
        lambda x: x.T,
        lambda x: np.asfortranarray(x),
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: x[1:1],
        lambda x: x[:, :0],
        lambda x: x[:, None, ::2],
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_any_strides(rng, view, dtype):
    x = view(rng.standard_normal((6, 40)).astype(dtype))
    for axis in range(x.ndim):
        y = softfold.softmax(x, axis)
        assert y.shape == x.shape
        assert bits(y) == bits(softfold.softmax(np.ascontiguousarray(x), axis))


@pytest.mark.skipif(BFLOAT16 is None, reason="needs ml_dtypes")
def test_bfloat16_views(rng):
    x = rng.standard_normal((6, 40)).astype(BFLOAT16)
    y = softfold.softmax(x[::-1, ::2], -1)
    assert y.dtype == BFLOAT16
    assert bits(y) == bits(softfold.softmax(x[::-1, ::2].astype(np.float32), -1, dtype=BFLOAT16))


def test_read_only_input_is_read_and_read_only_output_refused(rng):
    x = rng.standard_normal(9)
    x.flags.writeable = False
    y = softfold.softmax(x)
    with pytest.raises(softfold.Error, match="read-only"):
        softfold.softmax(y, out=x)


def test_out_and_in_place(rng):
    x = rng.standard_normal((3, 50)).astype(np.float32)
    want = softfold.softmax(x, -1)
    out = np.empty((50, 3), np.float32).T
    assert softfold.softmax(x, -1, out=out) is out and bits(out) == bits(want)
    wide = np.empty(x.shape)
    softfold.softmax(x, -1, out=wide)
    np.testing.assert_allclose(wide, want, rtol=1e-6)
    before = bits(x)
    softfold.log_softmax(x, -1)
    assert bits(x) == before
    assert softfold.softmax(x, -1, out=x) is x and bits(x) == bits(want)
    with pytest.raises(softfold.Error, match="overlaps"):
        softfold.softmax(x[:, :-1], -1, out=x[:, 1:])


def test_result_dtype(rng):
    x = rng.standard_normal(70).astype(np.float16)
    y = softfold.softmax(x, dtype=np.float32)
    assert y.dtype == np.float32
    assert bits(y.astype(np.float16)) == bits(softfold.softmax(x))


def test_nothing_is_copied(rng):
    x = rng.standard_normal((2000, 500)).astype(np.float32)
    out = np.empty_like(x)
    rows = np.empty(2000, np.float32)
    softfold.softmax(x, -1, out=out)
    tracemalloc.start()
    for view in (x, x[::-1], x[:, ::-1]):
        softfold.softmax(view, -1, out=out)
        softfold.logsumexp(view, -1, out=rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


class OnlyDlpack:
    """An array of some other library: DLPack and the array API's names, nothing else."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.device = array, array.shape, array.dtype, "cpu"

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return OnlyDlpack

    float64 = np.float64

    @staticmethod
    def empty(shape, dtype, device):
        assert device == "cpu"
        return OnlyDlpack(np.empty(shape, dtype))


def test_any_library_of_the_array_api(rng):
    x = rng.standard_normal((4, 30))
    other = OnlyDlpack(x)
    y = softfold.softmax(other, -1)
    assert isinstance(y, OnlyDlpack) and bits(y.array) == bits(softfold.softmax(x, -1))
    lse = softfold.logsumexp(other, 0, keepdims=True)
    assert lse.shape == (1, 30) and bits(lse.array) == bits(softfold.logsumexp(x, 0))
    assert softfold.state(other, -1).shape == (4, 4)


def test_array_api_strict(rng):
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    for dtype in (np.float64, np.float32):
        x = rng.standard_normal((4, 30)).astype(dtype)
        theirs = strict.asarray(x)
        for name in ("softmax", "log_softmax", "logsumexp"):
            y = getattr(softfold, name)(theirs, -1)
            assert type(y) is type(theirs) and y.dtype == theirs.dtype
            assert bits(np.asarray(y)) == bits(getattr(softfold, name)(x, -1))
        lengths = np.array([30, 0, 7, 1])
        y = softfold.softmax(theirs, -1, scale=0.5, lengths=strict.asarray(lengths), mask=theirs > 0)
        assert bits(np.asarray(y)) == bits(softfold.softmax(x, -1, scale=0.5, lengths=lengths, mask=x > 0))
        dx = softfold.softmax_backward(y, theirs, -1)
        want = softfold.softmax_backward(np.asarray(y), x, -1)
        assert type(dx) is type(theirs) and bits(np.asarray(dx)) == bits(want)
        out = strict.empty_like(theirs)
        assert softfold.softmax(theirs, -1, out=out) is out and bits(np.asarray(out)) == bits(softfold.softmax(x, -1))
        for operation in (softfold.softmax, softfold.entropy):
            assert operation(theirs, -1, dtype="float32").dtype == strict.float32
        with pytest.raises(softfold.DTypeError, match="got dtype='float16'; allowed: float64, float32; try"):
            softfold.entropy(theirs, dtype="float16")
        with pytest.raises(softfold.Error, match="with keepdims=True"):
            softfold.logsumexp(theirs, -1, keepdims=True, out=strict.empty(4, dtype=theirs.dtype))
    with pytest.raises(softfold.DTypeError):
        softfold.softmax(strict.asarray([1, 2]))


def test_subclasses_and_other_buffers(rng):
    import array

    x = rng.standard_normal(12)
    assert bits(softfold.softmax(x.view(np.recarray))) == bits(softfold.softmax(x))
    assert bits(softfold.softmax(array.array("d", x))) == bits(softfold.softmax(x))
    with pytest.raises(softfold.DTypeError, match="masked"):
        softfold.softmax(np.ma.masked_array(x, mask=x > 0))


def test_states_and_shards(rng):
    x = rng.standard_normal((3, 4096)).astype(np.float32)
    whole = softfold.state(x, -1)
    assert whole.shape == (3, 4) and whole.dtype == np.float64
    y = softfold.finish_softmax(x[:, 1000:], whole, -1)
    assert bits(y) == bits(softfold.softmax(x, -1)[:, 1000:])
    ly = softfold.finish_log_softmax(x[:, :10], whole, -1)
    assert bits(ly) == bits(softfold.log_softmax(x, -1)[:, :10])


def test_what_a_state_says():
    x = np.array([3.0, 1.0, 4.0, 9.0])
    m, d, scale, digits = softfold.state(x, scale=0.5)
    assert scale == 0.5 and digits == 53
    np.testing.assert_allclose(d * 2 ** (2 * m), np.exp(0.5 * x).sum(), rtol=1e-14)
    m, d, scale, digits = softfold.state(x.astype(np.float32), scale=0.5)
    assert m == int(m) and digits == 24
    np.testing.assert_allclose(d * 2**m, np.exp(0.5 * x).sum(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_gradients(rng, dtype):
    x, dy = (rng.standard_normal((3, 80)).astype(dtype) for _ in range(2))
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    y = softfold.softmax(x, -1, scale=0.5)
    want = 0.5 * y * (dy - (y * dy).sum(-1, keepdims=True))
    np.testing.assert_allclose(softfold.softmax_backward(y, dy, -1, scale=0.5), want, rtol=0, atol=tolerance)
    ly = softfold.log_softmax(x, -1)
    want = dy - np.exp(ly) * dy.sum(-1, keepdims=True)
    np.testing.assert_allclose(softfold.log_softmax_backward(ly, dy, -1), want, rtol=0, atol=10 * tolerance)
    dlse = rng.standard_normal(3).astype(dtype)
    got = softfold.logsumexp_backward(x, softfold.state(x, -1), dlse, -1)
    np.testing.assert_allclose(got, softfold.softmax(x, -1) * dlse[:, None], rtol=0, atol=tolerance)
