#!/usr/bin/env python3
"""Writes attention's tables into docs/performance.md from the records of gpu_attention.py: rates of every head size, and
the share of the fastest peer's rate at each point, of the same run. Nothing is typed.

    python3 bench/gpu_attention_table.py
"""
import math
import pathlib

from readme_tables import HERE, put, records, size

NAMES = {"softfold": "**softfold**", "cuDNN": "cuDNN", "fa3-fwd": "FlashAttention-3", "flash-attn-4": "FlashAttention-4"}
PEERS = list(NAMES.values())[1:]


def by_point(rows):
    """{(dtype, shape, case): {name: TFLOP/s}} of what ran."""
    points = {}
    for r in rows:
        name = next(n for n in NAMES if r["who"].startswith(n))
        if r["ms"]:
            points.setdefault((r["dtype"], tuple(r["shape"]), r["case"]), {})[NAMES[name]] = r["flops"] / r["ms"] * 1e-9
    return points


def share(rates, peers=PEERS):
    return rates[NAMES["softfold"]] / max(rates[name] for name in peers if name in rates)


def summary(shares):
    return f"{math.exp(sum(map(math.log, shares)) / len(shares)):.2f}, {min(shares):.2f}"


def sizes(points):
    """Rates and shares over T of the head sizes that were run full and causal, and each one's mean and least share."""
    lengths = sorted({shape[3] for _, shape, case in points if case == "full" and shape[1] * shape[6] == 2048})
    lines = ["| TFLOP/s full / causal | " + " | ".join(f"T = {size(n)}" for n in lengths) + " |",
             "|---|" + "---:|" * len(lengths)]
    means = ["| geometric mean, least | of the best, full | causal | both | " + " | ".join(f"of {p}" for p in PEERS) + " |",
             "|---|" + "---:|" * (3 + len(PEERS))]
    for d in (64, 128, 256):
        cells = {(n, case): points["bfloat16", (16384 // n, 2048 // d, 2048 // d, n, n, d, d), case]
                 for n in lengths for case in ("full", "causal")}
        for name in NAMES.values():
            lines.append(f"| D = {d}, {name} | " + " | ".join(
                "/".join(f"{cells[n, case][name]:.0f}" for case in ("full", "causal")) for n in lengths) + " |")
        lines.append(f"| D = {d}, share of the best peer | " + " | ".join(
            "/".join(f"{share(cells[n, case]):.2f}" for case in ("full", "causal")) for n in lengths) + " |")
        full, causal = ([share(cells[n, case]) for n in lengths] for case in ("full", "causal"))
        means.append(f"| D = {d} | " + " | ".join(map(summary, (
            full, causal, full + causal, *([share(rates, [p]) for rates in cells.values()] for p in PEERS)))) + " |")
    return lines + [""] + means


def others(points):
    """Every other point: rates, and the share of the fastest peer."""
    lines = ["| TFLOP/s | dtype | B, H, Hkv, T, S, D, Dv | " + " | ".join(NAMES.values()) + " | share |",
             "|---|---|---|" + "---:|" * (len(NAMES) + 1)]
    for (dtype, shape, case), rates in points.items():
        if case in ("full", "causal") and dtype == "bfloat16" and shape[5] == shape[6]:
            continue  # among the sizes
        cells = [f"{rates[name]:.0f}" if name in rates else "–" for name in NAMES.values()]
        cells.append(f"{share(rates):.2f}" if len(rates) > 1 else "–")
        lines.append(f"| {case} | {dtype} | {', '.join(map(str, shape))} | " + " | ".join(cells) + " |")
    return lines


def main():
    rows = records("h200", "attention")
    points = by_point(rows)
    peers = sorted({r["who"] for r in rows if not r["who"].startswith("softfold")})
    r = rows[0]
    put(pathlib.Path(HERE).parent / "docs" / "performance.md", "gpu-attention",
        sizes(points) + [""] + others(points) + ["", f"{r['device']}, driver {r['driver']}, commit {r['commit']}, {r['date']}; "
        f"all in one run: {', '.join(peers)}. `bench/gpu_attention.py`, `bench/results/h200/attention.jsonl`."])


if __name__ == "__main__":
    main()
