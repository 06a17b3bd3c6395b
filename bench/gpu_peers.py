"""The peers of the GPU benches, by the name given to --peers. What a peer refuses is recorded, not hidden; so is a result
that is wrong."""
import argparse
import functools
import importlib.metadata

import torch

ROW_OPS = {"softmax": lambda a: torch.softmax(a, -1), "log_softmax": lambda a: torch.log_softmax(a, -1),
           "logsumexp": lambda a: torch.logsumexp(a if a.dtype.itemsize > 2 else a.float(), -1)}


def few_rows(x):
    """The first, the middle and the last."""
    return sorted({0, x.shape[0] // 2, x.shape[0] - 1})


def hold(got, wanted, dtype, narrow=1e-2):
    """Raises where the result of an input of this dtype is not the wanted one, but for rounding. narrow: how far off
    it may be of 16 bit."""
    off = ((got.double() - wanted).abs().max() / wanted.abs().max()).item()
    if not off <= (1e-3 if dtype.itemsize > 2 else narrow):
        raise RuntimeError(f"wrong: off by {off:.1e} of the largest")


def near(op, x):
    """A check that a result's first, middle and last row are those of x."""
    def right(result):
        result = result[0] if isinstance(result, tuple) else result
        hold(result[few_rows(x)], ROW_OPS[op](x[few_rows(x)].double()), x.dtype)
    return right


def checked(call, right):
    """The call, whose first result goes through `right`."""
    pending = [right]

    def run():
        result = call()
        if pending:
            pending.pop()(result)
        return result
    return run


def _torch(op, x, y):
    if op == "softmax":
        return lambda: torch.softmax(x, -1, out=y)
    if op == "log_softmax":
        return lambda: torch.log_softmax(x, -1, out=y)
    return lambda: torch.logsumexp(x.float() if x.dtype != torch.float32 else x, -1, out=y)


def compiled(function):
    """By inductor, for the shapes of the first call, in which it compiles."""
    torch._dynamo.reset()  # what was compiled before counts towards a limit
    return torch.compile(function, dynamic=False)


@functools.lru_cache(maxsize=1)
def _compiled(op, shape, dtype):
    return compiled(ROW_OPS[op])


def _compile(op, x, y):
    call = _compiled(op, x.shape, x.dtype)
    return lambda: call(x)


def _triton(op, x, y):
    from gpu_triton import softmax
    return lambda: softmax(x, y)


def _triton_online(op, x, y):
    from gpu_triton import online_softmax
    return lambda: online_softmax(x, y)


def _liger(op, x, y):
    from liger_kernel.ops.softmax import _softmax_forward
    return lambda: _softmax_forward(x)


def _quack(op, x, y):
    from quack.softmax import softmax_fwd
    return lambda: softmax_fwd(x)


# The package that a peer is of, and what the records call it.
NAMES = {"torch": ("torch", "torch"), "compile": ("torch", "torch.compile"), "triton": ("triton", "triton"),
         "triton-online": ("triton", "triton-online"), "liger": ("liger-kernel", "liger-kernel"),
         "quack": ("quack-kernels", "quack-kernels"), "flashinfer": ("flashinfer-python", "flashinfer-python"),
         "cce": ("cut-cross-entropy", "cut-cross-entropy"),
         "cce-exact": ("cut-cross-entropy", "cut-cross-entropy-exact")}
# Those that have softmax.
PEERS = {"torch": _torch, "compile": _compile, "triton": _triton, "triton-online": _triton_online, "liger": _liger,
         "quack": _quack}
# Of these, those that have more of its family.
_WHOLE_FAMILY = ("torch", "compile")


def peer_names(known):
    """The type of --peers: names with commas, of those known."""
    def parse(text):
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no peer {name} here; there are {', '.join(known)}")
        return names
    return parse


def reason(e):
    """What the record of a refusal says."""
    return f"{type(e).__name__}: {e}".split("\n")[0][:160]


def label(name):
    """The peer with its version, and with what follows its name."""
    peer, *variant = name.split(" ", 1)
    package, shown = NAMES[peer]
    try:
        version = torch.__version__ if package == "torch" else importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "(missing)"
    return " ".join([shown, version, *variant])


def offered(makers, names, right):
    """{name and version: call} of the peers that are asked for, checked when called first. A call that cannot be made
    refuses when it is called."""
    result = {}
    for name, make in makers.items():
        if name.split(" ")[0] not in names:
            continue
        try:
            result[label(name)] = checked(make(), right)
        except Exception as e:
            def refuse(why=e):
                raise why
            result[label(name)] = refuse
    return result


def peers_for(op, x, y, names):
    """The output is written to y's like where the peer lets the caller say where."""
    scratch = torch.empty_like(y)
    makers = {name: functools.partial(make, op, x, scratch) for name, make in PEERS.items()
              if op == "softmax" or name in _WHOLE_FAMILY}
    return offered(makers, names, near(op, x))
