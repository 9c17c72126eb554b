"""Models nobody measured before, converted by us and loaded by the engine itself: buffers to the byte, compute within 2%.

The engine checked every tensor's name and shape while loading, so the conversions are held too. CPU, repacked weights, no mmap.
"""

from __future__ import annotations

import csv
import json
from functools import lru_cache
from pathlib import Path

import pytest
from gguf_files import MEASURED, write_gguf

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


# ---- architectures known only from a file's header ---------------------------------------------------------------------------

WIDTH, BLOCKS, VOCAB = 2048, 8, 64000
KEYS = {
    "block_count": BLOCKS, "context_length": 32768, "embedding_length": WIDTH, "feed_forward_length": 8192,
    "attention.head_count": 16, "attention.head_count_kv": 4, "rope.dimension_count": 128,
}  # fmt: skip
DENSE = {"ffn_gate": (WIDTH, 8192), "ffn_up": (WIDTH, 8192), "ffn_down": (8192, WIDTH)}
ROUTED = {
    "ffn_norm": (WIDTH,), "ffn_gate_inp": (WIDTH, 32), "ffn_gate_exps": (WIDTH, 768, 32), "ffn_up_exps": (WIDTH, 768, 32),
    "ffn_down_exps": (768, WIDTH, 32),
}  # fmt: skip
EXPERTS = {"expert_count": 32, "expert_used_count": 4, "expert_feed_forward_length": 768, "expert_gating_func": 2}


def header(path: Path, architecture: str, block: dict[str, tuple[int, ...]], more: dict[str, int], tied: bool) -> Model:
    """A small model of an architecture, all matrices Q4_K; its file is a hole."""
    attention = {"attn_norm": (WIDTH,), "attn_q": (WIDTH, 2048), "attn_k": (WIDTH, 512), "attn_v": (WIDTH, 512), "attn_output": (2048, WIDTH)}  # fmt: skip
    table = {"token_embd.weight": (WIDTH, VOCAB), "output_norm.weight": (WIDTH,)}
    table |= {} if tied else {"output.weight": (WIDTH, VOCAB)}
    table |= {f"blk.{i}.{role}.weight": shape for i in range(BLOCKS) for role, shape in (attention | block).items()}
    kinds = {name: "F32" if len(shape) == 1 or "gate_inp" in name else "Q4_K" for name, shape in table.items()}
    tensors = {name: (shape, kinds[name]) for name, shape in table.items()}
    return fk.load(
        str(write_gguf(path / "model.gguf", architecture, KEYS | more, tensors, general={"general.file_type": 15}))
    )


@pytest.mark.parametrize(
    ("architecture", "block", "more", "tied", "settings", "kind", "measured"),
    [
        ("bitnet", DENSE | {"ffn_norm": (WIDTH,), "attn_sub_norm": (2048,), "ffn_sub_norm": (8192,)}, {}, True, "n_ctx=4096", "model", 347873280),
        ("smallthinker", ROUTED, EXPERTS, True, "n_ctx=4096 n_outputs_max=4", "compute", 65030176),
        ("plamo", DENSE, {}, False, "n_ctx=8192 kv_unified=False type_k=q8_0 type_v=q8_0 n_outputs_max=4", "compute", 77695008),
    ],
)  # fmt: skip
def test_a_headers_buffers_are_the_engines(
    tmp_path: Path, architecture: str, block: dict[str, tuple[int, ...]], more: dict[str, int], tied: bool, settings: str, kind: str, measured: int
) -> None:  # fmt: skip
    """A head that is never copied, a router fed before attention, a parallel feed-forward. Source: llama.cpp b11739 run on CPU."""
    model = header(tmp_path, architecture, block, more, tied)
    table = settings_of(settings).buffers(model).groupby("kind")["bytes"].sum()
    assert table[kind] == pytest.approx(measured, rel=0 if kind == "model" else 0.02)
