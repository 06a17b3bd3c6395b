"""softfold.linear_cross_entropy against a float64 oracle; its gradients in torch."""

import numpy as np
import pytest
from test_losses import oracle

import softfold

N, D, V = 7, 6, 9
TARGET = np.array([0, 8, -100, 3, 3, 5, 1])
OPTIONS = {
    "plain": {},
    "none": {"reduction": "none"},
    "class_weight": {"class_weight": np.linspace(0.5, 2, V), "reduction": "sum"},
    "smoothing, z_loss, scale": {"label_smoothing": 0.1, "z_loss": 0.1, "scale": 0.7},
    "mask": {"mask": np.arange(V) != 4},
}


@pytest.mark.parametrize("mode", ["fast", "lean"])
@pytest.mark.parametrize("options", OPTIONS)
def test_options(rng, options, mode):
    options = OPTIONS[options]
    x, w, b = rng.standard_normal((N, D)), rng.standard_normal((V, D)), rng.standard_normal(V)
    got = softfold.linear_cross_entropy(x, w, TARGET, b, mode=mode, return_log_probability=True, return_gradients=True,
                                        **options)  # fmt: skip
    named = {("weight" if k == "class_weight" else k): v for k, v in options.items()}
    loss, lp, dz = oracle(x @ w.T + b, TARGET, **named)
    for one, want in zip(got, (loss, lp, dz @ w, dz.T @ x, dz.sum(0))):
        np.testing.assert_allclose(one, want, rtol=1e-12, atol=1e-13)
    alone = softfold.linear_cross_entropy(x, w, TARGET, b, mode=mode, **options)
    assert np.array_equal(alone, got[0])


def test_softcap_and_precision(rng):
    x, w = rng.standard_normal((N, D)).astype(np.float32), rng.standard_normal((V, D)).astype(np.float32)
    z = x.astype(np.float64) @ w.T.astype(np.float64)
    loss, dx, dw = softfold.linear_cross_entropy(x, w, TARGET, softcap=2.0, return_gradients=True)
    want, _, dz = oracle(2 * np.tanh(z / 2), TARGET)
    dz = dz * (1 - np.tanh(z / 2) ** 2)
    assert dx.dtype == dw.dtype == np.float32
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    np.testing.assert_allclose(dx, dz @ w, atol=1e-6)
    np.testing.assert_allclose(dw, dz.T @ x, atol=1e-6)


def test_refusals(rng):
    x, w = rng.standard_normal((N, D)), rng.standard_normal((V, D))
    with pytest.raises(softfold.Error, match="weight of shape"):
        softfold.linear_cross_entropy(x, w[:, 1:], TARGET)
    with pytest.raises(softfold.Error, match="got class_weight of shape"):
        softfold.linear_cross_entropy(x, w, TARGET, class_weight=np.ones(4))
    with pytest.raises(softfold.Error, match="mode="):
        softfold.linear_cross_entropy(x, w, TARGET, mode="quick")
    with pytest.raises(softfold.Error, match="class probabilities"):
        softfold.linear_cross_entropy(x, w, np.ones((N, V), np.float32) / V)
    with pytest.raises(softfold.Error, match="target 9 for row 1"):
        softfold.linear_cross_entropy(x, w, np.where(TARGET == 8, 9, TARGET))


def test_torch(rng):
    torch = pytest.importorskip("torch")
    sf = pytest.importorskip("softfold.torch")
    double = {"dtype": torch.float64, "requires_grad": True}
    x, w, b = (torch.tensor(rng.standard_normal(s), **double) for s in ((2, N, D), (V, D), V))
    target = torch.tensor(np.stack([TARGET, TARGET[::-1].copy()]))
    for reduction in ("mean", "sum", "none"):

        def torchs(x, w, b, reduction=reduction):
            z = torch.nn.functional.linear(x, w, b).flatten(0, -2)
            loss = torch.nn.functional.cross_entropy(z, target.flatten(), reduction=reduction)
            return loss.view(target.shape) if reduction == "none" else loss

        def ours(x, w, b, reduction=reduction):
            return sf.linear_cross_entropy(x, w, target, b, reduction=reduction)

        want, got = torchs(x, w, b), ours(x, w, b)
        torch.testing.assert_close(got, want)
        dloss = torch.rand_like(want)
        for one, other in zip(torch.autograd.grad(got, (x, w, b), dloss), torch.autograd.grad(want, (x, w, b), dloss)):
            torch.testing.assert_close(one, other)
        assert torch.autograd.gradcheck(ours, (x, w, b))
    tensors = x.detach(), w.detach(), target, b.detach(), None, None
    for gradients in (True, False):
        args = *tensors, 0.0, "fast", -100, "mean", 0.0, 0.0, 1.0, None, False, gradients
        torch.library.opcheck(torch.ops.softfold.linear_cross_entropy.default, args)


def test_gradients_scaled_in_16_bits_and_second_ones():
    torch, sf = pytest.importorskip("torch"), pytest.importorskip("softfold.torch")
    x, w = (torch.randn(n, 16, generator=torch.Generator().manual_seed(n)).half().requires_grad_() for n in (20, 50))
    target = torch.arange(20)
    loss = sf.linear_cross_entropy(x, w, target)
    got = torch.autograd.grad(loss * 65536, (x, w))
    want = torch.autograd.grad(loss_of_torch(torch, x, w, target) * 65536, (x, w))
    for a, b in zip(got, want):
        assert torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2)
    with pytest.raises(softfold.Error) as caught:
        torch.autograd.grad(sf.linear_cross_entropy(x, w, target), x, create_graph=True)
    assert caught.value.code == "unsupported"


def loss_of_torch(torch, x, w, target):
    return torch.nn.functional.cross_entropy(x.float() @ w.float().T, target)
