"""What a call costs: softmax of a small float32 row from Python, above the C call; and on CUDA, against torch's own.

    python python/bench/overhead.py [--n 64] [--torch] [--record FILE --commit ID --machine NAME]

Prints the least of many short runs, in microseconds, of each way to call: the C ABI in a compiled loop (needs cc),
softfold, NumPy's and torch's own least work, SciPy, and with --torch softfold.torch and torch on the CPU, and on CUDA
where there is one, without and with autograd. The ways take turns, so that what disturbs the machine disturbs all.
--record appends one JSON line a way (the format of bench/results).
"""

import argparse
import ctypes
import datetime
import json
import pathlib
import platform
import subprocess
import tempfile
import timeit

import numpy as np

import softfold

LOOP = r"""
#include <softfold/softfold.h>
#include <time.h>
double seconds_a_call(void* x, void* y, long n, long calls, int device) {
  int64_t shape[1] = {n};
  softfold_tensor tx = {x, {device, 0}, 1, {2, 32, 1}, shape, 0, 0}, ty = {y, {device, 0}, 1, {2, 32, 1}, shape, 0, 0};
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (long i = 0; i < calls; ++i)
    if (softfold_softmax(&tx, &ty, 0, 0) != SOFTFOLD_OK) return -1;
  clock_gettime(CLOCK_MONOTONIC, &b);
  return ((b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec)) / calls;
}
"""
CALLS = 300  # a run is short: one that fits between two interruptions is found even on a busy machine


def c_loop():
    package = pathlib.Path(softfold._core.__file__).parent
    library = next(package.glob("libsoftfold*.so*"), None) or next(package.parent.glob("softfold.libs/libsoftfold*"))
    include = pathlib.Path(__file__).resolve().parents[2] / "include"
    with tempfile.TemporaryDirectory() as folder:
        source, built = pathlib.Path(folder, "loop.c"), pathlib.Path(folder, "loop.so")
        source.write_text(LOOP)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-I{include}", source, library.resolve(), "-o", built,
                        f"-Wl,-rpath,{library.resolve().parent}"], check=True)  # fmt: skip
        loop = ctypes.CDLL(str(built)).seconds_a_call
    loop.restype = ctypes.c_double
    return loop


def c_call(loop, x, y, n, device):
    """A run of the C call as the other ways' runs are: its seconds a call."""

    def run():
        seconds = loop(ctypes.c_void_p(x), ctypes.c_void_p(y), ctypes.c_long(n), ctypes.c_long(CALLS), device)
        assert seconds > 0
        return seconds

    return run


def python_call(call):
    timer = timeit.Timer(call)
    return lambda: timer.timeit(CALLS) / CALLS


def cpu_ways(x, loop):
    y = np.empty_like(x)
    ways = {
        "C ABI": c_call(loop, x.ctypes.data, y.ctypes.data, x.size, 1),
        "softfold.softmax(x)": python_call(lambda: softfold.softmax(x)),
        "softfold.softmax(x, out=y)": python_call(lambda: softfold.softmax(x, out=y)),
        "softfold.logsumexp(x)": python_call(lambda: softfold.logsumexp(x)),
        "numpy.empty_like(x)": python_call(lambda: np.empty_like(x)),
        "copy": python_call(lambda: np.copyto(y, x)),
    }
    try:
        import scipy.special

        ways["scipy.special.softmax(x)"] = python_call(lambda: scipy.special.softmax(x))
    except ImportError:
        print("scipy is not installed")
    return ways


def torch_ways(x, loop, device):
    import torch

    import softfold.torch as face

    t = torch.from_numpy(x).to(device)
    y, leaf = torch.empty_like(t), t.clone().requires_grad_()
    kept, g = face.softmax(leaf, -1), torch.ones_like(t)
    torchs = torch.softmax(leaf, -1)

    def backward(of):
        return lambda: torch.autograd.grad(of, leaf, g, retain_graph=True)

    return {
        "C ABI": c_call(loop, t.data_ptr(), y.data_ptr(), x.size, 2 if device == "cuda" else 1),
        f"torch {torch.__version__}": python_call(lambda: torch.softmax(t, -1)),
        "softfold.torch.softmax(t, -1)": python_call(lambda: face.softmax(t, -1)),
        f"torch {torch.__version__}, logsumexp": python_call(lambda: torch.logsumexp(t, -1)),
        "softfold.torch.logsumexp(t, -1)": python_call(lambda: face.logsumexp(t, -1)),
        f"torch {torch.__version__}, with autograd": python_call(lambda: torch.softmax(leaf, -1)),
        "softfold.torch.softmax(t, -1), with autograd": python_call(lambda: face.softmax(leaf, -1)),
        f"torch {torch.__version__}, backward": python_call(backward(torchs)),
        "softfold.torch, backward": python_call(backward(kept)),
        "torch.empty_like(t)": python_call(lambda: torch.empty_like(t)),
        "copy": python_call(lambda: y.copy_(t)),
    }


def measured(ways, repeat):
    """Microseconds a way: its least run."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(repeat):
        for name, run in ways.items():
            least[name] = min(least[name], run() * 1e6)
    return least


def record(path, options, case, n, took, commit):
    with open(path, "a") as out:
        for who, us in took.items():
            line = {"op": "logsumexp" if "logsumexp" in who else "softmax", "dtype": "float32", "shape": [n],
                    "case": f"a call, {case}", "who": who, "ms": round(us / 1e3, 6), "bytes": 8 * n, "flops": None,
                    "copy_ms": round(took["copy"] / 1e3, 6), "bits": softfold.bits_version, "device": options.machine,
                    "driver": platform.release(), "commit": commit, "date": str(datetime.date.today())}  # fmt: skip
            out.write(json.dumps(line) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--record")
    parser.add_argument("--commit", default="")
    parser.add_argument("--machine", default=platform.processor() or platform.machine())
    options = parser.parse_args()
    x = np.random.default_rng(0).standard_normal(options.n).astype(np.float32)
    loop = c_loop()
    cases = {"NumPy": lambda: cpu_ways(x, loop)}
    if options.torch:
        import torch

        for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
            cases[f"torch on {device}"] = lambda device=device: torch_ways(x, loop, device)
    for case, ways in cases.items():
        took = measured(ways(), options.repeat)
        print(f"{case}, softmax of {options.n} float32")
        for name, us in took.items():
            print(f"  {name:46} {us:8.3f} us, {us - took['C ABI']:+.3f} above the C call")
        if options.record:
            record(options.record, options, case, options.n, took, options.commit)


if __name__ == "__main__":
    main()
