#!/usr/bin/env python3
"""Writes attention's tables into docs/attention.md: the ladder, with its plot beside it, from the records of `softfold
bench ladder --op attention`, and the share of the FMA peak from those of bench/cpu_attention.

usage: attention_table.py LADDER.jsonl SPEED.jsonl [docs/attention.md]

To measure: softfold bench ladder --op attention --n 2048,4096,8192,16384,32768 --d 64 --jsonl LADDER.jsonl --commit $(git rev-parse
--short HEAD). Every rung runs in a process of its own: its memory is the most that was resident, less that of a process
with the operands alone. cpu_attention --threads 1 --out SPEED.jsonl, also with --simd avx2.
"""
import json
import pathlib
import sys

from ladder_table import put, size

RUNGS = ("naive", "safe", "merged", "online", "tiled", "fused")


def bytes_text(n):
    return f"{n / 1e6:.3g} MB" if n < 1e9 else f"{n / 1e9:.3g} GB"


def ms_text(ms):
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"


def table(cell, lengths, records):
    lines = ["| | " + " | ".join(f"T = {size(n)}: ms | memory" for n in lengths) + " |",
             "|---|" + "---:|---:|" * len(lengths)]
    for rung in RUNGS:
        row = [cell[rung, n] for n in lengths]
        lines.append(f"| {rung} | " + " | ".join(f"{ms_text(r['ms'])} | {bytes_text(r['memory_bytes'])}" for r in row) + " |")
    r = records[0]
    return "\n".join(lines + ["", f"One head, D = {r['shape'][-1]}, {r['dtype']}, {r['case']}. {r['device']}, {r['driver']}; "
                              f"commit {r['commit']}, {r['date']}.", "",
                              "![Time and memory of the six rungs over T](img/attention-ladder.png)"])


def speed_table(records):
    lines = ["| case | dtype | B, H, Hkv, T, S, D | GFLOP/s | of the FMA peak | GB/s of operands |", "|---|---|---|---:|---:|---:|"]
    for r in records:
        rate = r["flops"] / r["ms"] * 1e-6
        lines.append(f"| {r['case']} | {r['dtype']} | {', '.join(map(str, r['shape']))} | {rate:.3g} "
                     f"| {100 * rate / r['fma_gflops']:.0f}% | {r['bytes'] / r['ms'] * 1e-6:.2g} |")
    r = records[0]
    return "\n".join(lines + ["", f"{r['device']}; commit {r['commit']}, {r['date']}. The peak is taken in turn with each case: "
                              "chains of FMAs in registers, of the same SIMD target."])


def plot(cell, lengths, records, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for axis, key, unit, label in ((axes[0], "ms", 1, "ms"), (axes[1], "memory_bytes", 1e6, "MB beyond the operands")):
        for rung in RUNGS:
            axis.loglog(lengths, [cell[rung, n][key] / unit for n in lengths], marker="o", label=rung)
        axis.set_xticks(lengths, [size(n) for n in lengths], minor=False)
        axis.minorticks_off()
        axis.set_xlabel("T")
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8)
    r = records[0]
    figure.suptitle(f"attention, one head, D = {r['shape'][-1]}, {r['dtype']}, {r['case']}: {r['device']}, commit {r['commit']}",
                    fontsize=9)
    figure.savefig(path, dpi=110)


def main():
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    records, speed = ([json.loads(line) for line in pathlib.Path(p).read_text().splitlines()] for p in sys.argv[1:3])
    page = pathlib.Path(sys.argv[3] if len(sys.argv) == 4 else "docs/attention.md")
    lengths = list(dict.fromkeys(r["shape"][3] for r in records))
    cell = {(r["who"].rsplit("_", 1)[-1], r["shape"][3]): r for r in records}
    put(page, "ladder", table(cell, lengths, records))
    put(page, "speed", speed_table(speed))
    plot(cell, lengths, records, page.parent / "img" / "attention-ladder.png")


if __name__ == "__main__":
    main()
