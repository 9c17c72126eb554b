"""Which layers a pipeline stage holds."""

from __future__ import annotations


def stages(layers: int, count: int) -> tuple[range, ...]:
    """The layer numbers of each stage: equal parts; left-over layers go one each to the stages before the last.

    Source: vLLM 0.33.0, distributed/utils.py get_pp_indices.

    >>> stages(30, 4)
    (range(0, 7), range(7, 15), range(15, 23), range(23, 30))
    """
    sizes = [layers // count] * count
    for i in range(layers % count):
        sizes[-2 - i if count > 1 else 0] += 1
    starts = [sum(sizes[:i]) for i in range(count)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))
