"""softfold.torch under autograd, opcheck, torch.compile and vmap; on CUDA too where there is one."""

import pytest
from torch_support import NAMES, mine, on_every_device, scores, sf, torch

from torch.library import opcheck

pytestmark = on_every_device


OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "scales": {"scales": torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)},
    "lengths": {"lengths": torch.tensor([4, 1, 3])},
    "mask": {"mask": torch.tensor([True, False, True, True])},
    "causal": {"causal": True},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_first_and_second_gradients(device, name, options):
    keywords = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in OPTIONS[options].items()}
    x = scores(3, 4, device=device, grad=True)

    def function(x):
        y = mine(name, x, -1, **keywords)
        return torch.where(torch.isfinite(y), y, 0)

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [0, (0, 1), None])
def test_gradients_along_other_dims(device, name, dim):
    x = scores(3, 4, device=device, grad=True)
    assert torch.autograd.gradcheck(lambda x: mine(name, x, dim), (x,))
    assert torch.autograd.gradgradcheck(lambda x: mine(name, x, dim), (x,))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [[0, 4, 4, 9], [2, 4, 4, 7], [3]], ids=str)
def test_gradients_of_ragged_rows(device, name, at):
    x = scores(9, device=device, grad=True)
    offsets = torch.tensor(at, device=device)

    def function(x):
        y = mine(name, x, 0, offsets=offsets)
        return torch.where(torch.isfinite(y), y, 0)

    assert torch.autograd.gradcheck(function, (x,)) and torch.autograd.gradgradcheck(function, (x,))
    for scales in (2.0, [2.0], [2.0, 0.5, 1.0][: len(at) - 1]):
        scales = torch.tensor(scales, dtype=torch.float64, device=device)
        assert torch.autograd.gradcheck(lambda x: torch.where(torch.isfinite(
            y := mine(name, x, 0, offsets=offsets, scales=scales)), y, 0), (x,))  # fmt: skip


def test_gradient_dtypes_follow_the_input(device):
    x = scores(3, 40, device=device, dtype=torch.bfloat16, grad=True)
    y = sf.softmax(x, -1, dtype=torch.float32)
    assert y.dtype == torch.float32
    y[:, 0].sum().backward()
    assert x.grad.dtype == torch.bfloat16
    want = torch.autograd.grad(torch.softmax(x, -1, dtype=torch.float32)[:, 0].sum(), x)[0]
    torch.testing.assert_close(x.grad, want, rtol=2e-2, atol=1e-3)


def test_opcheck(device):
    x = scores(3, 8, device=device, grad=True)
    mask = torch.ones(3, 8, dtype=torch.bool, device=device).tril()
    row = (1.0, None, None, None, mask, False)
    opcheck(torch.ops.softfold.softmax.default, (x, [-1], *row, False, None))
    opcheck(torch.ops.softfold.log_softmax.default, (x, [0], *row, False, torch.float32))
    opcheck(torch.ops.softfold.logsumexp.default, (x, [-1], False, *row, None))
    opcheck(torch.ops.softfold.state.default, (x.detach(), [0, 1], True, *row))
    y = sf.softmax(x.detach(), -1).requires_grad_()
    opcheck(torch.ops.softfold.softmax_backward.default, (y, x, [-1], *row, None))
    opcheck(torch.ops.softfold.log_softmax_backward.default, (y, x, [-1], *row, None))


def test_compile_without_breaks(device):
    x = scores(6, 50, device=device, dtype=torch.float32, grad=True)

    def model(x):
        return sf.softmax(x * 2, -1, causal=True).sum() + sf.logsumexp(x, 0).sum() + sf.log_softmax(x, 1)[:, 0].sum()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    want, got = model(x), compiled(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v in (got, want)))


def test_compile_with_inductor(device):
    x = scores(6, 50, device=device, dtype=torch.float32, grad=True)

    def model(x):
        return (sf.softmax(x * 2, -1) + 1).sum(0) + sf.logsumexp(x, -1).exp().sum()

    compiled = torch.compile(model, fullgraph=True)
    want, got = model(x), compiled(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), x)[0] for v in (got, want)))


def test_vmap(device):
    x = scores(4, 5, 6, device=device)
    for name in NAMES:
        for in_dim, dim in ((0, 0), (0, -1), (1, 1), (2, -2)):
            got = torch.vmap(lambda row: mine(name, row, dim), in_dim)(x)
            want = torch.vmap(lambda row: getattr(torch, name)(row, dim), in_dim)(x)
            torch.testing.assert_close(got, want)
    x.requires_grad_()
    torch.vmap(lambda row: sf.softmax(row, -1))(x)[:, 0, 0].sum().backward()
    want = torch.autograd.grad(torch.softmax(x, -1)[:, 0, 0].sum(), x)[0]
    torch.testing.assert_close(x.grad, want)
