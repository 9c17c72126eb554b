"""Models by name."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import fitkit as fk
from fitkit.sources.catalog import catalog_model, layer_kinds, names


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.3-70b",
        "qwen3-235b-a22b",
        "gemma-3-27b-it",
        "gpt-oss-120b",
        "qwen3-8b",
        "mixtral-8x7b",
    ],
)
def test_well_known_names(name: str) -> None:
    model = fk.load(name)
    assert model.basis == "arch"
    assert model.downloads > 0
    assert model.header_bytes > 0
    assert "/" in model.source


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "Llama 3.1 8B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-8B",
        "llama3.1:8b",
        "LLAMA_3.1-8B-instruct",
    ],
)
def test_one_model_many_names(name: str) -> None:
    assert fk.load(name) == fk.load("llama-3.1-8b")


@pytest.mark.parametrize(
    ("name", "params"),
    [("llama-3.1-8b", 8_030_261_248), ("llama-3.1-70b", 70_553_706_496), ("mixtral-8x7b", 46_702_792_704), ("gpt-oss-120b", 116_829_156_672), ("gemma-3-27b-it", 27_432_406_640)],
)  # fmt: skip
def test_totals(name: str, params: int) -> None:
    assert fk.load(name).params == params


def test_the_file_of_llama_8b() -> None:
    # 4,920,739,232 bytes of Q4_K_M are 4,912,898,304 of tensors (256 of them rope factors) and this
    assert fk.load("llama-3.1-8b").header_bytes == 7_840_928


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama-3.1-8b", "f8x128*32"),
        ("gpt-oss-120b", "(s8x64@128,f8x64)*18"),
        ("gemma-3-27b-it", "(s16x128@1024*5,f16x128)*10,s16x128@1024*2"),
        ("deepseek-v3", "l576*61"),
        ("deepseek-v3.2", "l576+i128*61"),
        ("mamba-2.8b", "mamba1:1x5120x16k4*64"),
    ],
)
def test_kinds_in_short(name: str, kinds: str) -> None:
    assert layer_kinds(fk.load(name).layers) == kinds


def test_popular_first() -> None:
    downloads = [fk.load(name).downloads for name in names()[:60]]
    assert downloads == sorted(downloads, reverse=True)
    assert set(names("embedding")).isdisjoint(names())
    assert set(names("")) == {*names(), *names("embedding")}


def test_a_miss() -> None:
    assert catalog_model("no-such-model-9z") is None
    with pytest.raises(fk.UnknownName, match=r"llama-3\.1-8b") as caught:
        fk.load("lama-3.1-8b")
    assert "llama-3.1-8b" in caught.value.nearest


def measured_kinds() -> list[dict[str, str]]:
    with (Path(__file__).parent / "measured" / "layer_kinds.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", measured_kinds(), ids=lambda row: row["name"])
def test_kinds_are_those_of_the_engines_own_files(row: dict[str, str]) -> None:
    kinds = layer_kinds(fk.load(row["name"]).layers)
    if row["why"]:
        assert kinds != row["layer_kinds"], "an explained difference that is none"
    else:
        assert kinds == row["layer_kinds"]
