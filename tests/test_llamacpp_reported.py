"""llama.cpp start-up logs of others: KV and state as logged; model and compute ratios as the table says."""

from __future__ import annotations

import csv

import pytest
from gguf_files import MEASURED

import fitkit as fk
from fitkit.units import MIB

ROWS = list(csv.DictReader((MEASURED / "reported_llamacpp.csv").read_text().splitlines()))


def options(text: str) -> dict[str, object]:
    """What "n_ctx=8192 kv_unified=False" says."""
    words = {"True": True, "False": False}
    pairs = (entry.split("=") for entry in text.split())
    return {
        name: words[value] if value in words else int(value) if value.isdecimal() else value for name, value in pairs
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['reported']}-{row['settings'].split()[0]}")
def test_buffers_beside_the_log(row: dict[str, str]) -> None:
    table = fk.LlamaCpp(**options(row["settings"])).buffers(fk.load(row["model"]), row["quant"])
    sums = table.groupby("kind")["bytes"].sum() / MIB
    assert sums["kv"] == pytest.approx(float(row["kv_mib"]), abs=0.02)  # logs round each buffer to 0.01 MiB
    if float(row["state_mib"]):
        assert sums["state"] == pytest.approx(float(row["state_mib"]), abs=0.02)
    first = table[table.device == "GPU0"].groupby("kind")["bytes"].sum() / MIB
    for kind in ("model", "compute"):
        if row[f"{kind}_ratio"]:
            ratio = first[kind] / float(row[f"gpu_{kind}_mib"])
            assert ratio == pytest.approx(float(row[f"{kind}_ratio"]), abs=0.005), kind
