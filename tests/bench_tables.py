"""Speed of the tables; run by hand: pytest -m bench tests/bench_tables.py -s."""

from __future__ import annotations

import time
from typing import Any

import pytest

import fitkit as fk

pytestmark = pytest.mark.bench
WAYS: list[dict[str, Any]] = [
    {"rules": "library", "engine": "llama.cpp", "quants": ["Q4_K_M", "Q8_0"], "kv_dtypes": ["f16", "q8_0"]},
    {"rules": "budget", "engine": "vllm", "quants": ["BF16", "FP8"], "kv_dtypes": ["f16", "fp8"]},
    {"rules": "shard", "engine": "vllm", "quants": ["BF16", "FP8"], "kv_dtypes": ["f16", "fp8"]},
    {"rules": "engine", "engine": "llama.cpp", "quants": ["Q4_K_M", "Q8_0"], "kv_dtypes": ["f16", "q8_0"]},
    {"rules": "engine", "engine": "vllm", "quants": ["BF16", "FP8"], "kv_dtypes": ["f16", "fp8"]},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way['rules']}-{way['engine']}")
def test_rows_a_second(way: dict[str, Any]) -> None:
    """Goal: 1,000,000 rows in about a second on two idle cores."""
    fk.demand("llama-3.1-8b", **way)
    start = time.perf_counter()
    table = fk.demand(
        ["llama-3.1-8b", "gemma-3-27b-it"], contexts=range(1024, 1024 + 256 * 354, 256), parallel=range(1, 355), **way
    )
    seconds = time.perf_counter() - start
    print(
        f"\n{way['rules']}/{way['engine']}: {len(table):,} rows in {seconds:.2f} s, {len(table) / seconds:,.0f} a second"
    )


@pytest.mark.parametrize("way", WAYS[:3], ids=lambda way: f"{way['rules']}-{way['engine']}")
def test_whole_catalog(way: dict[str, Any]) -> None:
    """Goal: 300 models on 30 machines in a few seconds."""
    models = [fk.load(name) for name in fk.models().name[:300]]
    asked = way | {"quants": way["quants"][0], "kv_dtypes": None}
    start = time.perf_counter()
    table = fk.fit(models, list(fk.machines().name[:30]), **asked)
    print(f"\n{way['rules']}/{way['engine']}: {len(table):,} verdicts in {time.perf_counter() - start:.2f} s")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way['rules']}-{way['engine']}")
def test_heat_map(way: dict[str, Any]) -> None:
    """Goal: well under the 100 ms of a slider's move."""
    asked = way | {"quants": way["quants"][0], "kv_dtypes": None}
    contexts, parallel = [2**n for n in range(9, 18)], [2**n for n in range(10)]
    fk.fit("llama-3.1-8b", "8x H100", contexts=contexts, parallel=parallel, **asked)
    start = time.perf_counter()
    for _ in range(5):
        table = fk.fit("llama-3.1-8b", "8x H100", contexts=contexts, parallel=parallel, **asked)
    print(f"\n{way['rules']}/{way['engine']}: {len(table)} cells in {(time.perf_counter() - start) / 5 * 1000:.0f} ms")
