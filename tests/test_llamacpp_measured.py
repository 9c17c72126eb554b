"""llama.cpp's buffers against its own planner: model and context to the byte on each device, compute within what we claim."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest
from gguf_files import MEASURED, measured_model

import fitkit as fk
from fitkit.errors import BadInput
from fitkit.model import Model

# Group -> (least share within 2%, least share within 10%) of a compute buffer, for batches of 128 tokens and more.
CLAIMS = {"f16": (0.95, 0.98), "other cache": (0.90, 0.97), "fa off": (0.90, 0.97), "several or partial": (0.80, 0.93)}


def rows(name: str) -> list[dict[str, str]]:
    with (MEASURED / name).open(newline="") as file:
        return list(csv.DictReader(file))


def options(text: str) -> dict[str, object]:
    """What "n_ctx=8192 kv_unified=False" says."""
    out: dict[str, object] = {}
    for entry in text.split():
        name, value = entry.split("=")
        words = {"True": True, "False": False, "None": None}
        out[name] = words[value] if value in words else int(value) if value.lstrip("-").isdecimal() else value
    return out


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    place: Path = tmp_path_factory.mktemp("gguf")
    names = {row["model"] for name in ("llamacpp.csv", "llamacpp_refused.csv") for row in rows(name)}
    return {name: measured_model(name, place) for name in names}


def measured(row: dict[str, str]) -> dict[str, tuple[int, int, int]]:
    """Device -> (model, context, compute)."""
    out = {}
    for entry in row["buffers"].split():
        device, _, sizes = entry.partition("=")
        model, context, compute = (int(size) for size in sizes.split("/"))
        out[device] = (model, context, compute)
    return out


def predicted(row: dict[str, str], models: dict[str, Model]) -> dict[str, dict[str, int]]:
    table = fk.LlamaCpp(**options(row["settings"])).buffers(models[row["model"]], row["quant"])
    out: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for entry in table.itertuples():
        kind = "context" if entry.kind in ("kv", "state") else entry.kind
        out[entry.device][kind] += entry.bytes
    return out


@pytest.fixture(scope="module")
def laid(models: dict[str, Model]) -> list[tuple[dict[str, str], dict[str, dict[str, int]]]]:
    return [(row, predicted(row, models)) for row in rows("llamacpp.csv")]


@pytest.mark.parametrize(("kind", "place"), [("model", 0), ("context", 1)])
def test_model_and_context_are_exact_on_each_device(laid, kind: str, place: int) -> None:
    wrong = []
    for row, got in laid:
        want = {device: sizes[place] for device, sizes in measured(row).items() if sizes[place]}
        have = {device: kinds[kind] for device, kinds in got.items() if kinds[kind]}
        if have != want:
            wrong.append((row["model"], row["settings"], have, want))
    assert not wrong


def test_output_buffer_holds_a_row_of_logits_for_each_slot(laid, models: dict[str, Model]) -> None:
    for row, got in laid:
        slots = options(row["settings"]).get("n_seq_max", 4)
        assert sum(kinds["output"] for kinds in got.values()) == 4 * models[row["model"]].vocab_size * slots


def group_of(row: dict[str, str]) -> str:
    asked = options(row["settings"])
    partial = asked.get("n_gpu_layers", 999) != 999 and asked.get("backend") != "cpu"
    if int(asked.get("gpus", 1)) > 1 or partial or asked.get("cpu_moe"):
        return "several or partial"
    if row["flash"] == "off":
        return "fa off"
    plain = asked.get("type_k", "f16") == asked.get("type_v", "f16") == "f16"
    return "f16" if plain else "other cache"


def test_compute_buffers_are_within_what_is_claimed(laid) -> None:
    errors: dict[str, list[float]] = defaultdict(list)
    for row, got in laid:
        asked = options(row["settings"])
        if min(int(asked["n_ctx"]), int(asked.get("n_ubatch", 512))) < 128:
            continue
        want = sum(sizes[2] for sizes in measured(row).values())
        have = sum(kinds["compute"] for kinds in got.values())
        errors[group_of(row)].append(abs(have / want - 1))
    assert set(errors) == set(CLAIMS)
    for group, (near, far) in CLAIMS.items():
        values = errors[group]
        assert sum(value <= 0.02 for value in values) / len(values) >= near, group
        assert sum(value <= 0.10 for value in values) / len(values) >= far, group


def test_one_device_is_never_short_by_two_percent(laid) -> None:
    for row, got in laid:
        if group_of(row) == "several or partial":
            continue
        want = sum(sum(sizes) for sizes in measured(row).values())
        have = sum(kinds["model"] + kinds["context"] + kinds["compute"] for kinds in got.values())
        assert have >= 0.98 * want, row


def test_what_the_engine_refuses_or_dies_of_is_refused(models: dict[str, Model]) -> None:
    for row in rows("llamacpp_refused.csv"):
        with pytest.raises(BadInput, match=r"llama\.cpp (refuses|aborts)"):
            fk.LlamaCpp(**options(row["settings"])).buffers(models[row["model"]], row["quant"])
