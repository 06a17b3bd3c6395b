#!/usr/bin/env python3
"""softfold's attention on the CPU beside PyTorch's scaled_dot_product_attention, in one run, in turn.

usage: cpu_attention_peers.py --lib libsoftfold.so --shim libcpu_peers_shim.so [--threads 1,2,16] [--out FILE]

Before anything is timed, softfold's root mean square error against float64, over some rows, must be at most twice
PyTorch's in the same precision; both are recorded ("rms_error"). Each turn begins with a pause and a call that is not timed, so that the other
library's threads have stopped spinning and one's own are awake; a time is the median of `--rounds` turns, at least two.
Of decoding the ceiling is a read of K's and V's bytes by as many threads ("copy_ms"). Appends one JSON object a case,
thread count and library.
"""
import argparse
import ctypes
import json
import statistics
import time

import torch

from cpu_peers import CODES, Softfold, Tensor, machine

# name, dtype, (B, H, Hkv, T, S, D), causal
CASES = [
    ("prefill", "float32", (1, 16, 16, 2048, 2048, 64), False),
    ("prefill", "float32", (1, 16, 16, 2048, 2048, 128), False),
    ("causal", "float32", (1, 16, 16, 2048, 2048, 128), True),
    ("prefill", "bfloat16", (1, 16, 16, 2048, 2048, 64), False),
    ("prefill", "bfloat16", (1, 16, 16, 2048, 2048, 128), False),
    ("causal", "bfloat16", (1, 16, 16, 2048, 2048, 128), True),
    ("decode", "float32", (1, 32, 32, 1, 16384, 128), False),
    ("decode", "float32", (1, 2, 2, 1, 16384, 128), False),
    ("decode", "float32", (1, 32, 8, 1, 16384, 128), False),
    ("decode", "bfloat16", (1, 32, 32, 1, 16384, 128), False),
    ("decode", "bfloat16", (1, 2, 2, 1, 16384, 128), False),
]


class Options(ctypes.Structure):
    """softfold.h's softfold_attention_options."""

    _fields_ = ([("struct_size", ctypes.c_size_t), ("scale", ctypes.c_double)]
                + [(name, ctypes.c_int64) for name in ("window_left", "window_right", "max_q", "max_kv")]
                + [(f"tensor{i}", ctypes.c_void_p) for i in range(14)]
                + [("softcap", ctypes.c_float)] + [(name, ctypes.c_int32) for name in ("causal", "layout", "rung")])


def view(t, dtype):
    code, bits = CODES[dtype]
    shape = (ctypes.c_int64 * t.dim())(*t.shape)
    x = Tensor(t.data_ptr(), 1, 0, t.dim(), code, bits, 1, shape, None, 0)
    x.keep = shape, t
    return x


def clocked(f):
    time.sleep(0.01)
    f()
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def rms_error(out, q, k, v, causal):
    """Of some rows of the first head, against float64."""
    rows = torch.arange(0, q.shape[2], max(1, q.shape[2] // 64))
    scores = q[0, 0, rows].double() @ k[0, 0].double().T / q.shape[3] ** 0.5
    if causal:
        at = rows[:, None] + k.shape[2] - q.shape[2]
        scores.masked_fill_(torch.arange(k.shape[2])[None] > at, -torch.inf)
    right = torch.softmax(scores, -1) @ v[0, 0].double()
    return (out[0, 0, rows].double() - right).square().mean().sqrt().item()


def runs_of(softfold, dtype, shape, causal):
    """What is timed, by name, with its error: softfold and PyTorch on the same tensors."""
    b, h, hkv, t, s, d = shape
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(s)
    q, k, v = (torch.randn(n, generator=generator).to(kind) for n in ((b, h, t, d), (b, hkv, s, d), (b, hkv, s, d)))
    out = torch.empty_like(q)
    options = Options()
    softfold.lib.softfold_attention_options_init(ctypes.byref(options))
    options.causal = int(causal)
    operands = [ctypes.byref(view(x, dtype)) for x in (q, k, v, out)]

    def ours():
        softfold.check(softfold.lib.softfold_attention(*operands, ctypes.byref(options), ctypes.byref(softfold.context)))

    def theirs():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=h != hkv)

    ours()
    errors = [rms_error(x, q, k, v, causal) for x in (out, theirs())]
    assert errors[0] <= 2 * errors[1], f"{dtype} {shape}: rms errors of softfold and PyTorch {errors}"
    names = "softfold " + softfold.lib.softfold_version().decode(), f"torch {torch.__version__}"
    return dict(zip(names, (ours, theirs))), dict(zip(names, errors)), k


def measure(softfold, shim, threads, name, dtype, shape, causal, rounds):
    b, h, hkv, t, s, d = shape
    runs, errors, k = runs_of(softfold, dtype, shape, causal)
    size = k.element_size()
    kv_bytes = 2 * b * hkv * s * d * size
    times = {who: [] for who in runs}
    reads = []
    for i in range(rounds):
        for who, f in runs.items():
            times[who].append(clocked(f))
        if name == "decode" and shim is not None:
            reads.append(2 * shim.bench_read(ctypes.c_void_p(k.data_ptr()), ctypes.c_size_t(kv_bytes // 2), threads))
        if i > 0 and sum(map(sum, times.values())) > 1:
            break
    pairs = t * s - t * (t - 1) // 2 if causal else t * s
    for who, taken in times.items():
        yield {"op": "attention", "dtype": dtype, "shape": list(shape), "case": f"{name}, {threads} threads", "who": who,
               "ms": round(statistics.median(taken) * 1e3, 4), "bytes": kv_bytes + 2 * b * h * t * d * size,
               "flops": 4 * b * h * pairs * d, "copy_ms": round(statistics.median(reads) * 1e3, 4) if reads else None,
               "rms_error": float(f"{errors[who]:.3g}"), "bits": None}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", required=True)
    p.add_argument("--shim", help="without it decoding has no ceiling")
    p.add_argument("--threads", default="1,2,16")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--only", default="", help="cases whose name and dtype contain it")
    p.add_argument("--out", help="append the records to this file")
    a = p.parse_args()
    shim = ctypes.CDLL(a.shim) if a.shim else None
    if shim is not None:
        shim.bench_read.restype = ctypes.c_double
    about = machine()
    print(about["device"], "commit", about["commit"])
    for threads in map(int, a.threads.split(",")):
        softfold = Softfold(a.lib, threads)
        torch.set_num_threads(threads)
        for name, dtype, shape, causal in CASES:
            if a.only not in f"{name} {dtype}":
                continue
            ours, theirs = measure(softfold, shim, threads, name, dtype, shape, causal, a.rounds)
            read = f", read {ours['bytes'] / ours['copy_ms'] * 1e-6:.0f}" if ours["copy_ms"] else ""
            print(f"{name:8} {dtype:8} {shape} {threads:2} threads: {ours['ms']:8.2f} ms, "
                  f"{ours['flops'] / ours['ms'] * 1e-6:6.0f} GFLOP/s, {ours['bytes'] / ours['ms'] * 1e-6:5.1f} GB/s{read}; "
                  f"torch {theirs['ms']:8.2f} ms: {theirs['ms'] / ours['ms']:.2f}x; "
                  f"rms errors {ours['rms_error']:.2g}, {theirs['rms_error']:.2g}", flush=True)
            if a.out:
                with open(a.out, "a", encoding="utf-8") as f:
                    f.writelines(json.dumps({**r, **about}) + "\n" for r in (ours, theirs))


if __name__ == "__main__":
    main()
