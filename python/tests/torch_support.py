"""What the tests of softfold.torch share: the devices that they run on, scores, the functions' names."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import softfold.torch as sf  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
on_every_device = pytest.mark.parametrize("device", DEVICES)
NAMES = ["softmax", "log_softmax", "logsumexp"]


def scores(*shape, device, dtype=torch.float64, grad=False):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x.to(device=device, dtype=dtype).requires_grad_(grad)


def mine(name, x, dim, **options):
    return getattr(sf, name)(x, dim, **options)
