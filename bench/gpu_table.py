#!/usr/bin/env python3
"""Writes the tables of docs/cuda-speed.md from the records: shares of a copy (logsumexp and losses alone: of a read) of the same bytes.

    python3 bench/gpu_table.py
"""
import math
import pathlib
import statistics

from readme_tables import HERE, put, records


def table(machine, file):
    every = records(machine, file, None)
    peers = sorted({r["who"] for r in every if not r["who"].startswith("softfold")}, reverse=True)
    lines = ["| operation | dtype | shape | kernel | softfold | " + " | ".join(peers) + " |", "|" + "---|" * (5 + len(peers))]
    points = {}
    for r in every:
        points.setdefault((f"{r['op']} {r['case']}".strip(), r["dtype"], tuple(r["shape"])), []).append(r)
    for (op, dtype, shape), rows in points.items():
        share = {r["who"]: "refuses" if r["ms"] is None else f"{r['copy_ms'] / r['ms']:.2f}" for r in rows}
        ours = next(w for w in share if w.startswith("softfold"))
        if op.startswith("softmax few rows"):
            share[ours] += f" ({next(r['ms'] for r in rows if r['who'] == ours) * 1e3:.1f} us)"
        cells = [op, dtype, "×".join(map(str, shape)), ours.split(":")[1], share[ours]]
        lines.append("| " + " | ".join(cells + [share.get(p, "–") for p in peers]) + " |")
    commits = {}
    for rows in points.values():
        commits[rows[0]["commit"]] = commits.get(rows[0]["commit"], 0) + 1
    by = ", ".join(f"{c} ({n} points)" if len(commits) > 1 else c for c, n in commits.items())
    return lines + ["", f"{every[0]['device']}, driver {every[0]['driver']}, commit {by}."]


def beside_peers(file):
    """How softmax stands beside the peers of one run: the geometric mean of its speed over quack's, and where it is slower
    than 0.985 times the best peer."""
    points = {}
    for r in records("h200", file):
        if r["case"] == "" and r["ms"] is not None:
            points.setdefault((r["dtype"], tuple(r["shape"])), {})[r["who"].split(":")[0].split(" ")[0]] = r["ms"]
    both = [p["quack-kernels"] / p["softfold"] for p in points.values() if "quack-kernels" in p]
    behind = [(dtype, shape, min(ms for who, ms in p.items() if who != "softfold") / p["softfold"])
              for (dtype, shape), p in points.items() if len(p) > 1]
    behind = [b for b in behind if b[2] < 0.985]
    mean = math.exp(sum(map(math.log, both)) / len(both))
    slower = ", ".join(f"{dtype} {shape[-1]} ({ratio:.2f})" for dtype, shape, ratio in behind)
    return ["", f"Plain softmax there: {mean:.3f} times quack's speed, the geometric mean of {len(both)} shapes. Slower than 0.985 times the best "
            f"peer in {len(behind)} of {len(points)} shapes: {slower}."]


SIZES = ((14, "16 thousand"), (17, "131 thousand"), (20, "a million"), (23, "8 million"), (64, "67 million"))


def race():
    """Of each operation and size of bench/gpu_race.py's problems: the geometric mean of softfold's time by torch's, and
    how many take it 1.1 times as long or longer."""
    every = records("h200", "race", None)
    lines = ["| operation | " + " | ".join(f"to {name} elements" for _, name in SIZES) + " |", "|" + "---|" * (len(SIZES) + 1)]
    for op in dict.fromkeys(r["op"] for r in sorted(every, key=lambda r: (r["op"].count("_"), r["op"]))):
        for name, wide in (("float32 and 16 bit", False), ("float64", True)):
            cells, least = [], 0
            for most, _ in SIZES:
                some = [r["ms"] / r["torch_ms"] for r in every if r["op"] == op and (r["dtype"] == "float64") == wide
                        and least <= math.log2(math.prod(r["shape"])) < most]
                cells.append(f"{statistics.geometric_mean(some):.2f} ({sum(s > 1.1 for s in some)} of {len(some)})" if some else "–")
                least = most
            lines.append(f"| {op}, {name} | " + " | ".join(cells) + " |")
    about = every[-1]
    return lines + ["", f"{len(every)} problems, {about['device']}, driver {about['driver']}, commit {about['commit']}."]


def main():
    page = pathlib.Path(HERE).parent / "docs" / "cuda-speed.md"
    for name, machine, file in (("gpu-rows", "h200", "rows"), ("gpu-peers", "h200", "softmax"), ("gpu-consumers", "h200", "consumers"),
                                ("gpu-consumers-h100", "h100", "consumers")):
        put(page, name, table(machine, file) + (beside_peers(file) if name == "gpu-peers" else []))
    put(page, "gpu-race", race())


if __name__ == "__main__":
    main()
