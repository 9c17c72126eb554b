"""GGUF files that lie: each is refused with a BadInput that names the place, quickly and in bounded memory."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fitkit as fk
from fitkit.errors import BadInput, FitError

U8, I8, U32, I32, F32, STRING, ARRAY, U64 = 0, 1, 4, 5, 6, 8, 9, 10
MOST_SECONDS, MOST_BYTES = 1.0, 64 * 2**20


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, code: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", code) + value


def tensor(name: str | bytes, shape: tuple[int, ...], code: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)


def opening(tensors: int, entries: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


ARCH = entry("general.architecture", STRING, text("llama"))


def whole(entries: list[bytes], tensors: list[bytes], data: int = 4096, version: int = 3) -> bytes:
    head = opening(len(tensors), len(entries), version) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


def u32(key: str, value: int) -> bytes:
    return entry(f"llama.{key}", U32, struct.pack("<I", value))


SOUND = [
    ARCH,
    u32("block_count", 1),
    u32("context_length", 64),
    u32("embedding_length", 32),
    u32("attention.head_count", 1),
]
GOOD = whole(SOUND, [tensor("token_embd.weight", (32, 8))])

FILES = {
    "empty": (b"", "empty"),
    "magic only": (b"GGUF", "GGUF and a version"),
    "a text": (b"hello" * 100, "GGUF and a version"),
    "a version of the future": (opening(0, 0, 4) + bytes(64), "version is 4"),
    "the first version": (opening(0, 0, 1) + bytes(64), "version is 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), "big endian"),
    "countless tensors": (opening(2**60, 0) + bytes(64), "tensors"),
    "countless entries": (opening(0, 2**60) + bytes(64), "metadata entries"),
    "a key longer than the file": (opening(0, 1) + struct.pack("<Q", 2**50) + b"x", "a metadata key"),
    "a value longer than the file": (whole([entry("general.architecture", STRING, struct.pack("<Q", 2**50))], []), "'general.architecture'"),
    "a list longer than the file": (whole([entry("general.architecture", ARRAY, struct.pack("<IQ", STRING, 2**40))], []), "texts"),
    "a list of numbers longer than the file": (whole([entry("k", ARRAY, struct.pack("<IQ", U64, 2**61))], []), "the list 'k'"),
    "a list whose bytes overflow 64 bits": (whole([entry("k", ARRAY, struct.pack("<IQ", U64, 2**64 - 1))], []), "the list 'k'"),
    "a list of lists": (whole([entry("k", ARRAY, struct.pack("<IQ", ARRAY, 3) * 2000)], []), "holds the type 9"),
    "a list of an unknown type": (whole([entry("k", ARRAY, struct.pack("<IQ", 77, 3))], []), "holds the type 77"),
    "texts of which one is longer than the file": (whole([entry("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQQ", STRING, 5, 2**63))], []), "a text of"),
    "a value of an unknown type": (whole([entry("k", 13, bytes(8))], []), "unknown type 13"),
    "a key that is not UTF-8": (whole([entry(b"\xff\xfe", U32, bytes(4))], []), "not UTF-8"),
    "a value that is not UTF-8": (whole([entry("general.architecture", STRING, text(b"\xc3\x28"))], []), "not UTF-8"),
    "an empty key": (whole([entry("", U32, bytes(4))], []), "key is empty"),
    "a key twice": (whole([ARCH, ARCH], []), "comes twice"),
    "no architecture": (whole(SOUND[1:], []), "no general.architecture"),
    "an architecture that is a number": (whole([entry("general.architecture", U32, bytes(4))], []), "no general.architecture"),
    "an alignment of zero": (whole([*SOUND, entry("general.alignment", U32, bytes(4))], []), "general.alignment"),
    "an alignment that is no power of two": (whole([*SOUND, entry("general.alignment", U32, struct.pack("<I", 24))], []), "general.alignment"),
    "an alignment that is a text": (whole([*SOUND, entry("general.alignment", STRING, text("32"))], []), "general.alignment"),
    "a tensor twice": (whole(SOUND, [tensor("a", (32,)), tensor("a", (32,), 0, 128)]), "'a' comes twice"),
    "a tensor without a name": (whole(SOUND, [tensor("", (32,))]), "no name"),
    "a tensor's name that is too long": (whole(SOUND, [tensor("n" * 64, (32,))]), "a tensor's name"),
    "a tensor's name that is not UTF-8": (whole(SOUND, [tensor(b"\x80", (32,))]), "not UTF-8"),
    "no dimensions": (whole(SOUND, [tensor("a", ())]), "0 dimensions"),
    "five dimensions": (whole(SOUND, [tensor("a", (1, 1, 1, 1, 1))]), "5 dimensions"),
    "four billion dimensions": (whole(SOUND, [text("a") + struct.pack("<I", 2**32 - 1)]), "dimensions"),
    "a dimension of zero": (whole(SOUND, [tensor("a", (32, 0))]), "cannot be"),
    "a negative dimension": (whole(SOUND, [tensor("a", (2**64 - 32, 2))]), "cannot be"),
    "a product that overflows": (whole(SOUND, [tensor("a", (2**32, 2**32, 2**32))]), "cannot be"),
    "a product that overflows to something small": (whole(SOUND, [tensor("a", (2**33, 2**31, 4))]), "cannot be"),
    "an unknown type": (whole(SOUND, [tensor("a", (32,), 999)]), "the type 999"),
    "a type that was taken out": (whole(SOUND, [tensor("a", (32,), 4)]), "the type 4"),
    "rows that no block divides": (whole(SOUND, [tensor("a", (33,), 2)]), "rows of 33"),
    "data past the end": (whole(SOUND, [tensor("a", (2**20, 2**10))]), "cut short"),
    "an offset past the end": (whole(SOUND, [tensor("a", (32,), 0, 2**40)]), "lies at"),
    "tensors over one another": (whole(SOUND, [tensor("a", (32,)), tensor("b", (32,), 0, 64)]), "lies at 64"),
    "tensors with a gap": (whole(SOUND, [tensor("a", (32,)), tensor("b", (32,), 0, 256)]), "lies at 256"),
    "a block that is not there": (whole(SOUND, [tensor("blk.7.attn_q.weight", (32,))]), "belongs to block 7"),
    "a block beyond reason": (whole(SOUND, [tensor("blk.99999999999999.attn_q.weight", (32,))]), "belongs to block 99999999999999"),
    "blocks without end": (whole([ARCH, u32("block_count", 2**32 - 1), *SOUND[2:]], []), "block_count"),
    "a block count that is a text": (whole([ARCH, entry("llama.block_count", STRING, text("many")), *SOUND[2:]], []), "block_count"),
    "a negative block count": (whole([ARCH, entry("llama.block_count", I32, struct.pack("<i", -3)), *SOUND[2:]], []), "block_count"),
    "heads that are not numbers": (whole([*SOUND[:4], entry("llama.attention.head_count", F32, struct.pack("<f", float("nan")))], []), "head_count"),
    "a split of a thousand parts": (whole([*SOUND, entry("split.count", U32, struct.pack("<I", 1000))], []), "part"),
}  # fmt: skip


def refuse(path: Path) -> str:
    """The refusal's sentence; within a second and bounded memory, whatever the file."""
    started = time.process_time()
    tracemalloc.start()
    try:
        fk.load(path)
    except FitError as error:
        return str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES
        assert time.process_time() - started < MOST_SECONDS * 5  # tracemalloc slows it several times
    raise AssertionError("accepted")


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_by_its_place(name: str, tmp_path: Path) -> None:
    data, place = FILES[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    message = refuse(path)
    assert place in message
    assert "hostile.gguf" in message


def test_the_sound_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sound.gguf"
    path.write_bytes(GOOD)
    assert fk.load(path).params == 256


def test_the_second_version_and_other_alignments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(whole(SOUND, [tensor("token_embd.weight", (32, 8))], version=2))
    assert fk.load(path).params == 256
    aligned = [*SOUND, entry("general.alignment", U32, struct.pack("<I", 256))]
    tensors = [
        tensor("token_embd.weight", (32, 8)),
        tensor("output_norm.weight", (32,), 0, 1024),
        tensor("output.weight", (32, 8), 0, 1280),
    ]
    path.write_bytes(whole(aligned, tensors))
    assert fk.load(path).header_bytes % 256 == 0
    assert not fk.load(path).tied_embeddings


@pytest.mark.parametrize(
    "entries",
    [
        [entry(f"tokenizer.{i}", ARRAY, struct.pack("<IQ", STRING, 2**20) + bytes(8 * 2**20)) for i in range(3)],
        [entry("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2**21 + 1) + bytes(64))],
    ],
    ids=["many lists", "one list"],
)
def test_texts_without_end_are_refused(entries: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "texts.gguf"
    path.write_bytes(whole([ARCH, *entries], []))
    started = time.process_time()
    with pytest.raises(BadInput, match="texts"):
        fk.load(path)
    assert time.process_time() - started < MOST_SECONDS


def test_a_header_without_end_is_refused(tmp_path: Path) -> None:
    """A terabyte of hole whose first value says it is half of that."""
    path = tmp_path / "hole.gguf"
    path.write_bytes(opening(0, 1) + text("general.name") + struct.pack("<IQ", STRING, 2**38))
    os.truncate(path, 2**40)
    assert "more than any model" in refuse(path)


def test_most_tensors_are_still_quick(tmp_path: Path) -> None:
    many = 2**14
    table = b"".join(tensor(f"t{i}", (32,), 0, 128 * i) for i in range(many))
    path = tmp_path / "many.gguf"
    path.write_bytes(opening(many, len(SOUND)) + b"".join(SOUND) + table)
    os.truncate(path, path.stat().st_size + 128 * many + 64)
    started = time.process_time()
    fk.load(path)
    assert time.process_time() - started < 2 * MOST_SECONDS


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of a sound file overwritten, cut out or put in: a model or a FitError, nothing else."""
    raw = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(GOOD) - 4096 + 64))
        piece = data.draw(
            st.one_of(
                st.binary(max_size=12), st.sampled_from([struct.pack("<Q", n) for n in (0, 1, 2**31, 2**63, 2**64 - 1)])
            )
        )
        raw[at : at + data.draw(st.integers(0, 12))] = piece
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    with suppress(FitError):
        fk.load(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=400))
def test_noise_behind_the_magic_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + raw)
    with pytest.raises(FitError):
        fk.load(path)
