"""Shards of rows: what is joined has the bits of whole rows."""

import numpy as np
import pytest
from conftest import bits

import softfold

SIZE, CUTS = 5000, (0, 1000, 1024, 1024, 3500, 5000)


def gathered(x, **options):
    """The partials of all shards, one width, in no order."""
    shards = [slice(a, b) for a, b in zip(CUTS, CUTS[1:])]
    widths = [softfold.fold_shard(x[..., s], s.start, SIZE, **options).shape[-1] for s in shards]
    partials = [softfold.fold_shard(x[..., s], s.start, SIZE, width=max(widths), **options) for s in shards]
    space = np if isinstance(x, np.ndarray) else pytest.importorskip("torch")
    return shards, space.stack(partials[::-1])


def test_states_and_softmax(rng):
    x = rng.standard_normal((2, 3, SIZE)).astype(np.float32)
    shards, partials = gathered(x, scale=0.5)
    states = softfold.join_states(partials)
    assert bits(states) == bits(softfold.state(x, -1, scale=0.5))
    assert bits(softfold.finish(states, dtype=np.float32)) == bits(softfold.logsumexp(x, -1, scale=0.5))
    y = [softfold.finish(states, np.ascontiguousarray(x[..., s]), -1, scale=0.5) for s in shards]
    assert bits(np.concatenate(y, -1)) == bits(softfold.softmax(x, -1, scale=0.5))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_cross_entropy(rng, reduction):
    x = 4 * rng.standard_normal((6, SIZE)).astype(np.float32)
    target = np.array([0, 999, -100, 1000, 3500, 4999])
    weight = rng.random(SIZE).astype(np.float32)
    options = dict(weight=weight, reduction=reduction, z_loss=0.1)
    loss, lp, dx = softfold.cross_entropy(x, target, return_log_probability=True, return_gradient=True, **options)
    shards, partials = gathered(x, target=target)
    joined, joined_lp, states = softfold.join_cross_entropy(
        partials, target, dtype=np.float32, return_log_probability=True, return_states=True, **options)  # fmt: skip
    assert bits(joined) == bits(loss) and bits(joined_lp) == bits(lp)
    shard_of = lambda s: softfold.cross_entropy_backward(  # noqa: E731
        x[:, s], target, states, offset=s.start, size=SIZE, **options)  # fmt: skip
    assert bits(np.concatenate([shard_of(s) for s in shards], -1)) == bits(dx)
    assert bits(softfold.cross_entropy_backward(x, target, states, **options)) == bits(dx)


def test_topk(rng):
    x = np.round(rng.standard_normal((4, SIZE)), 1).astype(np.float32)
    asked = dict(return_probabilities=True, return_log_probabilities=True, return_lse=True)
    _, partials = gathered(x, k=20)
    for got, want in zip(softfold.join_topk(partials, 20, dtype=np.float32, **asked), softfold.topk(x, 20, **asked)):
        assert bits(got) == bits(want)


def test_sample(rng):
    x = 3 * rng.standard_normal((7, SIZE)).astype(np.float32)
    shards, partials = gathered(x, scale=1 / 0.7)
    for options in (dict(seed=5, offset=2), dict(seed=range(7), row_ids=range(7))):
        want = softfold.sample(x, temperature=0.7, **options)
        options["draw"] = options.pop("offset", 0)
        own = [softfold.sample_shard(x[:, s], partials, s.start, SIZE, scale=1 / 0.7, **options) for s in shards]
        assert np.max(own, 0).tolist() == want.tolist() and ((np.array(own) >= 0).sum(0) == 1).all()


def test_tensors(rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.from_numpy(rng.standard_normal((4, SIZE)).astype(np.float32))
    target = torch.tensor([1, 2, 3, 4999])
    shards, partials = gathered(x, target=target, k=5)
    loss, states = softfold.join_cross_entropy(partials, target, dtype=torch.float32, return_states=True)
    want, dx = softfold.cross_entropy(x, target, return_gradient=True)
    got = [softfold.cross_entropy_backward(x[:, s], target, states, offset=s.start, size=SIZE) for s in shards]
    assert torch.equal(loss, want) and torch.equal(torch.cat(got, -1), dx)
    own = [softfold.sample_shard(x[:, s], partials, s.start, SIZE, seed=3) for s in shards]
    assert torch.equal(torch.stack(own).amax(0), softfold.sample(x, seed=3))
    values, indices = softfold.join_topk(partials, 5, dtype=torch.float32)
    assert torch.equal(values, x.topk(5).values) and torch.equal(indices, softfold.topk(x, 5)[1])


def test_lazily_negated_tensors(rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    negated = lambda *shape: torch.view_as_complex(torch.randn(*shape, 2, dtype=torch.float64)).conj().imag  # noqa: E731
    x, target = negated(3, SIZE), torch.tensor([1, 2, 4999])
    assert x.is_neg()
    held = x.resolve_neg()
    _, partials = gathered(x, target=target)
    assert torch.equal(partials, gathered(held, target=target)[1])
    states = softfold.join_states(partials)
    dx = softfold.cross_entropy_backward(x, target, states)
    assert torch.equal(dx, softfold.cross_entropy_backward(held, target, states))
    for call in (
        lambda: softfold.fold_shard(held, 0, SIZE, out=negated(3, partials.shape[-1])),
        lambda: softfold.join_states(partials, out=negated(3, 4)),
        lambda: softfold.cross_entropy_backward(held, target, states, out=x),
    ):
        with pytest.raises(softfold.UnsupportedError, match="negated"):
            call()


def test_refusals(rng):
    x = rng.standard_normal((2, SIZE))
    _, partials = gathered(x)
    with pytest.raises(softfold.StateError, match="no elements 0 to 1000"):
        softfold.join_states(partials[:-1])
    with pytest.raises(softfold.StateError, match="without targets"):
        softfold.join_cross_entropy(partials, [0, 1])
    with pytest.raises(softfold.StateError, match=r"target 1 \(-1: none\) in the partials of row 1"):
        softfold.join_cross_entropy(gathered(x, target=np.array([0, 1]))[1], [0, 2])
    with pytest.raises(softfold.Error, match="a shard of 5000 elements at 1"):
        softfold.fold_shard(x, 1, SIZE)
    with pytest.raises(softfold.Error, match="masked"):
        softfold.fold_shard(x, 0, SIZE, target=np.ma.masked_array([0, 1]))
