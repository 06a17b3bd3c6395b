"""softfold.entropy and kl_divergence against float64 oracles, and torch's own where torch is."""

import numpy as np
import pytest
from conftest import DTYPES, bits, oracle_softmax
from test_losses import C, logits

import softfold


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entropy(rng, dtype):
    x = rng.standard_normal((4, C, 3)).astype(dtype)
    wide = np.moveaxis(x.astype(np.float64) * 0.5, 1, -1)
    p = oracle_softmax(wide).astype(np.float64)
    h = -(p * np.log(p)).sum(-1)
    dx = np.moveaxis(-0.5 * p * (np.log(p) + h[..., None]), -1, 1)
    got, gradient = softfold.entropy(x, 1, scale=0.5, return_gradient=True)
    assert got.dtype == gradient.dtype == dtype
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype.name]
    np.testing.assert_allclose(got.astype(np.float64), h, rtol=tolerance)
    np.testing.assert_allclose(gradient.astype(np.float64), dx, rtol=tolerance, atol=tolerance)
    out = np.empty((4, 3), dtype)
    assert softfold.entropy(x, 1, scale=0.5, out=out) is out and bits(out) == bits(got)


def test_entropy_of_short_and_empty_rows(rng):
    x = rng.standard_normal((3, C))
    short = softfold.entropy(x, lengths=[1, 2, 0])
    assert abs(short[0]) < 1e-15 and short[2] == 0
    assert np.isnan(softfold.entropy(x, lengths=[1, 2, 0], empty="nan")[2])
    assert softfold.entropy(np.zeros(8)) == pytest.approx(np.log(8)) and np.ndim(softfold.entropy([1, 2])) == 0
    for call in (lambda: softfold.entropy(x, 2), lambda: softfold.entropy(x, out=np.empty(4))):
        with pytest.raises(softfold.Error):
            call()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kl_divergence(rng, dtype):
    a = rng.standard_normal((4, C, 3)).astype(dtype)
    b = (a.astype(np.float64) + rng.standard_normal(a.shape)).astype(dtype)
    p, q = (oracle_softmax(np.moveaxis(x.astype(np.float64) * 0.5, 1, -1)).astype(np.float64) for x in (a, b))
    kl = (p * (np.log(p) - np.log(q))).sum(-1)
    dp = np.moveaxis(0.5 * p * (np.log(p) - np.log(q) - kl[..., None]), -1, 1)
    got = softfold.kl_divergence(a, b, 1, scale=0.5, return_gradients=True)
    assert all(x.dtype == dtype for x in got)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype.name]
    for result, want in zip(got, (kl, dp, np.moveaxis(0.5 * (q - p), -1, 1))):
        np.testing.assert_allclose(result.astype(np.float64), want, rtol=tolerance, atol=tolerance * np.abs(want).max())
    out = np.empty((4, 3), dtype)
    assert softfold.kl_divergence(a, b, 1, scale=0.5, out=out) is out and bits(out) == bits(got[0])


def test_kl_divergence_of_close_and_of_special_rows(rng):
    a = rng.standard_normal(1000)
    b = a + 1e-6 * rng.standard_normal(1000)
    p = oracle_softmax(a).astype(np.float64)
    variance = (p * (a - b - (p * (a - b)).sum()) ** 2).sum()
    assert softfold.kl_divergence(a, b) == pytest.approx(variance / 2, rel=1e-5)
    assert softfold.kl_divergence(a, a) == 0 and softfold.kl_divergence([0, 1], [-np.inf, 1]) == np.inf
    assert softfold.kl_divergence([[1, 2]], [[2, 1]], lengths=[0])[0] == 0
    for q, code in ((b[:9], "shape"), (b.astype(np.float32), "dtype")):
        with pytest.raises(softfold.Error) as caught:
            softfold.kl_divergence(a, q)
        assert caught.value.code == code


def test_torch_kl_divergence_has_gradients_of_both(torch):
    import softfold.torch as sf

    a, b = logits(torch, 5, C).requires_grad_(), logits(torch, 5, C).flip(0).requires_grad_()
    want = torch.distributions.kl_divergence(*(torch.distributions.Categorical(logits=x) for x in (a, b)))
    got = softfold.kl_divergence(a, b)
    torch.testing.assert_close(got, want)
    weight = torch.arange(5.0, dtype=torch.float64)
    for x, y in zip(torch.autograd.grad(got @ weight, (a, b)), torch.autograd.grad(want @ weight, (a, b))):
        torch.testing.assert_close(x, y)
    alone = torch.autograd.grad(sf.kl_divergence(a.detach(), b).sum(), b)[0]
    three = softfold.kl_divergence(a.detach(), b.detach(), return_gradients=True)
    assert torch.equal(alone, three[2]) and torch.equal(got.detach(), three[0])
    assert torch.autograd.gradcheck(lambda x, y: sf.kl_divergence(x, y, scale=0.7), (a, b))
    torch.library.opcheck(torch.ops.softfold.kl_divergence, (a, b, -1, 1.0, None, None, None, None, False, False, None))


def test_torch_s_entropy(torch):
    import softfold.torch as sf

    x = logits(torch, 4, C).requires_grad_()
    torch.testing.assert_close(sf.entropy(x), torch.distributions.Categorical(logits=x).entropy())
    assert bits(softfold.entropy(x.detach()).numpy()) == bits(softfold.entropy(x.detach().numpy()))
    mask = torch.arange(C) != 4
    assert torch.autograd.gradcheck(lambda x: sf.entropy(x, 0, scale=0.5), (x,))
    assert torch.autograd.gradcheck(lambda x: sf.entropy(x, mask=mask), (x,))
    h, dx = softfold.entropy(x, return_gradient=True)
    assert bits(dx) == bits(torch.autograd.grad(sf.entropy(x).sum(), x)[0]) and bits(h) == bits(sf.entropy(x).detach())
    options = (1, 0.5, None, None, None, mask, False)
    torch.library.opcheck(torch.ops.softfold.entropy.default, (x, *options, False, None))
    _, states = torch.ops.softfold.entropy(x.detach(), *options, False, None)
    operands = (x.detach(), states, torch.ones(4, dtype=x.dtype))
    torch.library.opcheck(torch.ops.softfold.entropy_backward.default, (*operands, *options))
    compiled = torch.compile(lambda x: sf.entropy(x) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), sf.entropy(x) + 1)
