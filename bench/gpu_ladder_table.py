#!/usr/bin/env python3
"""Writes the GPU ladder's table and picture into docs/ from the records of gpu_ladder.py.

usage: gpu_ladder_table.py bench/results/h200/ladder.jsonl [docs/ladder.md]
"""
import json
import pathlib
import sys

from ladder_table import RUNGS, put, size

COLOURS = {"naive": "#999999", "safe": "#d1651f", "online": "#c9a227", "tiled": "#3f8f5f", "fused": "#2f5fb3"}


def span(values):
    values = sorted(set(values))
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"


def table(records):
    lengths = list(dict.fromkeys(r["shape"][1] for r in records))
    cell = {(r["case"].split(":")[1], r["shape"][1]): r for r in records}
    lines = ["| of a copy's speed | registers | stack, bytes | B/element | " + " | ".join(size(n) for n in lengths) + " |",
             "|---|---|---|---|" + "---|" * len(lengths)]
    for rung in RUNGS:
        row = [cell[rung, n] for n in lengths]
        done = [r for r in row if r["ms"] is not None]
        share = ["–" if r["ms"] is None else f"{100 * r['copy_ms'] / r['ms']:.0f}%" for r in row]
        moved = max(round(r["moved"] / (r["shape"][0] * r["shape"][1])) for r in done)
        cells = [rung, span(r["registers"] for r in done), span(r["stack"] for r in done), str(moved), *share]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kernels(records):
    """Which kernel stood for `fused` at which lengths."""
    runs = []
    for r in records:
        if r["case"] != "ladder:fused" or r["ms"] is None:
            continue
        name = r["who"].split(":")[1]
        if not runs or runs[-1][0] != name:
            runs.append([name, r["shape"][1], r["shape"][1]])
        runs[-1][2] = r["shape"][1]
    return "fused is " + ", ".join(f"`{name}` from {size(a)} to {size(b)}" for name, a, b in runs) + "."


def picture(records):
    """An SVG: share of a copy over N, a line a rung."""
    left, top, width, height = 46, 14, 560, 240
    lengths = list(dict.fromkeys(r["shape"][1] for r in records))
    x = {n: left + width * i / (len(lengths) - 1) for i, n in enumerate(lengths)}
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 290" font-family="sans-serif" font-size="11">',
             '<rect width="700" height="290" fill="white"/>']

    def y_of(share):
        return top + height * (1 - share)

    for tenth in range(0, 11, 2):
        y = y_of(tenth / 10)
        parts.append(f'<line x1="{left}" y1="{y:.0f}" x2="{left + width}" y2="{y:.0f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{10 * tenth}%</text>')
    for n in lengths:
        parts.append(f'<text x="{x[n]:.0f}" y="{top + height + 16}" text-anchor="middle">{size(n)}</text>')
    for rung in RUNGS:
        points = [(x[r["shape"][1]], y_of(min(1.02, r["copy_ms"] / r["ms"]))) for r in records
                  if r["case"] == f"ladder:{rung}" and r["ms"] is not None]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[rung]}" stroke-width="2"/>')
        end = f'x="{points[-1][0] + 6:.0f}" y="{points[-1][1] + 4:.0f}"'
        parts.append(f'<text {end} fill="{COLOURS[rung]}">{rung}</text>')
    r = records[0]
    parts.append(f'<text x="{left}" y="{top + height + 32}" fill="#555555">{r["dtype"]}, share of a copy of the same '
                 f'bytes over row length; {r["device"]}, commit {r["commit"]}, {r["date"]}</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    records = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    page = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "docs/ladder.md")
    text = []
    for dtype in dict.fromkeys(r["dtype"] for r in records):
        own = [r for r in records if r["dtype"] == dtype]
        name = f"img/ladder_gpu_{dtype}.svg"
        (page.parent / name).write_text(picture(own))
        text += [f"![share of a copy by row length, {dtype}]({name})", "", f"{dtype}; {kernels(own)}", ""]
        text += [table(own), ""]
    r = records[0]
    text.append(f"{r['device']}, driver {r['driver']}; commit {r['commit']}, {r['date']}; "
                f"{r['bytes'] // 2 >> 20} MB of input at each N.")
    put(page, "ladder-gpu", "\n".join(text))


if __name__ == "__main__":
    main()
