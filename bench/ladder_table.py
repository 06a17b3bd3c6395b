#!/usr/bin/env python3
"""Writes the ladder's table into docs/ladder.md from the records of `softfold bench ladder`.

usage: ladder_table.py RECORDS.jsonl [docs/ladder.md]

To measure: softfold bench ladder --n 128,1024,8192,65536,262144,4194304 --jsonl RECORDS.jsonl --commit $(git rev-parse
--short HEAD). Times are the shortest of many, in turn with a copy of the same bytes.
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


def main():
    records = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    page = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "docs/ladder.md")
    text, count = re.subn(r"(<!-- ladder: [^\n]*-->\n).*?(<!-- /ladder -->)",
                          lambda m: m[1] + "\n" + table(records) + "\n\n" + m[2], page.read_text(), flags=re.S)
    if count != 1:
        sys.exit(f"{page}: no place for the table")
    page.write_text(text)


if __name__ == "__main__":
    main()
