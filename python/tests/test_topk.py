"""softfold.topk against a stable sort, and torch's own topk where torch is."""

import numpy as np
import pytest
from conftest import DTYPES, bits

import softfold


def oracle(x, k, axis=-1):
    """(values, indices) by the order of topk: NaN, then from +inf down, the lowest index first."""
    keys = np.where(np.isnan(x), -np.inf, -np.asarray(x, np.float64))
    order = np.argsort(~np.isnan(x), axis=axis, kind="stable")  # NaN before +inf
    keys = np.take_along_axis(keys, order, axis)
    order = np.take_along_axis(order, np.argsort(keys, axis=axis, kind="stable"), axis)
    indices = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, indices, axis), indices


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_values_and_indices(rng, dtype, axis):
    x = rng.standard_normal((6, 9, 7)).round(1).astype(dtype)  # rounded: many are equal
    for k in (0, 1, 4, x.shape[axis]):
        values, indices = softfold.topk(x, k, axis)
        want, at = oracle(x, k, axis)
        assert values.dtype == dtype and indices.dtype == np.int64
        assert values.tolist() == want.tolist() and indices.tolist() == at.tolist()


def test_infinities_nans_and_long_rows(rng):
    x = rng.standard_normal(5000).astype(np.float32)
    x[[7, 4000]], x[[3, 999]], x[42] = np.nan, np.inf, -np.inf
    values, indices = softfold.topk(x, 6)
    want, at = oracle(x, 6)
    np.testing.assert_array_equal(values, want)
    assert indices.tolist() == at.tolist() and at[:4].tolist() == [7, 4000, 3, 999]
    values, indices = softfold.topk(x, 6, sorted=False)
    assert indices.tolist() == sorted(at.tolist())


def test_probabilities_are_softmax_s(rng):
    x = rng.standard_normal((5, 300)).astype(np.float32)
    values, indices, p, lp, lse = softfold.topk(
        x, 4, scale=0.7, return_probabilities=True, return_log_probabilities=True, return_lse=True
    )
    assert bits(p) == bits(np.take_along_axis(softfold.softmax(x, -1, scale=0.7), indices, -1))
    assert bits(lp) == bits(np.take_along_axis(softfold.log_softmax(x, -1, scale=0.7), indices, -1))
    assert bits(lse) == bits(softfold.logsumexp(x, -1, scale=0.7))
    *_, wide = softfold.topk(x, 4, return_lse=True, dtype=np.float64)
    assert wide.dtype == np.float64
    one = softfold.topk(x[0], 1, return_lse=True)
    assert len(one) == 3 and isinstance(one[2], np.float32)


def test_short_rows_masks_and_out(rng):
    x = rng.standard_normal((3, 8))
    values, indices, p = softfold.topk(x, 3, lengths=[8, 2, 0], return_probabilities=True)
    assert indices[1, 2] == -1 and (indices[2] == -1).all() and values[1, 2] == -np.inf and (p[2] == 0).all()
    _, masked = softfold.topk(x, 3, mask=np.arange(8) % 2 == 0)
    assert (masked % 2 == 0).all()
    out = np.empty((3, 3)), np.empty((3, 3), np.int32)
    got = softfold.topk(x, 3, out=out)
    assert got[0] is out[0] and got[1] is out[1]
    assert bits(out[0]) == bits(softfold.topk(x, 3)[0]) and out[1].tolist() == softfold.topk(x, 3)[1].tolist()
    values, indices = softfold.topk([3, 1, 2], 2)
    assert values.tolist() == [3, 2] and indices.tolist() == [0, 2]


def test_arrays_of_the_array_api(rng):
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    x = rng.standard_normal((3, 8))
    got = softfold.topk(strict.asarray(x), 3, return_probabilities=True, return_lse=True)
    want = softfold.topk(x, 3, return_probabilities=True, return_lse=True)
    assert all(type(g) is type(strict.asarray(x)) and bits(np.asarray(g)) == bits(w) for g, w in zip(got, want))


def test_refusals(rng):
    x = rng.standard_normal((3, 8))
    for call, code in (
        (lambda: softfold.topk(x, 9), "shape"),
        (lambda: softfold.topk(x, -1), "shape"),
        (lambda: softfold.topk(x, 2, 2), "shape"),
        (lambda: softfold.topk(x.astype(complex), 2), "dtype"),
        (lambda: softfold.topk(x, 2, out=(np.empty((3, 2)), np.empty((3, 2)))), "dtype"),
        (lambda: softfold.topk(x, 2, empty="one"), "option"),
    ):
        with pytest.raises(softfold.Error) as caught:
            call()
        assert caught.value.code == code


def test_torch(torch, rng):
    import softfold.torch as sf

    x = torch.from_numpy(rng.standard_normal((4, 9, 3)))
    for dim in (0, 1, -1):
        for got, want in zip(sf.topk(x, 2, dim), torch.topk(x, 2, dim)):
            assert torch.equal(got, want)
    got = softfold.topk(x, 2, 1, return_probabilities=True, return_lse=True)
    want = softfold.topk(x.numpy(), 2, 1, return_probabilities=True, return_lse=True)
    assert all(isinstance(g, torch.Tensor) and bits(g.numpy()) == bits(w) for g, w in zip(got, want))
    out = torch.empty(4, 2, 3, dtype=x.dtype), torch.empty(4, 2, 3, dtype=torch.int32)
    assert softfold.topk(x, 2, 1, out=out)[0] is out[0] and bits(out[0]) == bits(want[0])
    lengths = torch.tensor([[9, 1, 0]]).expand(4, 3)
    x.requires_grad_()

    def taken(x):
        values = sf.topk(x, 2, 1, lengths=lengths)[0]
        return torch.where(values.isfinite(), values, 0)

    assert torch.autograd.gradcheck(taken, (x,)) and torch.autograd.gradgradcheck(taken, (x,))
    for call, words in (
        (lambda: sf.topk(x, 2, largest=False), "largest"),
        (lambda: sf.topk(x, 2, return_lse=True), "gradient"),
    ):
        with pytest.raises(softfold.UnsupportedError, match=words):
            call()


def test_torch_op(torch, rng):
    import softfold.torch as sf

    x = torch.from_numpy(rng.standard_normal((4, 9))).requires_grad_()
    options = (1.0, None, None, None, False, False, None)
    torch.library.opcheck(torch.ops.softfold.topk.default, (x, 3, 1, True, [False] * 3, *options))
    torch.library.opcheck(torch.ops.softfold.topk.default, (x.detach(), 3, 0, True, [True] * 3, *options))

    def model(x):
        values, indices = sf.topk(x, 3)
        return 2 * values, indices

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    values, indices = compiled(x)
    assert torch.equal(values, 2 * sf.topk(x, 3)[0]) and torch.equal(indices, sf.topk(x, 3)[1])
    (dx,) = torch.autograd.grad(values.sum(), x)
    assert dx.sum() == 24 and dx[0, indices[0, 0]] == 2
