"""Cache types the published rules count, by either engine's name, and what an element of each takes."""

from __future__ import annotations

from fractions import Fraction

from fitkit.errors import UnknownName

# Bytes of 32 elements. Source: ggml's block sizes (gguf/constants.py GGML_QUANT_SIZES); fp8 is one byte an element.
_BLOCK = {
    "f32": 128, "f16": 64, "bf16": 64, "auto": 64, "fp8": 32, "fp8_e4m3": 32, "fp8_e5m2": 32,
    "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18,
}  # fmt: skip
_SAME = {"fp16": "f16", "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "fp32": "f32"}


def cache_type(name: str) -> str:
    """The canonical name of a cache type, whichever engine's word was given.

    Raises UnknownName. `f16` and `auto` are the model's 16-bit type in both engines.
    """
    folded = str(name).strip().casefold()
    folded = _SAME.get(folded, folded)
    if folded not in _BLOCK:
        raise UnknownName.among("KV-cache type", name, _BLOCK)
    return folded


def element_bytes(name: str) -> Fraction:
    """Bytes of one cached element, a fraction where types come in blocks (q8_0: 34/32)."""
    return Fraction(_BLOCK[cache_type(name)], 32)
