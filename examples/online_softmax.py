#!/usr/bin/env python3
"""From the textbook's softmax to one that can be computed in pieces, on several machines, with the same bits.

    python examples/online_softmax.py            runs every step and prints the page
    python examples/online_softmax.py --write    writes the page to docs/online_softmax.md, its pictures to docs/img
    python examples/online_softmax.py --check    says whether they are what would be written

Every step is a few lines of Python beside softfold's own function. The page is made by running them: what it shows is
what they printed, the pictures are drawn from what they computed, and the tests compare all of it.
"""

import contextlib
import io
import pathlib
import sys
import textwrap

import online_pictures

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "online_softmax.md"

STEPS = [
    (
        "Softmax, as the textbook has it",
        "A row of numbers becomes probabilities: exponentials, divided by their sum.",
        """
        import functools
        import math
        import numpy as np
        import softfold

        def naive(x):
            e = np.exp(x)
            return e / e.sum()

        x = np.array([1.0, 2.0, 3.0])
        print(naive(x).round(4))
        """,
    ),
    (
        "It overflows",
        "exp(710) is beyond the largest float64 and exp(89) beyond the largest float32: infinity divided by infinity "
        "is no number. Attention scores and logits reach that easily.",
        """
        with np.errstate(all="ignore"):
            print(naive(np.array([710.0, 711.0, 712.0])))
        """,
    ),
    (
        "Safe: subtract the maximum first",
        "The same factor in numerator and denominator cancels, so the largest exponential can be made 1. But now the "
        "row is read three times: for its maximum, for the sum, and to write.",
        """
        def safe(x):
            e = np.exp(x - x.max())
            return e / e.sum()

        print(safe(np.array([710.0, 711.0, 712.0])).round(4))
        print(softfold.softmax(np.array([710.0, 711.0, 712.0])).round(4))
        """,
    ),
    (
        "Online: maximum and sum in one pass",
        "When a larger maximum comes along, the sum so far is rescaled to it. Two numbers are all that has to be "
        "remembered: the *state* (m, d), with sum exp(x) = d exp(m).",
        """
        def push(state, value):
            m, d = state
            top = max(m, value)
            return top, d * math.exp(m - top) + math.exp(value - top)

        x = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
        state = (-math.inf, 0.0)
        for value in x:
            state = push(state, value)
            print(f"after {value}: m = {state[0]}, d = {state[1]:.6f}")
        """,
    ),
    (
        "softfold's state, in base 2",
        "softfold keeps m as an integer power of two: sum exp(x) = d 2^m. Every rescale is then exact, which is where "
        "its one answer comes from. The last two numbers say by what the row was scaled and in how many digits it was "
        "folded: 24 in float32; 53 in float64, where m is kept halved so that the largest float64 fits.",
        """
        m, d, scale, digits = softfold.state(x.astype(np.float32))
        print(f"m = {m}, d = {d:.6f}, scale = {scale}, digits = {digits}")
        print(f"{d * 2**m:.2f} is {state[1] * math.exp(state[0]):.2f}")
        print(f"logsumexp: {math.log(d) + m * math.log(2):.6f} is {softfold.logsumexp(x):.6f}")
        """,
    ),
    (
        "Blocks: a merge instead of a push",
        "Two states merge by the same rule as a state and a number. The merge is associative and commutative, so "
        "blocks may be folded anywhere and in any order.",
        """
        def merge(a, b):
            top = max(a[0], b[0])
            return top, a[1] * math.exp(a[0] - top) + b[1] * math.exp(b[0] - top)

        def fold(block):
            return functools.reduce(push, block, (-math.inf, 0.0))

        m, d = merge(fold(x[:3]), fold(x[3:]))
        print(f"m = {m}, d = {d:.6f}")

        shards = [softfold.state(x[:3]), softfold.state(x[3:])]
        whole = functools.reduce(softfold.merge, shards)
        print(f"{softfold.finish(whole):.6f} is {softfold.logsumexp(x):.6f}")
        print(softfold.finish(whole, x[3:]).round(6), "are the last five of")
        print(softfold.softmax(x).round(6))
        """,
    ),
    (
        "Merging results instead of states: logsumexp",
        "Often only the results are left: the blocks' softmaxes and their logsumexps. They merge too: each block is "
        "weighted by exp(its lse - the joint lse).",
        """
        blocks = [x[:4], x[4:]]
        ps = [softfold.softmax(b) for b in blocks]
        lses = np.array([softfold.logsumexp(b) for b in blocks])
        joint = softfold.logsumexp(lses)
        print(np.concatenate([p * math.exp(l - joint) for p, l in zip(ps, lses)]).round(6))

        merged, lse = softfold.merge_blocks([p[None] for p in ps], [np.array([l]) for l in lses])
        print(np.concatenate(merged, -1)[0].round(6))
        """,
    ),
    (
        "The two-block update of attention",
        "Attention is a softmax whose probabilities weight the rows of v. Over two blocks of keys, each computed on its "
        "own, the outputs merge by the same weights: this is what ring attention does with every block that arrives.",
        """
        rng = np.random.default_rng(0)
        scores, v = rng.standard_normal((2, 6)), rng.standard_normal((6, 3))

        def attend(scores, v):
            return softfold.softmax(scores, -1) @ v, softfold.logsumexp(scores, -1)

        (out_a, lse_a), (out_b, lse_b) = attend(scores[:, :2], v[:2]), attend(scores[:, 2:], v[2:])
        out, lse = softfold.merge_attention([out_a, out_b], [lse_a, lse_b])
        print(out.round(6))
        print((softfold.softmax(scores, -1) @ v).round(6))
        """,
    ),
    (
        "Attention, a block of keys at a time",
        "With the state (m, d, o), o being the sum of the values weighted so far, attention reads keys and values block "
        "by block and never holds all scores: when the maximum grows, d and o are rescaled alike.",
        """
        q, k, v = rng.standard_normal((3, 8, 4))
        c = 1 / math.sqrt(q.shape[1])

        def attention(q, k, v, size):
            m, d, o = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros((len(q), v.shape[1]))
            for at in range(0, len(k), size):
                s = c * q @ k[at : at + size].T
                top = np.maximum(m, s.max(-1))
                old, e = np.exp(m - top), np.exp(s - top[:, None])
                m, d, o = top, d * old + e.sum(-1), o * old[:, None] + e @ v[at : at + size]
            return o / d[:, None]

        whole = softfold.softmax(q @ k.T, -1, scale=c) @ v
        print(whole[:2].round(6))
        for size in (1, 3, 8):
            print(f"{size} keys at a time:", np.allclose(attention(q, k, v, size), whole, rtol=0, atol=1e-14))
        """,
    ),
    (
        "Ring attention",
        "Four ranks hold a quarter of the queries, keys and values each. Keys and values travel around the ring; every "
        "rank attends to the block that it holds and merges the result into what it has. No rank ever sees all keys, and "
        "what travels does not grow with the number of queries.",
        """
        ranks = 4
        qs, ks, vs = (np.split(a, ranks) for a in (q, k, v))
        outs, lses, held = [None] * ranks, [None] * ranks, []
        for step in range(ranks):
            held.append([(rank - step) % ranks for rank in range(ranks)])
            for rank, block in enumerate(held[-1]):
                out, lse = attend(c * qs[rank] @ ks[block].T, vs[block])
                if step > 0:
                    out, lse = softfold.merge_attention([outs[rank], out], [lses[rank], lse])
                outs[rank], lses[rank] = out, lse
            print(f"step {step}: rank 0 has seen blocks", [row[0] for row in held])
        print("all queries over all keys:", np.allclose(np.concatenate(outs), whole, rtol=0, atol=1e-14))
        """,
    ),
    (
        "One answer",
        "Floating-point addition is not associative, so an ordinary merge gives other last bits for other cuts. "
        "softfold's partials keep what the fixed tree of additions needs: however a row is cut, whoever folds the pieces, "
        "in whatever order they are joined, the bits are those of the whole row.",
        """
        row = rng.standard_normal(100_000).astype(np.float32)
        whole = softfold.state(row)
        for cut in (1, 777, 50_000):
            left, right = softfold.Stream(), softfold.Stream(offset=cut)
            left.push(row[:cut])
            right.push(row[cut:])
            joined = softfold.merge(right.partial(), left.partial())
            print(f"cut at {cut}: the same bits is", bytes(joined.state()) == bytes(whole))
        """,
    ),
]

# By the step's title: the picture's name, what it shows, and how it is drawn from the names that the steps defined.
PICTURES = {
    "Online: maximum and sum in one pass": (
        "online_push.svg", "The row, its running maximum and the running sum", online_pictures.push),
    "Merging results instead of states: logsumexp": (
        "online_blocks.svg", "Two blocks' softmaxes and their shares of the whole row", online_pictures.blocks),
    "Ring attention": ("online_ring.svg", "Which rank holds which block of keys at which step", online_pictures.ring),
}  # fmt: skip

HEAD = """\
# Online softmax, step by step

This page is made by `python examples/online_softmax.py --write`: every block is run, and what follows it is what it
printed. A step uses what the steps before it defined.
"""


def made():
    """The page, with every step run, and its pictures by their names."""
    names, parts, pictures = {}, [HEAD], {}
    for number, (title, text, code) in enumerate(STEPS, 1):
        code = textwrap.dedent(code).strip()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"<step {number}>", "exec"), names)
        words = "\n".join(textwrap.wrap(text, 120))
        output = printed.getvalue().rstrip()
        parts.append(f"## {number}. {title}\n\n{words}\n\n```python\n{code}\n```\n\n```text\n{output}\n```\n")
        if title in PICTURES:
            name, shows, draw = PICTURES[title]
            parts.append(f"![{shows}](img/{name})\n")
            pictures[name] = draw(names)
    return "\n".join(parts), pictures


def main(arguments):
    page, pictures = made()
    files = {PAGE: page} | {PAGE.parent / "img" / name: picture for name, picture in pictures.items()}
    if arguments == ["--write"]:
        for path, content in files.items():
            path.write_text(content)
    elif arguments == ["--check"]:
        stale = [path.name for path, content in files.items() if not path.exists() or path.read_text() != content]
        if stale:
            sys.exit(f"not what would be written: {', '.join(stale)}; run: python examples/online_softmax.py --write")
    else:
        print(page)


if __name__ == "__main__":
    main(sys.argv[1:])
