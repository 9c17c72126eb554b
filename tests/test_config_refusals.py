"""What a config must not get away with: unknown families, unknown states, values that cannot be."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitkit.errors import BadInput, FitError, UnsupportedModel
from fitkit.facts import shape
from fitkit.sources.config import model_from_config

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 1000, "intermediate_size": 512, "max_position_embeddings": 4096,
}  # fmt: skip
QWEN_LINEAR = {
    **LLAMA, "model_type": "qwen3_next", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip


def refusal(kind: type[FitError], config: Any) -> str:
    with pytest.raises(kind) as caught:
        model_from_config(config)
    return str(caught.value)


def test_unknown_family_is_named_with_the_nearest_and_what_to_add() -> None:
    said = refusal(UnsupportedModel, {**LLAMA, "model_type": "lama"})
    for word in ("'lama'", "llama", "fitkit/sources/config"):
        assert word in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kv_lora_rank", 512), ("ssm_state_size", 128), ("mamba_n_heads", 24), ("linear_num_key_heads", 16), ("swa_head_dim", 64),
        ("local_window_size", 512), ("attention_chunk_size", 8192), ("hybrid_override_pattern", "M*M*"), ("num_kv_shared_layers", 2),
        ("sparse_attention_config", {"use_sparse_attention": True}), ("index_head_dim", 128), ("layers_block_type", ["mamba"] * 4),
        ("cross_attention_layers", [1]), ("compress_ratios", [0, 4]), ("linear_attn_config", {"num_heads": 8}),
    ],
)  # fmt: skip
def test_a_key_about_states_that_a_family_does_not_read_is_named(key: str, value: Any) -> None:
    assert key in refusal(UnsupportedModel, {**LLAMA, key: value})


@pytest.mark.parametrize("value", [None, False, 0, [], {}, ""])
def test_a_key_that_says_nothing_is_no_reason(value: Any) -> None:
    assert model_from_config({**LLAMA, "kv_lora_rank": value}) == model_from_config(LLAMA)


def test_unknown_word_in_layer_types_is_named() -> None:
    words = ["linear_attention", "linear_attention", "linear_attention", "holographic_attention"]
    said = refusal(UnsupportedModel, {**QWEN_LINEAR, "layer_types": words})
    assert "layer_types" in said
    assert "holographic_attention" in said


def test_the_inner_config_of_a_wrapper_is_checked_too() -> None:
    """A key about states in the text part of a model that also reads pictures."""
    tower = {"model_type": "siglip_vision_model", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128, "image_size": 28, "patch_size": 14}  # fmt: skip
    wrapped = {"model_type": "gemma3", "text_config": {**LLAMA, "model_type": "gemma3_text"}, "vision_config": tower}
    assert model_from_config(wrapped).params > 0
    wrapped["text_config"] = {**LLAMA, "model_type": "gemma3_text", "recurrent_block": 3}
    said = refusal(UnsupportedModel, wrapped)
    assert "text_config" in said
    assert "recurrent_block" in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", -3), ("num_hidden_layers", "many"), ("num_hidden_layers", 10**9), ("num_attention_heads", 0),
        ("vocab_size", 2.5), ("vocab_size", True), ("hidden_size", 10**30), ("intermediate_size", None), ("num_key_value_heads", -1),
        ("tie_word_embeddings", "yes"), ("max_position_embeddings", float("nan")), ("head_dim", [128]), ("rope_scaling", "yarn"),
        ("layer_types", ["full_attention"]), ("sliding_window", -1), ("rope_scaling", {"factor": float("inf")}),
    ],
)  # fmt: skip
def test_nonsense_names_the_key(key: str, value: Any) -> None:
    assert key in refusal(BadInput, {**LLAMA, key: value})


def test_more_experts_a_token_than_there_are() -> None:
    assert "9 of 8" in refusal(BadInput, {**QWEN_LINEAR, "num_experts_per_tok": 9})


def test_a_feed_forward_of_no_width() -> None:
    lfm2 = {**LLAMA, "model_type": "lfm2", "layer_types": ["conv"] * LLAMA["num_hidden_layers"], "conv_L_cache": 3}
    assert "block_ffn_dim_multiplier" in refusal(BadInput, {**lfm2, "block_ffn_dim_multiplier": -1})


def test_heads_wider_than_the_model() -> None:
    assert "hidden_size" in refusal(BadInput, {**LLAMA, "hidden_size": 4})


def test_sizes_may_be_left_out_of_an_inner_mapping_only() -> None:
    """The library leaves out of a text_config whatever equals its class's defaults, never at the top of a file."""
    said = refusal(BadInput, {"model_type": "llama"})
    assert "num_hidden_layers" in said


with (Path(__file__).parent / "measured" / "config_params.csv").open(encoding="utf-8") as file:
    SHAPES = [shape.decode(row["shape"]) for row in csv.DictReader(file)]

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from([[], {}, [1], [None], ["x"] * 5, [[]], {"a": 1}, [-1] * 48, ["full_attention"] * 4096, list(range(20_000)), [{}] * 32]),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_junk_is_refused_cleanly_or_modelled(data: st.DataObject) -> None:
    """One or two keys of a real shape replaced by anything: a Model, or a FitError of one sentence; never another exception."""
    config = dict(data.draw(st.sampled_from(SHAPES)))
    for _ in range(data.draw(st.integers(1, 2))):
        target, key = config, data.draw(st.sampled_from(sorted(config)))
        if isinstance(config[key], dict) and config[key] and data.draw(st.booleans()):
            target = config[key] = dict(config[key])
            key = data.draw(st.sampled_from(sorted(target)))
        target[key] = data.draw(JUNK)
    said, params = "", 0
    try:
        params = model_from_config(config).params
    except FitError as error:
        said = str(error)
    assert params > 0 or 20 < len(said) < 1000


def test_heads_that_cannot_share_their_keys_are_refused() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 16, "num_key_value_heads": 3,
              "vocab_size": 100, "intermediate_size": 128}  # fmt: skip
    with pytest.raises(BadInput, match="16 attention heads cannot share 3"):
        model_from_config(config)
