#!/usr/bin/env python3
"""Draws first-run.png from what ./run left in a folder: plot_first_run.py FOLDER [TOKENS]

Left, with TOKENS (one a line): attention weights of one head. Without: how much of a row's probability its largest
elements hold. Right: the ladder, the time of each rung as a share of a copy of the same bytes.
"""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

INK, BAR, OFF = "#222222", "#3b6ea5", "#c05a4e"
LAYER, HEAD, FIRST, LAST = 2, 9, 0, 64


def weights(axes, probabilities, tokens):
    words = tokens[FIRST:LAST]
    axes.imshow(probabilities[LAYER, HEAD, FIRST:LAST, FIRST:LAST] ** 0.5, cmap="Blues", vmin=0, vmax=1)
    places = range(LAST - FIRST)
    axes.set_xticks(places, words, rotation=90, fontsize=4.2)
    axes.set_yticks(places, words, fontsize=4.2)
    axes.tick_params(length=0, pad=1)
    axes.set_title(f"Attention weights, layer {LAYER}, head {HEAD}\n(each row is one softmax)", fontsize=9)


def concentration(axes, probabilities):
    if probabilities.dtype.kind == "V":  # bfloat16, which NumPy has no name for
        probabilities = (probabilities.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    rows = probabilities.reshape(-1, probabilities.shape[-1])[:6]
    for row in rows:
        held = np.cumsum(np.sort(row.astype(np.float64))[::-1])
        axes.plot(np.arange(1, held.size + 1), held, lw=1.2)
    axes.set_xscale("log")
    axes.set_xlabel("largest elements of the row")
    axes.set_ylabel("probability they hold")
    axes.set_title(f"The first {len(rows)} rows", fontsize=9)


def ladder(axes, records):
    first, last = [], []
    for record in records:  # the same rungs twice: the scores, then the scores times 1000
        (last if any(r["who"] == record["who"] for r in first) else first).append(record)
    names = [r["who"].rsplit("_", 1)[-1] for r in first]
    for place, record in enumerate(first):
        if record["ms"] is None:
            axes.text(0.01, place, "not here: " + record["why"], va="center", fontsize=7)
            continue
        share = record["copy_ms"] / record["ms"]
        axes.barh(place, share, color=BAR, height=0.62)
        traffic = ""
        if "reads" in record:
            reads = record["reads"]
            traffic = f"{reads} read{'s' * (reads > 1)}, {record['bytes_per_element']} bytes an element"
        inside = share > 0.45
        axes.text(share + (-0.01 if inside else 0.01), place, f"{100 * share:.0f}%   {traffic}", va="center",
                  ha="right" if inside else "left", color="white" if inside else INK, fontsize=7.5)
        lost = last[place]["nan_rows"] if place < len(last) else 0
        if lost:
            axes.text(0.01, place + 0.42, f"scores x 1000: NaN in {lost} of {record['shape'][0]} rows", fontsize=7,
                      color=OFF, va="center")
    axes.axvline(1, color=INK, lw=0.8, ls=":")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.05 * max([1.] + [r["copy_ms"] / r["ms"] for r in first if r["ms"]]))
    axes.set_xlabel("speed: share of a copy of the same bytes")
    shape = " x ".join(str(n) for n in first[0]["shape"])
    axes.set_title(f"The ladder: softmax of {shape} {first[0]['dtype']}, {first[0]['case']}", fontsize=9)


def main():
    folder = pathlib.Path(sys.argv[1])
    probabilities = np.load(folder / "softmax.npy", mmap_mode="r")
    records = [json.loads(line) for line in (folder / "ladder.jsonl").read_text().splitlines()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 5.4), gridspec_kw={"width_ratios": [1, 1.15]})
    if len(sys.argv) > 2:
        weights(left, probabilities, pathlib.Path(sys.argv[2]).read_text().split("\n"))
    else:
        concentration(left, probabilities)
    ladder(right, records)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    about = (folder / "first-run.txt").read_text().splitlines()[0]
    figure.text(0.5, 0.005, f"{about}, {records[0]['date']}", ha="center", fontsize=7, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(folder / "first-run.png", dpi=150)


if __name__ == "__main__":
    main()
