"""How many blocks a request needs, how many tokens and requests a pool holds, and whether one request fits.

Source: vLLM 0.33.0, v1/core/kv_cache_planning.py and v1/kv_cache_interface.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fitkit.rules.base import IntArray
from fitkit.rules.vllm.groups import Group

Need = tuple[str, int, int, int]  # kind, block, window, fixed blocks


def needs(groups: Sequence[Group]) -> Counter[Need]:
    """What decides a group's blocks a request, and how many groups are like that."""
    return Counter(_need(group) for group in groups)


def _need(group: Group) -> Need:
    first = group[0]
    if first.kind != "state":
        return (first.kind, first.block, first.window, 0)
    return ("state", first.block, 0, 2 + max(spec.checkpoint for spec in group) if first.align_mode else 1)


def blocks_per_request(
    kinds: Counter[Need], length: IntArray, in_flight: IntArray, *, decode_context_parallel: int = 1
) -> IntArray:
    """Blocks one request of `length` tokens holds at most, over all groups.

    Full: ceil(L / B), L divided over decode-context ranks first. Sliding: ceil(min(window - 1 + F, L) / B) + 1. Chunked:
    ceil(min(chunk + F, L) / B). F is what is in flight. A state has 1 block, or 2 and its checkpoint with prefix caching.
    """
    total = np.zeros_like(length)
    for (kind, block, window, fixed), count in kinds.items():
        if kind == "full":
            share = (length + decode_context_parallel - 1) // decode_context_parallel
            each = -(-share // block)
        elif kind == "sliding":
            each = -(-np.minimum(window - 1 + in_flight, length) // block) + 1
        elif kind == "chunked":
            each = -(-np.minimum(window + in_flight, length) // block)
        else:
            each = np.full_like(length, fixed)
        total = total + count * each
    return total


def longest(kinds: Counter[Need], blocks: int, most: int, in_flight: int, *, decode_context_parallel: int = 1) -> int:
    """The longest request of at most `most` tokens that `blocks` hold, 0 where not even one token fits."""
    low, high = 0, most
    flight = np.array([in_flight], dtype=np.int64)
    while low < high:
        middle = (low + high + 1) // 2
        length = np.array([middle], dtype=np.int64)
        need = blocks_per_request(kinds, length, flight, decode_context_parallel=decode_context_parallel)
        if need[0] <= blocks:
            low = middle
        else:
            high = middle - 1
    return low
