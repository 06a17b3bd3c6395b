#!/usr/bin/env python3
"""Writes the measured tables of README.md, docs/performance.md and docs/linear_cross_entropy.md from the records in
bench/results: readme_tables.py

Each figure is a time of one run divided into another's of the same run. Nothing is typed.
"""
import json
import pathlib
import re
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
WORDS = {1: "1 thread", 2: "2 threads", 16: "16 threads"}


def records(machine, file, *ops):
    """The records of the file's own operation, or of these (None: all)."""
    lines = (HERE / "results" / machine / f"{file}.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if ops == (None,) or r["op"] in (ops or [file])]


def pick(rows, who, dtype, shape, case):
    found = [r for r in rows if r["who"].startswith(who) and r["dtype"] == dtype and r["shape"] == shape
             and r["case"] == case]
    return found[-1] if found else None


def largest(rows, who, dtype, n):
    """Of as many rows of n as were measured."""
    shapes = [r["shape"] for r in rows if r["dtype"] == dtype and r["shape"][1] == n and r["case"] == ""]
    return pick(rows, who, dtype, max(shapes), "") if shapes else None


def share(record):
    return f"{record['copy_ms'] / record['ms']:.2f}"


def each(rows, key):
    return " and ".join(dict.fromkeys(r[key] for r in rows))


def about(rows):
    return f"{rows[0]['device']}, commit {each(rows, 'commit')}, {each(rows, 'date')}."


def size(n):
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if n >= factor and n % factor == 0:
            return f"{n // factor}{unit}"
    return str(n)


def gpu():
    rows = records("h200", "softmax")
    lengths = [1024, 4096, 32768, 128256, 262144]
    peers = sorted({r["who"] for r in rows if not r["who"].startswith("softfold")})
    lines = ["| softmax, share of a copy's speed | " + " | ".join(f"N = {size(n)}" for n in lengths) + " |",
             "|---|" + "---|" * len(lengths)]
    for dtype in ("float32", "bfloat16"):
        for who in ["softfold", *peers]:
            picked = [largest(rows, who, dtype, n) for n in lengths]
            cells = ["not run" if r is None else share(r) if r["ms"] else "refuses" for r in picked]
            lines.append(f"| {dtype}, {'**softfold**' if who == 'softfold' else who} | " + " | ".join(cells) + " |")
    r = largest(rows, "softfold", "float32", 1024)
    return lines + ["", f"{r['device']}, {r['bytes'] / 1e9:.1f} GB moved at each N, commit {r['commit']}, {r['date']}. "
                    "All in one run, medians; `bench/results/h200`, [docs/cuda-speed.md](docs/cuda-speed.md).", "", *at_random()]


def at_random():
    """What the problems of bench/gpu_race.py take beside torch."""
    ratios = [r["ms"] / r["torch_ms"] for r in records("h200", "race", None)]
    mean, slower = statistics.geometric_mean(ratios), sum(r > 1.1 for r in ratios)
    return [f"{len(ratios)} problems drawn at random, from a few elements to 67 million, in any axis, with masks and without, take "
            f"{mean:.2f} of torch's time (geometric mean); {slower} of them take 1.1 times its time or longer "
            "([which](docs/cuda-speed.md#problems-at-random))."]


def cpu():
    lines = ["| times the speed of PyTorch | " + " | ".join(WORDS.values()) + " |", "|---|" + "---|" * len(WORDS)]
    for op in ("softmax", "logsumexp"):
        rows = records("h200-host", op)
        peer = next(r["who"] for r in rows if r["who"].startswith("torch"))
        seen = list(dict.fromkeys((r["dtype"], tuple(r["shape"])) for r in rows))
        for dtype, shape in seen:
            if shape[1] not in (1024, 131072, 1 << 26):
                continue
            cells = []
            for threads in WORDS:
                ours = pick(rows, "softfold", dtype, list(shape), f"{threads} threads")
                theirs = pick(rows, "torch", dtype, list(shape), f"{threads} threads")
                cells.append(f"{theirs['ms'] / ours['ms']:.1f}×" if ours and theirs else "not run")
            lines.append(f"| {op}, {dtype}, {size(shape[0])} × {size(shape[1])} | " + " | ".join(cells) + " |")
    return lines + ["", f"{rows[0]['device']}, {peer}, commit {each(rows, 'commit')}, {rows[0]['date']}; "
                    "`bench/results/h200-host`, [docs/performance.md](docs/performance.md)."]


def host():
    """Every record of the 16-core host: times PyTorch, and the share of the ceiling."""
    lines = ["| times PyTorch's speed (share of the ceiling) | " + " | ".join(WORDS.values()) + " |",
             "|---|" + "---|" * len(WORDS)]
    for op in ("softmax", "logsumexp"):
        rows = records("h200-host", op)
        for dtype, shape in dict.fromkeys((r["dtype"], tuple(r["shape"])) for r in rows):
            cells = []
            for threads in WORDS:
                ours, theirs = (pick(rows, who, dtype, list(shape), f"{threads} threads") for who in ("softfold", "torch"))
                cells.append(f"{theirs['ms'] / ours['ms']:.1f}× ({share(ours)})" if ours and theirs else "not run")
            lines.append(f"| {op} {dtype}, {size(shape[0])} × {size(shape[1])} | " + " | ".join(cells) + " |")
    return lines


def host_attention():
    """Attention on the 16-core host: times PyTorch's scaled_dot_product_attention, and the rates."""
    rows = records("h200-host", "attention")
    lines = ["| times PyTorch's speed (GFLOP/s; decoding GB/s) | " + " | ".join(WORDS.values()) + " |",
             "|---|" + "---:|" * len(WORDS)]
    kinds = dict.fromkeys((r["case"].split(",")[0], r["dtype"], tuple(r["shape"])) for r in rows)
    for name, dtype, shape in kinds:
        cells = []
        for threads in WORDS:
            ours, theirs = (pick(rows, who, dtype, list(shape), f"{name}, {threads} threads") for who in ("softfold", "torch"))
            rate = ours["bytes" if name == "decode" else "flops"] / ours["ms"] * 1e-6
            cells.append(f"{theirs['ms'] / ours['ms']:.2f}× ({rate:.0f})")
        b, h, hkv, t, s, d = shape
        lines.append(f"| {name} {dtype}, H = {h}{f' over {hkv}' if h != hkv else ''}, T = {size(t)}, S = {size(s)}, D = {d} | "
                     + " | ".join(cells) + " |")
    r = rows[0]
    return lines + ["", f"{r['device']}, {next(r['who'] for r in rows if r['who'].startswith('torch'))}, commit {r['commit']}, "
                    f"{r['date']}; `bench/cpu_attention_peers.py`, `bench/results/h200-host/attention.jsonl`."]


def consumers(machine, threads):
    """Losses, top-k, entropy and samples: milliseconds, the share of the ceiling, and times the peers' speed."""
    rows = records(machine, "consumers", None)
    peers = list(dict.fromkeys(r["who"] for r in rows if not r["who"].startswith("softfold")))
    lines = ["| | softfold (share of the ceiling) | " + " | ".join(f"times {p}" for p in peers) + " |",
             "|---|---:|" + "---:|" * len(peers)]
    for op, dtype, shape, case in dict.fromkeys((r["op"], r["dtype"], tuple(r["shape"]), r["case"]) for r in rows):
        if not case.endswith(f"{threads} threads"):
            continue
        same = [r for r in rows if (r["op"], r["dtype"], tuple(r["shape"]), r["case"]) == (op, dtype, shape, case)]
        ms = {r["who"]: r["ms"] for r in same}
        ours = same[0]
        cells = [f"{ours['ms']:.1f} ms ({share(ours)})"] + [f"{ms[p] / ours['ms']:.1f}×" if p in ms else "–" for p in peers]
        name = f"{op} {case.rsplit(',', 1)[0] if ',' in case else ''}".strip()
        lines.append(f"| {name}, {dtype} | " + " | ".join(cells) + " |")
    r = rows[0]
    return lines + ["", f"{r['device']}, {WORDS[threads]}, {r['shape'][0]} rows of {r['shape'][1]} logits, commit {r['commit']}, "
                    f"{r['date']}; `bench/cpu_consumers.py`, `bench/results/{machine}/consumers.jsonl`."]


def linear(machine):
    """linear_cross_entropy: milliseconds, the rate of the products that it has to make, and times the peers' speed."""
    rows = records(machine, "linear_cross_entropy")
    peers = list(dict.fromkeys(r["who"] for r in rows if not r["who"].startswith("softfold")))
    lines = ["| B × D × V | | softfold (GFLOP/s) | " + " | ".join(f"times {p}" for p in peers) + " |",
             "|---|---|---:|" + "---:|" * len(peers)]
    for dtype, shape, case in dict.fromkeys((r["dtype"], tuple(r["shape"]), r["case"]) for r in rows):
        ours = pick(rows, "softfold", dtype, list(shape), case)
        found = [pick(rows, p, dtype, list(shape), case) for p in peers]
        rate = ours["flops"] / ours["ms"] * 1e-6
        lines.append(f"| {' × '.join(map(str, shape))} | {case.split(',')[0]}, {dtype} | {ours['ms']:.0f} ms ({rate:.0f}) | "
                     + " | ".join(f"{r['ms'] / ours['ms']:.1f}×" if r else "–" for r in found) + " |")
    r = rows[0]
    return lines + ["", f"{r['device']}, {r['case'].split(', ')[1]}, commit {r['commit']}, {r['date']}; "
                    f"`bench/cpu_linear_cross_entropy.py`, `bench/results/{machine}/linear_cross_entropy.jsonl`."]


def two_cores():
    """Shares of a streaming copy (softmax) or a pure read (logsumexp) with 2 threads, and cycles in the cache."""
    rows = {op: records("xeon-2core", op) for op in ("softmax", "log_softmax", "logsumexp")}
    lengths = [1 << 10, 1 << 12, 1 << 14, 1 << 15, 50257, 1 << 17, 1 << 26]
    lines = ["| share of the ceiling | " + " | ".join(size(n) for n in lengths[:-1]) + " | one row of 64M |",
             "|---|" + "---|" * len(lengths)]
    for op in rows:
        for dtype in ("float32", "bfloat16", "float16"):
            found = {r["shape"][1]: r for r in rows[op] if r["dtype"] == dtype and r["case"].endswith(", 2 threads")}
            lines.append(f"| {op} {dtype} | " + " | ".join(share(found[n]) if n in found else "" for n in lengths) + " |")
    return lines + ["", about([r for found in rows.values() for r in found])]


def in_cache():
    """Cycles an element of rows in the cache with one thread, and what a call costs."""
    rows = [r for r in records("xeon-2core", "softmax") if r["case"].startswith("in cache")]
    lengths = list(dict.fromkeys(r["shape"][1] for r in rows))
    lines = ["| cycles an element | " + " | ".join(size(n) for n in lengths) + " |", "|---|" + "---|" * len(lengths)]
    for driver, dtype in dict.fromkeys((r["driver"], r["dtype"]) for r in rows):
        found = {r["shape"][1]: r for r in rows if r["driver"] == driver and r["dtype"] == dtype}
        lines.append(f"| {dtype}, {driver} | " + " | ".join(f"{found[n]['cycles_per_element']:.2f}" for n in lengths) + " |")
    calls = {r["who"]: r for r in records("xeon-2core", "softmax") if r["case"].startswith("one call")}
    lines += ["", "One call on 1×64 float32: " + ", ".join(f"{r['ms'] * 1e6:.0f} ns ({who})" for who, r in calls.items()) + "."]
    return lines + ["", about(rows)]


def two_core_peers():
    """The fastest peer at every point, in times of softfold's, and all that are slower."""
    lengths = [1 << 10, 1 << 12, 1 << 15, 1 << 17, 1 << 26]
    lines = ["| times the fastest peer | " + " | ".join(size(n) for n in lengths) + " |", "|---|" + "---|" * len(lengths)]
    all_times, taken = {}, []
    for op in ("softmax", "log_softmax", "logsumexp"):
        rows = [r for r in records("xeon-2core", f"{op}_peers", op) if r["shape"][0] * r["shape"][1] >= 1 << 26]
        for dtype in ("float32", "bfloat16", "float16"):
            cells = []
            for n in lengths:
                point = [r for r in rows if r["dtype"] == dtype and r["shape"][1] == n]
                start = max(i for i, r in enumerate(point) if r["who"].startswith("softfold"))  # the last run of it
                ours, *peers = point[start:]
                taken += point[start:]
                times = {r["who"]: r["ms"] / ours["ms"] for r in peers if r["ms"]}
                best = min(times, key=times.get)
                cells.append(f"{times[best]:.1f}× {best.split()[0]}")
                for who, t in times.items():
                    all_times.setdefault(who, []).append(t)
            lines.append(f"| {op} {dtype} | " + " | ".join(cells) + " |")
    spans = ", ".join(f"{who} {min(t):.1f}–{max(t):.1f}×" for who, t in all_times.items())
    return lines + ["", f"Over all points: {spans}. {about(taken)}"]


def put(page, name, lines):
    body = "\n".join(lines)
    text, count = re.subn(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- /{name} -->)", lambda m: f"{m[1]}\n{body}\n\n{m[2]}",
                          page.read_text(), flags=re.S)
    if count != 1:
        sys.exit(f"{page}: no place for the table '{name}'")
    page.write_text(text)


def main():
    root = HERE.parent
    put(root / "README.md", "measured", [*gpu(), "", *cpu()])
    put(root / "docs" / "performance.md", "host", host())
    put(root / "docs" / "performance.md", "host-attention", host_attention())
    put(root / "docs" / "performance.md", "two-cores", two_cores())
    put(root / "docs" / "performance.md", "consumers", [*consumers("epyc-2core", 2), "", *consumers("xeon-2core", 2), "",
                                                        *consumers("h200-host", 1), "", *consumers("h200-host", 16)])
    put(root / "docs" / "linear_cross_entropy.md", "cpu", linear("epyc-2core"))
    put(root / "docs" / "performance.md", "in-cache", in_cache())
    put(root / "docs" / "performance.md", "two-core-peers", two_core_peers())


if __name__ == "__main__":
    main()
