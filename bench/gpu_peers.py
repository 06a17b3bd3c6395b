"""The peers of the GPU benches, by the name given to --peers. What a peer refuses is recorded, not hidden; so is a result
that is wrong."""
import functools
import importlib.metadata

import torch

ROW_OPS = {"softmax": lambda a: torch.softmax(a, -1), "log_softmax": lambda a: torch.log_softmax(a, -1),
           "logsumexp": lambda a: torch.logsumexp(a if a.dtype.itemsize > 2 else a.float(), -1)}


def near(op, x):
    """A check that a result's first, middle and last row are those of x, but for rounding."""
    def right(result):
        result = result[0] if isinstance(result, tuple) else result
        rows = sorted({0, x.shape[0] // 2, x.shape[0] - 1})
        wanted = ROW_OPS[op](x[rows].double())
        off = ((result[rows].double() - wanted).abs().max() / wanted.abs().max()).item()
        if not off <= (1e-3 if x.dtype.itemsize > 2 else 1e-2):
            raise RuntimeError(f"wrong: off by {off:.1e} of the largest")
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


@functools.lru_cache(maxsize=1)
def _compiled(op, shape, dtype):
    """By inductor, for this shape and dtype alone; it compiles in the first call."""
    torch._dynamo.reset()  # what was compiled before counts towards a limit
    return torch.compile(ROW_OPS[op], dynamic=False)


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


# The package that a peer is of, what the records call it, and its call.
PEERS = {"torch": ("torch", "torch", _torch), "compile": ("torch", "torch.compile", _compile),
         "triton": ("triton", "triton", _triton), "triton-online": ("triton", "triton-online", _triton_online),
         "liger": ("liger-kernel", "liger-kernel", _liger), "quack": ("quack-kernels", "quack-kernels", _quack)}
# The peers here that have more than softmax.
_WHOLE_FAMILY = ("torch", "compile")


def label(name):
    """The peer with its version."""
    package, shown, _ = PEERS[name]
    try:
        version = torch.__version__ if package == "torch" else importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "(missing)"
    return f"{shown} {version}"


def peers_for(op, x, y, names):
    """{name and version: call}, checked when called first. The output is written to y's like where the peer lets the
    caller say where."""
    scratch = torch.empty_like(y)
    result = {}
    for name in names:
        if op != "softmax" and name not in _WHOLE_FAMILY:
            continue
        try:
            result[label(name)] = checked(PEERS[name][2](op, x, scratch), near(op, x))
        except Exception as e:
            def refuse(why=e):
                raise why
            result[label(name)] = refuse
    return result
