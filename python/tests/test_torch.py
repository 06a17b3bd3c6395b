"""softfold.torch: torch's values, tensors of every kind, modules, routing and refusals; on CUDA too where there is one."""

import sys

import numpy as np
import pytest
from conftest import bits
from torch_support import DEVICES, NAMES, mine, on_every_device, scores, sf, torch

import softfold

pytestmark = on_every_device


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


def test_a_dtype_by_its_name(device):
    x, target = scores(4, 30, device=device, dtype=torch.float32), torch.zeros(4, dtype=torch.int64, device=device)
    for module, axis in ((softfold, {"axis": -1}), (sf, {"dim": -1})):
        for call in (
            lambda d: module.softmax(x, **axis, dtype=d),
            lambda d: module.entropy(x, **axis, dtype=d),
            lambda d: module.kl_divergence(x, x, **axis, dtype=d),
            lambda d: module.cross_entropy(x, target, **axis, dtype=d),
            lambda d: module.renormalise(x, **axis, dtype=d),
            lambda d: module.topk(x, 2, **axis, dtype=d, return_lse=True)[2],
        ):
            assert torch.equal(call("bfloat16"), call(torch.bfloat16)) and call("bfloat16").dtype == torch.bfloat16
            for none in ("softmax", np.float16, 3.5):
                with pytest.raises(softfold.DTypeError, match="got dtype=.*; allowed: float64, float32, float16, bfloat16"):
                    call(none)
    assert softfold.linear_cross_entropy(x, x, target, dtype="float16").dtype == torch.float16
    assert softfold.finish(softfold.state(x, -1), dtype="float16").dtype == torch.float16
    partials = softfold.fold_shard(x, 0, 30, k=2)[None]
    assert softfold.join_topk(partials, 2, dtype="float16")[0].dtype == torch.float16


def test_out_has_the_shape_that_keepdims_asks_for(device):
    x = scores(4, 30, device=device, dtype=torch.float32)
    for keepdims in (False, True):
        want = softfold.logsumexp(x, -1, keepdims=keepdims)
        out = torch.empty_like(want)
        assert softfold.logsumexp(x, -1, keepdims=keepdims, out=out) is out and torch.equal(out, want)
        with pytest.raises(softfold.Error, match=f"with keepdims={not keepdims}"):
            softfold.logsumexp(x, -1, keepdims=not keepdims, out=out)


def test_strided_and_empty_tensors(device):
    x = scores(6, 9, device=device)
    for view in (x.T, x[::2, ::3], x[:0], x[:, :0], x.expand(2, 6, 9)):
        for dim in range(view.dim()):
            torch.testing.assert_close(sf.softmax(view, dim), torch.softmax(view, dim))
    assert np.isneginf(sf.logsumexp(x[:, :0], -1).cpu().numpy()).all()


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
