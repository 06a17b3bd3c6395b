#!/usr/bin/env python3
"""Writes the ladder's tables into docs/ladder.md from the records of `softfold bench ladder` and of ladder_bytes.py.

usage: ladder_table.py SPEED.jsonl BYTES.jsonl [docs/ladder.md]

To measure: softfold bench ladder --n 128,1024,8192,65536,262144,4194304 --jsonl SPEED.jsonl --commit $(git rev-parse
--short HEAD), and ladder_bytes.py --out BYTES.jsonl. Times are of the median of many turns, each with a copy of the
same bytes.
"""
import json
import pathlib
import re
import sys

RUNGS = ("naive", "safe", "online", "tiled", "fused")


def size(n):
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if n >= factor and n % factor == 0:
            return f"{n // factor}{unit}"
    return str(n)


def table(records):
    shapes = list(dict.fromkeys(tuple(r["shape"]) for r in records))
    cell = {(r["who"].rsplit("_", 1)[-1], tuple(r["shape"])): r for r in records}
    lines = ["| of a copy's speed | " + " | ".join(f"N = {size(n)}" for _, n in shapes) + " |",
             "|---|" + "---|" * len(shapes)]
    for rung in RUNGS:
        row = []
        for shape in shapes:
            r = cell[rung, shape]
            row.append("not here" if r["ms"] is None else f"{100 * r['copy_ms'] / r['ms']:.0f}%")
        lines.append(f"| {rung} | " + " | ".join(row) + " |")
    r = records[0]
    total = r["bytes"] / 2 / (1 << 20)
    lines += ["", f"{r['op']}, {r['dtype']}, {total:.0f} MB of input at each N. {r['device']}, {r['driver']}; {r['case']}; "
              f"commit {r['commit']}, {r['date']}."]
    return "\n".join(lines)


def bytes_table(records):
    shapes = list(dict.fromkeys(tuple(r["shape"]) for r in records))
    cell = {(r["who"].rsplit("_", 1)[-1], tuple(r["shape"])): r for r in records}
    columns = [(what, shape) for what in ("bytes", "instructions") for shape in shapes]
    lines = ["| an element | " + " | ".join(f"{what}, {m} x {size(n)}" for what, (m, n) in columns) + " |",
             "|---|" + "---|" * len(columns)]
    for rung in RUNGS:
        values = [cell[rung, shape][what] for what, shape in columns]
        lines.append(f"| {rung} | " + " | ".join("not here" if v is None else f"{v / m / n:.2f}"
                                                 for v, (_, (m, n)) in zip(values, columns)) + " |")
    r = records[0]
    return "\n".join(lines + ["", f"{r['op']}, {r['dtype']}; {r['device']}; commit {r['commit']}, {r['date']}."])


def put(page, name, text):
    page_text, count = re.subn(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- /{name} -->)",
                               lambda m: m[1] + "\n" + text + "\n\n" + m[2], page.read_text(), flags=re.S)
    if count != 1:
        sys.exit(f"{page}: no place for the table '{name}'")
    page.write_text(page_text)


def main():
    speed, moved = ([json.loads(line) for line in pathlib.Path(p).read_text().splitlines()] for p in sys.argv[1:3])
    page = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else "docs/ladder.md")
    put(page, "ladder", table(speed))
    put(page, "bytes", bytes_table(moved))


if __name__ == "__main__":
    main()
