#!/usr/bin/env python3
"""Derives the coefficients of the portable exp2 and ln (include/softfold/fold) and compares them with the headers.

    python3 docs/scripts/exp2_coefficients.py

Needs mpmath. Prints each polynomial, highest power first, with its largest relative error before any arithmetic error
is made, and exits with 1 if a coefficient in the headers is another one. The method is described in
docs/one-answer.md: the minimax polynomial by Remez' exchange, its coefficients rounded from the lowest power up, and
after each of the first few roundings what is left fitted again.
"""

import pathlib
import re
import struct
import sys

from mpmath import atanh, cos, lu_solve, matrix, mp, mpf, nstr, pi, polyval, sqrt

mp.prec = 160
HEADERS = pathlib.Path(__file__).resolve().parents[2] / "include" / "softfold" / "fold"
GRID = 401  # odd: 0 is never a grid point


def round_to_float(v):
    return struct.unpack("f", struct.pack("f", float(v)))[0]


def local_extrema(e, low, high):
    """The largest |e| in every run of one sign, refined by parabolas ever closer around it."""
    xs = [(low + high) / 2 - (high - low) / 2 * cos(pi * i / GRID) for i in range(GRID + 1)]
    es = [e(x) for x in xs]
    points, i = [], 0
    while i <= GRID:
        j, best = i, i
        while j <= GRID and (es[j] >= 0) == (es[i] >= 0):
            best = j if abs(es[j]) > abs(es[best]) else best
            j += 1
        x = xs[best]
        if i < best < j - 1:
            step = (high - low) / GRID
            for _ in range(5):
                step /= 16
                before, at, after = e(x - step), e(x), e(x + step)
                x += max(-8, min(8, (before - after) / (before - 2 * at + after) / 2)) * step
        points.append((x, e(x)))
        i = j
    return points


def alternation(points, n):
    """n points of alternating sign among `points`: the smallest leave, in pairs unless they are at an end."""
    while len(points) > n:
        k = min(range(len(points)), key=lambda i: abs(points[i][1]))
        if k in (0, len(points) - 1):
            del points[k]
        elif len(points) == n + 1:
            del points[0 if abs(points[0][1]) < abs(points[-1][1]) else -1]
        else:
            left = abs(points[k - 1][1]) < abs(points[k + 1][1])
            del points[k - left : k - left + 2]
    return [x for x, _ in points]


def minimax(residual, weight, powers, low, high):
    """The c_k, k in powers, that minimise max |weight * (residual - sum c_k x^k)|, and that maximum.

    With lowest power k the terms are x^k times a polynomial: where x^k changes sign, so does the alternation.
    """
    n = len(powers) + 1
    flip = lambda x: -1 if x < 0 and powers[0] % 2 else 1
    xs = [(low + high) / 2 - (high - low) / 2 * cos(pi * (2 * i + 1) / (2 * n + 1)) for i in range(n)]
    for _ in range(60):
        a, b = matrix(n, n), matrix(n, 1)
        for i, x in enumerate(xs):
            for j, k in enumerate(powers):
                a[i, j] = weight(x) * x**k
            a[i, n - 1] = flip(x) * (-1) ** i
            b[i] = weight(x) * residual(x)
        c = list(lu_solve(a, b))[: n - 1]
        error = lambda x: flip(x) * weight(x) * (residual(x) - sum(v * x**k for v, k in zip(c, powers)))
        points = local_extrema(error, low, high)
        largest = max(abs(e) for _, e in points)
        new = alternation(points, n)
        settled = len(new) < n or max(abs(p - q) for p, q in zip(new, xs)) < mpf(10) ** -25
        if settled:
            break
        xs = new
    return c, largest


def fit(function, weight, degree, low, high, fixed, refits, rounded):
    """Coefficients of x^0 ... x^degree; the first len(fixed) are given, `refits` more are rounded one at a time."""
    c = list(fixed)
    while True:
        powers = list(range(len(c), degree + 1))
        rest, _ = minimax(lambda x: function(x) - polyval(c[::-1], x), weight, powers, low, high)
        if len(c) == len(fixed) + refits:
            break
        c.append(mpf(rounded(rest[0])))
    c += [mpf(rounded(v)) for v in rest]
    grid = [low + (high - low) * i / 4000 for i in range(4001)]
    return c[::-1], max(abs(weight(x) * (function(x) - polyval(c[::-1], x))) for x in grid)


def exp2(degree, refits, rounded):
    half = mpf(1) / 2
    return fit(lambda x: mpf(2) ** x, lambda x: mpf(2) ** -x, degree, -half, half, [mpf(1)], refits, rounded)


def ln_tail(degree):
    """R(s)/s^2 as a polynomial in z = s^2, where ln(1 + f) = f - h + s (h + R): weighted so that the error of ln is
    what is small."""
    series = lambda z: sum(2 * z**k / (2 * k + 3) for k in range(60))
    ln_over_s = lambda z: 2 + z * series(z)
    edge = (sqrt(mpf(2)) - 1) ** 4
    return fit(series, lambda z: z / ln_over_s(z), degree, mpf(0), edge, [], 1, float)


def near_ln_tail(degree):
    """What p's first two terms leave of the series in ln(g) = s (2 + z p(z)), over z^2, for float arithmetic: s (2 + ...)
    is hardly more than 2 s."""
    rest = lambda z: sum(2 * z**k / (2 * k + 7) for k in range(60))
    edge = (sqrt(mpf(2)) - 1) ** 4
    return fit(rest, lambda z: z**3 / 2, degree, mpf(0), edge, [], 0, round_to_float)


def main():
    header = "".join((HEADERS / name).read_text() for name in ("exp2-inl.hpp", "exp2.hpp"))
    known = {float.fromhex(v) for v in re.findall(r"0x1\.[0-9a-f]+p[+-]?\d+", header)} | {1.0}
    missing = 0
    for title, unit, (coefficients, error) in (
        ("2^f, float32, |f| <= 1/2", 24, exp2(5, 4, round_to_float)),
        ("2^f, float64, |f| <= 1/2", 53, exp2(11, 3, float)),
        ("R/z of ln, float64, z <= (sqrt(2) - 1)^4", 53, ln_tail(6)),
        ("the rest of p of the near ln, float32, of ln in 2^-40", 40, near_ln_tail(2)),
    ):
        print(f"{title}: approximation error {nstr(error * 2**unit, 4)} u")
        for v in map(float, coefficients):
            print(f"  {v.hex()}{'' if v in known else '   not in the headers'}")
            missing += v not in known
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
