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
     {"layout": 3}, {"layout": None}, {"softcap": None}, {"softcap": 1e-50}, {"softcap": 3e38}, {"softcap": -1}],
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
    options = (None, True, -1, -1, 0.0, None, None, None, None, None, None, "bhtd")
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
