#!/usr/bin/env python3
"""softfold's cross_entropy, entropy, topk and sample on the CPU beside oneDNN, NumPy/SciPy, JAX and PyTorch, in one run, in
turn.

usage: cpu_consumers.py --lib libsoftfold.so --shim libcpu_peers_shim.so [--threads 1,2] [--out FILE]

As bench/cpu_peers.py: the medians of `--rounds` turns (once what takes more than a second), one JSON object a line, the
ceiling a pure read of the logits (a streaming copy where a gradient is written). Before anything is timed the results
are compared: losses, the first rows of gradients and entropies to 1e-3 of each other (what takes 16 bits in sums: 1e-2),
the k values exactly.

oneDNN has no losses, and no top-k or sampling. Beside cross_entropy stands what its parts give: log-softmax of all logits,
and the mean of the targets' elements by NumPy; for the gradient also its backward pass of log-softmax, for a dy that is
-1/rows at the targets and 0 elsewhere. This dy and the room for results are there before the clock starts.
"""
import argparse
import ctypes
import json
import os
import time

import numpy as np

from consumer_options import CrossEntropyOptions, EntropyOptions, SampleOptions, TopkOptions
from cpu_peers import (BYTES, Softfold, aligned, as_float64, ceiling_for, fill, load_shim, machine, medians,
                       numpy_type, onednn_name)

K = 50
OPTIONS = {"cross_entropy": CrossEntropyOptions, "entropy": EntropyOptions, "topk": TopkOptions, "sample": SampleOptions}


class Case:
    """Logits of `shape`, targets, and room for what an operation gives; `case` of cross_entropy: loss (and gradient)."""

    def __init__(self, op, case, dtype, shape):
        self.op, self.case, self.dtype, self.shape = op, case, dtype, shape
        self.raw = aligned(shape[0] * shape[1], BYTES[dtype])
        fill(self.raw, dtype)
        self.x = self.raw.view(numpy_type(dtype)).reshape(shape)
        self.target = np.random.default_rng(2).integers(0, shape[1], shape[0])
        self.gradient = op == "cross_entropy" and case != "loss"

    def ours(self, softfold):
        """A call of softfold's that gives seconds, and its result."""
        lib, rows = softfold.lib, self.shape[0]
        options = OPTIONS[self.op]()
        getattr(lib, f"softfold_{self.op}_options_init")(ctypes.byref(options))
        real = "float64" if self.dtype == "float64" else "float32"
        shapes = {"cross_entropy": [()], "entropy": [(rows,)], "topk": [(rows, K)] * 2, "sample": [(rows,)]}[self.op]
        dtypes = {"topk": [self.dtype, "int32"], "sample": ["int64"]}.get(self.op, [real])
        outs = [np.empty(s, numpy_type(d)) for s, d in zip(shapes, dtypes)]
        tensors = [softfold.tensor(self.raw, self.dtype, self.shape)]
        if self.op == "cross_entropy":
            tensors.append(softfold.tensor(self.target, "int64", (rows,)))
        tensors += [softfold.tensor(o, d, o.shape) for o, d in zip(outs, dtypes)]
        keep = []
        if self.gradient:
            keep = [aligned(self.x.size, BYTES[self.dtype])]
            keep.append(softfold.tensor(keep[0], self.dtype, self.shape))
            options.dx = ctypes.addressof(keep[1])
        f = getattr(lib, "softfold_" + self.op)
        arguments = [*map(ctypes.byref, tensors), ctypes.byref(options), ctypes.byref(softfold.context)]

        def run(keep=(keep, tensors, outs)):
            start = time.perf_counter()
            status = f(*arguments)
            seconds = time.perf_counter() - start
            softfold.check(status)
            return seconds

        dx = [keep[0].view(self.x.dtype).reshape(self.shape)] if self.gradient else []
        return run, lambda: (outs[0], *dx)


def onednn_call(c, shim, threads):
    """None where it has no such operation, or not of this dtype."""
    if shim is None or not hasattr(shim, "bench_onednn_make") or c.op != "cross_entropy":
        return None
    name, (rows, n) = onednn_name(shim, threads), c.shape
    log_p, dy, dx = (aligned(rows * n, BYTES[c.dtype]) for _ in range(3))
    at = np.arange(rows)
    y = log_p.view(c.x.dtype).reshape(c.shape)
    dy.view(c.x.dtype).reshape(c.shape)[at, c.target] = -1 / rows
    pointers = [ctypes.c_void_p(memory.ctypes.data) for memory in (c.raw, log_p, dy, dx)]
    sizes = ctypes.c_int64(rows), ctypes.c_int64(n), c.dtype.encode()
    made = [shim.bench_onednn_make(*pointers[:2], *sizes, 1)]
    if c.gradient:
        made.append(shim.bench_onednn_make_backward(*pointers[1:], *sizes))
    if not all(made):
        return None

    def call(keep=dy):
        for handle in made:
            shim.bench_onednn_run(ctypes.c_void_p(handle))
        return -np.mean(y[at, c.target].astype(np.float32)), dx.view(c.x.dtype).reshape(c.shape)

    return name, call


def numpy_call(c):
    """The route that NumPy's and SciPy's users take: logsumexp, argpartition, Gumbel noise."""
    import scipy
    from scipy.special import entr, logsumexp, softmax
    if c.x.dtype.kind != "f":
        return None
    at = np.arange(c.shape[0])
    generator = np.random.default_rng(3)

    def topk():
        which = np.argpartition(c.x, -K, -1)[:, -K:]
        values = np.take_along_axis(c.x, which, -1)
        order = np.argsort(-values, -1)
        return np.take_along_axis(values, order, -1), np.take_along_axis(which, order, -1)

    def loss_and_gradient():
        lse = logsumexp(c.x, -1)
        dx = np.exp(c.x - lse[:, None])
        dx[at, c.target] -= 1
        dx /= c.shape[0]
        return np.mean(lse - c.x[at, c.target]), dx

    calls = {"cross_entropy": loss_and_gradient if c.gradient else lambda: np.mean(logsumexp(c.x, -1) - c.x[at, c.target]),
             "entropy": lambda: entr(softmax(c.x, -1)).sum(-1), "topk": topk,
             "sample": lambda: np.argmax(c.x + generator.gumbel(size=c.shape).astype(c.x.dtype), -1)}
    return f"numpy {np.__version__}, scipy {scipy.__version__}", calls[c.op]


def jax_call(c):
    import jax
    import jax.numpy as jnp
    x, target, key = jnp.asarray(c.x), jnp.asarray(c.target), jax.random.key(0)

    def loss(x):
        log_p = jax.nn.log_softmax(x.astype(jnp.float32), -1)
        return -jnp.mean(jnp.take_along_axis(log_p, target[:, None], -1))

    def entropy(x):
        log_p = jax.nn.log_softmax(x.astype(jnp.float32), -1)
        return -jnp.sum(jnp.exp(log_p) * log_p, -1)

    f = jax.jit({"cross_entropy": jax.value_and_grad(loss) if c.gradient else loss, "entropy": entropy,
                 "topk": lambda x: jax.lax.top_k(x, K), "sample": lambda x: jax.random.categorical(key, x)}[c.op])
    return f"jax {jax.__version__}", lambda: jax.block_until_ready(f(x))


def torch_call(c, threads):
    import torch
    torch.set_num_threads(threads)
    x = torch.from_numpy(c.raw).view(getattr(torch, c.dtype)).reshape(c.shape)
    target = torch.from_numpy(c.target)

    def loss_and_gradient():
        leaf = x.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(leaf, target)
        loss.backward()
        return loss.detach(), leaf.grad

    def entropy():
        log_p = torch.log_softmax(x, -1, dtype=torch.float32)
        return -(log_p.exp() * log_p).sum(-1)

    calls = {"cross_entropy": loss_and_gradient if c.gradient else lambda: torch.nn.functional.cross_entropy(x, target),
             "entropy": entropy, "topk": lambda: torch.topk(x, K),
             "sample": lambda: torch.multinomial(torch.softmax(x.float(), -1), 1)}
    return f"torch {torch.__version__}", calls[c.op]


def results_of(c, result):
    """What is compared: the first result, and of a gradient its first rows."""
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [as_float64(parts[0]), *([as_float64(parts[1][:2])] if c.gradient else [])]


def compare(c, name, ours, theirs):
    if c.op == "sample":
        return
    bound = 0 if c.op == "topk" else 1e-3 if BYTES[c.dtype] > 2 else 1e-2
    for a, b in zip(ours, theirs, strict=True):
        off = np.max(np.abs(a - b)) / max(np.max(np.abs(a)), 1e-30)
        if not off <= bound:
            raise RuntimeError(f"{c.op} {c.dtype}: {name} differs by {off}")


def runs_of(c, softfold, shim, threads, wanted):
    run, result = c.ours(softfold)
    runs = {"softfold " + softfold.lib.softfold_version().decode(): run}
    run()
    ours = results_of(c, result())
    for name, maker in (("onednn", lambda c: onednn_call(c, shim, threads)), ("scipy", numpy_call), ("jax", jax_call),
                        ("torch", lambda c: torch_call(c, threads))):
        try:
            found = maker(c) if name in wanted else None
        except ImportError:
            continue
        if found is None:
            continue
        who, call = found
        compare(c, who, ours, results_of(c, call()))

        def timed(call=call):
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        runs[who] = timed
    return runs


def records_of(c, softfold, shim, threads, rounds, wanted):
    runs = runs_of(c, softfold, shim, threads, wanted)
    if (ceiling := ceiling_for("softmax" if c.gradient else "logsumexp", c.raw, shim, threads)):
        runs["ceiling"] = ceiling
    median = medians(runs, rounds)
    copy_ms = median.pop("ceiling", None)
    for who, ms in median.items():
        yield {"op": c.op, "dtype": c.dtype, "shape": list(c.shape), "case": f"{c.case}, {threads} threads".lstrip(", "),
               "who": who, "ms": ms, "bytes": c.raw.size * (2 if c.gradient else 1), "flops": None, "copy_ms": copy_ms,
               "bits": None}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", required=True)
    p.add_argument("--shim")
    p.add_argument("--threads", default=str(os.cpu_count()))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--rows", type=int, default=512, help="rows of 128256 logits")
    p.add_argument("--peers", default="onednn,scipy,jax,torch", help="of these, what is installed")
    p.add_argument("--dtypes", default="float32,bfloat16")
    p.add_argument("--only", default="cross_entropy,topk,entropy,sample")
    p.add_argument("--out", help="append the records to this file")
    a = p.parse_args()
    shim, about = load_shim(a.shim), machine()
    print(about["device"], "commit", about["commit"])
    cases = [(op, case) for op, case in (("cross_entropy", "loss"), ("cross_entropy", "loss and gradient"),
                                         ("topk", f"k={K}"), ("entropy", ""), ("sample", "temperature 1"))
             if op in a.only.split(",")]
    for threads in map(int, a.threads.split(",")):
        softfold = Softfold(a.lib, threads)
        for dtype in a.dtypes.split(","):
            for op, case in cases:
                c = Case(op, case, dtype, (a.rows, 128256))
                records = [{**r, **about} for r in records_of(c, softfold, shim, threads, a.rounds, a.peers.split(","))]
                ours = records[0]["ms"]
                share = f"{records[0]['copy_ms'] / ours:.2f} of the ceiling" if records[0]["copy_ms"] else ""
                print(f"{op:14} {case:18} {dtype:9} {threads:2} thr {share}; " + "  ".join(
                    f"{r['who']} {r['ms']:.1f} ({r['ms'] / ours:.2f}x)" for r in records), flush=True)
                if a.out:
                    with open(a.out, "a", encoding="utf-8") as f:
                        f.writelines(json.dumps(r) + "\n" for r in records)


if __name__ == "__main__":
    main()
