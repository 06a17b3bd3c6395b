#!/usr/bin/env python3
"""softfold's linear_cross_entropy on the CPU beside NumPy/SciPy with OpenBLAS, JAX and PyTorch, in one run, in turn.

usage: cpu_linear_cross_entropy.py --lib libsoftfold.so [--threads 2] [--out FILE]

The loss alone, and the loss with the gradients of x and W, of B rows of D features and V classes. NumPy: x @ W.T, SciPy's
logsumexp, the targets' logits; for the gradients exp(z - lse) less 1 at the targets, and two more products (float32 alone;
threadpoolctl sets OpenBLAS's threads, without it NumPy is left out). JAX: value_and_grad of the same, compiled. PyTorch:
linear and cross_entropy, and autograd. Before anything is timed losses and the gradients' first rows are compared: to 1e-3
of the largest (16 bits, to which PyTorch and JAX round the logits: 5e-2). The medians of `--rounds` turns (once what takes
more than a second), one JSON object a line.
"""
import argparse
import ctypes
import functools
import json
import os
import time

import numpy as np

from consumer_options import LinearCrossEntropyOptions
from cpu_peers import BYTES, Softfold, aligned, as_float64, machine, medians, numpy_type


class Case:
    """x [B, D], weight [V, D], targets [B], and room for the gradients."""

    def __init__(self, dtype, shape, gradients):
        self.dtype, self.shape, self.gradients = dtype, shape, gradients
        rows, depth, classes = shape
        random = np.random.default_rng(4)
        self.x = self.array(random.standard_normal((rows, depth), np.float32))
        self.weight = self.array(random.standard_normal((classes, depth), np.float32) * np.float32(depth ** -0.5))
        self.target = random.integers(0, classes, rows)

    def array(self, values):
        memory = aligned(values.size, BYTES[self.dtype]).view(numpy_type(self.dtype)).reshape(values.shape)
        memory[...] = values
        return memory

    def ours(self, softfold):
        loss, dx, dweight = np.zeros((), np.float32), np.zeros_like(self.x), np.zeros_like(self.weight)
        options = LinearCrossEntropyOptions()
        softfold.lib.softfold_linear_cross_entropy_options_init(ctypes.byref(options))
        tensors = [softfold.tensor(a, d, a.shape) for a, d in (
            (self.x, self.dtype), (self.weight, self.dtype), (self.target, "int64"), (loss, "float32"),
            (dx, self.dtype), (dweight, self.dtype))]
        if self.gradients:
            options.dx, options.dweight = ctypes.addressof(tensors[4]), ctypes.addressof(tensors[5])
        arguments = [*map(ctypes.byref, tensors[:4]), ctypes.byref(options), ctypes.byref(softfold.context)]

        def call(keep=tensors):
            softfold.check(softfold.lib.softfold_linear_cross_entropy(*arguments))
            return (loss, dx, dweight) if self.gradients else (loss,)

        return "softfold " + softfold.lib.softfold_version().decode(), call


def numpy_call(c, threads):
    import scipy
    from scipy.special import logsumexp
    from threadpoolctl import threadpool_info, threadpool_limits
    if c.x.dtype.kind != "f":
        return None
    at = np.arange(c.shape[0])
    threadpool_limits(threads, "blas")
    blas = next(i for i in threadpool_info() if i["internal_api"] == "openblas" and "numpy" in i["filepath"])

    def call():
        z = c.x @ c.weight.T
        lse = logsumexp(z, -1)
        loss = np.mean(lse - z[at, c.target])
        if not c.gradients:
            return (loss,)
        z -= lse[:, None]
        dz = np.exp(z, out=z)
        dz[at, c.target] -= 1
        dz /= c.shape[0]
        return loss, dz @ c.weight, dz.T @ c.x

    return (f"numpy {np.__version__}, scipy {scipy.__version__}, OpenBLAS {blas['version']} {blas['architecture']}",
            call)


def jax_call(c, threads):
    os.environ.setdefault("XLA_FLAGS", "" if threads > 1 else "--xla_cpu_multi_thread_eigen=false")
    import jax
    import jax.numpy as jnp
    x, weight, target = jnp.asarray(c.x), jnp.asarray(c.weight), jnp.asarray(c.target)

    def loss(x, weight):
        z = (x @ weight.T).astype(jnp.float32)
        return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, target[:, None], -1)[:, 0])

    f = jax.jit(jax.value_and_grad(loss, (0, 1)) if c.gradients else loss)

    def call():
        result = jax.block_until_ready(f(x, weight))
        return (result[0], *result[1]) if c.gradients else (result,)

    return f"jax {jax.__version__}", call


def torch_call(c, threads):
    import torch
    torch.set_num_threads(threads)
    x, weight = (torch.from_numpy(a.reshape(-1).view(np.uint8)).view(getattr(torch, c.dtype)).reshape(a.shape)
                 for a in (c.x, c.weight))
    target = torch.from_numpy(c.target)

    def call():
        a, b = (t.detach().requires_grad_(c.gradients) for t in (x, weight))
        loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(a, b), target)
        return (loss.detach(), *torch.autograd.grad(loss, (a, b))) if c.gradients else (loss,)

    return f"torch {torch.__version__}", call


PEERS = {"numpy": numpy_call, "jax": jax_call, "torch": torch_call}


def compare(c, who, ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        a, b = (as_float64(r[:2] if r.ndim else r) for r in (a, b))
        off = np.max(np.abs(a - b)) / np.max(np.abs(a))
        if not off <= (1e-3 if BYTES[c.dtype] > 2 else 5e-2):
            raise RuntimeError(f"{c.dtype} {c.shape}: {who} differs by {off}")


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def records_of(c, softfold, threads, rounds, wanted):
    name, call = c.ours(softfold)
    calls, ours = {name: call}, call()
    for peer in wanted:
        try:
            found = PEERS[peer](c, threads)
        except ImportError:
            continue
        if found is not None:
            compare(c, found[0], ours, found[1]())
            calls[found[0]] = found[1]
    median = medians({who: functools.partial(seconds_of, f) for who, f in calls.items()}, rounds)
    rows, depth, classes = c.shape
    case = f"{'loss and gradients' if c.gradients else 'loss'}, {threads} threads"
    for who, ms in median.items():
        yield {"op": "linear_cross_entropy", "dtype": c.dtype, "shape": list(c.shape), "case": case, "who": who,
               "ms": ms, "bytes": None,
               "flops": 2 * (3 if c.gradients else 1) * rows * depth * classes, "copy_ms": None, "bits": None}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", required=True)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--shapes", default="512x1024x32000,256x1024x128256", help="B x D x V")
    p.add_argument("--dtypes", default="float32,bfloat16")
    p.add_argument("--peers", default=",".join(PEERS), help="of these, what is installed")
    p.add_argument("--out", help="append the records to this file")
    a = p.parse_args()
    about, softfold = machine(), Softfold(a.lib, a.threads)
    print(about["device"], "commit", about["commit"])
    for dtype in a.dtypes.split(","):
        for shape in a.shapes.split(","):
            for gradients in (False, True):
                c = Case(dtype, tuple(map(int, shape.split("x"))), gradients)
                records = [{**r, **about} for r in records_of(c, softfold, a.threads, a.rounds, a.peers.split(","))]
                ours = records[0]["ms"]
                print(f"{shape:16} {dtype:9} {records[0]['case']:30} {records[0]['flops'] / ours * 1e-6:6.1f} GFLOP/s; "
                      + "  ".join(f"{r['who']} {r['ms']:.1f} ({r['ms'] / ours:.2f}x)" for r in records), flush=True)
                if a.out:
                    with open(a.out, "a", encoding="utf-8") as f:
                        f.writelines(json.dumps(r) + "\n" for r in records)


if __name__ == "__main__":
    main()
