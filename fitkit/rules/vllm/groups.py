"""Layers into groups that share one block table, and the bytes of one block of the pool.

Every group draws blocks of one size from one pool, so layers of different kinds are brought to one page size, cut into
groups of about equal layer count, and the largest group sets the block's bytes.

Source: vLLM 0.33.0, v1/core/kv_cache_planning.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fitkit.errors import UnsupportedModel
from fitkit.rules.vllm.pages import Spec

Group = tuple[Spec, ...]


def grouped(
    specs: Sequence[Spec], *, hybrid_manager: bool = True, packed: bool = False, even: float = 1.5
) -> tuple[Group, ...]:
    """The groups of all layers' caches. `packed` is the block-outermost layout that mixes page sizes in a block.

    Kinds whose layer counts differ by less than the factor `even` are padded to one size instead of cut.
    """
    specs = list(specs) if hybrid_manager else promoted(specs)
    if not specs:
        return ()
    if one_type(specs):
        return (tuple(specs),)
    if packed and len({spec.page for spec in specs}) > 1:
        return packed_groups(specs)
    return equal_groups(one_page(specs), even)


def promoted(specs: Sequence[Spec]) -> list[Spec]:
    """Windows and chunks allocated like full attention, as without the hybrid cache manager."""
    full = {spec.block for spec in specs if spec.kind == "full"}
    if not full or one_type(list(specs)):
        return list(specs)
    block = full.pop() if len(full) == 1 else 0
    out = [
        replace(spec, kind="full", block=block or spec.block, window=0, padded=0)
        if spec.kind in ("sliding", "chunked")
        else spec
        for spec in specs
    ]
    if not one_type(out):
        raise UnsupportedModel("Without the hybrid KV cache manager vLLM cannot bring this model's layers to one kind.")
    return out


def one_type(specs: Sequence[Spec]) -> bool:
    """Whether all need the same number of token slots: one kind, block and window."""
    first = specs[0]
    if any(spec.kind != first.kind or spec.block != first.block for spec in specs):
        return False
    if first.kind == "state":
        return all((spec.page, spec.checkpoint) == (first.page, first.checkpoint) for spec in specs)
    return all(spec.window == first.window for spec in specs)


def one_page(specs: Sequence[Spec]) -> list[Spec]:
    """All brought to the largest page: by a larger block where it divides, else by padding."""
    page = max(spec.page for spec in specs)
    out = []
    for spec in specs:
        if spec.page == page:
            out.append(spec)
        elif spec.kind != "state" and page % spec.page == 0:
            out.append(replace(spec, block=spec.block * (page // spec.page)))
        elif spec.kind == "state" or not spec.latent:
            out.append(replace(spec, padded=page))
        else:
            raise UnsupportedModel(
                f"An MLA page of {spec.page} bytes does not divide the largest page of {page} bytes, which vLLM cannot place."
            )
    return out


def equal_groups(specs: Sequence[Spec], even: float) -> tuple[Group, ...]:
    """Layers of like specs cut into groups of one size, taken with a stride so that pipeline stages stay even."""
    buckets: dict[Spec, list[Spec]] = {}
    for spec in specs:
        buckets.setdefault(spec.alike, []).append(spec)
    smallest = min(map(len, buckets.values()))
    largest = max(map(len, buckets.values()))
    size = largest if largest < even * smallest else smallest
    out: list[Group] = []
    for layers in buckets.values():
        count = -(-len(layers) // size)
        out.extend(tuple(layers[start::count]) for start in range(count))
    return tuple(out)


def packed_groups(specs: Sequence[Spec]) -> tuple[Group, ...]:
    """Groups whose blocks pack pages of different sizes side by side (DeepSeek-V4).

    A bucket holds layers of one type. A bucket whose page sizes occur equally often is a pattern that repeats, and may be
    cut into groups of fewer repeats; a bucket of unequal counts stays whole.
    """
    buckets: list[list[Spec]] = []
    for spec in specs:
        home = next((bucket for bucket in buckets if one_type([*bucket, spec])), None)
        if home is None:
            buckets.append([spec])
        else:
            home.append(spec)
    counts = [Counter(spec.page for spec in bucket) for bucket in buckets]
    even = [len(set(count.values())) == 1 for count in counts]
    repeats = [max(count.values()) for count in counts]
    floor = max((n for n, same, count in zip(repeats, even, counts, strict=True) if same and len(count) > 1), default=0)
    per_group = least_padding([n for n, same in zip(repeats, even, strict=True) if same], floor) if floor else 0
    pieces = [-(-n // per_group) if same and per_group else 1 for n, same in zip(repeats, even, strict=True)]
    splits = [bucket[0].kind == "state" or (not per_group and bucket[0].kind == "sliding") for bucket in buckets]
    anchor = max(
        sum(-(-n // (len(bucket) if split else piece)) * page for page, n in count.items())
        for bucket, count, piece, split in zip(buckets, counts, pieces, splits, strict=True)
    )
    out: list[Group] = []
    for bucket, piece, split in zip(buckets, pieces, splits, strict=True):
        if split:
            piece = max(piece, -(-len(bucket) // max(anchor // bucket[0].page, 1)))
        out.extend(cut(bucket, piece))
    return tuple(out)


def cut(bucket: Sequence[Spec], pieces: int) -> list[Group]:
    """A bucket's repeats (one layer of each page size) dealt out to `pieces` groups."""
    if pieces == 1:
        return [tuple(bucket)]
    by_page: dict[int, list[Spec]] = {}
    for spec in bucket:
        by_page.setdefault(spec.page, []).append(spec)
    repeats = list(zip(*by_page.values(), strict=True))
    return [tuple(spec for repeat in repeats[start::pieces] for spec in repeat) for start in range(pieces)]


def least_padding(counts: Sequence[int], floor: int) -> int:
    """The group size from `floor` on that rounds `counts` up by least in sum; the larger of equals."""
    sizes = range(max(1, floor), max(max(counts), floor) + 1)
    return min(sizes, key=lambda size: (sum(-n % size for n in counts), -size))


def bytes_per_block(groups: Sequence[Group], layers: range | None = None, *, align: int = 1) -> int:
    """Bytes of one block of the pool for the given layers (all, or one pipeline stage's)."""
    largest = max(
        (sum(spec.page for spec in group if layers is None or spec.layer in layers) for group in groups), default=0
    )
    return math.ceil(largest / align) * align
