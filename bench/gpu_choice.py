"""Problems at random: the kernel that a plan takes beside those that it takes when told to do without it (SOFTFOLD_WITHOUT),
so that what kernels refuse, and their order, is what is measured. by_outer_index is left out.

Of each problem the first five that can do it are timed as in gpu_softmax.py (graph replays in turn, medians). Printed are,
by the kernel taken and the one that is faster, the problems where that takes 0.87 of its time or less.

    python3 bench/gpu_choice.py --library build/src/libsoftfold.so --seconds 60
"""
import argparse
import collections
import math
import os
import random
import sys
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from gpu_race import length_and_rows, shape_along  # noqa: E402

OPS = ("softmax", "softmax", "log_softmax", "logsumexp", "softmax_backward", "log_softmax_backward")
LAYOUTS = ("plain", "slice", "mask", "keys", "length", "wide", "scales")
DTYPES = ("float32", "float32", "bfloat16", "bfloat16", "float64")


def problem(rng, layouts):
    """(operation, dtype's name, shape, axis, layout)."""
    layout, parts = rng.choice(layouts), rng.choice((2, 3, 4, 8, 16))
    n, rows = length_and_rows(rng)
    axis = rng.choice(("last", "last", "last", "first", "middle")) if layout in ("plain", "mask", "length") else "last"
    shape, at = shape_along(rng, axis, n, rows, parts, split=layout == "keys")
    return rng.choice(OPS), rng.choice(DTYPES), shape, at, layout


def operands(rng, op, dtype, shape, axis, layout):
    """(inputs, result, options) of a problem."""
    import torch
    gap, given = rng.choice((1, 3, 64)) if layout == "slice" else 0, {}
    x = torch.randn(*shape[:-1], shape[-1] + gap, device="cuda").to(getattr(torch, dtype))[..., :shape[-1]]
    rows = shape[:axis] + shape[axis + 1:]
    if layout == "mask":
        given["mask"] = torch.rand(shape, device="cuda") < 0.7
    elif layout == "keys":
        given["mask"] = (torch.rand(shape[0], 1, shape[2], device="cuda") < 0.7).expand(shape)
    elif layout == "length":
        given["length"] = torch.randint(1, shape[axis] + 1, rows, device="cuda", dtype=torch.int32)
    elif layout == "scales":
        given["scales"] = torch.rand(rows, device="cuda") + 0.5
    result = torch.empty(rows if op == "logsumexp" else shape, device="cuda",
                         dtype=torch.float32 if layout == "wide" and dtype != "float64" else x.dtype)
    return [torch.softmax(x, axis), x] if op.endswith("backward") else [x], result, given


def plans(softfold, op, inputs, result, stream, axis, given):
    """{kernel: call}, in the order in which plans take them."""
    left_out, taken = ["by_outer_index"], {}  # which asks again when it runs
    while len(taken) < 5:
        os.environ["SOFTFOLD_WITHOUT"] = ",".join(left_out)
        try:
            run = softfold.plan(op, inputs, result, stream, axis=axis, **given)
        except RuntimeError:  # none is left
            break
        if "generic" in run.kernel:
            break
        left_out.append(run.kernel)
        taken[run.kernel] = run
    os.environ["SOFTFOLD_WITHOUT"] = ""
    return taken


def measure(args):
    import torch
    from gpu_plan import Softfold
    from gpu_softmax import time_together

    os.environ["SOFTFOLD_WITHOUT"] = ""  # before the first plan, so that each reads it
    softfold, stream, rng = Softfold(args.library), torch.cuda.Stream(), random.Random(args.seed)
    slower, stop, count, lost = collections.defaultdict(list), time.perf_counter() + args.seconds, 0, 0.0
    with torch.no_grad():
        while time.perf_counter() < stop:
            op, dtype, shape, axis, layout = which = problem(rng, args.layouts.split(","))
            inputs, result, given = operands(rng, *which)
            calls = plans(softfold, op, inputs, result, stream, axis, given)
            if not calls:
                continue
            times = {k: t for k, t in time_together(calls, stream, 0.002).items() if isinstance(t, float)}
            first, best = next(iter(calls)), min(times, key=times.get)
            count, lost = count + 1, lost + math.log(times[first] / times[best])
            if times[best] <= 0.87 * times[first]:
                slower[first, best].append((times[best] / times[first], which, times[first]))
    print(f"{count} problems, the plan's time by the fastest's: geometric mean {math.exp(lost / max(count, 1)):.3f}, "
          f"{sum(map(len, slower.values()))} of them 1.15 or more")
    for (first, best), found in sorted(slower.items(), key=lambda item: -len(item[1])):
        print(f"{first} -> {best}: {len(found)}")
        for ratio, which, ms in sorted(found, key=lambda f: f[0])[:args.show]:
            print(f"  {ratio:.2f} {which[0]} {which[1]} {tuple(which[2])} axis {which[3]} {which[4]} {1e3 * ms:.1f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/src/libsoftfold.so")
    parser.add_argument("--seconds", type=float, default=60, help="for all of it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="some of " + ",".join(LAYOUTS))
    parser.add_argument("--show", type=int, default=4, help="problems of each pair of kernels")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
