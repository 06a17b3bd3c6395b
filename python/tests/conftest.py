"""What the tests share: float64 oracles that know nothing of softfold, and the accuracy contract's bounds."""

import numpy as np
import pytest

try:
    import ml_dtypes

    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BFLOAT16 = None

DTYPES = [np.dtype(d) for d in ("float64", "float32", "float16")] + ([BFLOAT16] if BFLOAT16 is not None else [])
HALF_ULP = {"float64": 0.0, "float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINIEST = {"float64": 2.0**-1020, "float32": 2.0**-124, "float16": 2.0**-24, "bfloat16": 2.0**-124}


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def unit(dtype):
    return 2.0**-53 if dtype == np.float64 else 2.0**-24


def wide(x):
    """x in the widest floats that this machine has."""
    return np.asarray(x, np.float64).astype(np.longdouble)


def oracle_logsumexp(x, axis=-1):
    x = wide(x)
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return np.squeeze(top, axis) + np.log(np.sum(np.exp(x - top), axis=axis))


def oracle_softmax(x, axis=-1):
    x = wide(x)
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def check_softmax(y, x, axis=-1):
    """y is softmax(x) within the contract's bound."""
    x = wide(x)
    want = oracle_softmax(x, axis)
    d = np.max(x, axis=axis, keepdims=True) - x
    n = x.shape[axis]
    name = np.dtype(y.dtype).name
    bound = want * ((8 + d + 2.5 * np.log(n)) * unit(y.dtype) + HALF_ULP[name]) + TINIEST[name]
    error = np.abs(wide(y) - want)
    assert np.all(error <= bound), f"{float(np.max(error / bound))} of the bound"


def check_logsumexp(lse, x, axis=-1):
    want = oracle_logsumexp(x, axis)
    n = wide(x).shape[axis]
    name = np.dtype(lse.dtype).name
    u = unit(lse.dtype)
    bound = np.abs(want) * (u + HALF_ULP[name]) + (8 + 3 * np.log(n)) * u
    assert np.all(np.abs(wide(lse) - want) <= bound)


def bits(x):
    """x's bytes, so that equality is of bits."""
    return np.ascontiguousarray(x).tobytes()


@pytest.fixture
def rng():
    return np.random.default_rng(7)
