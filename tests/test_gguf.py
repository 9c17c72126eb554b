"""GGUF headers and the models made of them, against the gguf package's own reader and the measured shapes."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import pytest
from gguf_files import measured_file, shapes, write_gguf

import fitkit as fk
from fitkit.errors import BadInput, UnsupportedModel
from fitkit.rules.llamacpp.tensors import as_gguf
from fitkit.sources.gguf import model_from_bytes, part_names, role_of
from fitkit.sources.gguf_header import FileBytes, read_header

LLAMA = {
    "block_count": 2, "context_length": 4096, "embedding_length": 256, "feed_forward_length": 512, "attention.head_count": 8,
    "attention.head_count_kv": 2, "rope.freq_base": 500000.0,
}  # fmt: skip
TENSORS = {
    "token_embd.weight": ((256, 1000), "Q4_K"), "output_norm.weight": ((256,), "F32"), "output.weight": ((256, 1000), "Q6_K"),
    **{
        f"blk.{block}.{name}": entry
        for block in (0, 1)
        for name, entry in {
            "attn_norm.weight": ((256,), "F32"), "attn_q.weight": ((256, 256), "Q4_K"), "attn_q.bias": ((256,), "F32"),
            "attn_k.weight": ((256, 64), "Q4_K"), "attn_v.weight": ((256, 64), "Q6_K" if block else "Q4_K"),
            "attn_output.weight": ((256, 256), "Q4_K"), "ffn_norm.weight": ((256,), "F32"), "ffn_gate.weight": ((256, 512), "Q4_K"),
            "ffn_up.weight": ((256, 512), "Q4_K"), "ffn_down.weight": ((512, 256), "Q6_K"),
        }.items()
    },
}  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "small.gguf", "llama", LLAMA, TENSORS, vocab=1000, general={"general.file_type": 15})


def test_the_header_is_what_the_gguf_package_reads(small: Path) -> None:
    oracle = gguf.GGUFReader(small)
    with FileBytes(small) as source:
        header = read_header(source)
    assert header.version == 3
    assert header.data_offset == oracle.data_offset
    assert header.file_bytes == small.stat().st_size
    assert header.vocab == 1000
    assert header.lists["tokenizer.ggml.merges"] == 1000
    assert not [key for key in header.metadata if key.startswith("tokenizer.ggml.tok")]
    read = [(one.name, one.shape, one.type, one.size_bytes, header.data_offset + one.offset) for one in header.tensors]
    assert read == [
        (one.name, tuple(int(size) for size in one.shape), one.tensor_type.name, int(one.n_bytes), int(one.data_offset))
        for one in oracle.tensors
    ]
    for key, value in header.metadata.items():
        assert oracle.fields[key].contents() == (list(value) if isinstance(value, tuple) else value), key


def test_the_model_of_a_file(small: Path) -> None:
    model = fk.load(small)
    assert (model.name, model.family, model.gguf_architecture, model.basis, model.quant) == (
        "small",
        "llama",
        "llama",
        "estimate",
        "Q4_K_M",
    )
    assert (model.hidden_size, model.vocab_size, model.context, model.tied_embeddings) == (256, 1000, 4096, False)
    assert model.file_bytes == small.stat().st_size
    stored = sum(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[one.dtype]][1] * one.elements * one.copies //
                 gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[one.dtype]][0] for one in model.tensors)  # fmt: skip
    assert model.header_bytes + stored <= model.file_bytes < model.header_bytes + stored + 32 * len(TENSORS)  # padding
    assert model.params == sum(one.elements * one.copies for one in model.tensors) == model.active_params
    assert [layer.ffn_dim for layer in model.layers] == [512, 512]
    assert {cache for layer in model.layers for cache in layer.caches} == {
        fk.Cache(kind="full", kv_heads=2, k_dim=32, v_dim=32)
    }
    v = [(tensor.dtype, tensor.layers) for tensor in model.tensors if tensor.role == "attn_v"]
    assert v == [("Q4_K", (0,)), ("Q6_K", (1,))]
    assert [tensor.layers for tensor in model.tensors if tensor.role == "attn_q.bias"] == [(0, 1)]
    assert model.get("attention.head_count_kv") == 2
    assert model.extra == tuple(sorted(model.extra))
    assert hash(model)


def test_a_str_path_loads_too(small: Path) -> None:
    assert fk.load(str(small)).source == str(small)


def test_only_the_header_is_asked_for_by_range(small: Path) -> None:
    asked = []

    class Far:
        place, size = "far.gguf", small.stat().st_size

        def read(self, offset: int, length: int) -> bytes:
            asked.append((offset, offset + length))
            with small.open("rb") as file:
                file.seek(offset)
                return file.read(length)

    model = model_from_bytes([Far()], source="hf://org/far.gguf", revision="abc")
    assert (model.revision, model.source) == ("abc", "hf://org/far.gguf")
    assert model.with_(source="", revision="") == fk.load(small).with_(source="", revision="")
    assert max(end for _, end in asked) <= small.stat().st_size


def test_a_long_tokenizer_is_skipped_quickly(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "long.gguf", "llama", LLAMA, {"token_embd.weight": ((256, 150_000), "Q4_K")}, vocab=150_000
    )
    started = time.process_time()
    model = fk.load(path)
    assert time.process_time() - started < 2  # tenths of a second; the benchmark says which
    assert model.vocab_size == 150_000
    assert model.header_bytes > 4_000_000


@pytest.mark.parametrize("name", shapes())
def test_every_measured_architecture_has_its_caches(name: str, tmp_path: Path) -> None:
    architecture, keys, tensors = shapes()[name]
    model = fk.load(measured_file(name, tmp_path))
    assert model.family == architecture
    assert len(model.layers) == keys["block_count"]
    assert sum(one.elements * one.copies for one in model.tensors) == sum(one.elements * one.copies for one in tensors)
    assert any(layer.caches for layer in model.layers)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gemma3-27b", {"sliding": 52, "full": 10}),
        ("gpt-oss-20b", {"sliding": 12, "full": 12}),
        ("llama-4-scout", {"chunked": 36, "full": 12}),
        ("phi-3-mini-128k", {"full": 32}),  # its window is ignored
        ("deepseek-v3-671b", {"latent": 61}),
        ("minicpm3-4b", {"full": 62}),  # latent projections, whole heads in the cache
        ("gemma3n-e2b", {"sliding": 16, "full": 4, "none": 10}),
        ("gemma4-e2b", {"sliding": 12, "full": 3, "none": 20}),
        ("glm-4.5-air", {"full": 46, "none": 1}),
        ("granite-4.0-h-small", {"full": 4, "state": 36}),
        ("nemotron-h-8b", {"full": 4, "state": 24, "none": 24}),
        ("qwen3.5-27b", {"full": 16, "state": 48}),
        ("kimi-linear-48b-a3b", {"latent": 7, "state": 20}),
        ("falcon-h1-7b", {"full+state": 44}),
        ("rwkv7-2.9b", {"state": 32}),
    ],
)
def test_kinds_of_caches(name: str, kinds: dict[str, int], tmp_path: Path) -> None:
    found: dict[str, int] = {}
    for layer in fk.load(measured_file(name, tmp_path)).layers:
        kind = "+".join(cache.kind for cache in layer.caches) or "none"
        found[kind] = found.get(kind, 0) + 1
    assert found == kinds


@pytest.mark.parametrize(
    ("name", "conv", "ssm"),  # engines' own sizes, elements a sequence and layer
    [
        ("mamba-2.8b", 3 * 5120, 16 * 5120),
        ("mamba2-2.7b", 3 * (5120 + 2 * 128), 128 * 5120),
        ("falcon-h1-7b", 3 * (3072 + 2 * 256), 256 * 3072),
        ("qwen3-next-80b-a3b", 3 * (4096 + 2 * 16 * 128), 128 * 4096),
        ("kimi-linear-48b-a3b", 3 * 3 * 32 * 128, 128 * 128 * 32),
        ("lfm2-1.2b", 2048 * 2, 0),
        ("rwkv7-2.9b", 2 * 2560, 2560 * 64),
    ],
)
def test_states(name: str, conv: int, ssm: int, tmp_path: Path) -> None:
    caches = [cache for cache in fk.load(measured_file(name, tmp_path)).caches() if cache.kind == "state"]
    assert {(cache.conv_elements, cache.ssm_elements) for cache in caches} == {(conv, ssm)}


def test_prediction_blocks_are_no_part_of_the_parameters(tmp_path: Path) -> None:
    model = fk.load(measured_file("glm-4.5-air", tmp_path))
    ahead = sum(one.elements * one.copies for one in model.tensors if one.part == "mtp")
    assert (
        ahead == sum(one.elements * one.copies for one in model.tensors if one.layers == (46,) or one.part == "mtp") > 0
    )
    assert model.params + ahead == 110_468_824_832


def test_a_split_file_is_one_model(tmp_path: Path) -> None:
    whole = fk.load(write_gguf(tmp_path / "whole.gguf", "llama", LLAMA, TENSORS))
    names = list(TENSORS)
    for number in range(2):
        mine = {name: TENSORS[name] for name in (names[:9], names[9:])[number]}
        split = {"split.no": number, "split.count": 2, "split.tensors.count": len(TENSORS)}
        part = tmp_path / f"m-{number + 1:05d}-of-00002.gguf"
        write_gguf(part, "llama", LLAMA if not number else {}, mine, general=split)
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        model = fk.load(tmp_path / name)
        assert (model.params, model.layers) == (whole.params, whole.layers)
        assert model.file_bytes == sum(path.stat().st_size for path in tmp_path.glob("m-*"))
    (tmp_path / "m-00002-of-00002.gguf").rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(BadInput, match=r"m-00002-of-00002\.gguf is not beside it"):
        fk.load(tmp_path / "m-00001-of-00002.gguf")


def test_parts_of_another_model_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        split = {"split.no": 0, "split.count": 2, "split.tensors.count": 1}
        write_gguf(
            tmp_path / f"m-{number:05d}-of-00002.gguf",
            "llama",
            LLAMA,
            {"token_embd.weight": ((256, 8), "F32")},
            general=split,
        )
    with pytest.raises(BadInput, match="part 1 of 2 was expected"):
        fk.load(tmp_path / "m-00001-of-00002.gguf")


def test_names_of_parts() -> None:
    assert part_names("m.gguf") == ["m.gguf"]
    assert part_names("m-00003-of-00003.gguf")[0] == "m-00001-of-00003.gguf"
    with pytest.raises(BadInput, match="part 4 of 3"):
        part_names("m-00004-of-00003.gguf")


def test_roles() -> None:
    assert role_of("blk.12.ffn_down_exps.weight") == ("ffn_down_exps", 12)
    assert role_of("v.blk.3.attn_q.weight") == ("v.attn_q", 3)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "new.gguf", "quasar9", {"block_count": 1}, {"token_embd.weight": ((32, 8), "F32")})
    with pytest.raises(UnsupportedModel, match=r"general\.architecture 'quasar9' is not modelled"):
        fk.load(path)


def test_a_projector_is_loaded_beside_its_model(tmp_path: Path) -> None:
    tensors = {"v.patch_embd.weight": ((14, 14, 3, 64), "F16"), "v.blk.0.ln1.weight": ((64,), "F32"), "v.blk.1.ln1.weight": ((64,), "F32"),
               "mm.0.weight": ((64, 256), "F16")}  # fmt: skip
    projector = fk.load(write_gguf(tmp_path / "mmproj.gguf", "clip", {}, tensors, general={"general.type": "mmproj"}))
    assert projector.projector_bytes == 2 * (14 * 14 * 3 * 64 + 64 * 256) + 4 * 2 * 64
    assert {tensor.part for tensor in projector.tensors} == {"vision", "projector"}
    assert not projector.layers
    with pytest.raises(UnsupportedModel, match=r"projector \(mmproj\)"):
        as_gguf(projector)


def test_an_adapter_is_told_with_its_bytes(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_q.weight.lora_a": ((256, 8), "F32")}
    adapter = write_gguf(tmp_path / "lora.gguf", "llama", {}, tensors, general={"general.type": "adapter"})
    with pytest.raises(UnsupportedModel, match="lora_bytes=8192"):
        fk.load(adapter)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({**LLAMA, "block_count": 0}, "block_count"),
        ({**LLAMA, "block_count": 5000}, "block_count"),
        ({**LLAMA, "attention.head_count_kv": [2]}, "head_count_kv"),
        ({key: value for key, value in LLAMA.items() if key != "embedding_length"}, "embedding_length"),
        ({**LLAMA, "block_count": 1}, "belongs to block 1"),
        ({**LLAMA, "nextn_predict_layers": 2}, "NextN"),
    ],
)
def test_metadata_that_cannot_be_is_refused_by_key(keys: dict[str, object], place: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=place):
        fk.load(write_gguf(tmp_path / "odd.gguf", "llama", keys, TENSORS))


def test_a_cut_file_is_refused(small: Path) -> None:
    with small.open("r+b") as file:
        file.truncate(small.stat().st_size - 1000)
    with pytest.raises(BadInput, match="cut short"):
        fk.load(small)
