"""softfold.torch: torch's values, gradients, transforms and routing; on CUDA too where there is one."""

import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy as np  # noqa: E402
from conftest import bits  # noqa: E402
from torch.library import opcheck  # noqa: E402

import softfold  # noqa: E402
import softfold.torch as sf  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
pytestmark = pytest.mark.parametrize("device", DEVICES)
NAMES = ["softmax", "log_softmax", "logsumexp"]


def scores(*shape, device, dtype=torch.float64, grad=False):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x.to(device=device, dtype=dtype).requires_grad_(grad)


def mine(name, x, dim, **options):
    return getattr(sf, name)(x, dim, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_shapes_are_torch_s(device, dtype, dim, name):
    x = scores(5, 70, 3, device=device, dtype=dtype)
    want = getattr(torch, name)(x, dim)
    got = mine(name, x, dim)
    assert got.dtype == want.dtype and got.shape == want.shape and got.device == want.device
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_bits_are_numpy_s(device):
    x = scores(9, 5000, device=device, dtype=torch.float32)
    for name in NAMES:
        assert bits(mine(name, x, -1).cpu().numpy()) == bits(getattr(softfold, name)(x.cpu().numpy(), -1))


def test_the_package_s_own_functions_take_tensors(device):
    x = scores(4, 30, device=device, grad=True)
    y = softfold.softmax(x, -1, lengths=[30, 3, 0, 7], scale=0.5)
    assert isinstance(y, torch.Tensor) and y.requires_grad and y.device == x.device
    assert softfold.logsumexp(x, keepdims=True).shape == (1, 1)
    states = softfold.merge(softfold.state(x[:, :16], -1), softfold.state(x[:, 16:], -1))
    torch.testing.assert_close(softfold.finish(states), torch.logsumexp(x.detach(), -1))
    out = torch.empty(30, 4, dtype=x.dtype, device=device).T
    assert softfold.softmax(x.detach(), -1, out=out) is out
    torch.testing.assert_close(out, torch.softmax(x, -1).detach())
    dx = softfold.softmax_backward(out, torch.ones_like(out), -1)
    assert isinstance(dx, torch.Tensor) and dx.abs().max() < 1e-15


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
def test_gradients_of_ragged_rows(device, name):
    x = scores(9, device=device, grad=True)
    offsets = torch.tensor([0, 4, 4, 9], device=device)

    def function(x):
        y = mine(name, x, 0, offsets=offsets)
        return torch.where(torch.isfinite(y), y, 0)

    assert torch.autograd.gradcheck(function, (x,)) and torch.autograd.gradgradcheck(function, (x,))


def test_gradient_dtypes_follow_the_input(device):
    x = scores(3, 40, device=device, dtype=torch.bfloat16, grad=True)
    y = sf.softmax(x, -1, dtype=torch.float32)
    assert y.dtype == torch.float32
    y[:, 0].sum().backward()
    assert x.grad.dtype == torch.bfloat16
    want = torch.autograd.grad(torch.softmax(x, -1, dtype=torch.float32)[:, 0].sum(), x)[0]
    torch.testing.assert_close(x.grad, want, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("name, result", [("renormalise", "return_probabilities"), ("mask_logits", "return_masked")])
def test_what_sample_draws_from(device, name, result):
    mine, general = getattr(sf, name), getattr(softfold, name)
    x = scores(6, 500, device=device, dtype=torch.float32, grad=True)
    rows = dict(temperature=torch.rand(6, device=device) + 0.1, top_k=torch.tensor([3, 9, 0] * 2, device=device))
    for options in (
        dict(temperature=0.5, top_p=0.9, order="min_p_last", min_p=0.02),
        dict(**rows, bias=scores(500, device=device), dtype=torch.float16),
        dict(temperature=0, lengths=torch.arange(1, 7, device=device)),
    ):
        want = sf.sample(x, seed=3, **{result: True}, **options)[1]
        got = mine(x, **options)
        assert torch.equal(got, want) and got.dtype == want.dtype and not got.requires_grad
        assert torch.equal(general(x, **options), want)
        out = torch.empty(500, 6, dtype=options.pop("dtype", torch.float32), device=device).T
        assert general(x, out=out, **options) is out and torch.equal(out, want)
    assert torch.equal(general(x, top_k=[3, 9, 0] * 2), mine(x, top_k=rows["top_k"]))
    assert bits(general(x, top_k=4).cpu()) == bits(general(x.detach().cpu().numpy(), top_k=4))
    compiled = torch.compile(lambda x: mine(x, top_p=0.8), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x.detach()), mine(x, top_p=0.8))
    for options, words in (
        (dict(out=torch.empty_like(x), dtype=torch.float32), "out and dtype"),
        (dict(out=x.detach()), "overlaps"),
        (dict(out=torch.empty_like(x)[:5]), "shape"),
        (dict(top_k=-1), "top_k -1"),
    ):
        with pytest.raises(softfold.Error, match=words):
            general(x, **options)
    with pytest.raises(softfold.DTypeError, match="float64"):
        mine(x.double())


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


def attended(x, v):
    return sf.softmax(x, -1).detach() @ v, sf.logsumexp(x.detach(), -1)


@pytest.mark.parametrize("base", ["natural", 2])
def test_merges_and_their_gradients(device, base):
    x, v = scores(2, 3, 12, device=device), scores(12, 4, device=device)
    blocks, rows = (x[..., :5], x[..., 5:]), (v[:5], v[5:])
    unit = 0.6931471805599453 if base == 2 else 1.0
    outs, lses = zip(*(attended(b, r) for b, r in zip(blocks, rows)))
    lses = [(e / unit).requires_grad_() for e in lses]
    outs = [o.requires_grad_() for o in outs]
    out, lse = sf.merge_attention(outs, lses, base=base)
    want, whole = attended(x, v)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse * unit, whole)
    assert torch.autograd.gradcheck(lambda *a: sf.merge_attention(a[:2], a[2:], base=base), (*outs, *lses))
    ps = [sf.softmax(b, -1).requires_grad_() for b in (x[..., :6], x[..., 6:])]
    lses = [(sf.logsumexp(b, -1) / unit).requires_grad_() for b in (x[..., :6], x[..., 6:])]
    merged, _ = sf.merge_blocks(ps, lses, base=base)
    torch.testing.assert_close(torch.cat(merged, -1), torch.softmax(x, -1))

    def blocks_of(*a):
        merged, lse = sf.merge_blocks(a[:2], a[2:], base=base)
        return *merged, lse

    assert torch.autograd.gradcheck(blocks_of, (*ps, *lses))


def parts(device, dtype=torch.float64):
    outs = [scores(5, 3, 4, device=device, dtype=dtype) * (i + 1) for i in range(2)]
    return outs, [out.sum(-1) / 3 for out in outs]


@pytest.mark.parametrize("base", ["natural", 2])
def test_second_gradients_of_merges(device, base):
    outs, lses = ([t.clone().requires_grad_() for t in ts] for ts in parts(device))

    def attention(*a):
        return sf.merge_attention(a[:2], a[2:], base=base)

    def blocks(*a):
        merged, lse = sf.merge_blocks(a[:2], a[2:], base=base)
        return *merged, lse

    for function in (attention, blocks):
        assert torch.autograd.gradgradcheck(function, (*outs, *lses))


def test_vmap_of_merges(device):
    x = scores(5, 3, 8, device=device)
    s = sf.state(x, -1)
    assert torch.equal(torch.vmap(sf.merge_states, (1, 1), 1)(s, s), sf.merge_states(s, s))
    assert torch.equal(torch.vmap(sf.finish)(s), sf.finish(s))
    got = torch.vmap(lambda s, x: sf.finish(s, x, 0), (0, 0))(s, x.mT)
    assert torch.equal(got, sf.finish(s, x, -1).mT)
    outs, lses = parts(device)
    want = sf.merge_attention(outs, [lses[0], lses[1][:1].expand(5, 3).contiguous()])
    got = torch.vmap(lambda a, b, c, d: sf.merge_attention([a, b], [c, d]), (0, 0, 0, None))(*outs, lses[0], lses[1][0])
    assert all(map(torch.equal, got, want))
    want, lse = sf.merge_blocks(outs, lses)
    got = torch.vmap(lambda a, b, c, d: sf.merge_blocks([a, b], [c, d]), (1, 0, 1, 0))(
        outs[0].transpose(0, 1), outs[1], lses[0].T, lses[1]
    )
    assert torch.equal(got[1], lse) and all(map(torch.equal, got[0], want))


def test_opcheck_of_merges(device):
    x = scores(3, 8, device=device)
    states, lse = sf.state(x, -1), sf.logsumexp(x, -1)
    opcheck(torch.ops.softfold.merge_states.default, ([states, states],))
    opcheck(torch.ops.softfold.finish_logsumexp.default, (states, torch.float32))
    opcheck(torch.ops.softfold.finish_softmax.default, (x, states, [-1], 1.0, True, None))
    opcheck(torch.ops.softfold.logsumexp_backward.default, (x, states, lse, [-1], 1.0))
    leaves = [t.clone().requires_grad_() for t in (x, x, lse, lse)]
    opcheck(torch.ops.softfold.merge_attention.default, (leaves[:2], leaves[2:], False))
    opcheck(torch.ops.softfold.merge_blocks.default, (leaves[:2], leaves[2:], True))
    got = torch.compile(lambda *s: sf.finish(sf.merge_states(*s)), fullgraph=True, backend="aot_eager")(states, states)
    torch.testing.assert_close(got, lse + 0.6931471805599453)
    torch.testing.assert_close(sf.finish(states, x, -1), torch.softmax(x, -1))


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


def test_autocast_gives_float32_as_torch_s(device):
    x = scores(3, 40, device=device, dtype=torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16):
        for name in NAMES:
            assert mine(name, x, -1).dtype == torch.float32


def test_modules(device):
    x = scores(3, 40, device=device)
    torch.testing.assert_close(sf.Softmax(-1)(x), torch.nn.Softmax(-1)(x))
    torch.testing.assert_close(sf.LogSoftmax(0, scale=2.0)(x), torch.log_softmax(2 * x, 0))
    assert repr(sf.LogSoftmax(0, scale=2.0)) == "LogSoftmax(dim=0, scale=2.0)"


def test_routed(device):
    x = scores(3, 40, device=device)
    with sf.routed() as report:
        a = torch.nn.functional.softmax(x, -1) + torch.softmax(x, 0) + x.softmax(1) + torch.nn.Softmax(0)(x)
        b = x.logsumexp(0).sum() + torch.logsumexp(x, 0, keepdim=True).sum() + x.log_softmax(-1).sum()
    assert report.routed == {"softmax": 4, "logsumexp": 2, "log_softmax": 1} and not report.refused
    torch.testing.assert_close(a, 2 * torch.softmax(x, -1) + 2 * torch.softmax(x, 0))
    torch.testing.assert_close(b, 2 * torch.logsumexp(x, 0).sum() + torch.log_softmax(x, -1).sum())
    deep = scores(*(1,) * 8, 3, device=device)
    with pytest.warns(UserWarning, match="rank 9"), sf.routed() as report:
        torch.testing.assert_close(torch.softmax(deep, -1), deep.softmax(-1))
    assert "not routed: 2 softmax" in str(report)
    with sf.routed():
        assert torch.equal(torch.nn.functional.softmin(x, -1), sf.softmax(x, -1, scale=-1.0))
        assert torch.isnan(torch.softmax(torch.full((2,), -torch.inf, device=device), 0)).all()


def test_what_routing_cannot_reach_is_said(device):
    x = scores(2, 5, 8, device=device, dtype=torch.float32)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True, device=device).eval()
    with sf.routed(warn=False) as report, torch.no_grad():
        torch.nn.functional.cross_entropy(x, torch.ones_like(x).requires_grad_())
        torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
        torch.nn.functional.gumbel_softmax(x, dim=-1)
        attention(x, x, x)
        torch.nn.Softmax(-1)(x)
    assert report.routed == {"softmax": 1}
    for name in ("cross_entropy", "scaled_dot_product_attention", "gumbel_softmax", "multi_head_attention"):
        assert name in str(report)


def test_lazily_negated_tensors(device):
    x = torch.view_as_complex(scores(7, 2, device=device)).conj().imag
    assert x.is_neg()
    for name in NAMES:
        want = getattr(torch, name)(x, 0)
        torch.testing.assert_close(mine(name, x, 0), want)
        torch.testing.assert_close(mine(name, x.detach().requires_grad_(), 0).detach(), want)
    y = sf.softmax(x, 0)
    torch.testing.assert_close(softfold.softmax_backward(y, x, 0), softfold.softmax_backward(y, x.resolve_neg(), 0))
    with pytest.raises(softfold.Error, match="negated"):
        softfold.merge(sf.state(x, 0), out=torch.view_as_complex(scores(4, 2, device=device)).conj().imag)
    with pytest.raises(softfold.UnsupportedError, match="negated"):
        softfold.softmax(x.resolve_neg(), out=x)


def test_nothing_is_left_behind(device):
    x, held = scores(3, 8, device=device), scores(3, 8, device=device)
    states = sf.state(x, -1)
    counts = [sys.getrefcount(t) for t in (x, held, states)]
    for _ in range(300):
        sf.softmax(x, -1), sf.logsumexp(x, -1), softfold.softmax(x, -1, out=held), sf.merge_states(states, states)
        with pytest.raises(softfold.Error):
            sf.softmax(x, 2)
    assert [sys.getrefcount(t) for t in (x, held, states)] == counts


def test_refusals(device):
    x = scores(3, 4, device=device)
    with pytest.raises(softfold.DTypeError, match="torch.int64"):
        sf.softmax(torch.ones(3, dtype=torch.int64, device=device), 0)
    assert sf.softmax(torch.ones(4, dtype=torch.int64, device=device), 0, dtype=torch.float32)[0] == 0.25
    with pytest.raises(softfold.Error, match="axis 2"):
        sf.softmax(x, 2)
    with pytest.raises(softfold.Error, match="gradient"):
        sf.softmax(x, -1, scales=torch.ones(3, device=device, requires_grad=True))
    with pytest.raises(softfold.Error, match="empty="):
        sf.softmax(x, -1, empty="one")


@pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA device")
def test_the_current_stream_and_graphs(device):
    if device != "cuda":
        pytest.skip("CUDA only")
    x = scores(64, 5000, device=device, dtype=torch.float32)
    want = sf.softmax(x, -1)
    with torch.cuda.stream(torch.cuda.Stream()):
        y = sf.softmax(x, -1)
    torch.cuda.synchronize()
    assert torch.equal(y, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = sf.softmax(x, -1)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, want)
    assert bits(y.cpu().numpy()) == bits(softfold.softmax(x.cpu().numpy(), -1))


def test_strided_and_empty_tensors(device):
    x = scores(6, 9, device=device)
    for view in (x.T, x[::2, ::3], x[:0], x[:, :0], x.expand(2, 6, 9)):
        for dim in range(view.dim()):
            torch.testing.assert_close(sf.softmax(view, dim), torch.softmax(view, dim))
    assert np.isneginf(sf.logsumexp(x[:, :0], -1).cpu().numpy()).all()


WRONG = [
    ("option", {"scale": "a"}), ("option", {"scale": torch.ones(4)}), ("option", {"causal": "yes"}),
    ("option", {"causal": torch.ones(2, dtype=torch.bool)}), ("option", {"window": 5}), ("option", {"window": (1, 2, 3)}),
    ("option", {"window": (1.5, 2)}), ("option", {"window": (2**70, 0)}), ("option", {"window": (-2, 0)}),
    ("option", {"softcap": "x"}), ("option", {"softcap": 1e-50}), ("option", {"layout": "thbd"}), ("option", {"layout": 3}),
    ("dtype", {"q": None}), ("dtype", {"q": [[1.0]]}), ("dtype", {"k": np.ones((1, 2, 7, 8), "f4")}), ("dtype", {"v": 3}),
    ("dtype", {"q": torch.ones(1, 4, 5, 8, dtype=torch.int64)}), ("shape", {"q": torch.ones(8)}),
    ("shape", {"v": torch.tensor(1.0)}), ("unsupported", {"q": torch.ones(1, 4, 5, 8).to_sparse()}),
    ("dtype", {"sink": "s"}), ("shape", {"sink": 1.0}), ("shape", {"sink": torch.ones(3)}), ("dtype", {"sink": [[1], [1, 2]]}),
    ("unsupported", {"sink": torch.ones(4, requires_grad=True)}), ("unsupported", {"slopes": torch.ones(4, requires_grad=True)}),
    ("dtype", {"bias": object()}), ("dtype", {"mask": torch.ones(7)}), ("dtype", {"lengths": torch.ones(1)}),
    ("shape", {"lengths": 3}), ("dtype", {"starts": "s"}),
]  # fmt: skip


@pytest.mark.parametrize("code, wrong", WRONG, ids=lambda x: "-".join(x) if isinstance(x, dict) else x)
def test_attention_refuses_in_softfold_s_words(device, code, wrong):
    shapes = {"q": (1, 4, 5, 8), "k": (1, 2, 7, 8), "v": (1, 2, 7, 6)}
    operands = {name: torch.ones(shape, device=device) for name, shape in shapes.items()}
    moved = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in wrong.items()}
    with pytest.raises(softfold.Error, match="got .*allowed: ") as caught:
        sf.attention(**{**operands, **moved})
    assert caught.value.code == code


def test_attention_takes_numbers_for_options_and_refuses_what_it_cannot_write(device):
    q, k, v = (scores(1, h, t, 8, device=device, dtype=torch.float32) for h, t in ((4, 5), (2, 7), (2, 7)))
    options = {"sink": [0.5, 0, 1, 2], "slopes": [1.0, 0.5, 0.25, 0], "mask": [True] * 6 + [False], "lengths": [6]}
    want = sf.attention(q, k, v, **{name: torch.tensor(x, device=device) for name, x in options.items()})
    assert bits(sf.attention(q, k, v, **options).cpu()) == bits(want.cpu())
    assert sf.attention(q.to("meta"), k.to("meta"), v.to("meta")).shape == want.shape
    for out in ("o", np.ones((1, 4, 5, 8), "f4"), torch.ones(3, device=device)):
        with pytest.raises(softfold.Error, match="got out"):
            softfold.attention(q, k, v, out=out)
    with pytest.raises(softfold.UnsupportedError, match="gradient"):
        softfold.attention(q.clone().requires_grad_(), k, v, out=want)
    for wrong in ((None, k, k), (q, k, [1]), (q, q, q, [[True]])):
        with pytest.raises(softfold.DTypeError, match="a torch.Tensor"):
            sf.scaled_dot_product_attention(*wrong)
