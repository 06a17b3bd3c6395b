"""The peers of the GPU benches, by the name given to --peers. What a peer refuses is recorded, not hidden."""
import importlib.metadata

import torch


def _torch(op, x, y):
    if op == "softmax":
        return lambda: torch.softmax(x, -1, out=y)
    if op == "log_softmax":
        return lambda: torch.log_softmax(x, -1, out=y)
    return lambda: torch.logsumexp(x.float() if x.dtype != torch.float32 else x, -1, out=y)


_compiled = {}


def _compile(op, x, y):
    if op not in _compiled:
        f = {"softmax": lambda a: torch.softmax(a, -1), "log_softmax": lambda a: torch.log_softmax(a, -1),
             "logsumexp": lambda a: torch.logsumexp(a.float(), -1)}[op]
        _compiled[op] = torch.compile(f, dynamic=False)
    torch._dynamo.reset()
    call = _compiled[op]
    call(x)
    return lambda: call(x)


def _triton(op, x, y):
    from gpu_triton import softmax
    return lambda: softmax(x, y)


def _liger(op, x, y):
    from liger_kernel.ops.softmax import _softmax_forward
    return lambda: _softmax_forward(x)


def _quack(op, x, y):
    from quack.softmax import softmax_fwd
    softmax_fwd(x)
    return lambda: softmax_fwd(x)


_PACKAGES = {"torch": "torch", "compile": "torch", "triton": "triton", "liger": "liger-kernel",
             "quack": "quack-kernels"}
# The peers here that have more than softmax.
_WHOLE_FAMILY = ("torch", "compile")


def label(name):
    """The peer with its version."""
    package = _PACKAGES[name]
    try:
        version = torch.__version__ if package == "torch" else importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "(missing)"
    return f"{'torch.compile' if name == 'compile' else package} {version}"


_MAKERS = {"torch": _torch, "compile": _compile, "triton": _triton, "liger": _liger, "quack": _quack}


def peers_for(op, x, y, names):
    """{name and version: call}. The output is written to y where the peer lets the caller say where."""
    scratch = torch.empty_like(y)
    result = {}
    for name in names:
        if op != "softmax" and name not in _WHOLE_FAMILY:
            continue
        try:
            result[label(name)] = _MAKERS[name](op, x, scratch)
        except Exception as e:
            def refuse(why=e):
                raise why
            result[label(name)] = refuse
    return result
