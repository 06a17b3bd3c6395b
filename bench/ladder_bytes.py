#!/usr/bin/env python3
"""Measures the bytes that each rung of the ladder moves between cache and memory, in the simulated caches of valgrind's
cachegrind (a last level of 1 MiB): misses of the last level, 64 bytes each. And the instructions that it takes, by which
rungs differ that move the same bytes.

usage: ladder_bytes.py [--command build/release/cli/softfold] [--commit COMMIT] [--out RECORDS.jsonl]

Each rung runs on M rows and on 2M rows; the difference is what M rows cost, without the program's own start.
"""
import argparse
import datetime
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

RUNGS = ("naive", "safe", "online", "tiled", "fused")
SHAPES = ((128, 8192), (1, 1 << 20))  # rows that stay in the cache, and rows that do not
CACHES = ("--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64")


def write_npy(path, rows, n):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {n}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    piece = struct.pack("<1024f", *((i * 37 % 101) / 10 for i in range(1024)))
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + piece * (rows * n // 1024))


def counts_of(command, x, rung):
    """Misses of the last level and instructions; or why the rung refuses."""
    done = subprocess.run(["valgrind", "--tool=cachegrind", *CACHES, "--cachegrind-out-file=/dev/null", command, "softmax",
                           str(x), str(x.with_name("y.npy")), "--rung", rung, "--threads", "1"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return None, " ".join(line.strip() for line in done.stderr.splitlines() if not line.startswith(("==", "--")))
    found = (re.search(name + r":\s+([\d,]+)", done.stderr) for name in ("LLd misses", "I +refs"))
    return [int(f[1].replace(",", "")) for f in found], None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/release/cli/softfold")
    parser.add_argument("--commit", default=subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True,
                                                           text=True).stdout.strip())
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True).stdout.strip()
    records = []
    with tempfile.TemporaryDirectory() as folder:
        x = pathlib.Path(folder) / "x.npy"
        for rows, n in SHAPES:
            for rung in RUNGS:
                counts = []
                for m in (rows, 2 * rows):
                    write_npy(x, m, n)
                    count, why = counts_of(options.command, x, rung)
                    counts.append(count)
                missed, instructions = (None, None) if why else (b - a for a, b in zip(*counts))
                record = {"op": "softmax", "dtype": "float32", "shape": [rows, n], "case": "bytes, simulated caches",
                          "who": f"softfold:softmax_{rung}", "ms": None, "why": why or "bytes are counted, not timed",
                          "bytes": None if why else 64 * missed, "instructions": instructions, "flops": None,
                          "copy_ms": None, "bits": None, "device": f"{version} cachegrind, last level 1 MiB", "driver": None,
                          "commit": options.commit, "date": datetime.date.today().isoformat()}
                records.append(record)
                print(f"{rung:8}{rows:5} x {n:<8}", f"not here ({why})" if why else
                      f"{record['bytes'] / rows / n:.2f} bytes, {instructions / rows / n:.2f} instructions an element")
    if options.out:
        options.out.write_text("".join(json.dumps(r) + "\n" for r in records))


if __name__ == "__main__":
    sys.exit(main())
