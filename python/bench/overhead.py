"""What a call from Python costs above the C call: softmax of a small float32 row, NumPy in and out, no keyword.

    python python/bench/overhead.py [--n 64] [--torch]

Prints the least of many runs, in microseconds, of: the C ABI called in a loop (through a small compiled loop where a C
compiler is found), softfold.softmax with and without out=, scipy.special.softmax, and with --torch softfold.torch and
torch on the CPU, and on CUDA where there is one.
"""

import argparse
import ctypes
import pathlib
import subprocess
import tempfile
import timeit

import numpy as np

import softfold

LOOP = r"""
#include <softfold/softfold.h>
#include <time.h>
double seconds_a_call(float* x, float* y, long n, long calls) {
  int64_t shape[1] = {n};
  softfold_tensor tx = {x, {1, 0}, 1, {2, 32, 1}, shape, 0, 0}, ty = {y, {1, 0}, 1, {2, 32, 1}, shape, 0, 0};
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (long i = 0; i < calls; ++i)
    if (softfold_softmax(&tx, &ty, 0, 0) != SOFTFOLD_OK) return -1;
  clock_gettime(CLOCK_MONOTONIC, &b);
  return ((b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec)) / calls;
}
"""


# Short runs, many of them: one that fits between two interruptions is found even on a busy machine.
def least(call, number=300, repeat=200):
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e6


def c_call(x, y):
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
    pointer = ctypes.POINTER(ctypes.c_float)
    arguments = x.ctypes.data_as(pointer), y.ctypes.data_as(pointer), ctypes.c_long(x.size), ctypes.c_long(5000)
    return min(loop(*arguments) for _ in range(40)) * 1e6


def with_torch(x):
    import torch

    import softfold.torch as face

    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        t = torch.from_numpy(x).to(device)
        for name, call in (("torch", lambda: torch.softmax(t, -1)), ("softfold.torch", lambda: face.softmax(t, -1))):
            print(f"{name:28} {device:5} {least(call):8.3f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    x = np.random.default_rng(0).standard_normal(options.n).astype(np.float32)
    y = np.empty_like(x)
    base = c_call(x, y)
    print(f"{'C ABI':34} {base:8.3f} us")
    rows = {
        "softfold.softmax(x)": lambda: softfold.softmax(x),
        "softfold.softmax(x, out=y)": lambda: softfold.softmax(x, out=y),
        "softfold.logsumexp(x)": lambda: softfold.logsumexp(x),
        "numpy.empty_like(x)": lambda: np.empty_like(x),
    }
    for name, call in rows.items():
        took = least(call)
        print(f"{name:34} {took:8.3f} us, {took - base:+.3f} above the C call")
    try:
        import scipy.special

        print(f"{'scipy.special.softmax(x)':34} {least(lambda: scipy.special.softmax(x), 50):8.3f} us")
    except ImportError:
        print("scipy is not installed")
    if options.torch:
        with_torch(x)


if __name__ == "__main__":
    main()
