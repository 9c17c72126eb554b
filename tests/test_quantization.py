"""Quantized checkpoints: what is packed how, to the byte, against vLLM's own modules and published headers."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

import fitkit as fk
from fitkit import facts
from fitkit.facts.formats import format_named, formats
from fitkit.packing import Format, loaded_bytes, matrix_bytes, packed_bytes
from fitkit.sources.config.names import Names

BASES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "head_dim": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    },
}  # fmt: skip
BASES["llama-3.1-70b"] = BASES["llama-3.1-8b"] | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
BASES["qwen3-235b-a22b"] = BASES["qwen3-30b-a3b"] | {
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94,
    "num_attention_heads": 64,
}  # fmt: skip
LLAMA = BASES["llama-3.1-8b"]
MEASURED = list(csv.DictReader((Path(__file__).parent / "measured" / "quantized_weights.csv").open()))


def loaded(model: fk.Model) -> int:
    """All parameters on one rank, as the modules hold them."""
    rows: tuple[Format, ...] = model.get("formats", ())
    scales = max((form.attention_bytes for form in rows), default=0) * len(model.layers)
    return scales + sum(
        loaded_bytes(tensor.role, tensor.shape, format_named(tensor.dtype or model.dtype)) * tensor.copies
        for tensor in model.tensors
        if tensor.part != "mtp"
    )


def with_quant(base: str, quant: dict[str, Any]) -> fk.Model:
    return fk.load(BASES[base] | {"quantization_config": quant})


def dtypes(model: fk.Model) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for tensor in model.tensors:
        out.setdefault(tensor.role, set()).add(tensor.dtype)
    return out


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['model']}-{row['total_bytes']}")
def test_bytes_of_the_modules_are_exact(row: dict[str, str]) -> None:
    model = with_quant(row["model"], json.loads(row["quantization_config"]))
    assert loaded(model) == int(row["total_bytes"])
    head = [tensor for tensor in model.tensors if tensor.role == "output"]
    assert sum(2 * tensor.elements for tensor in head) == int(row["head_bytes"])


def test_an_hf_quant_config_beside_the_config_is_read(tmp_path: Path) -> None:
    """Two ModelOpt checkpoints whose config.json is silent. Bytes: vLLM 0.33.0's modules."""
    experts = [f"model.layers.{layer}.mlp.gate" for layer in range(94)]
    for base, quant, total, name in (
        ("llama-3.1-70b", {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, 72_656_376_832, "FP8"),
        ("qwen3-235b-a22b", {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": [*experts, "lm_head"]}, 134_101_652_144, "NVFP4"),
    ):  # fmt: skip
        said = {"producer": {"name": "modelopt"}, "quantization": quant | {"kv_cache_quant_algo": "FP8"}}
        (tmp_path / "config.json").write_text(json.dumps(BASES[base]))
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
        for source in (tmp_path, tmp_path / "config.json"):
            model = fk.load(source)
            assert (loaded(model), model.quant, model.kv_dtype) == (total, name, "fp8")


def test_the_configs_own_words_come_first() -> None:
    """A quantization_config without a cache type is not overruled by the file beside it, as in vLLM."""
    quant = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    model = fk.load(LLAMA | {"quantization_config": quant, "hf_quant_config": beside})
    assert (model.quant, model.kv_dtype) == ("NVFP4", "")


@pytest.mark.parametrize(
    ("said", "kv"),
    [
        ({"kv_cache_scheme": {"type": "float", "num_bits": 8}}, "fp8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_scheme": None}, ""),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"kv_cache_quant_algo": None}, ""),
    ],
)
def test_what_a_checkpoint_asks_for_its_cache(said: dict[str, Any], kv: str) -> None:
    quant = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    assert with_quant("llama-3.1-8b", quant | said).kv_dtype == kv


def test_an_ignore_list_splits_a_tensor_by_layers() -> None:
    model = with_quant(
        "llama-3.1-8b",
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "ignore": ["lm_head", "model.layers.0*", "model.layers.1.*", "model.layers.31.self_attn*"],
        },
    )
    whole = {(tensor.role, tensor.dtype): tensor.layers for tensor in model.tensors}
    assert whole["attn_q", ""] == (0, 1, 31)
    assert whole["attn_q", "nvfp4"] == tuple(range(2, 31))
    assert whole["ffn_up", ""] == (0, 1)
    assert model.params == fk.load(LLAMA).params


def test_each_layer_may_have_its_own_algorithm() -> None:
    layers = {f"model.layers.{i}.mlp.{name}_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16} for i in range(32) for name in ("gate", "up", "down")}  # fmt: skip
    layers |= {f"model.layers.{i}.self_attn.o_proj": {"quant_algo": "FP8"} for i in range(16)}
    layers["lm_head"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    said = dtypes(with_quant("llama-3.1-8b", {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}))  # fmt: skip
    assert said["ffn_up"] == said["output"] == {"nvfp4_w4a16"}
    assert said["attn_output"] == {"fp8_static", ""}
    assert said["attn_q"] == {""}


def test_targets_and_ignore_of_compressed_tensors() -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
    eight = {"num_bits": 8, "type": "float", "strategy": "channel"}
    model = with_quant(
        "qwen3-30b-a3b",
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": weights},
                "group_1": {"targets": ["re:.*self_attn.*"], "weights": eight},
            },
            "ignore": ["lm_head", "re:.*mlp.gate$", "model.layers.7.self_attn.o_proj"],
        },
    )
    said = dtypes(model)
    assert said["ffn_gate_inp"] == said["token_embd"] == said["output"] == said["attn_norm"] == {""}
    assert said["ffn_down_exps"] == {"int4_zero@32"}
    assert said["attn_q"] == {"ct_fp8_channel"}
    assert said["attn_output"] == {"ct_fp8_channel", ""}
    assert model.quant == "INT4"


@pytest.mark.parametrize(
    ("quant", "dtype", "name"),
    [
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fbgemm_fp8", "FP8"),
        ({"quant_method": "fp8", "weight_block_size": [32, 64]}, "fp8_block@64x32", "FP8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bnb_nf4", "BNB"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb_int8", "BNB"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "gptq4@0", "GPTQ"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq@64", "AWQ"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "gptq4@128", "GPTQ"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}}}, "torchao_int4@64", "INT4"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}, "exclude": ["lm_head"]}, "mxfp4", "MXFP4"),
        ({"quant_algo": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}, "fp8_static", "FP8"),
    ],
)  # fmt: skip
def test_every_method_packs_the_linear_layers(quant: dict[str, Any], dtype: str, name: str) -> None:
    model = with_quant("llama-3.1-8b", quant)
    said = dtypes(model)
    assert said["attn_q"] == said["ffn_down"] == {dtype}
    assert said["token_embd"] == said["output"] == said["ffn_norm"] == {""}
    assert model.quant == name
    assert [form.name for form in model.get("formats")] == [dtype]


def test_routers_stay_unless_the_family_converts_them() -> None:
    mixtral = {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 8,
        "num_experts_per_tok": 2, "vocab_size": 1024,
    }  # fmt: skip
    quant = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert dtypes(fk.load(mixtral | quant))["ffn_gate_inp"] == {""}
    assert dtypes(fk.load(BASES["qwen3-30b-a3b"] | quant))["ffn_gate_inp"] == {"fp8_block"}


@pytest.mark.parametrize(
    ("quant", "word"),
    [
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"quant_method": "vptq"}, "vptq"),
        ({"bits": 4}, "quant_method"),
        ({"quant_method": "gptq", "bits": 5}, "5 bits"),
        ({"quant_method": "modelopt", "quant_algo": "INT2_MAGIC"}, "INT2_MAGIC"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT2"}, "INT2"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse"),
    ],
)
def test_an_unknown_method_is_refused_by_name(quant: dict[str, Any], word: str) -> None:
    with pytest.raises(fk.UnsupportedModel, match=word):
        with_quant("llama-3.1-8b", quant)


@pytest.mark.parametrize(
    "quant",
    [
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "modules_to_not_convert": [1, 2]},
        {"quant_method": "fp8", "modules_to_not_convert": "lm_head"},
        {"quant_method": "awq", "group_size": -7},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 0},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": 3}},
        {"quant_method": "compressed-tensors", "ignore": ["re:(a+)+$"], "config_groups": {}},
        {"quant_method": "compressed-tensors", "ignore": ["re:" + ".*" * 200], "config_groups": {}},
        {"quant_method": "compressed-tensors", "ignore": ["re:((("], "config_groups": {}},
    ],
)
def test_what_cannot_be_is_refused_within_a_second(quant: dict[str, Any]) -> None:
    start = time.perf_counter()
    with pytest.raises(fk.BadInput):
        with_quant("llama-3.1-8b", quant)
    assert time.perf_counter() - start < 1


def test_names_match_as_the_engines_match_them() -> None:
    names = Names(["lm_head", "gate", "model.layers.1.", "model.layers.*.self_attn", "model.visual*", "mlp.shared_expert_gate", "re:.*mlp\\.(gate|up)_proj.*"])  # fmt: skip
    inside = (
        "lm_head", "language_model.lm_head", "model.layers.3.mlp.gate", "model.layers.1.mlp.down_proj",
        "model.layers.7.self_attn.q_proj", "model.visual.blocks.0.attn.qkv", "model.layers.2.mlp.up_proj",
        "model.language_model.layers.1.mlp.down_proj", "model.layers.4.mlp.shared_expert_gate",
    )  # fmt: skip
    outside = (
        "model.layers.11.mlp.down_proj", "model.layers.3.mlp.experts.0.gate_up", "vision_tower.layers.1.mlp.down_proj",
        "model.layers.3.mlp.shared_expert.down_proj",
    )  # fmt: skip
    assert [name for name in inside if name not in names] == []
    assert [name for name in outside if name in names] == []


def test_blocks_and_groups_that_do_not_divide_are_rounded_up() -> None:
    block, group = format_named("fp8_block"), format_named("mxfp4")
    assert matrix_bytes(200, 130, block) == 200 * 130 + 2 * 2 * 4
    assert matrix_bytes(100, 3, group) == 3 * 50 + 3 * 4 * 1
    assert packed_bytes((200, 130, 5), block) == 5 * matrix_bytes(200, 130, block)
    assert packed_bytes((64,), format_named("BF16")) == 128


def test_every_row_of_the_formats_is_a_format() -> None:
    assert set(formats()) == {row["name"] for row in facts.rows("formats")}
    for form in formats().values():
        assert form.bits in (2, 3, 4, 8, 16, 32, 64), form.name
        assert bool(form.scale_bytes) == bool(form.quant), form.name
        assert matrix_bytes(4096, 4096, form) >= 4096 * 4096 * form.bits // 8
    with pytest.raises(fk.UnknownName):
        format_named("awk")
    with pytest.raises(fk.BadInput):
        format_named("awq@x")
