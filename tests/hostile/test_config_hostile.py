"""Configs with values that cannot be: a FitError, never another exception, within a second."""

from __future__ import annotations

import contextlib
import csv
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

import fitkit as fk

ROWS = list(csv.DictReader((Path(__file__).parents[1] / "measured" / "multimodal_params.csv").open()))
QUANT = list(csv.DictReader((Path(__file__).parents[1] / "measured" / "quantized_weights.csv").open()))
VALUES: tuple[Any, ...] = (
    None, "", "x" * 1000, -1, 0, 1, 3, 0.5, 1e400, float("nan"), 2**62, -(2**62), 10**30, True, False,
    [], [1], [-1] * 3, [[[]]], ["full_attention"] * 5, {}, {"a": 1},
)  # fmt: skip


def paths(config: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where every value of a nested mapping is."""
    out = []
    for key, value in config.items():
        out.append((*above, key))
        if isinstance(value, dict):
            out += paths(value, (*above, key))
    return out


def spoil(config: dict[str, Any], luck: random.Random) -> None:
    """Replace or drop one value, or one entry of a list."""
    path = luck.choice(paths(config))
    for key in path[:-1]:
        config = config[key]
    value = luck.choice(VALUES)
    old = config[path[-1]]
    if luck.random() < 0.15:
        del config[path[-1]]
    elif isinstance(old, list) and old and luck.random() < 0.5:
        old[luck.randrange(len(old))] = value
    else:
        config[path[-1]] = value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model"])
def test_a_spoiled_config_is_read_or_refused(row: dict[str, str]) -> None:
    luck = random.Random(row["model"])
    for _ in range(60):
        config = json.loads(row["config"])
        config["quantization_config"] = json.loads(luck.choice(QUANT)["quantization_config"])
        for _ in range(luck.choice((1, 1, 2, 3))):
            spoil(config, luck)
        start = time.perf_counter()
        with contextlib.suppress(fk.FitError):
            model = fk.load(config)
            assert 0 < model.active_params <= model.params
        assert time.perf_counter() - start < 1
