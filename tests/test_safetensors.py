"""Safetensors headers: exact bytes, and every broken or hostile one refused quickly."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import fitkit as fk
from fitkit.sources.checkpoint import index_of, layers_stored, with_headers
from fitkit.sources.safetensors import MOST_HEADER_BYTES, Header, Stored, read_file, read_header

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "intermediate_size": 96,
    "torch_dtype": "bfloat16",
}
GPT_OSS_120B = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}
BYTES = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1, "I32": 4}


def header_of(tensors: dict[str, tuple[str, list[int]]]) -> tuple[bytes, int]:
    """A file's header for tensors one after the other, and how many bytes they take."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for side in shape:
            size *= side
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text, end


def write(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> int:
    """A sparse file with these tensors; their bytes."""
    raw, size = header_of(tensors)
    with path.open("wb") as file:
        file.write(raw)
        file.truncate(len(raw) + size)
    return size


def llama_tensors(layers: int = 2) -> dict[str, tuple[str, list[int]]]:
    """What a two-layer Llama's files hold."""
    out: dict[str, tuple[str, list[int]]] = {
        "model.embed_tokens.weight": ("BF16", [128, 64]),
        "model.norm.weight": ("BF16", [64]),
        "lm_head.weight": ("BF16", [128, 64]),
    }
    for layer in range(layers):
        for name, shape in (
            ("self_attn.q_proj", [64, 64]),
            ("self_attn.k_proj", [32, 64]),
            ("self_attn.v_proj", [32, 64]),
            ("self_attn.o_proj", [64, 64]),
            ("mlp.gate_proj", [96, 64]),
            ("mlp.up_proj", [96, 64]),
            ("mlp.down_proj", [64, 96]),
            ("input_layernorm", [64]),
            ("post_attention_layernorm", [64]),
        ):
            out[f"model.layers.{layer}.{name}.weight"] = ("BF16", shape)
    return out


def gpt_oss_tensors() -> dict[str, tuple[str, list[int]]]:
    """The checkpoint's own shapes: packed experts as blocks (90 x 16 bytes of 4-bit pairs) with 8-bit scales."""
    tensors: dict[str, tuple[str, list[int]]] = {
        "model.embed_tokens.weight": ("BF16", [201088, 2880]),
        "lm_head.weight": ("BF16", [201088, 2880]),
        "model.norm.weight": ("BF16", [2880]),
    }
    for layer in range(36):
        for name, shape in (
            ("self_attn.q_proj.weight", [4096, 2880]),
            ("self_attn.q_proj.bias", [4096]),
            ("self_attn.k_proj.weight", [512, 2880]),
            ("self_attn.k_proj.bias", [512]),
            ("self_attn.v_proj.weight", [512, 2880]),
            ("self_attn.v_proj.bias", [512]),
            ("self_attn.o_proj.weight", [2880, 4096]),
            ("self_attn.o_proj.bias", [2880]),
            ("self_attn.sinks", [64]),
            ("input_layernorm.weight", [2880]),
            ("post_attention_layernorm.weight", [2880]),
            ("mlp.router.weight", [128, 2880]),
            ("mlp.router.bias", [128]),
            ("mlp.experts.gate_up_proj_bias", [128, 5760]),
            ("mlp.experts.down_proj_bias", [128, 2880]),
        ):
            tensors[f"model.layers.{layer}.{name}"] = ("BF16", shape)
        for name, rows in (("gate_up", 5760), ("down", 2880)):
            tensors[f"model.layers.{layer}.mlp.experts.{name}_proj_blocks"] = ("U8", [128, rows, 90, 16])
            tensors[f"model.layers.{layer}.mlp.experts.{name}_proj_scales"] = ("U8", [128, rows, 90])
    return tensors


def test_gpt_oss_120b_headers_give_the_published_bytes() -> None:
    raw, size = header_of(gpt_oss_tensors())
    header = read_header(lambda at, n: raw[at : at + n], len(raw) + size, "gpt-oss")
    assert header.data_bytes == 65_248_815_744
    model = with_headers(fk.load(GPT_OSS_120B), {"model.safetensors": header})
    assert (model.basis, model.file_bytes, model.quant) == ("estimate", 65_248_815_744, "MXFP4")
    assert model.get("mismatch") is None


def test_a_directory_is_read_and_agrees_with_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    size = write(tmp_path / "model.safetensors", llama_tensors())
    model = fk.load(tmp_path)
    assert (model.basis, model.file_bytes, model.name) == ("estimate", size, tmp_path.name)
    assert model.params * 2 == size
    assert model.get("mismatch") is None
    assert fk.load(tmp_path / "model.safetensors").file_bytes == size
    assert fk.load(tmp_path / "config.json").basis == "arch"


def test_shards_are_summed_and_a_missing_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    tensors = llama_tensors()
    names = list(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    size = sum(write(tmp_path / file, {name: tensors[name] for name in part}) for file, part in parts.items())
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fk.load(tmp_path).file_bytes == size
    assert fk.load(tmp_path / "model-00001-of-00002.safetensors").file_bytes == size
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(fk.BadInput, match=r"1 of 2 files that the index lists are missing"):
        fk.load(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    only_index = fk.load(tmp_path)
    assert (only_index.basis, only_index.file_bytes) == ("arch", size)


def test_files_of_another_model_are_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"intermediate_size": 480}))
    write(tmp_path / "model.safetensors", llama_tensors())
    model = fk.load(tmp_path)
    assert "check that the two belong together" in model.get("mismatch")
    rows = [fk.demand(model, engine="vllm").iloc[0], fk.fit(model, "1x RTX 4090", engine="vllm").iloc[0]]
    assert all("check that the two belong together" in row.note for row in rows)
    write(tmp_path / "model.safetensors", llama_tensors(layers=1))
    with pytest.raises(fk.BadInput, match=r"the files hold 1 layers, config.json says 2"):
        fk.load(tmp_path)


def test_no_config_and_no_file_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", llama_tensors())
    for source in (tmp_path, tmp_path / "model.safetensors", tmp_path / "absent.safetensors", tmp_path / "absent"):
        with pytest.raises(fk.BadInput):
            fk.load(source)


def test_vision_blocks_are_no_layers_of_the_text_model() -> None:
    names = ("model.layers.3.mlp.x", "visual.blocks.31.attn", "vision_tower.encoder.layers.40.q", "mtp.layers.9.x")
    stored = {name: Stored(name=name, dtype="BF16", shape=(1,), start=0, size_bytes=2) for name in names}
    assert layers_stored(stored) == 4


def test_an_index_that_points_outside_is_refused() -> None:
    for name in ("../other/model.safetensors", "/etc/passwd", ".hidden", 3):
        with pytest.raises(fk.BadInput):
            index_of({"weight_map": {"a": name}}, "index")


GOOD = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}


def file_with(entries: object, data: int = 8) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * data


HOSTILE = {
    "empty": b"",
    "short": b"\1\0\0",
    "length past the end": (2**60).to_bytes(8, "little") + b"{}",
    "length of all ones": b"\xff" * 8 + b"{}",
    "no json": file_with(b"nonsense"),
    "a list": file_with([1, 2]),
    "deep": file_with(b"[" * 200_000),
    "deep mapping": file_with(b'{"a":' * 100_000),
    "not a number": file_with(b'{"a":{"dtype":"BF16","shape":[NaN],"data_offsets":[0,8]}}'),
    "infinite": file_with(b'{"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,Infinity]}}'),
    "twice": file_with(
        b'{"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}'
    ),
    "unknown type": file_with({"a": GOOD | {"dtype": "Q4"}}),
    "type is a list": file_with({"a": GOOD | {"dtype": ["BF16"]}}),
    "negative shape": file_with({"a": GOOD | {"shape": [-2, -2]}}),
    "fraction": file_with({"a": GOOD | {"shape": [2.0, 2]}}),
    "true": file_with({"a": GOOD | {"shape": [True, 4]}}),
    "huge shape": file_with({"a": GOOD | {"shape": [2**52] * 16}}),
    "many dimensions": file_with({"a": GOOD | {"shape": [1] * 10_000}}),
    "negative offset": file_with({"a": GOOD | {"data_offsets": [-8, 0]}}),
    "backwards": file_with({"a": GOOD | {"data_offsets": [8, 0]}}),
    "one offset": file_with({"a": GOOD | {"data_offsets": [0]}}),
    "no shape": file_with({"a": {"dtype": "BF16"}}),
    "wrong size": file_with({"a": GOOD | {"shape": [2, 3]}}),
    "overlap": file_with({"a": GOOD, "b": GOOD | {"data_offsets": [4, 12]}}, 12),
    "gap": file_with({"a": GOOD, "b": GOOD | {"data_offsets": [16, 24]}}, 24),
    "past the end": file_with({"a": GOOD}, 4),
    "more after it": file_with({"a": GOOD}, 80),
    "metadata": file_with({"__metadata__": {"a": 1}, "a": GOOD}),
    "bad text": file_with(b'{"\xff\xfe":1}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_within_a_second(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(HOSTILE[name])
    start = time.perf_counter()
    with pytest.raises(fk.BadInput):
        read_file(tmp_path / "model.safetensors")
    assert time.perf_counter() - start < 1


def test_a_header_too_large_is_refused_unread() -> None:
    def read(offset: int, length: int) -> bytes:
        assert length <= 8, "the header was read"
        return (MOST_HEADER_BYTES + 1).to_bytes(8, "little")

    with pytest.raises(fk.BadInput, match="larger than any model's"):
        read_header(read, 2**40, "remote")


def test_packed_types_count_their_bits() -> None:
    entries = {
        "a": {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]},
        "b": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [6, 8]},
    }
    raw = file_with(entries)
    header = read_header(lambda at, n: raw[at : at + n], len(raw), "x")
    assert isinstance(header, Header)
    assert [tensor.size_bytes for tensor in header.tensors] == [6, 2]
