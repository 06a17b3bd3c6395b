"""Problems at random, softfold beside torch: operations, dtypes, shapes, axes and layouts as they come, from a few
elements to 2^26, so that no shape is left out because nobody thought of it.

Each result is compared with torch's of the same numbers in float64, then both are timed as in gpu_softmax.py (graph
replays in turn, medians). A record says who took how long, and torch's time beside it. The seed names the problems.

    python3 bench/gpu_race.py --cases 2000 --out bench/results/h200/race.jsonl
    python3 bench/gpu_race.py --table docs/cuda.md      # from the records, without a GPU
"""
import argparse
import json
import math
import pathlib
import random
import re
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
RECORDS = HERE / "results/h200/race.jsonl"
OPS = ("softmax", "log_softmax", "logsumexp", "softmax_backward", "log_softmax_backward")
SIZES = ((14, "16 thousand"), (17, "131 thousand"), (20, "a million"), (23, "8 million"), (64, "67 million"))


def problem(rng):
    """(operation, dtype's name, shape, axis, layout)."""
    op, dtype = rng.choice(OPS), rng.choice(("float32", "float32", "bfloat16", "bfloat16", "float16", "float64"))
    n = int(2 ** rng.uniform(1, 18))
    n = rng.choice((n, n, 1 << int(math.log2(n)), max(n // 8 * 8, 8)))
    rows = max(1, int(2 ** rng.uniform(8, 26) / n))
    axis = rng.choice(("last", "last", "last", "first", "middle"))
    parts = rng.choice((2, 3, 4, 8, 16))
    layout = rng.choice(("", "", "", "slice", "mask", "mask"))
    if op.endswith("backward") and layout == "mask":
        layout = ""
    if axis == "last":
        shape = (rows, n) if rng.random() < 0.5 else (max(1, rows // parts), parts, n)
        return op, dtype, shape, len(shape) - 1, layout
    layout = layout.replace("slice", "")
    if axis == "first":
        return op, dtype, (n, rows), 0, layout
    return op, dtype, (parts, n, max(1, rows // parts)), 1, layout


def measure(args):
    import torch
    sys.path.insert(0, str(HERE))
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
        with torch.cuda.stream(stream):
            run()
            wanted = of_torch(op, x.double(), y.double(), axis, hidden)()
            near = 1e-12 if dtype == "float64" else 1e-4 if dtype == "float32" else 3e-2
            same = torch.isclose(result.double(), wanted, rtol=near, atol=near, equal_nan=True)
            # A row of which all is hidden is NaN to torch's two calls, zeros (-inf) here.
            right = bool((same | torch.isnan(wanted)).all())
        case = " ".join(filter(None, (f"axis {axis}", layout)))
        if not right:
            raise SystemExit(f"wrong: {run.kernel}, {op} of {dtype} {shape}, {case}")
        times = time_together({"softfold": run, "torch": of_torch(op, x, y, axis, hidden)}, stream, args.seconds)
        records.write(op, dtype, shape, case, f"softfold:{run.kernel}", times["softfold"], torch_ms=times["torch"])
        return times["softfold"] / times["torch"]

    with torch.no_grad():
        ratios = [one(*problem(rng)) for _ in range(args.cases)]
    print(f"{len(ratios)} problems, softfold's time by torch's: geometric mean {statistics.geometric_mean(ratios):.3f}, "
          f"{sum(r > 1.1 for r in ratios)} take 1.1 times as long or longer")


def table(records):
    """Of each operation and size: the geometric mean of softfold's time by torch's, and how many are slower."""
    lines = ["| operation | " + " | ".join(f"to {name}" for _, name in SIZES) + " |", "|---" * (len(SIZES) + 1) + "|"]
    of = "float32, float16, bfloat16", "float64"
    for op in OPS:
        for wide in (False, True):
            cells, least = [], 0
            for most, _ in SIZES:
                some = [r["ms"] / r["torch_ms"] for r in records if r["op"] == op
                        and (r["dtype"] == "float64") == wide and least <= math.log2(math.prod(r["shape"])) < most]
                least = most
                slower = sum(r > 1.1 for r in some)
                cells.append(f"{statistics.geometric_mean(some):.2f} ({slower} of {len(some)})" if some else "–")
            lines.append(f"| {op}, {of[wide]} | " + " | ".join(cells) + " |")
    about = records[-1]
    lines += ["", f"{len(records)} problems; {about['device']}, driver {about['driver']}, commit {about['commit']}, "
                  f"{about['date']}."]
    return "\n".join(lines)


def put_table(path):
    records = [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    page = pathlib.Path(path).read_text(encoding="utf-8")
    marks = r"(<!-- race: bench/gpu_race.py -->\n\n).*?(\n\n<!-- end of race -->)"
    page, count = re.subn(marks, lambda m: m[1] + table(records) + m[2], page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{path} has no place for the table")
    pathlib.Path(path).write_text(page, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/src/libsoftfold.so")
    parser.add_argument("--out", help="the records' file, one JSON object a line")
    parser.add_argument("--commit", default="", help="what the records name as the library's commit")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.002, help="time for one problem, beyond 7 rounds")
    parser.add_argument("--table", metavar="PAGE", help="measure nothing: write the table of the records into a page")
    args = parser.parse_args()
    put_table(args.table) if args.table else measure(args)


if __name__ == "__main__":
    main()
