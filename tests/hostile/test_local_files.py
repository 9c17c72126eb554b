"""Directories and files on this machine that lead elsewhere, nest without end, or are no files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import fitkit as fk

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128, "intermediate_size": 96,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a config."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


@pytest.mark.parametrize(
    "name", ["config.json", "hf_quant_config.json", "model.safetensors", "model.safetensors.index.json"]
)
def test_a_link_out_of_a_directory_is_refused(model: Path, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(LLAMA))
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(secret)
    with pytest.raises(fk.BadInput, match=rf"{name} leads out of model"):
        fk.load(model)


def test_links_inside_a_directory_are_followed(model: Path) -> None:
    (model / "config.json").rename(model / "other.json")
    (model / "config.json").symlink_to("other.json")
    assert len(fk.load(model).layers) == 2


def test_a_part_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "parts", tmp_path / "outside.gguf"
    folder.mkdir()
    outside.write_bytes(b"GGUF" + bytes(100))
    (folder / "m-00001-of-00002.gguf").symlink_to(outside)
    (folder / "m-00002-of-00002.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(fk.BadInput, match="leads out of parts"):
        fk.load(folder / "m-00002-of-00002.gguf")


def test_a_link_to_itself_and_a_pipe_are_no_files(model: Path) -> None:
    (model / "m.gguf").symlink_to(model / "m.gguf")
    os.mkfifo(model / "pipe.gguf")
    os.mkfifo(model / "pipe.json")
    for name in ("m.gguf", "pipe.gguf", "pipe.json"):
        with pytest.raises(fk.FitError):
            fk.load(model / name)


@pytest.mark.parametrize("depth", [65, 900, 100_000])
def test_nesting_without_end_is_refused(model: Path, depth: int) -> None:
    (model / "config.json").write_text(
        json.dumps(LLAMA)[:-1] + ', "rope_scaling": ' + '{"a":' * depth + "0" + "}" * depth + "}"
    )
    with pytest.raises(fk.BadInput, match=r"config\.json (nests deeper than 64|is no JSON)"):
        fk.load(model)


@pytest.mark.parametrize("depth", [200, 5_000])
def test_a_mapping_that_nests_without_end_is_read_or_refused(depth: int) -> None:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"a": inner, "text_config": inner}
    with pytest.raises(fk.FitError):
        fk.load({**LLAMA, "quantization_config": inner})


def test_a_directory_named_by_a_stranger_is_fit_for_a_line(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[2J\n<b>"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert fk.load(folder).name.isprintable()
    assert fk.load({**LLAMA, "_name_or_path": "a\x1b[2J"}).name.isprintable()
