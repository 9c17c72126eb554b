"""What tests/fuzz_headers.py found, each as small as it can be: inputs that once raised something other than a FitError, or told it badly."""

from __future__ import annotations

import copy
import csv
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fitkit as fk

MEASURED = Path(__file__).parents[1] / "measured" / "multimodal_params.csv"


def config(model_type: str) -> dict[str, Any]:
    """A measured config of this model_type."""
    with MEASURED.open(newline="", encoding="utf-8") as file:
        every = [json.loads(row["config"]) for row in csv.DictReader(file)]
    return copy.deepcopy(next(one for one in every if one.get("model_type") == model_type))


@pytest.mark.parametrize("value", [1e308, 1e19, -1e308, 2**62, 0, 1e-308, float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("model_type", "path"),
    [
        ("deepseek_vl_v2", ("vision_config", "mlp_ratio")),
        ("internvl", ("downsample_ratio",)),
        ("internvl_chat", ("downsample_ratio",)),
        ("lfm2_vl", ("text_config", "block_ffn_dim_multiplier")),
        ("internvl_chat", ("llm_config", "rope_scaling")),
    ],
)
def test_a_factor_that_no_size_follows_from(model_type: str, path: tuple[str, ...], value: float) -> None:
    whole = config(model_type)
    at = whole
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = {"type": "dynamic", "factor": value} if path[-1] == "rope_scaling" else value
    with suppress(fk.FitError):
        model = fk.load(whole)
        assert 0 < model.active_params <= model.params < 10**16


def test_a_tensor_is_named_fit_for_a_line(tmp_path: Path) -> None:
    name, key, arch = b"a\x00\x1b[2Jb", b"general.architecture", b"llama"
    raw = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    raw += struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(arch)) + arch
    raw += struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 2**20, 2**20, 0, 0)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(fk.BadInput, match="cut short") as caught:
        fk.load(path)
    assert str(caught.value).isprintable()
