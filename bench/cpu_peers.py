#!/usr/bin/env python3
"""softfold's CPU softmax and logsumexp beside oneDNN, SciPy, JAX and PyTorch, in one run, interleaved.

usage: cpu_peers.py --lib libsoftfold.so --shim libcpu_peers_shim.so [--threads 1,2] [--bytes 1G] [--out DIR]

Every case times, in turn and `--rounds` times: a streaming copy of the same bytes (for logsumexp a pure read), softfold,
and each peer that is installed (once those that take more than a second); the medians are written as one JSON
object a line (docs/performance.md says how to read them). `difference` is the largest one of a peer's first row from
softfold's, as a share of the row's largest number; what a peer refuses is written with the reason.
"""
import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
import subprocess
import time

import numpy as np


class Tensor(ctypes.Structure):
    """DLPack's DLTensor, which softfold.h's softfold_tensor is."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Context(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("cpu", ctypes.c_void_p), ("stream", ctypes.c_void_p),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t)]


CODES = {"float32": (2, 32), "float64": (2, 64), "float16": (2, 16), "bfloat16": (4, 16), "int32": (0, 32), "int64": (0, 64)}
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


def numpy_type(dtype):
    if dtype == "bfloat16":
        import ml_dtypes  # comes with JAX
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def aligned(count, itemsize):
    """Zeroed memory at a multiple of 4096 bytes, as bytes."""
    raw = np.zeros(count * itemsize + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start:start + count * itemsize]


class Softfold:
    def __init__(self, path, threads):
        self.lib = ctypes.CDLL(path)
        self.lib.softfold_last_error.restype = ctypes.c_char_p
        self.lib.softfold_version.restype = ctypes.c_char_p
        executor = ctypes.c_void_p()
        self.check(self.lib.softfold_executor_threads(threads, ctypes.byref(executor)))
        self.context = Context(ctypes.sizeof(Context), executor, None, None, 0)

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.softfold_last_error().decode())

    @staticmethod
    def tensor(memory, dtype, shape):
        code, bits = CODES[dtype]
        dims = (ctypes.c_int64 * len(shape))(*shape)
        t = Tensor(memory.ctypes.data, 1, 0, len(shape), code, bits, 1, dims, None, 0)
        t.keep = dims
        return t

    def timed(self, name, x, y):
        f = getattr(self.lib, "softfold_" + name)
        start = time.perf_counter()
        status = f(ctypes.byref(x), ctypes.byref(y), None, ctypes.byref(self.context))
        seconds = time.perf_counter() - start
        self.check(status)
        return seconds


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=os.path.dirname(
        os.path.abspath(__file__)), check=False).stdout.strip() or os.environ.get("SOFTFOLD_COMMIT", "?")
    return {"device": f"{cpu}, {os.cpu_count()} cores", "driver": platform.release(), "commit": commit,
            "date": datetime.date.today().isoformat()}


class Peer:
    """Somebody else's call: `run` takes a time in seconds, `result` gives the first row's result; or why it cannot be."""

    def __init__(self, name, run=None, result=None, why=None):
        self.name, self.run, self.result, self.why = name, run, result, why

    @classmethod
    def calling(cls, name, call):
        """`call` gives the results of all rows, when they are there."""
        last = []

        def run():
            start = time.perf_counter()
            y = call()
            seconds = time.perf_counter() - start
            last[:] = [y]
            return seconds

        try:
            run()
        except Exception as e:  # whatever a peer raises for a dtype that it does not take
            return cls(name, why=f"{type(e).__name__}: {e}".splitlines()[0][:120])
        return cls(name, run, lambda: last[0][0])


def onednn_name(shim, threads):
    """oneDNN with its version; from here on it runs on so many threads."""
    ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)
    version = shim.bench_onednn_version()
    return f"oneDNN {version // 1000000}.{version // 1000 % 1000}.{version % 1000}"


def onednn(op, dtype, shape, x, shim, threads):
    if shim is None or not hasattr(shim, "bench_onednn_make") or op == "logsumexp":  # it has no logsumexp
        return None
    name = onednn_name(shim, threads)
    y = aligned(shape[0] * shape[1], BYTES[dtype])
    handle = shim.bench_onednn_make(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data),
                                    ctypes.c_int64(shape[0]), ctypes.c_int64(shape[1]),
                                    dtype.encode(), int(op == "log_softmax"))
    if not handle:
        return Peer(name, why=f"no {op} of {dtype}")
    return Peer(name, lambda: shim.bench_onednn_run(ctypes.c_void_p(handle)),
                lambda: y[:shape[1] * BYTES[dtype]].view(numpy_type(dtype)))


def scipy_peer(op, array):
    if array.dtype.kind != "f":  # NumPy has no bfloat16
        return None
    import scipy
    import scipy.special
    f = getattr(scipy.special, op)
    return Peer.calling(f"scipy {scipy.__version__}", lambda: f(array, axis=-1))


def jax_peer(op, array, threads):
    os.environ.setdefault("XLA_FLAGS", "" if threads > 1 else "--xla_cpu_multi_thread_eigen=false")
    import jax
    import jax.numpy as jnp
    f = jax.jit(lambda a: getattr(jax.nn, op)(a, axis=-1))
    device_array = jnp.asarray(array)
    return Peer.calling(f"jax {jax.__version__}", lambda: f(device_array).block_until_ready())


def torch_peer(op, dtype, shape, x, threads):
    import torch
    torch.set_num_threads(threads)
    t = torch.from_numpy(x).view(getattr(torch, dtype)).reshape(shape)
    out = {} if op == "logsumexp" else {"out": torch.empty_like(t)}
    return Peer.calling(f"torch {torch.__version__}", lambda: getattr(torch, op)(t, -1, **out))


def peers_for(op, dtype, shape, x, shim, threads, wanted):
    """Of those wanted, the peers that are installed."""
    array = x.view(numpy_type(dtype)).reshape(shape)
    makers = {"onednn": lambda: onednn(op, dtype, shape, x, shim, threads), "scipy": lambda: scipy_peer(op, array),
              "jax": lambda: jax_peer(op, array, threads), "torch": lambda: torch_peer(op, dtype, shape, x, threads)}
    found = []
    for name in wanted:
        try:
            found.append(makers[name]())
        except ImportError:
            continue
    return [peer for peer in found if peer is not None]


def as_float64(values):
    """Of NumPy's, JAX's or PyTorch's array; PyTorch hands NumPy no bfloat16."""
    return np.asarray(values.float() if hasattr(values, "float") else values).astype(np.float64)


def difference(ours, theirs):
    """The largest one, as a share of the largest number. A peer that sums a long row one by one may differ by 0.01 in
    float32, and by anything in 16 bits; more than that in float32 is a wrong call."""
    a, b = as_float64(ours), as_float64(theirs)
    largest = float(np.max(np.abs(a - b)) / np.max(np.abs(a)))
    if ours.dtype.itemsize > 2 and not largest < 0.1:
        raise RuntimeError(f"a peer's result differs by {largest}")
    return float(f"{largest:.2g}")


def fill(x, dtype):
    """Standard normal logits times 3, in place: one block, repeated."""
    y = x.view(numpy_type(dtype))
    block = (np.random.default_rng(1).standard_normal(1 << 20, np.float32) * 3).astype(y.dtype)
    for at in range(0, y.size, block.size):
        y[at:at + block.size] = block[:y.size - at]


def load_shim(path):
    if not path:
        return None
    shim = ctypes.CDLL(path)
    for f in ("bench_copy", "bench_read", "bench_onednn_run"):
        if hasattr(shim, f):
            getattr(shim, f).restype = ctypes.c_double
    for f in ("bench_onednn_make", "bench_onednn_make_backward"):
        if hasattr(shim, f):
            getattr(shim, f).restype = ctypes.c_void_p
    return shim


def ceiling_for(op, x, shim, threads):
    if shim is None:
        return None
    source, nbytes = ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.size // 64 * 64)
    if op == "logsumexp":
        return lambda: shim.bench_read(source, nbytes, threads)
    scratch = aligned(x.size, 1)
    return lambda: shim.bench_copy(ctypes.c_void_p(scratch.ctypes.data), source, nbytes, threads)


def medians(runs, rounds):
    """{name: median milliseconds} of runs that give seconds, in turn; what takes more than a second runs once."""
    first = {name: f() for name, f in runs.items()}
    times = {name: [] for name in runs}
    for i in range(rounds):
        for name, f in runs.items():
            if i == 0 or first[name] < 1:
                times[name].append(f())
    return {name: round(statistics.median(t) * 1e3, 4) for name, t in times.items()}


def run_case(op, dtype, shape, softfold, shim, threads, rounds, wanted):
    count, size = shape[0] * shape[1], BYTES[dtype]
    writes = op != "logsumexp"
    x = aligned(count, size)
    fill(x, dtype)
    y = aligned(count if writes else shape[0], size)
    tx, ty = softfold.tensor(x, dtype, shape), softfold.tensor(y, dtype, shape if writes else shape[:1])
    ours = Peer("softfold " + softfold.lib.softfold_version().decode(), lambda: softfold.timed(op, tx, ty),
                lambda: y[:(shape[1] if writes else 1) * size].view(numpy_type(dtype)))
    peers = peers_for(op, dtype, shape, x, shim, threads, wanted)
    ceiling = ceiling_for(op, x, shim, threads)
    runs = {p.name: p.run for p in [ours, *peers] if p.run} | ({"ceiling": ceiling} if ceiling else {})
    median = medians(runs, rounds)
    differences = {p.name: difference(ours.result(), p.result()) for p in peers if p.run}
    about = {"op": op, "dtype": dtype, "shape": list(shape), "case": f"{threads} threads"}
    copy_ms = median.get("ceiling")
    for p in [ours, *peers]:
        yield {**about, "who": p.name, "ms": median.get(p.name),
               **({"why": p.why} if p.why else {}), "bytes": count * size * (2 if writes else 1), "flops": None,
               "copy_ms": copy_ms, "difference": differences.get(p.name), "bits": None}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", required=True)
    p.add_argument("--shim")
    p.add_argument("--threads", default=str(os.cpu_count()))
    p.add_argument("--bytes", default="1G", help="size of x in each case")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--peers", default="onednn,scipy,jax,torch", help="of these, what is installed")
    p.add_argument("--ops", default="softmax,log_softmax,logsumexp")
    p.add_argument("--dtypes", default="float32,bfloat16,float16")
    p.add_argument("--lengths", default="1024,4096,32768,131072,67108864")
    p.add_argument("--out", help="append the records to DIR/<op>_peers.jsonl")
    a = p.parse_args()
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    total = int(a.bytes[:-1]) * unit[a.bytes[-1]] if a.bytes[-1] in unit else int(a.bytes)
    shim = load_shim(a.shim)
    about = machine()
    print(about["device"], "commit", about["commit"])
    for threads in map(int, a.threads.split(",")):
        softfold = Softfold(a.lib, threads)
        for op in a.ops.split(","):
            for dtype in a.dtypes.split(","):
                for n in map(int, a.lengths.split(",")):
                    shape = (max(1, total // BYTES[dtype] // n), n)
                    records = [{**r, **about} for r in run_case(op, dtype, shape, softfold, shim, threads, a.rounds,
                                                                               a.peers.split(","))]
                    ours = records[0]["ms"]
                    line = f"{op:10} {dtype:8} {shape[0]:>7}x{n:<9} {threads} thr "
                    if records[0]["copy_ms"]:
                        line += f"ceiling {records[0]['copy_ms']:9.2f} ms = {records[0]['copy_ms'] / ours:.3f} of softfold's rate; "
                    print(line + "  ".join(f"{r['who']} {r['ms']:.2f} ({r['ms'] / ours:.2f}x)" if r["ms"] else
                                           f"{r['who']} refuses" for r in records), flush=True)
                    if a.out:
                        os.makedirs(a.out, exist_ok=True)
                        with open(os.path.join(a.out, f"{op}_peers.jsonl"), "a", encoding="utf-8") as f:
                            f.writelines(json.dumps(r) + "\n" for r in records)


if __name__ == "__main__":
    main()
