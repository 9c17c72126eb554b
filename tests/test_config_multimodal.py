"""Models that also read pictures or sound, encoders and classifiers: totals as published, towers as vLLM loads them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import fitkit as fk
from fitkit.sources.config import merging_towers, towers  # noqa: F401  (they fill TOWERS)
from fitkit.sources.config.build import Build
from fitkit.sources.config.view import Config
from fitkit.sources.config.vision import TOWERS, read_tower

MEASURED = Path(__file__).parent / "measured"
TOTALS = list(csv.DictReader((MEASURED / "multimodal_params.csv").open()))
TEXT = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 128,
}  # fmt: skip


@pytest.mark.parametrize("row", TOTALS, ids=lambda row: row["model"])
def test_the_total_is_the_published_one(row: dict[str, str]) -> None:
    model = fk.load(json.loads(row["config"]))
    assert model.params == int(row["params"])
    if row["vision_bytes"]:
        beside = [tensor for tensor in model.tensors if tensor.part in ("vision", "audio", "projector")]
        assert sum(2 * tensor.elements * tensor.copies for tensor in beside) == int(row["vision_bytes"])
        if row["vision_bytes_tp2"]:
            cut = sum(
                2 * tensor.elements * tensor.copies // (1 if tensor.shard == "replicated" else 2) for tensor in beside
            )
            assert cut == int(row["vision_bytes_tp2"])
            assert all(tensor.shard for tensor in beside)


def test_a_projector_file_is_matrices_in_16_bits_and_vectors_in_32() -> None:
    vision = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "patch_size": 4, "image_size": 8, "vision_use_head": False}  # fmt: skip
    model = fk.load({"model_type": "llava", "text_config": TEXT, "vision_config": vision})
    beside = [tensor for tensor in model.tensors if tensor.part]
    vectors = sum(tensor.elements * tensor.copies for tensor in beside if len(tensor.shape) == 1)
    everything = sum(tensor.elements * tensor.copies for tensor in beside)
    assert model.projector_bytes == 2 * everything + 2 * vectors
    assert fk.load(TEXT).projector_bytes == 0


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "llava", "text_config": TEXT, "vision_config": {"model_type": "eye_of_newt"}}, "eye_of_newt"),
        ({"model_type": "llava", "text_config": {"model_type": "warlock"}, "vision_config": {}}, "warlock"),
        ({"model_type": "mllama", "text_config": TEXT, "vision_config": {}}, "mllama"),
        ({**TEXT, "model_type": "llava"}, "vision_config"),
    ],
)
def test_a_tower_nobody_described_is_refused_by_name(config: dict[str, Any], word: str) -> None:
    with pytest.raises(fk.UnsupportedModel, match=word):
        fk.load(config)


@pytest.mark.parametrize("name", sorted(TOWERS))
def test_no_tower_takes_numbers_that_cannot_be(name: str) -> None:
    for key in ("num_hidden_layers", "depth", "vt_num_hidden_layers"):
        with pytest.raises(fk.FitError):
            read_tower(Build(1), Config({"model_type": name, key: -3}), "v.")


def test_a_tied_head_at_the_top_is_tied_in_the_text_part() -> None:
    vision = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    both = {"model_type": "mistral3", "text_config": TEXT, "vision_config": vision}
    tied, untied = fk.load(both | {"tie_word_embeddings": True}), fk.load(both | {"tie_word_embeddings": False})
    assert untied.params - tied.params == 64 * 128
    assert tied.tied_embeddings
    assert not untied.tied_embeddings


def test_vision_parts_have_no_layer_numbers_of_the_text_model() -> None:
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 9}
    model = fk.load({"model_type": "llava", "text_config": TEXT, "vision_config": vision})
    assert {tensor.layers for tensor in model.tensors if tensor.part} == {()}
    assert len(model.layers) == 2


def test_an_ignore_list_keeps_the_tower_and_silence_does_not() -> None:
    vision = {"model_type": "pixtral", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    base = {"model_type": "mistral3", "text_config": TEXT, "vision_config": vision}

    def packed(quant: dict[str, Any], where: str = "") -> set[str]:
        config: dict[str, Any] = base | {"quantization_config": quant}
        if where:
            config = base | {where: TEXT | {"quantization_config": quant}}
        return {tensor.part for tensor in fk.load(config).tensors if tensor.dtype}

    names = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    assert packed({"quant_method": "fp8", "modules_to_not_convert": names}) == {""}
    assert packed({"quant_method": "fp8"}) == {"", "vision", "projector"}
    assert packed({"quant_method": "awq", "group_size": 32}) == {""}
    assert packed({"quant_method": "fp8"}, "text_config") == {""}


def test_encoders_keep_no_cache() -> None:
    for name in ("bert", "xlm-roberta", "nomic_bert", "modernbert"):
        model = fk.load(TEXT | {"model_type": name})
        assert list(model.caches()) == []
        assert model.heads == 4


@pytest.mark.parametrize(
    ("architecture", "labels", "change"),
    [
        ("LlamaForCausalLM", {}, 0),
        ("LlamaForSequenceClassification", {"id2label": {"0": "LABEL_0"}}, -64 * 128 + 64),
        ("LlamaForSequenceClassification", {"num_labels": 5}, -64 * 128 + 64 * 5),
        ("LlamaForSequenceClassification", {}, -64 * 128 + 64 * 2),
        ("LlamaModel", {}, -64 * 128),
    ],
)
def test_another_head_takes_the_place_of_words(architecture: str, labels: dict[str, Any], change: int) -> None:
    plain = fk.load(TEXT | {"architectures": ["LlamaForCausalLM"]})
    assert fk.load(TEXT | {"architectures": [architecture]} | labels).params - plain.params == change
