"""The docs' table of the GPU bench: shares of a copy (logsumexp: of a read) of the same bytes, from the records.

    python3 bench/gpu_table.py bench/results/h200/softmax.jsonl
"""
import json
import sys


def main():
    records = [json.loads(line) for line in open(sys.argv[1])]
    peers = sorted({r["who"] for r in records if not r["who"].startswith("softfold")}, reverse=True)
    print("| operation | dtype | shape | kernel | softfold |", " | ".join(peers), "|")
    print("|" + "---|" * (5 + len(peers)))
    points = {}
    for r in records:
        points.setdefault((f"{r['op']} {r['case']}".strip(), r["dtype"], tuple(r["shape"])), []).append(r)
    for (op, dtype, shape), rows in points.items():
        share = {r["who"]: "refuses" if r["ms"] is None else f"{r['copy_ms'] / r['ms']:.2f}" for r in rows}
        ours = next(w for w in share if w.startswith("softfold"))
        cells = [op, dtype, "×".join(map(str, shape)), ours.split(":")[1], share[ours]]
        print("|", " | ".join(cells + [share.get(p, "–") for p in peers]), "|")


if __name__ == "__main__":
    main()
