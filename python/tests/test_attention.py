"""softfold.attention against a float64 oracle, and torch's scaled_dot_product_attention over it."""

import numpy as np
import pytest
from conftest import DTYPES, bits, oracle_logsumexp, oracle_softmax

import softfold

B, H, HKV, T, S, D, DV = 2, 4, 2, 5, 7, 8, 6


def operands(rng, dtype=np.float64):
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((B, H, T, D), (B, HKV, S, D), (B, HKV, S, DV)))


def oracle(q, k, v, scale=None, causal=False, window=(-1, -1), softcap=0.0, sink=None, bias=None, mask=None,
           slopes=None, lengths=None, starts=None):  # fmt: skip
    """(out, lse) in float64, all scores at once."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // k.shape[1], axis=1) for a in (k, v))
    x = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    x = softcap * np.tanh(x / softcap) if softcap else x
    t, s = x.shape[-2:]
    distance = np.arange(s) - np.arange(t)[:, None] - (s - t)
    x = x if bias is None else x + bias
    x = x if slopes is None else x - np.abs(distance) * np.asarray(slopes, np.float64)[:, None, None]
    seen = np.ones(x.shape, bool) if mask is None else np.broadcast_to(mask, x.shape).copy()
    left, right = window[0], 0 if causal else window[1]
    seen &= True if left < 0 else distance >= -left
    seen &= True if right < 0 else distance <= right
    for keys, keeps in ((lengths, np.less), (starts, np.greater_equal)):
        seen &= True if keys is None else keeps(np.arange(s), np.asarray(keys)[:, None, None, None])
    x = np.where(seen, x, -np.inf)
    if sink is not None:
        x = np.concatenate([x, np.broadcast_to(sink[:, None, None], (*x.shape[:-1], 1))], -1)
    empty = np.isneginf(x).all(-1, keepdims=True)
    p = np.where(empty, 0, oracle_softmax(np.where(empty, 0, x)))[..., :s].astype(np.float64)
    return p @ v, np.where(empty[..., 0], -np.inf, oracle_logsumexp(np.where(empty, 0, x))).astype(np.float64)


OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": np.linspace(-1, 2, H)},
    "bias": {"bias": np.linspace(-2, 2, T * S).reshape(T, S)},
    "mask": {"mask": np.arange(T * S).reshape(T, S) % 3 > 0},
    "masked rows": {"mask": np.arange(T)[:, None] > 1},
    "slopes": {"slopes": np.linspace(0.1, 1, H).astype(np.float32)},
    "lengths": {"lengths": np.array([3, 7])},
    "starts": {"starts": np.array([0, 6])},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options(rng, options):
    q, k, v = operands(rng)
    out, lse = softfold.attention(q, k, v, return_lse=True, **OPTIONS[options])
    want, want_lse = oracle(q, k, v, **OPTIONS[options])
    np.testing.assert_allclose(out, want, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(rng, dtype):
    q, k, v = operands(rng, dtype)
    out, lse = softfold.attention(q, k, v, causal=True, return_lse=True)
    assert out.dtype == dtype and lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype.name]
    np.testing.assert_allclose(out.astype(np.float64), oracle(q, k, v, causal=True)[0], rtol=tolerance, atol=tolerance)


def test_layouts_ranks_strides_and_out(rng):
    q, k, v = operands(rng, np.float32)
    want, lse = softfold.attention(q, k, v, return_lse=True)
    turned = [np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for a in (q, k, v)]
    out, other = softfold.attention(*turned, layout="bthd", return_lse=True)
    assert bits(out.transpose(0, 2, 1, 3)) == bits(want) and bits(other) == bits(lse)
    assert bits(softfold.attention(*(a.transpose(0, 2, 1, 3) for a in turned))) == bits(want)
    assert bits(softfold.attention(q[1], k[1], v[1])) == bits(want[1])
    assert bits(softfold.attention(q[1, 3], k[1, 1], v[1, 1])) == bits(want[1, 3])
    wide = np.empty(want.shape, np.float32)
    assert softfold.attention(q, k, v, out=wide) is wide and bits(wide) == bits(want)


@pytest.mark.parametrize("layout", ["bhtd", "bthd"])
def test_packed_sequences(rng, layout):
    """Each as if it were alone, to the bit; gaps stay as they were, in new results as what sees nothing."""
    t, s = [3, 0, 5, 1], [4, 2, 0, 9]
    q_offsets, kv_offsets = np.cumsum([1, *t]), np.cumsum([0, *s]).astype(np.int32)
    q = rng.standard_normal((H, q_offsets[-1] + 2, D)).astype(np.float32)
    k, v = (rng.standard_normal((HKV, kv_offsets[-1] + 3, d)).astype(np.float32) for d in (D, DV))
    turned = [a.transpose(1, 0, 2) if layout == "bthd" else a for a in (q, k, v)]
    out = np.full((*turned[0].shape[:-1], DV), 7, np.float32)
    got, lse, state = softfold.attention(*turned, q_offsets=q_offsets, kv_offsets=kv_offsets, max_q=5, max_kv=9,
                                         causal=True, layout=layout, out=out, return_lse=True, return_state=True)  # fmt: skip
    assert got is out and lse.shape == (H, q.shape[1]) and state.shape == (H, q.shape[1], 2 + DV)
    got = got.transpose(1, 0, 2) if layout == "bthd" else got
    assert (got[:, :1] == 7).all() and (got[:, -2:] == 7).all()
    for i in range(len(t)):
        rows, keys = slice(q_offsets[i], q_offsets[i + 1]), slice(kv_offsets[i], kv_offsets[i + 1])
        alone = softfold.attention(q[:, rows], k[:, keys], v[:, keys], causal=True, return_lse=True, return_state=True)
        for whole, part in zip((got, lse, state), alone):
            assert bits(np.ascontiguousarray(whole[:, rows])) == bits(part)
    again = softfold.attention(*turned, q_offsets=q_offsets, kv_offsets=kv_offsets, causal=True, layout=layout)
    again = again.transpose(1, 0, 2) if layout == "bthd" else again
    for gap in (slice(0, 1), slice(-2, None)):
        assert not again[:, gap].any() and (lse[:, gap] == -np.inf).all()
        assert (state[:, gap, 0] == -np.inf).all() and not state[:, gap, 1:].any()
    assert bits(np.ascontiguousarray(again[:, 1:-2])) == bits(np.ascontiguousarray(got[:, 1:-2]))
    lengths, starts = np.array([4, 1, 0, 9]), np.array([1, 1, 0, 3], np.int32)
    got = softfold.attention(q, k, v, q_offsets=q_offsets, kv_offsets=kv_offsets, lengths=lengths, starts=starts)
    rows, keys = slice(q_offsets[3], q_offsets[4]), slice(kv_offsets[3] + 3, kv_offsets[4])
    assert bits(np.ascontiguousarray(got[:, rows])) == bits(softfold.attention(q[:, rows], k[:, keys], v[:, keys]))


def test_a_cache_and_its_index(rng):
    q, k, v = operands(rng, np.float32)
    cache_k, cache_v = (np.full((5, *a.shape[1:]), np.nan, np.float32) for a in (k, v))
    cache_k[[4, 1]], cache_v[[4, 1]] = k, v
    for index in (np.array([4, 1]), np.array([4, 1], np.int32)):
        got = softfold.attention(q, cache_k, cache_v, index=index, lengths=[3, 7], causal=True)
        assert bits(got) == bits(softfold.attention(q, k, v, lengths=[3, 7], causal=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_states(rng, dtype):
    """(m, d, o) says what out and lse do, and parts' states merge to the whole."""
    q, k, v = operands(rng, dtype)
    sink = np.linspace(-1, 2, H)
    out, lse, state = softfold.attention(q, k, v, sink=sink, return_lse=True, return_state=True)
    alone = softfold.attention(q, k, v, sink=sink, return_state=True)
    assert bits(alone[0]) == bits(out) and bits(alone[1]) == bits(state)
    wide = np.float64 if dtype == np.float64 else np.float32
    assert state.dtype == wide and state.shape == (B, H, T, 2 + DV)
    tight = 1e-13 if wide is np.float64 else 1e-6
    np.testing.assert_allclose(state[..., 0] * np.log(2) + np.log(state[..., 1]), lse, rtol=tight, atol=tight)
    parts = [softfold.attention(q, k[:, :, s], v[:, :, s], sink=sink if s.start == 0 else None, return_state=True)[1]
             for s in (slice(0, 3), slice(3, 3), slice(3, S))]  # fmt: skip
    with np.errstate(invalid="ignore"):  # the part without keys: 0 / 0
        outs = [s[..., 2:] / s[..., 1:2] for s in parts]
    merged, sums = softfold.merge_attention(outs, [s[..., :2] for s in parts], base=2, statistics="max_sum")
    np.testing.assert_allclose(merged, state[..., 2:] / state[..., 1:2], rtol=20 * tight, atol=20 * tight)
    np.testing.assert_allclose(sums[..., 0] + np.log2(sums[..., 1]), state[..., 0] + np.log2(state[..., 1]), rtol=20 * tight)


def test_torch_packed_cached_and_states(rng, torch):
    import softfold.torch as sf

    q, k, v = (torch.from_numpy(a) for a in operands(rng, np.float32))
    want, lse, state = sf.attention(q, k, v, return_lse=True, return_state=True)
    packed = [a.transpose(0, 1).reshape(a.shape[1], -1, a.shape[-1]) for a in (q, k, v)]
    offsets = dict(q_offsets=torch.tensor([0, T, 2 * T]), kv_offsets=torch.tensor([0, S, 2 * S], dtype=torch.int32))
    for face in (sf.attention, softfold.attention, torch.compile(sf.attention, fullgraph=True, backend="aot_eager")):
        got = face(*packed, **offsets, max_q=T, max_kv=S, return_lse=True, return_state=True)
        for whole, part in zip(got, (want, lse, state)):
            assert bits(whole.reshape(H, B, T, *whole.shape[2:]).transpose(0, 1).contiguous()) == bits(part)
    into = torch.empty_like(want)
    got = softfold.attention(q, k.flip(0), v.flip(0), index=[1, 0], out=into, return_state=True)
    assert got[0] is into and bits(into) == bits(want) and bits(got[1]) == bits(state)
    o, sums = state[..., 2:] / state[..., 1:2], state[..., :2]
    merged, joint = sf.merge_attention([o, o], [sums, sums], base=2, statistics="max_sum")
    torch.testing.assert_close(merged, o)
    torch.testing.assert_close(joint[..., 0] + joint[..., 1].log2(), sums[..., 0] + sums[..., 1].log2() + 1)
    with pytest.raises(softfold.UnsupportedError, match="max_sum"):
        sf.merge_attention([o.clone().requires_grad_(), o], [sums, sums], base=2, statistics="max_sum")


def test_blocks_of_keys_merge_to_the_whole(rng):
    q, k, v = operands(rng)
    want, want_lse = softfold.attention(q, k, v, return_lse=True)
    parts = [softfold.attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 3), slice(3, S))]
    out, lse = softfold.merge_attention(*zip(*parts))
    np.testing.assert_allclose(out, want, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-14)


def test_refusals(rng):
    q, k, v = operands(rng)
    for call, code in (
        (lambda: softfold.attention(q, k[..., :4], v), "shape"),
        (lambda: softfold.attention(q, k.astype("f4"), v), "dtype"),
        (lambda: softfold.attention(q, k, v, layout="thbd"), "option"),
        (lambda: softfold.attention(q, k, v, mask=np.ones((T, S))), "dtype"),
        (lambda: softfold.attention(q, k, v, lengths=[1, 8]), "data"),
        (lambda: softfold.attention(q, k, v, index=[0, 2]), "data"),
        (lambda: softfold.attention(q, k, v, index=[0.5, 1]), "dtype"),
        (lambda: softfold.attention(q[0], k[0], v[0], q_offsets=[0, T]), "option"),
        (lambda: softfold.attention(q[0], k[0], v[0], max_q=T), "option"),
        (lambda: softfold.attention(q[0], k[0], v[0], q_offsets=[0, 3, 2], kv_offsets=[0, 1, 2]), "data"),
        (lambda: softfold.attention(q[0], k[0], v[0], q_offsets=[0, T], kv_offsets=[0, S + 1]), "data"),
        (lambda: softfold.attention(q[0], k[0], v[0], q_offsets=[0, T], kv_offsets=[0, 1, S]), "shape"),
        (lambda: softfold.attention(q[0], k[0], v[0], q_offsets=[0, T], kv_offsets=[0, S], max_q=T - 1), "data"),
        (lambda: softfold.attention(q[0], k[0], v[0], q_offsets=[0, T], kv_offsets=[0, S], index=[0]), "option"),
        (lambda: softfold.attention(q, k, v, q_offsets=[0, T], kv_offsets=[0, S]), "shape"),
        (lambda: softfold.attention(q[0, 0, 0], k, v), "shape"),
        (lambda: softfold.attention(q, np.ma.masked_array(k), v), "dtype"),
        (lambda: softfold.attention(q, k, v, bias=np.ma.masked_array(np.zeros(S))), "dtype"),
    ):
        with pytest.raises(softfold.Error) as caught:
            call()
        assert caught.value.code == code


@pytest.mark.parametrize(
    "option",
    [{"scale": "a"}, {"scale": np.ones(3)}, {"window": 3}, {"window": None}, {"window": (None, 0)},
     {"window": (1.5, 2)}, {"window": (2**70, 0)}, {"causal": "yes"}, {"causal": None}, {"causal": 1},
     {"max_q": -1}, {"max_kv": 1.5}, {"max_q": None}, {"layout": 3}, {"layout": None}, {"softcap": None}, {"softcap": 1e-50}, {"softcap": 3e38}, {"softcap": -1}],
)  # fmt: skip
def test_options_that_are_none(rng, option):
    with pytest.raises(softfold.Error, match=f"{next(iter(option))}=.*; allowed: ") as caught:
        softfold.attention(*operands(rng), **option)
    assert caught.value.code == "option"


def test_masks_of_the_lowest_numbers(rng):
    """A row that such a mask hides whole is the mean of its values, as everywhere; slopes may be a list."""
    q, k, v = operands(rng, np.float32)
    bias = np.zeros((T, S), np.float32)
    bias[0], bias[1, 3:] = np.finfo(np.float32).min, np.finfo(np.float32).min
    out = softfold.attention(q, k, v, bias=bias)
    values = np.repeat(v, H // HKV, axis=1)
    np.testing.assert_allclose(out[:, :, 0], values.mean(2), rtol=1e-5, atol=1e-6)
    seen = softfold.attention(q[:, :, 1:2], k[:, :, :3], v[:, :, :3])
    np.testing.assert_allclose(out[:, :, 1:2], seen, rtol=1e-5, atol=1e-6)
    slopes = [0.1, 0.2, 0.3, 0.4]
    assert bits(softfold.attention(q, k, v, slopes=slopes)) == bits(
        softfold.attention(q, k, v, slopes=np.array(slopes, np.float32))
    )


def tensors(torch, rng, dtype="float32", gqa=False):
    q, k, v = (torch.from_numpy(a).to(getattr(torch, dtype)) for a in operands(rng))
    return (q, k, v) if gqa else (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_torch_s_signature(rng, torch, dtype):
    import softfold.torch as sf

    theirs = torch.nn.functional.scaled_dot_product_attention
    q, k, v = tensors(torch, rng, dtype)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 4e-2}[dtype]
    close = dict(rtol=tolerance, atol=tolerance)
    bias = torch.linspace(-1, 1, T * S).reshape(T, S).to(q.dtype)
    for options in ({}, {"scale": 0.2}, {"is_causal": True}, {"attn_mask": bias > 0}, {"attn_mask": bias}):
        got = sf.scaled_dot_product_attention(q, k, v, **options)
        torch.testing.assert_close(got, theirs(q, k, v, **options), **close)
    longer = q.repeat(1, 1, 2, 1)
    for args in ((longer, k, v), (longer[0], k[0], v[0])):
        got = sf.scaled_dot_product_attention(*args, is_causal=True)
        torch.testing.assert_close(got, theirs(*args, is_causal=True), **close)
    q, k, v = tensors(torch, rng, dtype, gqa=True)
    torch.testing.assert_close(
        sf.scaled_dot_product_attention(q, k, v, enable_gqa=True), theirs(q, k, v, enable_gqa=True), **close
    )
    with pytest.raises(softfold.UnsupportedError, match="enable_gqa"):
        sf.scaled_dot_product_attention(q, k, v)


def test_torch_op(rng, torch):
    import softfold.torch as sf

    q, k, v = tensors(torch, rng)
    options = (None, True, -1, -1, 0.0, *[None] * 9, 0, 0, True, "bhtd")
    torch.library.opcheck(torch.ops.softfold.attention.default, (q, k, v, *options))
    want = sf.attention(q, k, v, causal=True)
    assert bits(softfold.attention(q, k, v, causal=True)) == bits(want)
    assert bits(softfold.attention(*(t.numpy() for t in (q, k, v)), causal=True)) == bits(want)

    def model(q, k, v):
        return sf.attention(q, k, v, causal=True) + 1

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), want + 1)
    with pytest.raises(softfold.UnsupportedError, match="gradient"):
        sf.attention(q.requires_grad_(), k, v)


def test_torch_s_attention_is_routed(rng, torch):
    import softfold.torch as sf

    q, k, v = tensors(torch, rng)
    with sf.routed(warn=False) as report:
        got = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.nn.functional.scaled_dot_product_attention(q.clone().requires_grad_(), k, v)
    assert bits(got) == bits(sf.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert report.routed == {"scaled_dot_product_attention": 1} and "gradient" in str(report)


@pytest.fixture
def on_gpu(torch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return lambda a: torch.from_numpy(a).cuda()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cuda_tensors(rng, torch, on_gpu, dtype):
    """Grouped heads, both layouts, strides that are not contiguous, out and lse, on the caller's stream."""
    q, k, v = (on_gpu(rng.standard_normal(shape).astype("f4")).to(getattr(torch, dtype))
               for shape in ((B, H, 40, 64), (B, HKV, 130, 64), (B, HKV, 130, 64)))  # fmt: skip
    tolerance = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    want, want_lse = oracle(*(t.float().cpu().numpy() for t in (q, k, v)), causal=True, window=(50, -1), softcap=4.0)
    options = dict(causal=True, window=(50, -1), softcap=4.0, return_lse=True)
    bthd = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    wider = [torch.cat([t, t], -1)[..., :64] for t in (q, k, v)]  # rows one gap apart
    for operands, layout in (((q, k, v), "bhtd"), (bthd, "bthd"), (wider, "bhtd"),
                             ([t.transpose(1, 2) for t in bthd], "bhtd")):  # fmt: skip
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            out, lse = softfold.attention(*operands, layout=layout, **options)
            torch.cuda.current_stream().synchronize()
        assert out.is_cuda and out.dtype == q.dtype and lse.is_cuda and lse.dtype == torch.float32
        got = out.transpose(1, 2) if layout == "bthd" else out
        np.testing.assert_allclose(got.float().cpu().numpy(), want, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(lse.cpu().numpy(), want_lse, rtol=1e-4, atol=tolerance / 10)
    into = torch.empty_like(q)
    assert softfold.attention(q, k, v, causal=True, out=into) is into
    assert bits(into.view(torch.uint8).cpu().numpy()) == bits(
        softfold.attention(q, k, v, causal=True).view(torch.uint8).cpu().numpy()
    )
    with pytest.raises(softfold.Error):
        softfold.attention(q, k.cpu(), v)


def test_cuda_parts_merge_to_the_whole(rng, torch, on_gpu):
    q, k, v = (on_gpu(rng.standard_normal(shape).astype("f4")).bfloat16()
               for shape in ((B, H, 20, 64), (B, HKV, 300, 64), (B, HKV, 300, 64)))  # fmt: skip
    whole, whole_lse = softfold.attention(q, k, v, return_lse=True)
    parts = [softfold.attention(q, k[:, :, s], v[:, :, s], return_lse=True)
             for s in (slice(0, 70), slice(70, 70), slice(70, 300))]  # fmt: skip
    out, lse = softfold.merge_attention([p[0] for p in parts], [p[1] for p in parts])
    assert out.is_cuda
    torch.testing.assert_close(out, whole, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse, whole_lse, rtol=1e-4, atol=1e-3)
