"""Cache types the published rules count, by either engine's name, and what an element of each takes."""

from __future__ import annotations

from fractions import Fraction

from fitkit.errors import UnknownName
from fitkit.rules.llamacpp.rows import BLOCKS, CACHE_TYPES

# Names beside ggml's own: a cache in the model's 16-bit type, and one byte an element.
_BYTES = {"auto": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_KNOWN = (*CACHE_TYPES, *_BYTES)
_SAME = {"fp16": "f16", "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "fp32": "f32"}


def cache_type(name: str) -> str:
    """The canonical name of a cache type, whichever engine's word was given.

    Raises UnknownName. `f16` and `auto` are the model's 16-bit type in both engines.
    """
    folded = str(name).strip().casefold()
    folded = _SAME.get(folded, folded)
    if folded not in _KNOWN:
        raise UnknownName.among("KV-cache type", name, _KNOWN)
    return folded


def element_bytes(name: str) -> Fraction:
    """Bytes of one cached element, a fraction where types come in blocks (q8_0: 34/32)."""
    kind = cache_type(name)
    if kind in _BYTES:
        return Fraction(_BYTES[kind])
    block, size = BLOCKS[kind.upper()]
    return Fraction(size, block)
