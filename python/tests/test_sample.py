"""softfold.sample, renormalise and mask_logits: what the filters leave, how often what is drawn, and that a draw is its
row's alone."""

import numpy as np
import pytest
from conftest import bits

import softfold


def test_a_row_draws_the_same_wherever_it_stands(rng):
    x = rng.standard_normal((9, 3000)).astype(np.float32)
    options = dict(temperature=0.7, top_k=[5, 0, 50] * 3, top_p=0.9, offset=4)
    tokens, lp, rank = softfold.sample(x, seed=range(9), **options, return_log_probability=True, return_rank=True)
    assert tokens.dtype == np.int64 and tokens.shape == (9,)
    assert bits(lp) == bits(softfold.log_softmax(x, -1)[np.arange(9), tokens])
    assert rank.tolist() == [(x[r] >= x[r, t]).sum() for r, t in enumerate(tokens)]
    assert all(rank[r] <= k for r, k in enumerate(options["top_k"]) if k)
    for r in range(9):
        alone = softfold.sample(x[r], seed=np.int64(r), **{**options, "top_k": options["top_k"][r]}, row_ids=np.array(0))
        assert alone == tokens[r] and isinstance(alone, np.int64)
    by_index = softfold.sample(x, seed=3)
    assert by_index[4] == softfold.sample(x[4:5], seed=3, row_ids=[4])[0] != -1
    assert softfold.sample(x, seed=3, offset=1).tolist() != by_index.tolist()


def test_what_is_drawn_from(rng):
    x = rng.standard_normal((4, 200)).astype(np.float32)
    tokens, p, masked = softfold.sample(x, top_k=9, temperature=0.5, return_probabilities=True, return_masked=True)
    assert ((p > 0).sum(-1) == 9).all() and ((masked == x) == (p > 0)).all() and np.isneginf(masked[p == 0]).all()
    assert bits(p) == bits(softfold.softmax(masked, -1, scale=2))


def filtered(x, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, order="min_p_first"):
    """Which elements of rows of different elements the filters leave, and softmax of these: by sorting, in float64."""
    x = x.astype(np.float64) / temperature
    kept = np.ones(x.shape, bool)

    def softmax():
        e = np.where(kept, np.exp(x - x.max(-1, keepdims=True)), 0)
        return e / e.sum(-1, keepdims=True)

    def by_top_k():
        return x >= np.sort(x, -1)[:, -top_k, None] if top_k else kept

    def by_top_p():
        p = softmax()
        best = np.argsort(-p, -1)
        before = np.take_along_axis(p, best, -1).cumsum(-1) - np.take_along_axis(p, best, -1)
        stays = np.empty(x.shape, bool)
        np.put_along_axis(stays, best, before < top_p, -1)
        return stays

    def by_min_p():
        return softmax() >= min_p * softmax().max(-1, keepdims=True)

    first, last = ([by_min_p], []) if order == "min_p_first" else ([], [by_min_p])
    for by in (*first, by_top_k, by_top_p, *last):
        kept = kept & by()
    return kept, softmax()


FILTERS = (
    dict(top_k=9),
    dict(top_p=0.6),
    dict(min_p=0.05),
    dict(top_k=20, top_p=0.8, min_p=0.1, temperature=0.7),
    dict(top_k=20, top_p=0.8, min_p=0.1, temperature=0.7, order="min_p_last"),
    dict(top_p=0.55, min_p=0.3, temperature=2.0, order="min_p_last"),
    dict(temperature=1.5),
)


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_renormalise_and_mask_logits(rng, options):
    x = rng.standard_normal((16, 300)).astype(np.float32)
    kept, want = filtered(x, **options)
    p, masked = softfold.renormalise(x, **options), softfold.mask_logits(x, **options)
    assert p.dtype == masked.dtype == np.float32 and ((p > 0) == kept).all()
    np.testing.assert_allclose(p, want, rtol=3e-6)
    assert bits(masked) == bits(np.where(kept, x, np.float32(-np.inf)))


def test_renormalise_and_mask_logits_are_what_sample_returns(rng):
    x = rng.standard_normal((4, 70, 6)).astype(np.float16)
    bias = rng.standard_normal((70, 1)).astype(np.float32)
    rows = dict(temperature=rng.uniform(0, 2, (4, 6)), top_k=rng.integers(0, 9, (4, 6)), lengths=np.full((4, 6), 50))
    bitmask = rng.integers(-(2**31), 2**31, (4, 3, 6)).astype(np.int32)
    for options in (
        dict(bias=bias, bitmask=bitmask, top_p=0.7, **rows),
        dict(temperature=0, bitmask=bitmask),
        dict(scale=0.5, mask=rng.random((4, 70, 6)) < 0.6, min_p=0.2, order="vllm", dtype=np.float32),
        dict(scales=rng.uniform(0.5, 2, (4, 6)), top_k=3),
    ):
        both = dict(return_probabilities=True, return_masked=True)
        tokens, p, masked = softfold.sample(x, 1, seed=5, **both, **options)
        assert bits(softfold.renormalise(x, 1, **options)) == bits(p) and p.dtype == options.get("dtype", x.dtype)
        assert bits(softfold.mask_logits(x, 1, **options)) == bits(masked)
        kind = options.pop("dtype", x.dtype)
        for function, want in ((softfold.renormalise, p), (softfold.mask_logits, masked)):
            out = np.empty((4, 6, 70), kind).swapaxes(1, 2)
            assert function(x, 1, out=out, **options) is out and bits(np.ascontiguousarray(out)) == bits(want)
    one = np.float32([0, 2, 1])
    assert bits(softfold.renormalise(one, top_k=2)) == bits(softfold.softmax(np.float32([-np.inf, 2, 1])))
    assert softfold.mask_logits(one, top_k=2).tolist() == [-np.inf, 2, 1]
    assert softfold.mask_logits(one, bitmask=np.array([0b101], np.int32)).tolist() == [0, -np.inf, 1]


def test_rows_without_a_distribution():
    x = np.array([[1, np.nan, 0], [1, np.inf, 0], [-np.inf] * 3], np.float32)
    assert np.isnan(softfold.renormalise(x)[:2]).all() and not softfold.renormalise(x)[2].any()
    assert bits(softfold.mask_logits(x)) == bits(x)
    assert softfold.renormalise(x, temperature=0)[1:].tolist() == [[0, 1, 0], [0, 0, 0]]
    assert softfold.mask_logits(x, temperature=0)[1].tolist() == [-np.inf, np.inf, -np.inf]


@pytest.mark.parametrize("function", [softfold.renormalise, softfold.mask_logits], ids=lambda f: f.__name__)
def test_refused(function):
    x = np.zeros((2, 3), np.float32)
    for options, code, words in (
        (dict(top_k=-1), "option", "top_k -1"),
        (dict(top_p=1.5), "option", "top_p"),
        (dict(min_p=[0.5, 2]), "data", "min_p"),
        (dict(temperature=-1), "option", "temperature"),
        (dict(order="random"), "option", "random"),
        (dict(bitmask=np.zeros((2, 2), np.int32)), "shape", "bitmask"),
        (dict(axis=2), "shape", "axis 2"),
        (dict(out=x), "strides", "overlaps"),
        (dict(out=np.empty((2, 4), np.float32)), "shape", "[2, 4]"),
        (dict(out=np.empty((2, 3), np.int64)), "dtype", "int64"),
        (dict(out=np.empty((2, 3), np.float32), dtype=np.float32), "option", "out and dtype"),
    ):
        with pytest.raises(softfold.Error) as caught:
            function(x, **options)
        assert caught.value.code == code and words in caught.value.got
    for logits in (x.astype(np.float64), x.astype(np.int32), np.ma.masked_array(x)):
        with pytest.raises(softfold.Error) as caught:
            function(logits)
        assert caught.value.code == "dtype"
    with pytest.raises(TypeError):
        function(x, seed=1)


def test_top_log_probabilities(rng):
    x = np.round(rng.standard_normal((3, 5, 70)).astype(np.float32))
    tokens, top, lp = softfold.sample(x, axis=1, temperature=0.5, return_top_log_probabilities=3)
    _, indices, want = softfold.topk(x, 3, axis=1, return_log_probabilities=True)
    assert top.tolist() == indices.tolist() and bits(lp) == bits(want)
    _, top, lp = softfold.sample(x[0, :, :4], top_k=1, of="sampled", return_top_log_probabilities=4)
    assert ((top >= 0) == np.isfinite(lp)).all() and (top[:, 0] == x[0, :, :4].argmax(-1)).all()
    with pytest.raises(softfold.Error, match="top_tokens for 71"):
        softfold.sample(x, return_top_log_probabilities=71)


def test_frequencies(rng):
    x = rng.standard_normal(12).astype(np.float32)
    draws = softfold.sample(np.broadcast_to(x, (60000, 12)), seed=2, temperature=0.8)
    p = softfold.softmax(x, scale=1 / 0.8) * draws.size
    assert ((np.bincount(draws, minlength=12) - p) ** 2 / p).sum() < 11 + 5 * 22**0.5


def test_greedy_bias_bitmask_and_what_cannot_be_drawn():
    x = np.array([[1, 5, 5, 2], [np.nan, 0, 0, 0], [-np.inf] * 4], np.float32)
    assert softfold.sample(x, temperature=0).tolist() == [1, -1, -1]
    assert softfold.sample(x[0], bias=[0, -np.inf, -np.inf, 0], top_k=1) == 3
    assert softfold.sample(x[0], bitmask=np.array([0b1001], np.int32), top_p=0.1) == 3
    assert softfold.sample(x[:1].T, 0, mask=[[True], [False], [False], [False]]).tolist() == [0]
    out = np.empty(3, np.int32)
    assert softfold.sample(x, out=out, temperature=0) is out and out[0] == 1
    assert softfold.sample(x[0], seed=np.array(-1)) == softfold.sample(x[0], seed=2**64 - 1)
    with pytest.raises(TypeError):
        softfold.sample(x, top_k=2.5)
    for call, code in (
        (lambda: softfold.sample(x.astype(np.float64)), "dtype"),
        (lambda: softfold.sample(x, top_p=2), "option"),
        (lambda: softfold.sample(x, top_p=[1, 1, 2]), "data"),
        (lambda: softfold.sample(x, order="random"), "option"),
        (lambda: softfold.sample(x, seed=-1), "option"),
        (lambda: softfold.sample(x, offset=2**64), "option"),
        (lambda: softfold.sample(x, top_k=2**70), "option"),
        (lambda: softfold.sample(x, of="both"), "option"),
    ):
        with pytest.raises(softfold.Error) as caught:
            call()
        assert caught.value.code == code


def test_arrays_of_the_array_api(rng):
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    x = rng.standard_normal((3, 8)).astype(np.float32)
    tokens, lp = softfold.sample(strict.asarray(x), seed=1, return_log_probability=True)
    assert np.asarray(tokens).tolist() == softfold.sample(x, seed=1).tolist()
    assert type(lp) is type(strict.asarray(x))
    p, out = softfold.renormalise(strict.asarray(x), top_k=3), strict.empty((3, 8), dtype=strict.float32)
    assert type(p) is type(lp) and bits(np.asarray(p)) == bits(softfold.renormalise(x, top_k=3))
    assert softfold.mask_logits(strict.asarray(x), top_k=3, out=out) is out
    assert bits(np.asarray(out)) == bits(softfold.mask_logits(x, top_k=3))


@pytest.mark.parametrize("name", ["sample", "renormalise", "mask_logits"])
def test_jax_arrays_are_refused_by_name(name):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    with pytest.raises(softfold.DTypeError, match=f"{name} of JAX arrays"):
        getattr(softfold, name)(jax.numpy.zeros((2, 3)))


def test_torch(rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import softfold.torch as sf

    x = rng.standard_normal((6, 500)).astype(np.float32)
    t = torch.from_numpy(x)
    options = dict(temperature=0.5, top_k=[3, 9, 0] * 2, seed=2**64 - 5, offset=7)
    options |= dict(return_log_probability=True, return_rank=True, return_probabilities=True, return_masked=True)
    options |= dict(return_top_log_probabilities=4)
    want, got = softfold.sample(x, **options), softfold.sample(t, **options)
    assert all(torch.equal(g, torch.from_numpy(w)) for g, w in zip(got, want))
    for outside in (-1, 2**64, 2**70):
        with pytest.raises(softfold.Error, match="seed=" + str(outside)):
            softfold.sample(t, seed=outside)
    out = torch.empty(6, dtype=torch.int32)
    assert softfold.sample(t, out=out, **options)[0] is out and out.tolist() == want[0].tolist()
    seeds = torch.arange(6)
    compiled = torch.compile(lambda x: sf.sample(x, seed=seeds, top_p=0.8), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(t), sf.sample(t, seed=seeds, top_p=0.8))
    numbers, none = (0.9, 4, 0.9, 0.1, 1, 2), (None,) * 9
    arguments = (t, 1, [True] * 4, 3, *numbers, *none, "min_p_first", "raw", 1.0, None, None, None, False, None)
    torch.library.opcheck(torch.ops.softfold.sample.default, arguments)
