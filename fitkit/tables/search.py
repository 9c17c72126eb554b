"""The largest whole number that still fits, for many rows at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fitkit.rules import IntArray

_CELLS = 50_000
_STRIDE = 16  # of the first steps up: sizes far past the answer are dear to count, and nobody asks for them


def largest(holds: Callable[[IntArray, IntArray], np.ndarray], most: IntArray) -> IntArray:
    """For each row the largest n from 0 to `most` for which it holds; 0 where 1 does not.

    `holds(rows, n)` takes equal-long arrays of row numbers and candidates and says which fit; it must be monotone: where
    n fits, every smaller one does. First steps up by sixteen times, then probes many candidates at once, so that a range
    of a million takes a handful of calls.
    """
    low, high = _bracket(holds, most)
    while True:
        rows = np.flatnonzero(low < high)
        if not rows.size:
            return low
        width = int(min(128, max(2, _CELLS // rows.size)))
        span = high[rows] - low[rows]
        steps = np.arange(1, width + 1, dtype=np.int64)
        probes = low[rows][:, None] + -(-span[:, None] * steps // width)
        good = holds(np.repeat(rows, width), probes.ravel()).reshape(probes.shape)
        count = np.where(good.all(axis=1), width, good.argmin(axis=1))
        at = np.arange(rows.size)
        low_new = np.where(count > 0, probes[at, np.maximum(count - 1, 0)], low[rows])
        high_new = np.where(count < width, probes[at, np.minimum(count, width - 1)] - 1, high[rows])
        low[rows], high[rows] = low_new, np.maximum(high_new, low_new)


def _bracket(holds: Callable[[IntArray, IntArray], np.ndarray], most: IntArray) -> tuple[IntArray, IntArray]:
    """For each row a number that holds (or 0) and one that may be the largest, at most a stride apart."""
    low, high, n = np.zeros_like(most), most.copy(), np.ones_like(most)
    rows = np.flatnonzero(most > 0)
    while rows.size:
        good = holds(rows, n[rows])
        low[rows[good]] = n[rows[good]]
        high[rows[~good]] = n[rows[~good]] - 1
        rows = rows[good & (n[rows] < most[rows])]
        n[rows] = np.minimum(n[rows] * _STRIDE, most[rows])
    return low, high
