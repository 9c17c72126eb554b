"""A safetensors header → names, types, shapes and exact bytes; the weights themselves are never read.

The file: 8 bytes with the header's length (little-endian), that much JSON, then the tensors' bytes without gaps. Bytes
come through a callable, so a local file and a server's byte ranges are read alike.
Source: the format's description in huggingface/safetensors, README.md and its reader's checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fitkit.errors import BadInput, printable, short
from fitkit.sources.json_text import strict_json

ReadRange: TypeAlias = Callable[[int, int], bytes]  # (offset, length) → exactly that many bytes, fewer at the end

BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16, "I8": 8, "U8": 8,
    "BOOL": 8, "C64": 64,
}  # fmt: skip

# The format allows 100 MB; the largest published header has a few. More is refused unread, to stay quick and small.
MOST_HEADER_BYTES = 32 * 2**20
_MOST_DIMENSIONS, _MOST_SIZE = 16, 2**53
_KEYS = frozenset(("dtype", "shape", "data_offsets"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One tensor of a file; `shape` as stored (output first), packed types in their own words."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # in the data, after the header
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What one file holds: `data_bytes` of tensors after `header_bytes`."""

    tensors: tuple[Stored, ...]
    header_bytes: int
    data_bytes: int


def read_header(read: ReadRange, file_bytes: int, place: str) -> Header:
    """The checked header of a file of `file_bytes`.

    Raises BadInput, naming `place`, for anything that cannot be: a length past the end, text that is no JSON, sizes that
    do not match types and shapes, tensors that overlap or leave gaps.
    """
    if file_bytes < 8:
        raise BadInput(f"{place} has {file_bytes} bytes, too few for a safetensors header.")
    length = int.from_bytes(read(0, 8), "little")
    if length > file_bytes - 8:
        raise BadInput(f"{place}: the header's length {length:,} is past the end of a file of {file_bytes:,} bytes.")
    if length > MOST_HEADER_BYTES:
        raise BadInput(f"{place}: a header of {length:,} bytes is larger than any model's.")
    raw = read(8, length)
    if len(raw) != length:
        raise BadInput(f"{place} ends inside its header.")
    entries = strict_json(raw, place)
    if not isinstance(entries, dict):
        raise BadInput(f"{place}: the header is no mapping.")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadInput(f"{place}: __metadata__ must map texts to texts.")
    tensors = sorted(
        (_stored(name, entry, place) for name, entry in entries.items()), key=lambda one: (one.start, one.size_bytes)
    )
    expected = 0
    for tensor in tensors:
        if tensor.start != expected:
            what = "overlaps another tensor" if tensor.start < expected else "leaves a gap"
            raise BadInput(f"{place}: {short(tensor.name)} {what} at byte {tensor.start:,}.")
        expected += tensor.size_bytes
    if expected != file_bytes - 8 - length:
        raise BadInput(
            f"{place}: its tensors end at {8 + length + expected:,}, the file at {file_bytes:,} bytes"
            f"{': it is cut off' if 8 + length + expected > file_bytes else ''}."
        )
    return Header(tensors=tuple(tensors), header_bytes=8 + length, data_bytes=expected)


def _stored(name: str, entry: Any, place: str) -> Stored:
    """One entry of the header, checked by itself."""
    if not isinstance(entry, dict) or not entry.keys() >= _KEYS:
        raise BadInput(f"{place}: {short(name)} has no dtype, shape and data_offsets.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise BadInput(f"{place}: {short(name)} is of type {short(dtype)}; known are {', '.join(BITS)}.")
    if not _are_sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        raise BadInput(f"{place}: the shape of {short(name)} is {short(shape)}.")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise BadInput(f"{place}: the offsets of {short(name)} are {short(offsets)}.")
    needed = math.prod(shape) * bits
    if needed % 8 or needed // 8 != offsets[1] - offsets[0]:
        raise BadInput(
            f"{place}: {short(name)} has {offsets[1] - offsets[0]:,} bytes where {dtype} x {short(shape)} needs {needed / 8:,.0f}."
        )
    return Stored(name=name, dtype=dtype, shape=tuple(shape), start=offsets[0], size_bytes=needed // 8)


def _are_sizes(value: object) -> bool:
    """Whether a list holds whole numbers that a file can have; the most often asked question of a large header."""
    if type(value) is not list:
        return False
    for one in value:  # noqa: SIM110 (half the time of all())
        if type(one) is not int or not 0 <= one <= _MOST_SIZE:
            return False
    return True


def read_file(path: Path) -> Header:
    """The header of a local file."""
    size = path.stat().st_size
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        return read_header(read, size, printable(path.name))


def joined(headers: Mapping[str, Header]) -> dict[str, Stored]:
    """All tensors of several files by name.

    Raises BadInput where two files hold one name.
    """
    found: dict[str, Stored] = {}
    for place, header in headers.items():
        for tensor in header.tensors:
            if tensor.name in found:
                raise BadInput(f"{place}: {short(tensor.name)} is in another file of the model too.")
            found[tensor.name] = tensor
    return found
