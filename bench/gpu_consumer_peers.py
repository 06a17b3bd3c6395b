"""The peers of losses, top-k and draws, by the name given to --peers, and the checks of results, against float64 when a
call is made first."""
import functools

import torch

from gpu_peers import compiled, few_rows, hold, offered

F = torch.nn.functional
PEERS = ("torch", "compile", "liger", "quack", "flashinfer")


def near_loss(x, target):
    """A check of a mean loss and, where there is one, of its gradient: of the targets' elements, and of all others. Who
    leaves the mean to the caller has the losses of rows and the gradient of their sum."""
    def right(result):
        loss, dx = result if isinstance(result, tuple) else (result, None)
        m, n = x.shape
        parts = zip(x.split((1 << 27) // n), target.split((1 << 27) // n))
        hold(loss.double().mean(), sum(F.cross_entropy(a.double(), t, reduction="sum") for a, t in parts) / m, x.dtype)
        if dx is not None:
            rows = few_rows(x)
            hot = F.one_hot(target[rows].long(), n)
            wanted = (torch.softmax(x[rows].double(), -1) - hot) / (1 if loss.dim() else m)
            for part in (hot, 1 - hot):
                hold(dx[rows].double() * part, wanted * part, x.dtype)
    return right


def _loss(function, x, target, gradient):
    if not gradient:
        return lambda: function(x, target)
    leaf = x.detach().requires_grad_()

    def call():
        loss = function(leaf, target)
        return loss, *torch.autograd.grad(loss, leaf)
    return call


def _liger_loss(x, target, gradient):
    """Its kernel by itself: what calls it reads the targets on the host, which no graph captures. The gradient takes
    the logits' place, so these are a copy; calls after the first are of the gradient before, which is as many bytes."""
    from liger_kernel.ops.cross_entropy import MAX_FUSED_SIZE, liger_cross_entropy_kernel
    from triton import next_power_of_2
    (m, n), own = x.shape, x.clone() if gradient else x

    def call():
        losses = torch.zeros(m, dtype=x.dtype, device=x.device)
        liger_cross_entropy_kernel[(m,)](
            X_ptr=own, X_stride=n, Y_ptr=target, Y_stride=1, weight_ptr=None, loss_ptr=losses, z_loss_ptr=None,
            loss_stride=1, token_accuracy_ptr=None, token_accuracy_stride=0, predicted_tokens_ptr=None,
            predicted_tokens_stride=0, n_cols=n, n_non_ignore=m, sum_non_ignore_weight=m, weight_sum=0.,
            ignore_index=-100, lse_square_scale=0., label_smoothing=0., reduction="mean", softcap=None,
            RETURN_Z_LOSS=False, RETURN_TOKEN_ACCURACY=False, RETURN_PREDICTED_TOKENS=False,
            BLOCK_SIZE=min(MAX_FUSED_SIZE, next_power_of_2(n)), HAS_WEIGHT=False, HAS_SOFTCAPPING=False,
            HAS_GRADIENTS=gradient, num_warps=32)
        return (losses.sum(), own) if gradient else losses.sum()
    return call


def _quack_loss(x, target, gradient):
    from quack.cross_entropy import cross_entropy_fwd
    return lambda: cross_entropy_fwd(x, target, return_dx=gradient)


def cross_entropy(x, target, gradient, names):
    makers = {"torch": lambda: _loss(F.cross_entropy, x, target, gradient),
              "compile": lambda: _loss(compiled(lambda a, t: F.cross_entropy(a, t)), x, target, gradient),
              "liger": lambda: _liger_loss(x, target, gradient), "quack": lambda: _quack_loss(x, target, gradient)}
    return offered(makers, names, near_loss(x, target))


def of_entropy(x):
    logp = torch.log_softmax(x, -1)
    return -(logp.exp() * logp).sum(-1)


def of_kl_divergence(p, q):
    return F.kl_div(torch.log_softmax(q, -1), torch.log_softmax(p, -1), log_target=True, reduction="none").sum(-1)


def near_rows(function, *rows, gradients=False, narrow=1e-2):
    """A check of a number of each row and, where there are some, of the gradients of its sum, which follow it."""
    def right(result):
        few = few_rows(rows[0])
        leaves = [x[few].double().requires_grad_() for x in rows]
        wanted = function(*leaves)
        wanted = wanted, *(torch.autograd.grad(wanted.sum(), leaves) if gradients else ())
        for got, want in zip(result if isinstance(result, tuple) else (result,), wanted, strict=True):
            hold(got[few], want.detach(), rows[0].dtype, narrow)
    return right


def of_rows(function, *rows, names):
    """The peers that call this function of each row, without gradients. Where the rows are of 16 bit torch rounds every
    step to it, which leaves it a few percent off; compiled, the steps are in float32 and nothing more is written."""
    eager = {"torch": lambda: functools.partial(function, *rows)}
    fused = {"compile": lambda: functools.partial(compiled(lambda *xs: function(*(x.float() for x in xs))), *rows)}
    return {**offered(eager, names, near_rows(function, *rows, narrow=5e-2)),
            **offered(fused, names, near_rows(function, *rows))}


# What stands beside the indices of the k largest: they themselves, their probabilities, or their softmax.
VALUES = {"logits": lambda row, best: best, "probabilities": lambda row, best: (best - row.logsumexp(-1, True)).exp(),
          "softmax": lambda row, best: torch.softmax(best, -1)}


def near_topk(x, k, values, ordered=True, exact=True):
    """A check of (values, indices), the largest first if they are ordered, whichever of equal elements they are; not
    exact: compared without the lowest bits, in which the indices were kept (quack's)."""
    def right(result):
        rows = few_rows(x)
        (got, indices), x64 = (r[rows] for r in result), x[rows].double()
        if not ((indices >= 0) & (indices < x.shape[1])).all():
            raise RuntimeError("wrong: an index outside the row")
        if (indices.sort(-1).values.diff() == 0).any():
            raise RuntimeError("wrong: an index twice")
        chosen, best = x64.gather(-1, indices.long()), x64.topk(k).values
        wanted, chosen = VALUES[values](x64, chosen), chosen if ordered else chosen.sort(-1, True).values
        if not exact:
            hold(chosen, best, x.dtype)
        elif not torch.equal(chosen, best):
            raise RuntimeError("wrong: not the largest, or not in order")
        if values != "logits" or not exact:
            hold(got, wanted, x.dtype)
        elif not torch.equal(got.double(), wanted):
            raise RuntimeError("wrong: values that are not their indices'")
    return right


def _probabilities(x, best):
    """Of these logits of the rows, in float32."""
    return (best - x.float().logsumexp(-1, True)).exp()


def _compiled_topk(x, k, probabilities):
    def call(a):
        best, indices = torch.topk(a, k)
        return _probabilities(a, best) if probabilities else best, indices
    return functools.partial(compiled(call), x)


def _flashinfer_topk(x, k, probabilities, **how):
    import flashinfer
    if not probabilities:
        return lambda: flashinfer.top_k(x, k, **how)
    of = compiled(_probabilities)

    def call():
        best, indices = flashinfer.top_k(x, k, **how)
        return of(x, best), indices
    return call


def _quack_topk(x, k, probabilities):
    from quack.topk import topk_fwd
    return lambda: topk_fwd(x, k, softmax=probabilities)


def topk(x, k, probabilities, names):
    """Values are logits, or probabilities of the whole row, but for quack: its are softmax of the k."""
    def torch_topk(a):
        return torch.topk(torch.softmax(a, -1) if probabilities else a, k)

    makers = {"torch": lambda: functools.partial(torch_topk, x),
              "compile": lambda: _compiled_topk(x, k, probabilities),
              "flashinfer": lambda: _flashinfer_topk(x, k, probabilities, sorted=True, deterministic=True)}
    unsorted = {"flashinfer unsorted": lambda: _flashinfer_topk(x, k, probabilities)}
    quack = {"quack": lambda: _quack_topk(x, k, probabilities)} if x.shape[1] <= 4096 else {}
    values = "probabilities" if probabilities else "logits"
    return {**offered(makers, names, near_topk(x, k, values)),
            **offered(unsorted, names, near_topk(x, k, values, ordered=False)),
            **offered(quack, names, near_topk(x, k, "softmax" if probabilities else "logits", exact=False))}


def within(x, temperature, top_k, top_p):
    """A check that tokens are among the top_k largest of their rows (0: all), of which those larger have less than
    top_p. How often which of them is drawn it does not test; without filters, nothing but that they are in the row."""
    def right(tokens):
        token, x64 = tokens.reshape(-1, 1)[few_rows(x)].long(), x[few_rows(x)].double()
        if not ((token >= 0) & (token < x.shape[1])).all():
            raise RuntimeError("wrong: a token outside the row")
        best, own = x64.topk(top_k or x.shape[1]).values, x64.gather(-1, token)
        before = torch.softmax(best / temperature, -1).where(best > own, 0).sum(-1)
        if (own < best[:, -1:]).any() or (before >= top_p + 1e-3).any():
            raise RuntimeError("wrong: a token that the filters leave out")
    return right


def _race(weights):
    """A draw of each row by exponential clocks, which inductor fuses with what comes before, unlike multinomial."""
    return (weights / torch.empty_like(weights).exponential_()).argmax(-1, keepdim=True)


def _filtered(x, temperature, top_k, top_p, draw):
    best, indices = torch.topk(x, top_k) if top_k else torch.sort(x, descending=True)
    p = torch.softmax(best / temperature, -1)
    return indices.gather(-1, draw(torch.where(p.cumsum(-1) - p < top_p, p, 0)))


def _torch_sample(x, temperature, top_k, top_p):
    def draw(weights):
        return torch.multinomial(weights, 1)

    if top_k or top_p < 1:
        return lambda: _filtered(x, temperature, top_k, top_p, draw)
    return lambda: draw(torch.softmax(x / temperature, -1))


def _compiled_sample(x, temperature, top_k, top_p):
    if top_k or top_p < 1:
        call = compiled(lambda a: _filtered(a, temperature, top_k, top_p, _race))
    else:  # the largest logit with Gumbel noise, in one read
        call = compiled(lambda a: (a / temperature - torch.rand_like(a).log().neg().log()).argmax(-1))
    return functools.partial(call, x)


def _flashinfer_sample(x, temperature, top_k, top_p, of_probabilities=False):
    from flashinfer import sampling
    # Where they are numbers, or not given, it asks the generator for them, which no graph captures.
    where = {name: torch.zeros(1, dtype=torch.int64, device=x.device) for name in ("seed", "offset")}
    if of_probabilities:
        def first():
            return sampling.softmax(x, temperature=temperature)
        if top_k:
            return lambda: sampling.top_k_top_p_sampling_from_probs(first(), top_k, top_p, **where)
        if top_p < 1:
            return lambda: sampling.top_p_sampling_from_probs(first(), top_p, **where)
        return lambda: sampling.sampling_from_probs(first(), **where)
    if top_k:
        return lambda: sampling.top_k_top_p_sampling_from_logits(x / temperature, top_k, top_p, **where)
    if top_p < 1:  # it has no such function of logits
        return lambda: sampling.top_p_sampling_from_probs(torch.softmax(x / temperature, -1), top_p, **where)
    return lambda: sampling.sampling_from_logits(x / temperature, **where)


def sample(x, temperature, top_k, top_p, names):
    """Of the top_k (0: all), then of those that have top_p."""
    given = x, temperature, top_k, top_p
    makers = {"torch": lambda: _torch_sample(*given), "compile": lambda: _compiled_sample(*given),
              "flashinfer": lambda: _flashinfer_sample(*given),
              "flashinfer of probabilities": lambda: _flashinfer_sample(*given, of_probabilities=True)}
    return offered(makers, names, within(*given))
