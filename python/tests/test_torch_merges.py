"""softfold.torch's merges of states, attention outputs and blocks: values, gradients, transforms; on CUDA too."""

import pytest
from torch_support import on_every_device, scores, sf, torch

from torch.library import opcheck

pytestmark = on_every_device


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
