#!/usr/bin/env python3
"""Writes the tables of docs/cuda.md from the records: shares of a copy (logsumexp and losses alone: of a read) of the same bytes.

    python3 bench/gpu_table.py
"""
import json
import pathlib

from readme_tables import HERE, put


def table(file):
    records = [json.loads(line) for line in (HERE / "results" / "h200" / file).read_text().splitlines()]
    peers = sorted({r["who"] for r in records if not r["who"].startswith("softfold")}, reverse=True)
    lines = ["| operation | dtype | shape | kernel | softfold | " + " | ".join(peers) + " |", "|" + "---|" * (5 + len(peers))]
    points = {}
    for r in records:
        points.setdefault((f"{r['op']} {r['case']}".strip(), r["dtype"], tuple(r["shape"])), []).append(r)
    for (op, dtype, shape), rows in points.items():
        share = {r["who"]: "refuses" if r["ms"] is None else f"{r['copy_ms'] / r['ms']:.2f}" for r in rows}
        ours = next(w for w in share if w.startswith("softfold"))
        cells = [op, dtype, "×".join(map(str, shape)), ours.split(":")[1], share[ours]]
        lines.append("| " + " | ".join(cells + [share.get(p, "–") for p in peers]) + " |")
    commits = {}
    for rows in points.values():
        commits[rows[0]["commit"]] = commits.get(rows[0]["commit"], 0) + 1
    by = ", ".join(f"{c} ({n} points)" if len(commits) > 1 else c for c, n in commits.items())
    return lines + ["", f"{records[0]['device']}, driver {records[0]['driver']}, commit {by}."]


def main():
    page = pathlib.Path(HERE).parent / "docs" / "cuda.md"
    for name, file in (("gpu-rows", "rows.jsonl"), ("gpu-peers", "softmax.jsonl"), ("gpu-consumers", "consumers.jsonl")):
        put(page, name, table(file))


if __name__ == "__main__":
    main()
