"""The header of a GGUF file, read without its weights and without building its tokenizer.

Only bytes up to the end of the tensor table are asked for, in pieces, through `Bytes`: a local file or a range reader over HTTP.
Bounds, whatever the file says: 16,384 metadata entries, 16,384 tensors, 2,097,152 strings and 256 MiB before the tensor table's
end; the reader itself keeps one piece (1 MiB), strings up to 64 KiB and number lists up to 16,384 entries.

Source: the GGUF specification (ggml docs/gguf.md) and what llama.cpp b11434's ggml/src/gguf.cpp refuses.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol

from fitkit.errors import BadInput, printable, short

PIECE_BYTES = 2**20
MOST_ENTRIES = MOST_TENSORS = 2**14
MOST_STRINGS, MOST_HEADER_BYTES = 2**21, 2**28
MOST_NAME, MOST_KEY, MOST_TEXT, MOST_LIST = 63, 65535, 2**16, 2**14

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_WIDTH = {code: struct.calcsize("<" + letter) for code, letter in _NUMBERS.items()}
_U64 = struct.Struct("<Q")
_NEWER = {42: ("Q2_0", 64, 18)}  # types that llama.cpp b11434 has and older gguf packages lack


class Bytes(Protocol):
    """Something that has bytes at offsets: a local file, or a file of a hub read by range."""

    place: str  # what to call it in a message
    size: int  # of the whole file [bytes]

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer only at the end of the file."""


class FileBytes:
    """A local file as Bytes."""

    def __init__(self, path: Path) -> None:
        self.place = printable(path.name)
        self.size = path.stat().st_size
        self._file: BinaryIO = path.open("rb")

    def read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(length)

    def __enter__(self) -> FileBytes:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One line of the tensor table: shape input first, ggml type name, bytes without padding, offset in the data section."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a GGUF file says of itself. `metadata` leaves out the tokenizer and whatever else is long."""

    place: str
    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_offset: int  # where the weights begin: the header's own length [bytes]
    file_bytes: int
    vocab: int = 0  # entries of the tokenizer, where it is in the file
    lists: Mapping[str, int] = field(default_factory=dict)  # how many entries each skipped list has


def read_header(source: Bytes) -> Header:
    """The header of `source`.

    Raises BadInput, naming the place, for anything that is no complete GGUF of version 2 or 3, little endian.
    """
    return _Reader(source).header()


class _Reader:
    """A cursor over `source` with one piece in memory."""

    def __init__(self, source: Bytes) -> None:
        self.source = source
        self.place = source.place
        self.start = 0  # of the piece in the file
        self.piece = b""
        self.at = 0  # in the piece
        self.strings = 0

    # ---- bytes ---------------------------------------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        return self.start + self.at

    def need(self, length: int, what: str) -> None:
        """Make sure `length` bytes are at the cursor."""
        if self.at + length <= len(self.piece):
            return
        offset = self.offset
        if offset + length > self.source.size:
            self.bad(f"{what} at byte {offset:,} needs {length:,} bytes, and the file ends at {self.source.size:,}")
        if offset + length > MOST_HEADER_BYTES:
            self.bad(f"its header goes past {MOST_HEADER_BYTES:,} bytes, more than any model's")
        wanted = min(max(length, PIECE_BYTES), self.source.size - offset)
        self.piece, self.start, self.at = self.source.read(offset, wanted), offset, 0
        if len(self.piece) < length:
            self.bad(f"{what} at byte {offset:,} could not be read whole")

    def skip(self, length: int, what: str) -> None:
        """Go on by `length` bytes without looking at them."""
        if self.offset + length > self.source.size:
            self.bad(f"{what} at byte {self.offset:,} says {length:,} bytes, and the file ends at {self.source.size:,}")
        if self.offset + length > MOST_HEADER_BYTES:
            self.bad(f"its header goes past {MOST_HEADER_BYTES:,} bytes, more than any model's")
        if self.at + length <= len(self.piece):
            self.at += length
        else:
            self.start, self.piece, self.at = self.offset + length, b"", 0

    def numbers(self, letters: str, what: str) -> tuple[Any, ...]:
        form = struct.Struct("<" + letters)
        self.need(form.size, what)
        values = form.unpack_from(self.piece, self.at)
        self.at += form.size
        return values

    def text(self, what: str, most: int) -> str:
        (length,) = self.numbers("Q", what)
        if length > most:
            self.bad(f"{what} before byte {self.offset:,} says {length:,} bytes, where at most {most:,} make sense")
        self.need(length, what)
        raw = self.piece[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.bad(f"{what} {short(raw[:40])} is not UTF-8")

    def bad(self, why: str) -> NoReturn:
        raise BadInput(f"{self.place} is no usable GGUF file: {why}.")

    # ---- parts ---------------------------------------------------------------------------------------------------------

    def header(self) -> Header:
        version, tensor_count, entry_count = self.opening()
        metadata, lists = self.metadata(entry_count)
        alignment = metadata.get("general.alignment", 32)
        if (
            not isinstance(alignment, int)
            or isinstance(alignment, bool)
            or alignment < 1
            or alignment & (alignment - 1)
        ):
            self.bad(f"general.alignment is {short(alignment)}, where a power of two was expected")
        infos = self.tensor_table(tensor_count, alignment)
        data_offset = -(-self.offset // alignment) * alignment
        for info in infos:
            end = data_offset + info.offset + info.size_bytes
            if end > self.source.size:
                self.bad(
                    f"tensor {short(info.name)} ends at byte {end:,}, and the file at {self.source.size:,}; it is cut short"
                )
        return Header(
            place=self.place, version=version, metadata=metadata, tensors=infos, data_offset=data_offset,
            file_bytes=self.source.size, vocab=lists.get("tokenizer.ggml.tokens", 0), lists=lists,
        )  # fmt: skip

    def opening(self) -> tuple[int, int, int]:
        """Magic, version, and the two counts."""
        if self.source.size < 24 or self.source.read(0, 4) != b"GGUF":
            self.bad("it does not begin with GGUF and a version" if self.source.size else "it is empty")
        _, version = self.numbers("4sI", "the version")
        if version > 0xFFFF and version & 0xFFFF == 0:
            self.bad("it is big endian, which llama.cpp reads on big endian machines only")
        if version not in (2, 3):
            self.bad(f"its version is {version}, where 2 or 3 was expected")
        tensors, entries = self.numbers("QQ", "the counts")
        for count, most, what in ((tensors, MOST_TENSORS, "tensors"), (entries, MOST_ENTRIES, "metadata entries")):
            if count > most:
                self.bad(f"it says {count:,} {what}, where at most {most:,} make sense")
        return version, tensors, entries

    def metadata(self, count: int) -> tuple[dict[str, Any], dict[str, int]]:
        """Every entry but the tokenizer's lists and what is too long to matter; the lists' lengths."""
        kept: dict[str, Any] = {}
        lists: dict[str, int] = {}
        seen: set[str] = set()
        for _ in range(count):
            key = self.text("a metadata key", MOST_KEY)
            if key in seen or not key:
                self.bad(f"metadata key {short(key)} comes twice" if key else "a metadata key is empty")
            seen.add(key)
            (code,) = self.numbers("I", f"the type of {short(key)}")
            if code == _ARRAY:
                values, lists[key] = self.array(key)
                if values is not None:
                    kept[key] = values
            else:
                value = self.value(code, key)
                if value is not None:
                    kept[key] = value
        return kept, lists

    def value(self, code: int, key: str) -> Any:
        """One value; None for a text that is too long to matter."""
        if code == _STRING:
            self.need(8, f"the value of {short(key)}")
            (length,) = _U64.unpack_from(self.piece, self.at)
            if key.startswith("tokenizer.") or length > MOST_TEXT:
                self.at += 8
                self.skip(length, f"the value of {short(key)}")
                return None
            return self.text(f"the value of {short(key)}", MOST_TEXT)
        if code not in _NUMBERS:
            self.bad(f"metadata key {short(key)} has the unknown type {code}")
        if code == _BOOL:
            return bool(self.numbers("B", key)[0])
        return self.numbers(_NUMBERS[code], f"the value of {short(key)}")[0]

    def array(self, key: str) -> tuple[tuple[Any, ...] | None, int]:
        """A list of numbers where it is short, and how many entries a list has."""
        code, count = self.numbers("IQ", f"the list {short(key)}")
        if code == _STRING:
            self.skip_strings(count, key)
            return None, count
        if code not in _NUMBERS:
            self.bad(f"the list {short(key)} holds the type {code}, where numbers, flags or texts were expected")
        width = _WIDTH[code]
        if key.startswith("tokenizer.") or count > MOST_LIST:
            self.skip(width * count, f"the list {short(key)}")
            return None, count
        letter = "B" if code == _BOOL else _NUMBERS[code]
        values = self.numbers(f"{count}{letter}", f"the list {short(key)}") if count else ()
        return tuple(map(bool, values)) if code == _BOOL else values, count

    def skip_strings(self, count: int, key: str) -> None:
        """Walk over `count` texts; their lengths are all that is looked at."""
        self.strings += count
        if self.strings > MOST_STRINGS:
            self.bad(f"the list {short(key)} brings its texts to {self.strings:,}, more than any tokenizer has")
        unpack, left = _U64.unpack_from, count
        while left:
            self.need(8, f"the list {short(key)}")
            piece, at, end = self.piece, self.at, len(self.piece) - 8
            while left and at <= end:
                at += 8 + unpack(piece, at)[0]
                left -= 1
            if at <= len(piece):
                self.at = at
            else:
                over, self.at = at - len(piece), len(piece)
                self.skip(over, f"a text of {short(key)}")

    def tensor_table(self, count: int, alignment: int) -> tuple[TensorInfo, ...]:
        """The tensors, which lie one after another."""
        sizes = type_sizes()
        infos: list[TensorInfo] = []
        seen: set[str] = set()
        expected = 0
        for _ in range(count):
            name = self.text("a tensor's name", MOST_NAME)
            if name in seen or not name:
                self.bad(f"tensor {short(name)} comes twice" if name else "a tensor has no name")
            seen.add(name)
            info = self.tensor(name, sizes)
            if info.offset != expected:
                self.bad(f"tensor {short(name)} lies at {info.offset:,} of the data, where {expected:,} was expected")
            expected += -(-info.size_bytes // alignment) * alignment
            infos.append(info)
        return tuple(infos)

    def tensor(self, name: str, sizes: Mapping[int, tuple[str, int, int]]) -> TensorInfo:
        (dims,) = self.numbers("I", f"tensor {short(name)}")
        if not 1 <= dims <= 4:
            self.bad(f"tensor {short(name)} has {dims} dimensions, where 1 to 4 were expected")
        *shape, code, offset = self.numbers(f"{dims}QIQ", f"tensor {short(name)}")
        if code not in sizes:
            self.bad(f"tensor {short(name)} has the type {code}, which no version of the gguf package knows")
        kind, block, block_bytes = sizes[code]
        elements = 1
        for size in shape:
            elements *= size
        if not 0 < elements < 2**62 or max(shape) >= 2**40:
            self.bad(f"tensor {short(name)} has the shape {short(shape)}, which cannot be")
        if shape[0] % block:
            self.bad(f"tensor {short(name)} has rows of {shape[0]}, which {kind} cannot hold: its blocks have {block}")
        return TensorInfo(name, tuple(shape), kind, offset, elements // block * block_bytes)


def type_sizes() -> Mapping[int, tuple[str, int, int]]:
    """Number of a ggml type → name, elements in a block, bytes of a block (from the gguf package)."""
    from gguf.constants import GGML_QUANT_SIZES

    return {**_NEWER, **{int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}}
