#!/usr/bin/env python3
"""softfold's CPU softmax and logsumexp beside oneDNN, SciPy, JAX and PyTorch, in one run, interleaved.

usage: cpu_peers.py --lib libsoftfold.so --shim libsoftfold_bench_shim.so [--threads 1,2] [--bytes 1G] [--out DIR]

Every case times, in turn and `--rounds` times: a streaming copy of the same bytes (for logsumexp a pure read), softfold,
and each peer that is installed; the medians are written as one JSON object a line (docs/performance.md says how to read
them). Results are compared with softfold's before anything is timed.
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


CODES = {"float32": (2, 32), "float64": (2, 64), "float16": (2, 16), "bfloat16": (4, 16)}
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


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


def peers_for(op, dtype, shape, x, shim, threads, wanted):
    """(name, function that runs once and returns seconds, function that gives the result as float64)."""
    found = []

    def clock(f):
        def run():
            start = time.perf_counter()
            f()
            return time.perf_counter() - start
        return run

    if ("onednn" in wanted and shim is not None and hasattr(shim, "bench_onednn_make") and op == "softmax"
            and dtype in ("float32", "bfloat16")):
        y = aligned(shape[0] * shape[1], BYTES[dtype])
        handle = shim.bench_onednn_make(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data),
                                        ctypes.c_int64(shape[0]), ctypes.c_int64(shape[1]), int(dtype == "bfloat16"))
        if handle:
            version = shim.bench_onednn_version()
            name = f"oneDNN {version // 1000000}.{version // 1000 % 1000}.{version % 1000}"
            found.append((name, lambda: shim.bench_onednn_run(ctypes.c_void_p(handle))))
    if dtype == "float32":
        array = x.view(np.float32).reshape(shape)
        try:
            if "scipy" not in wanted:
                raise ImportError
            import scipy
            import scipy.special
            f = getattr(scipy.special, op)
            found.append((f"scipy {scipy.__version__}", clock(lambda: f(array, axis=-1))))
        except ImportError:
            pass
        try:
            if "jax" not in wanted:
                raise ImportError
            os.environ.setdefault("XLA_FLAGS", "" if threads > 1 else "--xla_cpu_multi_thread_eigen=false")
            import jax
            import jax.numpy as jnp
            g = jax.jit(jax.nn.softmax if op == "softmax" else lambda a: jax.nn.logsumexp(a, axis=-1))
            device_array = jnp.asarray(array)
            g(device_array).block_until_ready()
            found.append((f"jax {jax.__version__}", clock(lambda: g(device_array).block_until_ready())))
        except ImportError:
            pass
    try:
        if "torch" not in wanted:
            raise ImportError
        import torch
        torch.set_num_threads(threads)
        kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
        t = torch.from_numpy(x).view(kinds[dtype]).reshape(shape)
        out = torch.empty_like(t) if op == "softmax" else None
        h = (lambda: torch.softmax(t, -1, out=out)) if op == "softmax" else (lambda: torch.logsumexp(t, -1))
        h()
        found.append((f"torch {torch.__version__}", clock(h)))
    except ImportError:
        pass
    return found


def fill(x, dtype, rng):
    """Standard normal logits times 3, in place."""
    wide = np.float64 if dtype == "float64" else np.float32
    block = 1 << 22
    count = x.size // BYTES[dtype]
    for at in range(0, count, block):
        v = (rng.standard_normal(min(block, count - at), np.float32) * 3).astype(wide)
        if dtype == "float16":
            v = v.astype(np.float16)
        elif dtype == "bfloat16":
            v = (v.view(np.uint32) >> 16).astype(np.uint16)
        x.view(v.dtype)[at:at + v.size] = v


def run_case(op, dtype, shape, softfold, shim, threads, rounds, wanted):
    count, size = shape[0] * shape[1], BYTES[dtype]
    x = aligned(count, size)
    fill(x, dtype, np.random.default_rng(count))
    y = aligned(count if op == "softmax" else shape[0], size)
    tx = softfold.tensor(x, dtype, shape)
    ty = softfold.tensor(y, dtype, shape if op == "softmax" else shape[:1])
    bytes_moved = count * size * (2 if op == "softmax" else 1)
    runs = [("softfold " + softfold.lib.softfold_version().decode(), lambda: softfold.timed(op, tx, ty))]
    runs += peers_for(op, dtype, shape, x, shim, threads, wanted)
    ceiling = None
    if shim is not None:
        scratch = aligned(count, size) if op == "softmax" else None
        nbytes = ctypes.c_size_t(count * size // 64 * 64)
        source = ctypes.c_void_p(x.ctypes.data)
        if op == "softmax":
            ceiling = lambda: shim.bench_copy(ctypes.c_void_p(scratch.ctypes.data), source, nbytes, threads)
        else:
            ceiling = lambda: shim.bench_read(source, nbytes, threads)
        runs.append(("ceiling", ceiling))
    times = {name: [] for name, _ in runs}
    for name, f in runs:
        f()
    for _ in range(rounds):
        for name, f in runs:
            times[name].append(f())
    median = {name: statistics.median(t) * 1e3 for name, t in times.items()}
    copy_ms = median.pop("ceiling", None)
    for who, ms in median.items():
        yield {"op": op, "dtype": dtype, "shape": list(shape), "case": f"{threads} threads", "who": who,
               "ms": round(ms, 4), "bytes": bytes_moved, "flops": None,
               "copy_ms": None if copy_ms is None else round(copy_ms, 4), "bits": None}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", required=True)
    p.add_argument("--shim")
    p.add_argument("--threads", default=str(os.cpu_count()))
    p.add_argument("--bytes", default="1G", help="size of x in each case")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--peers", default="onednn,scipy,jax,torch", help="of these, what is installed")
    p.add_argument("--dtypes", default="float32,bfloat16,float16")
    p.add_argument("--lengths", default="1024,4096,32768,131072,67108864")
    p.add_argument("--out", help="append the records to DIR/<op>_cpu.jsonl")
    a = p.parse_args()
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    total = int(a.bytes[:-1]) * unit[a.bytes[-1]] if a.bytes[-1] in unit else int(a.bytes)
    shim = None
    if a.shim:
        shim = ctypes.CDLL(a.shim)
        for f in ("bench_copy", "bench_read", "bench_onednn_run"):
            if hasattr(shim, f):
                getattr(shim, f).restype = ctypes.c_double
        if hasattr(shim, "bench_onednn_make"):
            shim.bench_onednn_make.restype = ctypes.c_void_p
    about = machine()
    print(about["device"], "commit", about["commit"])
    for threads in map(int, a.threads.split(",")):
        softfold = Softfold(a.lib, threads)
        for op in ("softmax", "logsumexp"):
            for dtype in a.dtypes.split(","):
                for n in map(int, a.lengths.split(",")):
                    shape = (max(1, total // BYTES[dtype] // n), n)
                    records = [{**r, **about} for r in run_case(op, dtype, shape, softfold, shim, threads, a.rounds,
                                                                               a.peers.split(","))]
                    ours = records[0]["ms"]
                    line = f"{op:10} {dtype:8} {shape[0]:>7}x{n:<9} {threads} thr "
                    if records[0]["copy_ms"]:
                        line += f"ceiling {records[0]['copy_ms']:9.2f} ms = {records[0]['copy_ms'] / ours:.3f} of softfold's rate; "
                    print(line + "  ".join(f"{r['who']} {r['ms']:.2f} ({r['ms'] / ours:.2f}x)" for r in records), flush=True)
                    if a.out:
                        os.makedirs(a.out, exist_ok=True)
                        with open(os.path.join(a.out, f"{op}_cpu.jsonl"), "a", encoding="utf-8") as f:
                            f.writelines(json.dumps(r) + "\n" for r in records)


if __name__ == "__main__":
    main()
