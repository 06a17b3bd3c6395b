"""The pictures of online_softmax.py, as SVG: each drawn from the values that the page's own steps computed."""

BLUE, GREY, RED, GREENS = "#3b6fb6", "#c9ced6", "#c0392b", ("#2e7d5b", "#5fa777", "#93c59a", "#c8e2c6")


def text(x, y, words, anchor="middle", color="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def box(x, y, width, height, color):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'


def line(points, color):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'


def svg(width, height, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', box(0, 0, width, height, "white"), *parts,
                      "</svg>", ""])  # fmt: skip


def push(names):
    """The row, the running maximum over it, and the running sum below."""
    x, states, parts = names["x"], [(float("-inf"), 0.0)], []
    for value in x:
        states.append(names["push"](states[-1], value))
    maxima, sums = zip(*states[1:])
    parts.append(text(10, 20, "the row (bars), its maximum so far (line)", "start"))
    for i, value in enumerate(x):
        parts += [box(20 + 60 * i, 150 - 12 * value, 40, 12 * value, GREY), text(40 + 60 * i, 165, f"{value:g}")]
    steps = [(20 + 60 * i + side, 150 - 12 * m) for i, m in enumerate(maxima) for side in (0, 60)]
    parts += [line(steps, RED), text(10, 195, "the sum so far, in the frame of that maximum", "start")]
    for i, d in enumerate(sums):
        rescaled = i > 0 and maxima[i] > maxima[i - 1]
        parts.append(box(20 + 60 * i, 280 - 40 * d, 40, 40 * d, RED if rescaled else BLUE))
        parts.append(text(40 + 60 * i, 295, f"{d:.3f}"))
    return svg(510, 320, [*parts, text(10, 313, "red: rescaled, because a larger maximum came along", "start", RED)])


def blocks(names):
    """Each block's own softmax, and what is left of it in the whole row."""
    ps, merged, parts = names["ps"], names["merged"], [text(10, 20, "each block's own softmax: both sum to 1", "start")]
    for row, (top, of) in enumerate(((130, ps), (270, merged))):
        for b, p in enumerate(of):
            for i, share in enumerate(p.ravel()):
                at = 20 + 60 * (4 * b + i) + 10 * b
                parts.append(box(at, top - 90 * share, 40, 90 * share, (BLUE, GREENS[0])[b]))
                parts.append(text(at + 20, top + 14, f"{share:.3f}"))
    parts.append(text(10, 170, "times exp(its lse - the joint lse): the softmax of the whole row", "start"))
    return svg(520, 295, parts)


def ring(names):
    """Which block of keys and values each rank holds at each step."""
    held, parts = names["held"], [text(150, 20, "key block that a rank holds, at each step")]
    for step, row in enumerate(held):
        parts.append(text(10, 57 + 40 * step, f"step {step}", "start"))
        for rank, block in enumerate(row):
            parts.append(box(70 + 60 * rank, 35 + 40 * step, 54, 34, GREENS[block]))
            parts.append(text(97 + 60 * rank, 57 + 40 * step, f"k{block} v{block}"))
    bottom = 50 + 40 * len(held)
    parts += [text(97 + 60 * rank, bottom, f"rank {rank}") for rank in range(len(held[0]))]
    return svg(330, bottom + 15, parts)
