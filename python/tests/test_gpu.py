"""CuPy, PyTorch and JAX on a GPU: zero copy, the caller's current stream, the CPU's bits. Skipped where there is none."""

import numpy as np
import pytest
from conftest import bits

import softfold

SHAPE = (40, 5000)


@pytest.fixture
def cupy():
    module = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError:
        pytest.skip("no CUDA device")
    return module


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_cupy_arrays(rng, cupy, dtype):
    x = rng.standard_normal(SHAPE).astype(dtype)
    g = cupy.asarray(x)
    y = softfold.softmax(g, -1)
    assert isinstance(y, cupy.ndarray) and bits(cupy.asnumpy(y)) == bits(softfold.softmax(x, -1))
    strided = softfold.logsumexp(g[:, ::2], 1)
    assert bits(cupy.asnumpy(strided)) == bits(softfold.logsumexp(x[:, ::2], 1))
    assert softfold.softmax(g, -1, out=g) is g and bits(cupy.asnumpy(g)) == bits(cupy.asnumpy(y))


def test_cupy_options_and_empty_rows(rng, cupy):
    x = rng.standard_normal((3, 8)).astype(np.float32)
    lengths = np.array([8, 0, 3])
    got = softfold.softmax(cupy.asarray(x), -1, lengths=cupy.asarray(lengths))
    assert bits(cupy.asnumpy(got)) == bits(softfold.softmax(x, -1, lengths=lengths))
    assert np.isneginf(cupy.asnumpy(softfold.logsumexp(cupy.empty((3, 0)), -1))).all()


def test_nothing_is_copied_on_the_device(rng, cupy):
    x = cupy.asarray(rng.standard_normal(SHAPE))
    out = cupy.empty_like(x)
    softfold.softmax(x, -1, out=out)
    before = cupy.get_default_memory_pool().used_bytes()
    softfold.softmax(x, -1, out=out)
    assert cupy.get_default_memory_pool().used_bytes() == before


def test_cupy_s_current_stream_is_used(rng, cupy):
    """A graph captures what is queued on its stream, and nothing of what went elsewhere."""
    x = cupy.asarray(rng.standard_normal(SHAPE).astype(np.float32))
    out = cupy.zeros_like(x)
    want = cupy.asnumpy(softfold.softmax(x, -1))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        softfold.softmax(x, -1, out=out)
        graph = stream.end_capture()
    cupy.cuda.Device().synchronize()
    assert not cupy.asnumpy(out).any()
    graph.launch(stream)
    stream.synchronize()
    assert bits(cupy.asnumpy(out)) == bits(want)


def test_cupy_attention(rng, cupy):
    shapes = ((2, 4, 9, 16), (2, 2, 30, 16), (2, 2, 30, 8))
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    want, want_lse = softfold.attention(q, k, v, causal=True, return_lse=True)
    got, lse = softfold.attention(*map(cupy.asarray, (q, k, v)), causal=True, return_lse=True)
    assert isinstance(got, cupy.ndarray) and isinstance(lse, cupy.ndarray)
    np.testing.assert_allclose(cupy.asnumpy(got), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(cupy.asnumpy(lse), want_lse, rtol=1e-5, atol=1e-5)


def test_cupy_consumers(rng, cupy):
    x = rng.standard_normal(SHAPE).astype(np.float32)
    target = rng.integers(0, SHAPE[1], SHAPE[0])
    g, t = cupy.asarray(x), cupy.asarray(target)
    asked = dict(return_log_probability=True, return_gradient=True)
    both, top = dict(return_gradients=True), dict(min_p=0.1, of="sampled", return_top_log_probabilities=4)
    calls = (
        (softfold.cross_entropy(g, t, **asked), softfold.cross_entropy(x, target, **asked)),
        (softfold.entropy(g, return_gradient=True), softfold.entropy(x, return_gradient=True)),
        (softfold.kl_divergence(g, -g, **both), softfold.kl_divergence(x, -x, **both)),
        (softfold.topk(g, 20, return_probabilities=True), softfold.topk(x, 20, return_probabilities=True)),
        (softfold.sample(g, top_k=9, seed=3, return_rank=True), softfold.sample(x, top_k=9, seed=3, return_rank=True)),
        (softfold.sample(g, **top), softfold.sample(x, **top)),
        ((softfold.renormalise(g, top_k=9, top_p=0.9),), (softfold.renormalise(x, top_k=9, top_p=0.9),)),
        ((softfold.mask_logits(g, top_k=9, top_p=0.9),), (softfold.mask_logits(x, top_k=9, top_p=0.9),)),
    )
    for got, want in calls:
        assert all(isinstance(a, cupy.ndarray) for a in got)
        assert [bits(cupy.asnumpy(a)) for a in got] == [bits(np.asarray(b)) for b in want]


@pytest.fixture
def torch_gpu():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA device")
    return torch


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_consumers(torch_gpu, dtype):
    """The CPU's bits, gradients too."""
    torch, sf = torch_gpu, pytest.importorskip("softfold.torch")
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype)) * 4
    target = torch.arange(SHAPE[0]) * 7
    target[3] = -100

    def results(device):
        a, t = x.to(device).requires_grad_(), target.to(device)
        loss = sf.cross_entropy(a, t, label_smoothing=0.1)
        (dx,) = torch.autograd.grad(loss, a)
        (dh,) = torch.autograd.grad(sf.entropy(a, -1).sum(), a)
        b = a.detach().flip(-1).requires_grad_()
        dp, dq = torch.autograd.grad(sf.kl_divergence(a, b).sum(), (a, b))
        best = sf.topk(a.detach(), 50, return_probabilities=True)
        options = dict(temperature=0.7, top_k=50, top_p=0.9, return_log_probability=True,
                       return_top_log_probabilities=5)  # fmt: skip
        drawn = sf.sample(a, -1, seed=torch.arange(SHAPE[0], device=device), **options)
        filters = dict(temperature=0.7, top_k=50, top_p=0.9)
        filtered = sf.renormalise(a, **filters), sf.mask_logits(a, **filters)
        whole = softfold.cross_entropy(a.detach(), t, return_log_probability=True, return_gradient=True)
        with sf.routed() as report:
            routed = torch.nn.functional.cross_entropy(a, t)
        assert report.routed == {"cross_entropy": 1}
        return loss, dx, dh, dp, dq, *best, *drawn, *filtered, *whole, routed

    for got, want in zip(results("cuda"), results("cpu")):
        assert got.is_cuda and torch.equal(*(t.detach().cpu().reshape(-1).view(torch.uint8) for t in (got, want)))


def test_torch_shards(torch_gpu):
    """A vocabulary in two shards, on the current stream: partials, joins and each shard's gradient as on the CPU."""
    torch, (rows, n), cut = torch_gpu, SHAPE, 2000
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)) * 4
    target = torch.arange(rows) * 7

    def results(device):
        a, t = x.to(device), target.to(device)
        shards, widest = ((0, a[:, :cut]), (cut, a[:, cut:])), 3000
        partials = torch.stack(
            [softfold.fold_shard(s, at, n, target=t, k=5, width=widest) for at, s in shards[::-1]])  # fmt: skip
        loss, states = softfold.join_cross_entropy(partials, t, dtype=torch.float32, return_states=True)
        dx = [softfold.cross_entropy_backward(s, t, states, offset=at, size=n) for at, s in shards]
        drawn = [softfold.sample_shard(s, partials, at, n, seed=3) for at, s in shards]
        best = softfold.join_topk(partials, 5, dtype=torch.float32, return_lse=True)
        return partials, loss, states, torch.cat(dx, -1), torch.maximum(*drawn), *best

    with torch.cuda.stream(torch.cuda.Stream()):
        got = results("cuda")
        torch.cuda.current_stream().synchronize()
    for a, b in zip(got, results("cpu")):
        assert a.is_cuda and torch.equal(*(t.cpu().reshape(-1).view(torch.uint8) for t in (a, b)))


def test_stray_targets_are_counted(torch_gpu):
    torch = torch_gpu
    x, target = torch.randn(6, 9, device="cuda"), torch.tensor([0, 9, 3, -1, -100, 8], device="cuda")
    status = torch.full((), 7, dtype=torch.int32, device="cuda")
    loss = softfold.cross_entropy(x, target, reduction="none", status=status)
    assert status.item() == 2 and loss.isnan().tolist() == [False, True, False, True, False, False]


def test_a_graph_s_replay_draws_anew(torch_gpu):
    torch = torch_gpu
    x = torch.randn(64, 1000, device="cuda")
    offset = torch.zeros(1, dtype=torch.int64, device="cuda").expand(64)
    tokens = torch.empty(64, dtype=torch.int64, device="cuda")
    want = [softfold.sample(x.cpu(), seed=4, offset=i) for i in range(3)]
    graph = torch.cuda.CUDAGraph()
    softfold.sample(x, seed=4, offset=offset, out=tokens)  # loads the kernels
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        softfold.sample(x, seed=4, offset=offset, out=tokens)
    for i in range(3):
        offset.as_strided((1,), (1,)).fill_(i)
        graph.replay()
        assert torch.equal(tokens.cpu(), want[i])


@pytest.fixture
def jax_gpu():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    try:
        return jax, jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("JAX has no CUDA device")


def test_jax_on_the_gpu(rng, jax_gpu):
    import softfold.jax as sf

    jax, device = jax_gpu
    x = rng.standard_normal(SHAPE).astype(np.float32)
    g = jax.device_put(x, device)
    for name in ("softmax", "log_softmax", "logsumexp"):
        got = jax.jit(lambda x: getattr(sf, name)(x, -1))(g)
        assert got.devices() == {device} and bits(got) == bits(getattr(softfold, name)(x, -1))
    loss = jax.jit(jax.grad(lambda x: (sf.softmax(x, -1) ** 2).sum()))
    want = jax.grad(lambda x: (jax.nn.softmax(x, -1) ** 2).sum())(g)
    np.testing.assert_allclose(loss(g), want, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("mode", ["fast", "lean"])
def test_torch_linear_cross_entropy(torch_gpu, mode):
    torch, sf = torch_gpu, pytest.importorskip("softfold.torch")
    torch.manual_seed(3)
    x, w, b = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) * 0.5 for s in ((2, 40, 64), (3000, 64), (3000,)))
    target = torch.randint(0, 3000, (2, 40), device="cuda")
    target[0, 3] = -100
    leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
    loss = sf.linear_cross_entropy(leaves[0], leaves[1], target, leaves[2], mode=mode)
    wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
    logits = torch.nn.functional.linear(*wide).flatten(0, 1)
    want = torch.nn.functional.cross_entropy(logits, target.flatten())
    torch.testing.assert_close(loss.double(), want, rtol=3e-3, atol=0)
    got, wanted = torch.autograd.grad(loss, leaves), torch.autograd.grad(want, wide)
    for one, other in zip(got, wanted):
        assert one.dtype == torch.bfloat16 and (one.double() - other).abs().max() <= 0.02 * other.abs().max()
