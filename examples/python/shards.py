#!/usr/bin/env python3
"""One row in many hands: reduced with functools, with worker processes, and with Dask; the bits are the whole row's.

    python examples/python/shards.py [functools|processes|dask]
"""

import concurrent.futures
import functools
import sys

import numpy as np

import softfold

N, PIECE = 1_000_000, 123_456


def piece(offset):
    """Some worker's part of the row: here made up, elsewhere read from a file or a table."""
    whole = np.random.default_rng(1).standard_normal(N, dtype=np.float32) * 4
    return whole[offset : offset + PIECE]


def fold(offset):
    """What a worker sends: a few kilobytes, whatever its piece's size."""
    stream = softfold.Stream(offset=offset)
    stream.push(piece(offset))
    return stream.partial()


def with_functools():
    return functools.reduce(softfold.merge, map(fold, range(0, N, PIECE)))


def with_processes():
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        return softfold.merge(*pool.map(fold, range(0, N, PIECE)))


def with_dask():
    import dask.bag

    offsets = dask.bag.from_sequence(range(0, N, PIECE), npartitions=4)
    return offsets.map(fold).reduction(lambda part: softfold.merge(*part), lambda parts: softfold.merge(*parts)).compute(
        scheduler="threads"
    )


def main(names):
    whole = np.concatenate([piece(offset) for offset in range(0, N, PIECE)])
    want = softfold.state(whole)
    ways = [with_functools, with_processes, with_dask]
    for way in [w for w in ways if not names or w.__name__.removeprefix("with_") in names]:
        try:
            partial = way()
        except ImportError as missing:
            print(f"{way.__name__}: not run, {missing.name} is not installed")
            continue
        same = partial.state().tobytes() == want.tobytes()
        print(f"{way.__name__}: logsumexp {partial.logsumexp():.6f}, the whole row's bits: {same}")
        # The second pass: any worker finishes its own piece, given what all of them know together.
        assert np.array_equal(softfold.finish(partial, piece(0)), softfold.softmax(whole)[:PIECE])


if __name__ == "__main__":
    main(sys.argv[1:])
