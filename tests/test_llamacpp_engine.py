"""Models nobody measured before, converted by us and loaded by the engine itself: buffers to the byte, compute within 2%.

The engine checked every tensor's name and shape while loading, so the conversions are held too. CPU, repacked weights, no mmap.
"""

from __future__ import annotations

import csv
import json
from functools import lru_cache

import pytest
from gguf_files import MEASURED

import fitkit as fk
from fitkit.model import Model
from fitkit.rules.llamacpp.loaded import loaded
from fitkit.rules.llamacpp.placement import unread_bytes

WORDS = {"True": True, "False": False, "None": None}


def rows() -> list[dict[str, str]]:
    with (MEASURED / "llamacpp_engine.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@lru_cache
def model_of(name: str, config: str) -> Model:
    return fk.load(json.loads(config)) if config else fk.load(name)


def settings_of(text: str) -> fk.LlamaCpp:
    options: dict[str, object] = {}
    for entry in text.split():
        name, value = entry.split("=")
        options[name] = WORDS[value] if value in WORDS else int(value) if value.isdecimal() else value
    return fk.LlamaCpp(**options, gpus=0, backend="cpu", mmap=False)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']} {row['settings']}")
def test_buffers_are_the_engines(row: dict[str, str]) -> None:
    model = model_of(row["model"], row["config"])
    table = settings_of(row["settings"]).buffers(model, row["quant"]).groupby("kind")["bytes"].sum()
    assert model.gguf_architecture == row["architecture"]
    assert table["model"] == int(row["model_bytes"])
    assert table.get("kv", 0) + table.get("state", 0) == int(row["context_bytes"])
    if not row["miss"]:
        assert table["compute"] == pytest.approx(int(row["compute_bytes"]), rel=0.02)


def test_a_files_weights_are_all_its_tensors() -> None:
    """Prediction blocks that are not loaded count in the total, not on the GPU."""
    model = fk.load("glm-4.5-air")
    row = fk.demand(model, quants="Q8_0", contexts=2048, parallel=1).iloc[0]
    unread = unread_bytes(loaded(model, "Q8_0"))
    buffers = fk.LlamaCpp(n_ctx=2048, n_seq_max=1).buffers(model, "Q8_0")
    assert unread > 0
    assert "never read" in row.note
    assert row.weights_bytes == buffers[buffers.kind == "model"]["bytes"].sum() + unread
    assert row.weights_bytes == pytest.approx(
        117_447_146_496, rel=1e-5
    )  # the file's tensors, llama.cpp b11434's dry run
