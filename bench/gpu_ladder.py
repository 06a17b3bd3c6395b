"""The ladder on one GPU: every rung at every length beside a copy of the same bytes, in one run, as records.

    python3 bench/gpu_ladder.py --library build/src/libsoftfold.so --out bench/results/h200/ladder.jsonl --commit COMMIT

Times are medians of interleaved graph replays (gpu_softmax.py). Registers and bytes of stack (spills, and the frames of
rare paths) are the compiler's, read with cuobjdump from the library; `bytes` is what a copy moves, `moved` what the
rung's loads and stores ask for.
"""
import argparse
import re
import shutil
import subprocess

import torch
from gpu_records import Records
from gpu_softmax import Bench, time_together

# Reads and writes of an element. `automatic` stands for the fused kernels, of which each length has its own.
RUNGS = {"naive": (2, 1), "safe": (3, 1), "online": (2, 1), "tiled": (2, 1), "fused": (1, 1)}
LENGTHS = tuple(1 << k for k in range(10, 21))
# What cuobjdump calls the kernels of a plan, where it is not the plan's own name.
PARTS = {"softmax_two_reads": ("fold_tiles", "write_tiles"),
         "softmax_cluster_stays": ("softmax_cluster_guesses",),
         "softmax_long_rows": ("fold_parts", "write_long_rows")}
MANGLED = {torch.float32: "If", torch.bfloat16: "8BFloat16"}


def resources(library):
    """{mangled name: (registers, bytes of stack)} of every kernel; empty without cuobjdump."""
    if shutil.which("cuobjdump") is None:
        return {}
    text = subprocess.run(["cuobjdump", "--dump-resource-usage", library], capture_output=True, text=True).stdout
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    return {name: (int(registers), int(stack) + int(local)) for name, registers, stack, local in found}


def of_kernel(table, kernel, dtype):
    """The most registers, and bytes of stack, of the kernels that a plan launches."""
    names = PARTS.get(kernel, (kernel,))
    others = re.compile("Lb1E(?!Li(256|512)E)|LeavesE[12]E")  # log_softmax, states; not: rows are whole vectors
    rows = [v for k, v in table.items() for name in names
            if f"{len(name)}{name}I" in k and MANGLED[dtype] in k and not others.search(k)]
    return (max(r for r, _ in rows), max(s for _, s in rows)) if rows else (None, None)


def measure(bench, table, dtype, n):
    name, size = str(dtype).split(".")[-1], torch.empty((), dtype=dtype).element_size()
    rows = max(1, (bench.args.megabytes << 20) // size // n)
    x = torch.randn(rows, n, device="cuda", dtype=torch.float32).mul_(3).to(dtype)
    y = torch.empty_like(x)
    plans, refused = {}, {}
    for rung in RUNGS:
        try:
            plans[rung] = bench.softfold.plan("softmax", [x], y, bench.stream, rung=rung)
        except RuntimeError as e:
            refused[rung] = str(e)
    copies = {"copy": lambda: y.copy_(x), "scale": lambda: torch.mul(x, 1.5, out=y)}
    times = time_together({**plans, **copies}, bench.stream, bench.args.seconds)
    copy_ms = min(times.pop("copy"), times.pop("scale"))
    for rung, (reads, writes) in RUNGS.items():
        who, more = f"softfold:softmax_{rung}", {"why": refused.get(rung)}
        if rung in plans:
            registers, stack = of_kernel(table, plans[rung].kernel, dtype)
            who = f"softfold:{plans[rung].kernel}"
            more = {"registers": registers, "stack": stack, "moved": (reads + writes) * x.numel() * size}
        bench.records.write("softmax", name, (rows, n), f"ladder:{rung}", who, times.get(rung),
                            bytes=2 * x.numel() * size, copy_ms=copy_ms, **more)
    told = " ".join(f"{r} {copy_ms / times[r]:.3f}" for r in plans)
    print(f"{name:9s} {rows:>8d} x {n:<8d} {told}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="build/src/libsoftfold.so")
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--megabytes", type=int, default=512, help="of input at each length")
    args = parser.parse_args()
    bench, table = Bench(args, Records(args.out, args.commit)), resources(args.library)
    for dtype in (torch.float32, torch.bfloat16):
        for n in LENGTHS:
            measure(bench, table, dtype, n)


if __name__ == "__main__":
    main()
