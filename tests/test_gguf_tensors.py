"""Models known by their shape as the GGUF that llama.cpp's converter would write: against measured headers and published files."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest
from gguf_files import MEASURED, measured_file, shapes

import fitkit as fk
from fitkit.errors import UnsupportedModel
from fitkit.model import Model, Tensor
from fitkit.rules.llamacpp.ggml_types import FILE_TYPES, file_type_bytes, name_of, weights_bytes
from fitkit.rules.llamacpp.tensors import as_gguf

# Measured header → catalog model of the same shape.
SAME = {
    "command-a-111b": "c4ai-command-a-03-2025", "command-r-35b": "c4ai-command-r-v01", "deepseek-v2-lite": "deepseek-v2-lite",
    "deepseek-v3-671b": "deepseek-v3", "ernie-4.5-21b-a3b": "ernie-4.5-21b-a3b-pt", "falcon-7b": "falcon-7b", "falcon-h1-7b": "falcon-h1-7b",
    "gemma2-2b": "gemma-2-2b-it", "gemma2-9b": "gemma-2-9b-it", "gemma-7b": "gemma-7b-it", "gemma3-27b": "gemma-3-27b-it",
    "gemma3-4b": "gemma-3-4b-it", "gemma4-26b-a4b": "gemma-4-26b-a4b-it", "gemma4-e2b": "gemma-4-e2b-it", "glm-4.5-air": "glm-4.5-air",
    "gpt-oss-20b": "gpt-oss-20b", "granite-4.0-h-small": "granite-4.0-h-small", "internlm2-7b": "internlm2-7b",
    "jamba-1.5-mini": "ai21-jamba-mini-1.5", "lfm2-1.2b": "lfm2-1.2b", "llama-2-13b": "llama-2-13b", "llama-2-7b": "llama-2-7b",
    "llama-3.1-8b": "llama-3.1-8b", "llama-3.2-1b": "llama-3.2-1b", "llama-3.3-70b": "llama-3.3-70b", "llama-4-scout": "llama-4-scout-17b-16e",
    "ministral3-8b": "ministral-3-8b-2512", "mistral-7b-v0.3": "mistral-7b-v0.3", "mistral-small-24b": "mistral-small-24b-2501",
    "mixtral-8x7b": "mixtral-8x7b", "nemotron-3-nano-30b-a3b": "nemotron-3-nano-30b-a3b", "nemotron-h-8b": "nemotron-h-8b-base-8k",
    "olmoe-1b-7b": "olmoe-1b-7b-0924", "phi-3-mini-128k": "phi-3-mini-128k", "phi-4": "phi-4", "qwen2.5-0.5b": "qwen2.5-0.5b",
    "qwen2.5-7b": "qwen2.5-7b", "qwen3-0.6b": "qwen3-0.6b", "qwen3-30b-a3b": "qwen3-30b-a3b-2507", "qwen3-4b": "qwen3-4b",
    "qwen3-8b": "qwen3-8b", "qwen3-next-80b-a3b": "qwen3-next-80b-a3b", "qwen3-vl-8b": "qwen3-vl-8b", "qwen3.5-27b": "qwen3.5-27b",
    "qwen3.5-35b-a3b": "qwen3.5-35b-a3b", "smollm3-3b": "smollm3-3b", "starcoder2-7b": "starcoder2-7b",
}  # fmt: skip
# Headers whose catalog model differs, and in what: (tensors only the header has, tensors only the catalog's has).
DIFFER = {
    "gemma3n-e2b": (
        "gemma-3n-e2b-it",
        "the vocabulary: 262,400 with the slots for pictures and sound, which the header leaves out",
    ),
    "glm-4-9b-0414": ("glm-4-9b-0414", "biases on q, k and v, which the engine takes but does not ask for"),
    "mamba-2.8b": ("mamba-2.8b", "the vocabulary: padded to 16 in the header, to 8 as the converter does"),
    "minicpm3-4b": ("minicpm3-4b", "a head of its own, which the checkpoint ties"),
    "phi-2": ("phi-2", "biases on q, k and v: three in the header, joint like their matrix in the converted file"),
    "stablelm-3b": ("stablelm-3b-4e1t", "ffn_norm, which the engine takes but does not ask for"),
}


def table(tensors: tuple[Tensor, ...]) -> dict[tuple[str, int], tuple[int, ...]]:
    """Every tensor's shape by name and block, dimensions of one left out."""
    return {
        (name_of(tensor.role), block): tuple(size for size in tensor.shape if size > 1)
        for tensor in tensors
        for block in tensor.layers or (-1,)
        if tensor.part != "mtp"
    }


@pytest.mark.parametrize("measured", SAME)
def test_the_converted_catalog_model_is_the_measured_one(measured: str, tmp_path) -> None:
    header, converted = fk.load(measured_file(measured, tmp_path)), as_gguf(fk.load(SAME[measured]))
    assert table(converted.tensors) == table(header.tensors)
    trunk = len(header.layers) - header.get("nextn_predict_layers", 0)
    assert [layer.caches for layer in converted.layers[:trunk]] == [layer.caches for layer in header.layers[:trunk]]
    assert converted.layers[:trunk] == header.layers[:trunk]
    for quant in ("Q4_K_M", "IQ2_XS", "Q8_0", "BF16", "MXFP4_MOE"):
        without = [replace(one, part="") for one in converted.tensors if one.part != "mtp"]
        if converted.get("nextn_predict_layers", 0) != header.get("nextn_predict_layers", 0):
            extra = {**dict(converted.extra), "block_count": trunk, "nextn_predict_layers": 0}
            converted = converted.with_(tensors=tuple(without), extra=tuple(sorted(extra.items())))
        assert weights_bytes(converted, quant) == weights_bytes(header, quant), quant


@pytest.mark.parametrize("measured", DIFFER)
def test_the_headers_that_differ_do_so_in_the_named_way(measured: str, tmp_path) -> None:
    name, why = DIFFER[measured]
    header, converted = fk.load(measured_file(measured, tmp_path)), as_gguf(fk.load(name))
    assert why
    one, other = table(header.tensors), table(converted.tensors)
    assert one != other
    assert [layer.caches for layer in converted.layers] == [layer.caches for layer in header.layers]
    odd = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    assert {role for role, _ in odd} <= {
        "token_embd.weight", "output.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias", "ffn_norm.weight", "ffn_norm.bias",
    }  # fmt: skip
    assert weights_bytes(converted, "Q4_K_M") == pytest.approx(weights_bytes(header, "Q4_K_M"), rel=0.05)


# Shapes of measured headers that the catalog does not have, as their config.json says them.
KDA_FULL = (4, 8, 12, 16, 20, 24, 27)
CONFIGS: dict[str, dict[str, Any]] = {
    "dbrx-132b": {
        "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768, "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8}, "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50257},
    "granite-3.1-3b-a800m": {
        "model_type": "granitemoe", "hidden_size": 1536, "intermediate_size": 512, "max_position_embeddings": 131072,
        "num_attention_heads": 24, "num_experts_per_tok": 8, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 40,
        "tie_word_embeddings": True, "vocab_size": 49155,
    },
    "kimi-linear-48b-a3b": {
        "model_type": "kimi_linear", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27, "num_attention_heads": 32,
        "vocab_size": 163840, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "num_experts": 256, "num_experts_per_token": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1,
        "first_k_dense_replace": 1, "mla_use_nope": True, "model_max_length": 1048576, "tie_word_embeddings": False,
        "linear_attn_config": {
            "full_attn_layers": list(KDA_FULL), "kda_layers": [i for i in range(1, 28) if i not in KDA_FULL], "head_dim": 128,
            "num_heads": 32, "short_conv_kernel_size": 4,
        },
    },
    "mamba2-2.7b": {
        "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50288, "state_size": 128, "expand": 2,
        "head_dim": 64, "num_heads": 80, "n_groups": 1, "conv_kernel": 4, "tie_word_embeddings": True,
    },
    "phimoe-3.5": {
        "model_type": "phimoe", "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2, "vocab_size": 32064,
        "max_position_embeddings": 131072, "attention_bias": True, "lm_head_bias": True, "tie_word_embeddings": False,
        "rope_scaling": {"type": "longrope", "original_max_position_embeddings": 4096},
    },
    "qwen2-57b-a14b": {
        "model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480, "vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": False,
    },
    "rwkv7-2.9b": {
        "model_type": "rwkv7", "hidden_size": 2560, "num_hidden_layers": 32, "vocab_size": 65536, "head_dim": 64,
        "decay_low_rank_dim": 96, "a_low_rank_dim": 96, "v_low_rank_dim": 64, "gate_low_rank_dim": 320, "intermediate_size": 10240,
    },
}  # fmt: skip


@pytest.mark.parametrize("measured", CONFIGS)
def test_a_converted_config_is_the_measured_header(measured: str, tmp_path) -> None:
    header, converted = fk.load(measured_file(measured, tmp_path)), as_gguf(fk.load(CONFIGS[measured]))
    assert table(converted.tensors) == table(header.tensors)
    assert converted.layers == header.layers
    if measured == "rwkv7-2.9b":
        return  # its small matrices stay in the 16 bits the converter writes; the header's are in 32
    for quant in ("Q4_K_M", "IQ2_XS", "Q8_0", "BF16", "MXFP4_MOE"):
        assert weights_bytes(converted, quant) == weights_bytes(header, quant), quant


def test_every_measured_header_is_compared() -> None:
    assert set(shapes()) == set(SAME) | set(DIFFER) | set(CONFIGS)


# ---- published files -------------------------------------------------------------------------------------------------------------

with (MEASURED / "gguf_published.csv").open(newline="") as file:
    PUBLISHED = list(csv.DictReader(file))
# A header is the tokenizer: 22 to 82 bytes an entry in the files at hand, and the tensor table.
_MOST_HEADER_PER_TOKEN, _MOST_TABLE = 100, 200_000


def _fine_tuned(row: dict[str, str]) -> Model:
    """The row's model, with the tokens a fine-tune added."""
    model = fk.load(row["model"])
    if not row["vocab"]:
        return model
    vocab = int(row["vocab"])
    tensors = [
        replace(one, shape=(one.shape[0], vocab)) if one.role in ("token_embd", "output") else one
        for one in model.tensors
    ]
    return model.with_(vocab_size=vocab, tensors=tuple(tensors))


def _left(row: dict[str, str]) -> tuple[int, int]:
    """What is left for the header, and the most a header takes."""
    model = _fine_tuned(row)
    plain, padded = file_type_bytes(model, row["quant"])
    if row["measure"] == "tensors":
        return int(row["bytes"]) - plain, 0
    return int(row["bytes"]) - padded, _MOST_TABLE + _MOST_HEADER_PER_TOKEN * model.vocab_size


@pytest.mark.parametrize("row", [row for row in PUBLISHED if not row["miss"]], ids=lambda row: row["file"])
def test_a_published_size_is_met_within_header_and_tokenizer(row: dict[str, str]) -> None:
    left, most = _left(row)
    assert 0 <= left <= most


@pytest.mark.parametrize("row", [row for row in PUBLISHED if row["miss"]], ids=lambda row: row["file"])
def test_a_published_size_that_is_not_met_says_why(row: dict[str, str]) -> None:
    if row["quant"] in FILE_TYPES and row["model"]:
        left, most = _left(row)
        assert not 0 <= left <= most, "it is met: the reason is out of date"
    else:
        assert "UD-" in row["quant"] or not row["model"]


def test_what_llama_cpp_does_not_know_has_no_gguf() -> None:
    with pytest.raises(UnsupportedModel, match="no architecture"):
        as_gguf(fk.load("opt-125m"))
    with pytest.raises(UnsupportedModel, match=r"'deepseek4' is not modelled .*deepseek2.*gguf_layers"):
        as_gguf(fk.load("deepseek-v4-flash"))


def test_a_converted_model_is_converted_once() -> None:
    once = as_gguf(fk.load("qwen3-8b"))
    assert as_gguf(once) == once
    assert once.get("block_count") == 36
    assert not [tensor for tensor in as_gguf(fk.load("qwen3-vl-8b")).tensors if tensor.part]


def test_glm_5_2_keeps_what_its_log_says() -> None:
    """A posted start-up log of GLM-5.2: 78 latents of 576 and 21 indexers of 128 elements."""
    caches = [cache for layer in as_gguf(fk.load("glm-5.2")).layers for cache in layer.caches]
    assert (
        sorted((cache.kind, cache.k_dim, cache.v_dim) for cache in caches)
        == [("indexer", 128, 0)] * 21 + [("latent", 576, 0)] * 78
    )
