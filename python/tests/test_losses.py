"""softfold.cross_entropy against a float64 oracle, and torch's own where torch is."""

import numpy as np
import pytest
from conftest import DTYPES, bits, oracle_logsumexp, oracle_softmax

import softfold

N, C = 6, 9
TARGET = np.array([0, 8, -100, 3, 3, 5])


def oracle(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0, z_loss=0.0, scale=1.0,
           mask=None, lengths=None):  # fmt: skip
    """(loss, log-probabilities of the targets, gradient of the sum of the losses), of (N, C)."""
    x = x.astype(np.float64) * scale
    exists = np.ones(x.shape, bool) if mask is None else np.broadcast_to(mask, x.shape)
    exists = exists & (np.arange(x.shape[1]) < (np.full(len(x), x.shape[1]) if lengths is None else lengths)[:, None])
    x = np.where(exists, x, -np.inf)
    lse = oracle_logsumexp(x).astype(np.float64)
    lp = x - lse[:, None]
    w = np.ones(x.shape[1]) if weight is None else np.asarray(weight, np.float64)
    kept = target != ignore_index
    at = np.arange(len(x)), np.where(kept, target, 0)
    wt = w[at[1]] * kept
    smooth = np.where(exists, w, 0) * label_smoothing / exists.sum(1)[:, None]
    loss = (1 - label_smoothing) * wt * -lp[at] + kept * (smooth * -np.where(exists, lp, 0)).sum(1)
    loss += z_loss * wt * lse**2
    pull = (1 - label_smoothing) * wt + smooth.sum(1) + 2 * z_loss * wt * lse
    dx = pull[:, None] * oracle_softmax(x).astype(np.float64) - smooth
    dx[at] -= (1 - label_smoothing) * wt
    dx *= scale * kept[:, None]
    if reduction == "none":
        return loss, np.where(kept, lp[at], 0), dx
    total = wt.sum() if reduction == "mean" else 1.0
    return loss.sum() / total, np.where(kept, lp[at], 0), dx / total


OPTIONS = {
    "plain": {},
    "none": {"reduction": "none"},
    "sum": {"reduction": "sum"},
    "weight": {"weight": np.linspace(0.5, 2, C)},
    "smoothing": {"label_smoothing": 0.1},
    "weight and smoothing": {"label_smoothing": 0.3, "weight": np.linspace(0.5, 2, C), "reduction": "none"},
    "z_loss": {"z_loss": 0.2},
    "ignore_index": {"ignore_index": 3},
    "scale": {"scale": 0.3},
    "mask": {"mask": np.arange(C) != 4, "label_smoothing": 0.2},
    "lengths": {"lengths": np.array([9, 9, 3, 4, 5, 6]), "label_smoothing": 0.2},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options(rng, options):
    options = OPTIONS[options]
    x = rng.standard_normal((N, C))
    target = np.where(TARGET == -100, options.get("ignore_index", -100), TARGET)
    got = softfold.cross_entropy(x, target, return_log_probability=True, return_gradient=True, **options)
    for one, want in zip(got, oracle(x, target, **options)):
        np.testing.assert_allclose(one, want, rtol=1e-12, atol=1e-14)
    assert bits(softfold.cross_entropy(x, target, **options)) == bits(got[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(rng, dtype):
    x = rng.standard_normal((N, C)).astype(dtype)
    loss, lp, dx = softfold.cross_entropy(x, TARGET, return_log_probability=True, return_gradient=True)
    assert loss.dtype == lp.dtype == dx.dtype == dtype and np.ndim(loss) == 0
    wide = softfold.cross_entropy(x, TARGET.astype(np.int32), dtype=np.float64)
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype.name]
    for one, want in zip((loss, lp, dx), oracle(x, TARGET)):
        np.testing.assert_allclose(np.asarray(one, np.float64), want, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(wide, oracle(x, TARGET)[0], rtol=1e-5 if dtype != np.float64 else 1e-13)
    assert isinstance(wide, np.float64)


def test_axes_strides_lists_and_out(rng):
    x = rng.standard_normal((2, C, 3))
    target = rng.integers(0, C, (2, 3))
    want = softfold.cross_entropy(np.moveaxis(x, 1, -1).copy(), target, reduction="none")
    got = softfold.cross_entropy(x, target.tolist(), 1, reduction="none")
    assert bits(got) == bits(want) and got.shape == (2, 3)
    out = np.empty((2, 6))[:, ::2]
    assert softfold.cross_entropy(x, target, 1, reduction="none", out=out) is out and bits(out) == bits(want)
    one = softfold.cross_entropy(x[0, :, 0], target[0, 0], reduction="none")
    assert isinstance(one, np.float64) and one == want[0, 0]
    assert softfold.cross_entropy([[1, 2], [3, 3]], [1, 0]) == pytest.approx((np.log1p(np.exp(-1)) + np.log(2)) / 2)
    ragged = softfold.cross_entropy(x.reshape(-1)[:7], [2, 0], 0, offsets=[0, 4, 7], reduction="none")
    assert ragged[0] == softfold.cross_entropy(x.reshape(-1)[:4], 2)
    assert ragged[1] == softfold.cross_entropy(x.reshape(-1)[4:7], 0)


def test_no_rows_and_empty_rows(rng):
    x = rng.standard_normal((2, C))
    assert softfold.cross_entropy(x, [-100, -100]) == 0 and softfold.cross_entropy(x[:0], TARGET[:0]) == 0
    assert np.isnan(softfold.cross_entropy(x, [-100, -100], empty="nan"))
    assert softfold.cross_entropy(np.full(3, -np.inf), 1) == np.inf


@pytest.mark.parametrize(
    "options", [{}, {"reduction": "none"}, {"label_smoothing": 0.2, "weight": np.linspace(1, 2, C)}]
)
def test_class_probabilities(rng, options):
    x, q = rng.standard_normal((N, C)), oracle_softmax(rng.standard_normal((N, C))).astype(np.float64)
    loss, gradient = softfold.cross_entropy(x, q, return_gradient=True, **options)
    torch = pytest.importorskip("torch")
    sf = pytest.importorskip("softfold.torch")
    options = {k: torch.tensor(v) if k == "weight" else v for k, v in options.items()}
    t = torch.tensor(x, requires_grad=True)
    want = torch.nn.functional.cross_entropy(t, torch.tensor(q), **options)
    np.testing.assert_allclose(loss, want.detach(), rtol=1e-12)
    (dx,) = torch.autograd.grad(want.sum(), t)
    np.testing.assert_allclose(gradient, dx, atol=1e-14)
    got = sf.cross_entropy(t, torch.tensor(q), **options)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), t)[0], dx)
    with pytest.raises(softfold.Error, match="class probabilities"):
        sf.cross_entropy(t, torch.tensor(q, requires_grad=True))


def test_arrays_of_the_array_api(rng):
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    x = rng.standard_normal((N, C))
    want = softfold.cross_entropy(x, TARGET, return_gradient=True)
    got = softfold.cross_entropy(strict.asarray(x), strict.asarray(TARGET), return_gradient=True)
    assert all(type(g) is type(strict.asarray(x)) and bits(np.asarray(g)) == bits(w) for g, w in zip(got, want))


def test_refusals(rng):
    x = rng.standard_normal((N, C))
    for call, code, words in (
        (lambda: softfold.cross_entropy(x, np.ones((N, C), np.float32) / C), "dtype", "targets of dtype float32"),
        (lambda: softfold.cross_entropy(x, np.ones((N, C - 1)) / C), "shape", "targets of shape"),
        (lambda: softfold.cross_entropy(x, TARGET + 1), "data", "9"),
        (lambda: softfold.cross_entropy(x, TARGET[:4]), "shape", "target"),
        (lambda: softfold.cross_entropy(x, TARGET.astype(np.int8)), "dtype", "int8"),
        (lambda: softfold.cross_entropy(x, TARGET, reduction="median"), "option", "median"),
        (lambda: softfold.cross_entropy(x, TARGET, label_smoothing=1.5), "option", "label_smoothing"),
        (lambda: softfold.cross_entropy(x, TARGET, z_loss=-1.0), "option", "z_loss"),
        (lambda: softfold.cross_entropy(x, TARGET, weight=np.ones(4)), "shape", "weight"),
        (lambda: softfold.cross_entropy(x, TARGET, 2), "shape", "axis 2"),
        (lambda: softfold.cross_entropy(x.astype(complex), TARGET), "dtype", "complex"),
    ):
        with pytest.raises(softfold.Error, match=words) as caught:
            call()
        assert caught.value.code == code


def test_jax_arrays_are_refused():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    x = jax.numpy.ones((2, 3))
    for call in (
        lambda: softfold.cross_entropy(x, np.zeros(2, int)),
        lambda: softfold.entropy(x),
        lambda: softfold.topk(x, 2),
    ):
        with pytest.raises(softfold.DTypeError, match="JAX"):
            call()


def logits(torch, *shape, dtype="float64"):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x.to(getattr(torch, dtype))


def classes(torch, *shape):
    target = torch.randint(0, C, shape, generator=torch.Generator().manual_seed(4))
    return torch.where(torch.arange(target.numel()).reshape(shape) % 4 == 1, -100, target) if shape else target


TORCH_OPTIONS = {
    "plain": {},
    "none": {"reduction": "none"},
    "sum": {"reduction": "sum", "ignore_index": 2},
    "weight": {"weight": np.linspace(0.5, 2, C)},
    "smoothing": {"label_smoothing": 0.1},
    "both": {"label_smoothing": 0.1, "weight": np.linspace(0.5, 2, C), "reduction": "none"},
    "size_average": {"size_average": False},
}


@pytest.mark.filterwarnings("ignore:size_average")
@pytest.mark.parametrize("options", TORCH_OPTIONS)
@pytest.mark.parametrize("shape", [(C,), (N, C), (2, C, 3), (2, C, 3, 2)], ids=str)
def test_torch_s_values_and_gradients(torch, shape, options):
    import softfold.torch as sf

    options = {k: torch.from_numpy(v) if k == "weight" else v for k, v in TORCH_OPTIONS[options].items()}
    target = classes(torch, *shape[:1], *shape[2:]) if len(shape) > 1 else classes(torch)
    if options.get("ignore_index") == 2:
        target = torch.where(target == -100, 2, target)
    x, theirs = (logits(torch, *shape).requires_grad_() for _ in range(2))
    got = sf.cross_entropy(x, target, **options)
    want = torch.nn.functional.cross_entropy(theirs, target, **options)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(sf.cross_entropy(x.detach(), target, **options), want.detach())
    arriving = torch.linspace(1, 2, max(got.numel(), 1), dtype=got.dtype).reshape(got.shape)
    got.backward(arriving), want.backward(arriving)
    torch.testing.assert_close(x.grad, theirs.grad)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_s_dtypes_and_autocast(torch, dtype):
    import softfold.torch as sf

    x, target = logits(torch, N, C, dtype=dtype).requires_grad_(), classes(torch, N)
    tolerance = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype]
    close = dict(rtol=tolerance, atol=tolerance)
    got, want = sf.cross_entropy(x, target), torch.nn.functional.cross_entropy(x, target)
    torch.testing.assert_close(got, want, **close)
    torch.testing.assert_close(torch.autograd.grad(got, x)[0], torch.autograd.grad(want, x)[0], **close)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = sf.cross_entropy(x, target), torch.nn.functional.cross_entropy(x, target)
        assert got.dtype == want.dtype == torch.float32
    torch.testing.assert_close(got, want, **close)
    (dx,) = torch.autograd.grad(got, x)
    assert dx.dtype == x.dtype


def test_torch_gradcheck_with_softfold_s_options(torch):
    import softfold.torch as sf

    target = torch.tensor([3, -100, 7])
    for options in (
        {"z_loss": 0.3, "scale": 0.5, "label_smoothing": 0.2},
        {"mask": torch.arange(C) != 4, "scales": torch.tensor([0.5, 1, 2], dtype=torch.float64), "reduction": "none"},
        {"lengths": torch.tensor([9, 8, 9]), "weight": torch.linspace(0.5, 2, C), "reduction": "sum"},
    ):
        x = logits(torch, 3, C).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: sf.cross_entropy(x, target, **options), (x,))


def test_torch_op(torch):
    import softfold.torch as sf

    x, target = logits(torch, 2, C, 3).requires_grad_(), classes(torch, 2, 3)
    weight = torch.linspace(0.5, 2, C, dtype=x.dtype)
    for terms in ((None, -100, "mean", 0.0, 0.0), (weight, -100, "none", 0.1, 0.2)):
        options = (1, 1.0, None, None, None, None, False)
        torch.library.opcheck(torch.ops.softfold.cross_entropy.default, (x, target, *terms, *options, False, None))
        _, states = torch.ops.softfold.cross_entropy(x.detach(), target, *terms, *options, False, None)
        dloss = torch.ones(target.shape if terms[2] == "none" else (), dtype=x.dtype)
        operands = (x.detach(), target, states, dloss)
        torch.library.opcheck(torch.ops.softfold.cross_entropy_backward.default, (*operands, *terms, *options))

    def model(x, target):
        return sf.cross_entropy(2 * x, target, label_smoothing=0.1) + 1

    looped = torch.vmap(lambda x, target: sf.cross_entropy(x, target, dim=0))(x.detach(), target)
    torch.testing.assert_close(looped, torch.stack([sf.cross_entropy(a.T, b).detach() for a, b in zip(x, target)]))
    want = model(x, target)
    (dx,) = torch.autograd.grad(want, x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    got = compiled(x, target)
    assert torch.equal(got, want) and torch.equal(torch.autograd.grad(got, x)[0], dx)
    with pytest.raises(RuntimeError, match="autograd"):
        (dx,) = torch.autograd.grad(model(x, target), x, create_graph=True)
        dx.sum().backward()


def test_tensors_of_the_package_s_own_function(torch):
    import softfold.torch as sf

    x, target = logits(torch, N, C).requires_grad_(), classes(torch, N)
    loss = softfold.cross_entropy(x, target)
    assert loss.requires_grad and torch.equal(loss, sf.cross_entropy(x, target))
    loss, lp, dx = softfold.cross_entropy(x, target, return_log_probability=True, return_gradient=True)
    assert bits(dx) == bits(torch.autograd.grad(sf.cross_entropy(x, target), x)[0])
    assert bits(softfold.cross_entropy(x.detach().numpy(), target.numpy())) == bits(loss.numpy())
    assert lp.shape == target.shape and lp[0] == sf.log_softmax(x.detach(), -1)[0, target[0]] and lp[1] == 0
    out = torch.empty((), dtype=x.dtype)
    assert softfold.cross_entropy(x.detach(), target.tolist(), out=out) is out and torch.equal(out, loss)


def test_torch_s_module(torch):
    import softfold.torch as sf

    weight = torch.linspace(0.5, 2, C, dtype=torch.float64)
    x, target = logits(torch, N, C), classes(torch, N)
    theirs = torch.nn.CrossEntropyLoss(weight, ignore_index=3, label_smoothing=0.1)
    mine = sf.CrossEntropyLoss(weight, ignore_index=3, label_smoothing=0.1)
    target = torch.where(target == -100, 3, target)
    torch.testing.assert_close(mine(x, target), theirs(x, target))
    assert mine.state_dict().keys() == theirs.state_dict().keys()
    assert sf.CrossEntropyLoss(z_loss=0.5)(x, target) > sf.CrossEntropyLoss()(x, target)


def test_torch_s_cross_entropy_is_routed(torch):
    import softfold.torch as sf

    x, target = logits(torch, N, C), classes(torch, N)
    with sf.routed(warn=False) as report:
        got = torch.nn.functional.cross_entropy(x, target)
        module = torch.nn.CrossEntropyLoss(reduction="none")(x, target)
        assert torch.isnan(torch.nn.functional.cross_entropy(x, torch.full((N,), -100)))
        torch.nn.functional.cross_entropy(x, torch.softmax(x, -1))
    assert torch.equal(got, sf.cross_entropy(x, target))
    assert torch.equal(module, sf.cross_entropy(x, target, reduction="none"))
    assert report.routed == {"cross_entropy": 4, "softmax": 1}


def test_torch_refusals(torch):
    import softfold.torch as sf

    x, target = logits(torch, N, C), classes(torch, N)
    for call, code in (
        (lambda: sf.cross_entropy(x, torch.softmax(x, -1).requires_grad_()), "unsupported"),
        (lambda: sf.cross_entropy(x, target[:1]), "shape"),
        (lambda: sf.cross_entropy(x, target + 10), "data"),
        (lambda: sf.cross_entropy(x, target, torch.ones(C, requires_grad=True)), "unsupported"),
        (lambda: sf.cross_entropy(x, target, reduction="median"), "option"),
        (lambda: sf.cross_entropy(x.long(), target), "dtype"),
    ):
        with pytest.raises(softfold.Error) as caught:
            call()
        assert caught.value.code == code
