"""GGUF files in hub repositories and at addresses: the header alone travels, whatever the file's size."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hub_server import COMMIT, File, Hub

import fitkit as fk
from fitkit.sources.gguf_header import read_header
from fitkit.sources.variants import quant_in, variants
from fitkit.sources.wire import RemoteBytes, Wire

Shape = tuple[int, ...]
KEYS: dict[str, Any] = {
    "general.architecture": "llama", "general.name": "small", "llama.block_count": 2, "llama.context_length": 4096,
    "llama.embedding_length": 64, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.feed_forward_length": 96,
}  # fmt: skip


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def value(one: Any) -> bytes:
    """A metadata value with its type."""
    if isinstance(one, str):
        return struct.pack("<I", 8) + text(one)
    if isinstance(one, list):
        if one and isinstance(one[0], str):
            return struct.pack("<IIQ", 9, 8, len(one)) + b"".join(map(text, one))
        return struct.pack(f"<IIQ{len(one)}f", 9, 6, len(one), *one)
    return struct.pack("<II", 4, one)


def gguf_file(tensors: dict[str, Shape], more: dict[str, Any] | None = None) -> File:
    """A sparse F16 GGUF."""
    keys, offset, table = KEYS | (more or {}), 0, b""
    for name, shape in tensors.items():
        table += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 1, offset)
        offset += -(-2 * math.prod(shape) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(key) + value(one) for key, one in keys.items()) + table
    head += bytes(-len(head) % 32)
    return File(head, len(head) + offset, lfs=True)


def llama(blocks: Sequence[int] = (0, 1), ffn: int = 96, ends: bool = True) -> dict[str, Shape]:
    out: dict[str, Shape] = {"token_embd.weight": (64, 128), "output_norm.weight": (64,)} if ends else {}
    for i in blocks:
        for role, shape in (
            ("attn_norm", (64,)), ("attn_q", (64, 64)), ("attn_k", (64, 32)), ("attn_v", (64, 32)), ("attn_output", (64, 64)),
            ("ffn_norm", (64,)), ("ffn_gate", (64, ffn)), ("ffn_up", (64, ffn)), ("ffn_down", (ffn, 64)),
        ):  # fmt: skip
            out[f"blk.{i}.{role}.weight"] = shape
    return out


def split(count: int) -> Iterator[File]:
    """A model in parts: one block each, the tables in the first."""
    parts = [llama([i], ends=i == 0) for i in range(count)]
    total = sum(map(len, parts))
    for i, part in enumerate(parts):
        more = {"split.no": i, "split.count": count, "split.tensors.count": total, "llama.block_count": count}
        yield gguf_file(part, more)


def projector() -> File:
    return gguf_file({"v.blk.0.attn_q.weight": (64, 64), "mm.0.weight": (64, 64)}, {"general.architecture": "clip"})


def test_of_60_gb_with_150_000_tokens_under_20_mb_travel(hub: Hub) -> None:
    tokens = [f"token-number-{i}" for i in range(150_000)]
    tokenizer = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * len(tokens),
                 "tokenizer.ggml.merges": [f"to ken-{i}" for i in range(150_000)]}  # fmt: skip
    huge = gguf_file(llama(ffn=2 * 39_000_000), tokenizer)
    assert huge.size > 59e9
    hub.put("org/big-GGUF", {"big-F16.gguf": huge})
    started, cpu = time.perf_counter(), time.process_time()
    model = fk.load("org/big-GGUF:F16")
    print(
        f"{hub.sent / 1e6:.1f} MB in {time.perf_counter() - started:.2f} s ({time.process_time() - cpu:.2f} s of both ends' work)"
    )
    assert (model.file_bytes, model.header_bytes, model.vocab_size) == (huge.size, len(huge.head), 128)
    assert len(huge.head) < hub.sent < min(20e6, len(huge.head) + 5e6)
    assert [one.path for one in hub.asked if one.origin == "cdn"]
    assert sum("/resolve/" in path for path in hub.paths()) == 1  # the signed address is used again


def test_reading_far_away_keeps_one_window_in_memory(hub: Hub) -> None:
    tokens = [f"token-number-{i}" for i in range(400_000)]
    hub.put("org/repo", {"m.gguf": gguf_file(llama(), {"tokenizer.ggml.tokens": tokens})})
    tracemalloc.start()
    try:
        read_header(RemoteBytes(Wire(), f"{hub.url}/org/repo/resolve/main/m.gguf", "m.gguf"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20


@pytest.mark.parametrize(
    "source",
    ["org/repo:Q4_K_M", "org/repo:q4_k_m", "hf://org/repo/small-Q4_K_M.gguf", "org/repo@main:Q4_K_M", "URL/org/repo/resolve/main/small-Q4_K_M.gguf",
     "URL/org/repo/blob/main/small-Q4_K_M.gguf"],
)  # fmt: skip
def test_every_way_to_name_a_file(hub: Hub, source: str) -> None:
    file = gguf_file(llama())
    hub.put("org/repo", {"small-Q4_K_M.gguf": file, "small-Q8_0.gguf": gguf_file(llama()), "config.json": File(b"{}")})
    model = fk.load(source.replace("URL", hub.url))
    assert (model.file_bytes, model.revision, model.source) == (file.size, COMMIT, "org/repo:Q4_K_M")


def test_a_plain_address(hub: Hub) -> None:
    file = gguf_file(llama())
    hub.put("x", {"small.gguf": file})
    address = f"{hub.cdn}/cdn/x//small.gguf?Signature=secret"
    assert fk.load(address).params == fk.load(address.replace("http://", "HTTP://")).params > 0
    for wrong, said in (
        (f"{hub.cdn}/cdn/x//small.bin", "no address of a .gguf"),
        (f"{hub.cdn}/none.gguf", "HTTP 404"),
        ("https:///m.gguf", "no address"),
    ):
        with pytest.raises(fk.FitError, match=said) as caught:
            fk.load(wrong)
        assert "secret" not in str(caught.value)


def test_split_files_are_read_whole(hub: Hub) -> None:
    parts = list(split(3))
    names = [f"Q8_0/big-Q8_0-{i + 1:05d}-of-00003.gguf" for i in range(3)]
    hub.put("org/repo", dict(zip(names, parts, strict=True)))
    whole = fk.load("org/repo:Q8_0")
    assert (len(whole.layers), whole.file_bytes) == (3, sum(part.size for part in parts))
    assert fk.load(f"hf://org/repo/{names[1]}").file_bytes == whole.file_bytes
    assert fk.load(f"{hub.url}/org/repo/resolve/main/{names[2]}").params == whole.params
    hub.put("org/repo", dict(zip(names[:2], parts, strict=False)))
    with pytest.raises(fk.BadInput, match=r"one of 3 parts, and Q8_0/big-Q8_0-00003-of-00003\.gguf is not beside it"):
        fk.load("org/repo:Q8_0")


def test_parts_that_do_not_belong_together_are_refused(hub: Hub) -> None:
    first, second, _ = split(3)
    names = [f"m-{i + 1:05d}-of-00003.gguf" for i in range(3)]
    for files in ([first, second, second], [second, first, second], [first, first, first]):
        hub.put("org/repo", dict(zip(names, files, strict=True)))
        with pytest.raises(fk.BadInput, match="part"):
            fk.load("org/repo")


def test_many_quantizations_are_listed_with_their_sizes(hub: Hub) -> None:
    files = {
        f"small-{quant}.gguf": gguf_file(llama(ffn=ffn))
        for quant, ffn in (("Q4_K_M", 96), ("Q8_0", 192), ("UD-Q2_K_XL", 64))
    }
    hub.put("org/repo", {**files, "mmproj-F16.gguf": projector(), "imatrix.gguf": File(b"GGUF", lfs=True)})
    with pytest.raises(fk.UnknownName, match=r"holds 3 quantizations; say which as 'org/repo:Q8_0'") as many:
        fk.load("org/repo")
    assert "Q4_K_M 0.0 GB" in str(many.value)
    with pytest.raises(fk.UnknownName, match="has no 'Q4_K_S'") as none:
        fk.load("org/repo:Q4_K_S")
    assert none.value.nearest[0] == "Q4_K_M"
    assert fk.load("org/repo:Q2_K_XL").source == "org/repo:UD-Q2_K_XL"
    table = fk.files("org/repo")
    assert list(table.columns) == ["repo", "revision", "kind", "quant", "parts", "bytes", "file"]
    assert table["kind"].tolist() == ["model"] * 3 + ["mmproj", "imatrix"]
    assert table["bytes"].tolist()[0] == files["small-Q8_0.gguf"].size
    assert set(table["revision"]) == {COMMIT}
    with pytest.raises(fk.BadInput, match="such as 'org/repo'"):
        fk.files("llama-3.1-8b-nowhere")


def test_the_only_model_needs_no_name(hub: Hub) -> None:
    hub.put(
        "org/repo", {"config.json": File(b"{}"), "small-Q8_0.gguf": gguf_file(llama()), "mmproj-BF16.gguf": projector()}
    )
    model = fk.load("org/repo")
    assert (model.get("mmproj"), model.projector_bytes) == ("mmproj-BF16.gguf", 2 * 2 * 64 * 64)


def test_the_projector_is_the_nearest_one(hub: Hub) -> None:
    files = {"a/m-Q8_0.gguf": gguf_file(llama()), "mmproj-Q8_0.gguf": projector(), "b/mmproj-Q8_0.gguf": projector()}
    hub.put("org/repo", {**files, "a/mmproj-F16.gguf": projector(), "a/mmproj-F32.gguf": projector()})
    assert fk.load("org/repo:Q8_0").get("mmproj") == "a/mmproj-F16.gguf"
    alone = fk.load("hf://org/repo/mmproj-Q8_0.gguf")
    assert (alone.layers, alone.projector_bytes) == ((), 2 * 2 * 64 * 64)


@pytest.mark.parametrize(
    ("name", "quant"),
    [("m-Q4_K_M.gguf", "Q4_K_M"), ("m.Q5_K_S.gguf", "Q5_K_S"), ("m-q8_0.gguf", "Q8_0"), ("m-UD-IQ2_XXS-00001-of-00003.gguf", "UD-IQ2_XXS"),
     ("BF16/m-00001-of-00002.gguf", "BF16"), ("m.i1-IQ3_M.gguf", "IQ3_M"), ("gpt-oss-20b-mxfp4.gguf", "MXFP4"), ("m-MXFP4_MOE.gguf", "MXFP4_MOE"),
     ("m-f16.gguf", "F16"), ("m-TQ1_0.gguf", "TQ1_0"), ("Qwen3-8B.gguf", ""), ("gemma-3-4b-it-qat-q4_0.gguf", "Q4_0")],
)  # fmt: skip
def test_quantizations_are_read_from_names(name: str, quant: str) -> None:
    assert quant_in(name) == quant


def test_variants_join_parts() -> None:
    names = {"m-F16-00001-of-00002.gguf": 5, "m-F16-00002-of-00002.gguf": 7, "m-Q8_0.gguf": 6, "x.txt": 1}
    assert [(one.quant, one.bytes, len(one.files)) for one in variants(names)] == [("F16", 12, 2), ("Q8_0", 6, 1)]


def test_launch_lines_name_the_file_where_it_lies(hub: Hub) -> None:
    hub.put("org/repo", {"small-Q8_0.gguf": gguf_file(llama()), "a/other-Q8_0.gguf": gguf_file(llama())})
    hub.put("org/one", {"small-F16.gguf": gguf_file(llama())})
    address = f"{hub.cdn}/cdn/org/one//small-F16.gguf"
    for source, words in (
        ("org/one:F16", "-hf org/one:"),
        ("hf://org/repo/a/other-Q8_0.gguf", "-hf org/repo -hff a/other-Q8_0.gguf"),
        (address, f"-mu {address}"),
    ):
        row = fk.fit(fk.load(source), "RTX 4090", quants="F16", contexts=512).iloc[0]
        assert words in fk.command(row)
