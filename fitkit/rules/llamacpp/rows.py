"""Bytes of ggml's types: rows come in blocks."""

from __future__ import annotations

from typing import overload

from fitkit.errors import UnknownName
from fitkit.rules.base import IntArray

# type -> (elements in a block, bytes of a block). Source: ggml-common.h and ggml.c's type traits, b11434.
BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "F64": (1, 8),
    "I8": (1, 1), "I16": (1, 2), "I32": (1, 4), "I64": (1, 8),
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "Q8_K": (256, 292),
    "IQ1_S": (256, 50), "IQ1_M": (256, 56), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98), "IQ3_S": (256, 110), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136),
    "TQ1_0": (256, 54), "TQ2_0": (256, 66), "MXFP4": (32, 17), "NVFP4": (64, 36), "Q1_0": (128, 18),
    "Q2_0": (64, 18),
}  # fmt: skip
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
PLAIN = ("f32", "f16", "bf16")


@overload
def row_bytes(kind: str, elements: int) -> int: ...
@overload
def row_bytes(kind: str, elements: IntArray) -> IntArray: ...
def row_bytes(kind: str, elements: int | IntArray) -> int | IntArray:
    """Bytes of a row of `elements` in a ggml type, by either spelling.

    >>> row_bytes("q8_0", 1024)
    1088
    """
    if kind.upper() not in BLOCKS:
        raise UnknownName.among("ggml type", kind, BLOCKS)
    block, size = BLOCKS[kind.upper()]
    return elements // block * size


def block_of(kind: str) -> int:
    """Elements in one block of a type."""
    return BLOCKS[kind.upper()][0]


def is_quantized(kind: str) -> bool:
    """Whether a cache type comes in blocks."""
    return block_of(kind) > 1


def padded(size: IntArray, alignment: int) -> IntArray:
    """`size` rounded up to a multiple of `alignment`."""
    return (size + (alignment - 1)) // alignment * alignment
