"""Problems at random, softfold beside torch: operations, dtypes, shapes, axes and layouts as they come, from a few
elements to 2^26, so that no shape is left out because nobody thought of it.

Each result is compared with torch's of the same numbers in float64, then both are timed as in gpu_softmax.py (graph
replays in turn, medians). A record says who took how long, and torch's time beside it. The seed names the problems.

    python3 bench/gpu_race.py --cases 2000 --out bench/results/h200/race.jsonl
"""
import argparse
import math
import random
import statistics
import sys

OPS = ("softmax", "log_softmax", "logsumexp", "softmax_backward", "log_softmax_backward")


def length_and_rows(rng):
    """Elements of a row, and rows: up to 2^18, and 2^26 elements in all."""
    n = int(2 ** rng.uniform(1, 18))
    n = rng.choice((n, n, 1 << int(math.log2(n)), max(n // 8 * 8, 8)))
    return n, max(1, int(2 ** rng.uniform(8, 26) / n))


def shape_along(rng, axis, n, rows, parts, split=False):
    """(shape, axis) of rows along the "last", "first" or "middle" axis; split: the last one's in parts, always."""
    if axis == "first":
        return (n, rows), 0
    if axis == "middle":
        return (parts, n, max(1, rows // parts)), 1
    together = not split and rng.random() < 0.5
    shape = (rows, n) if together else (max(1, rows // parts), parts, n)
    return shape, len(shape) - 1


def problem(rng):
    """(operation, dtype's name, shape, axis, layout)."""
    op, dtype = rng.choice(OPS), rng.choice(("float32", "float32", "bfloat16", "bfloat16", "float16", "float64"))
    n, rows = length_and_rows(rng)
    axis = rng.choice(("last", "last", "last", "first", "middle"))
    parts = rng.choice((2, 3, 4, 8, 16))
    layout = rng.choice(("", "", "", "slice", "mask", "mask"))
    if op.endswith("backward") and layout == "mask":
        layout = ""
    if axis != "last":
        layout = layout.replace("slice", "")
    return op, dtype, *shape_along(rng, axis, n, rows, parts), layout


def measure(args):
    import torch
    sys.path.insert(0, __file__.rsplit("/", 1)[0])
    from gpu_plan import Softfold
    from gpu_records import Records
    from gpu_softmax import time_together

    softfold, records, stream = Softfold(args.library), Records(args.out, args.commit), torch.cuda.Stream()
    rng = random.Random(args.seed)

    def of_torch(op, x, y, axis, hidden):
        if op.endswith("backward"):
            one = torch._softmax_backward_data if op == "softmax_backward" else torch._log_softmax_backward_data
            return lambda: one(x, y, axis, x.dtype)
        if hidden is not None:
            return lambda: getattr(torch, op)(x.masked_fill(hidden, -math.inf), axis)
        return lambda: getattr(torch, op)(x, axis)

    def ours(op, x, y, axis, hidden):
        backward = op.endswith("backward")
        shape = x.shape[:axis] + x.shape[axis + 1:] if op == "logsumexp" else x.shape
        result = torch.empty(shape, device="cuda", dtype=x.dtype)
        mask = None if hidden is None else ~hidden
        return softfold.plan(op, [y, x] if backward else [x], result, stream, axis=axis, mask=mask), result

    def one(op, dtype, shape, axis, layout):
        gap = rng.choice((1, 3, 64)) if layout == "slice" else 0
        x = torch.randn(*shape[:-1], shape[-1] + gap, device="cuda").to(getattr(torch, dtype))[..., :shape[-1]]
        y = (torch.log_softmax if op.startswith("log_") else torch.softmax)(x, axis)
        hidden = torch.rand(shape, device="cuda") < 0.3 if layout == "mask" else None
        run, result = ours(op, x, y, axis, hidden)
        torch.cuda.synchronize()  # what is read was made on another stream
        with torch.cuda.stream(stream):
            run()
            wanted = of_torch(op, x.double(), y.double(), axis, hidden)()
            near = 1e-12 if dtype == "float64" else 1e-4 if dtype == "float32" else 3e-2
            same = torch.isclose(result.double(), wanted, rtol=near, atol=near, equal_nan=True)
            # A row of which all is hidden is NaN to torch's two calls, zeros (-inf) here.
            if hidden is not None and op != "logsumexp":
                same |= hidden.all(axis, keepdim=True)
            right = bool(same.all())
        case = " ".join(filter(None, (f"axis {axis}", layout)))
        if not right:
            raise SystemExit(f"wrong: {run.kernel}, {op} of {dtype} {shape}, {case}")
        times = time_together({"softfold": run, "torch": of_torch(op, x, y, axis, hidden)}, stream, args.seconds)
        records.write(op, dtype, shape, case, f"softfold:{run.kernel}", times["softfold"], torch_ms=times["torch"])
        return times["softfold"] / times["torch"]

    with torch.no_grad():
        ratios = [one(*problem(rng)) for _ in range(args.cases)]
    mean, slower = statistics.geometric_mean(ratios), sum(r > 1.1 for r in ratios)
    print(f"{len(ratios)} problems, softfold's time by torch's: geometric mean {mean:.3f}, {slower} of them 1.1 or more")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/src/libsoftfold.so")
    parser.add_argument("--out", help="the records' file, one JSON object a line")
    parser.add_argument("--commit", default="", help="what the records name as the library's commit")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.002, help="time for one problem, beyond 7 rounds")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
