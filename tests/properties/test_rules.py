"""What holds for every rule set, model and setting."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fitkit as fk
from fitkit.tables.search import largest

MODELS = [
    "llama-3.1-8b",
    "gemma-3-27b-it",
    "qwen3-235b-a22b",
    "deepseek-v3",
    "qwen3-next-80b-a3b-instruct",
    "gpt-oss-20b",
]
RULES: list[dict[str, Any]] = [
    {"rules": "library", "engine": "llama.cpp", "quants": "Q4_K_M"},
    {"rules": "library", "engine": "vllm", "quants": "BF16"},
    {"rules": "budget", "engine": "vllm", "quants": "AWQ"},
    {"rules": "shard", "engine": "vllm", "quants": "FP8"},
    {"rules": "shard", "engine": "llama.cpp", "quants": "Q8_0"},
]
IDS = [f"{one['rules']}-{one['engine']}" for one in RULES]
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
models, numbers = st.sampled_from(MODELS), st.integers(1, 64)


@pytest.mark.parametrize("asked", RULES, ids=IDS)
@quick
@given(
    model=models,
    contexts=st.lists(st.integers(1, 32768), min_size=2, max_size=8),
    parallel=numbers,
    gpus=st.sampled_from([1, 2, 4]),
)
def test_more_never_needs_less(
    asked: dict[str, Any], model: str, contexts: list[int], parallel: int, gpus: int
) -> None:
    table = fk.demand(model, contexts=sorted(contexts), parallel=[parallel, parallel + 1], gpus=gpus, **asked)
    need = table.per_gpu_bytes.to_numpy().reshape(len(contexts), 2)
    assert (np.diff(need, axis=0) >= 0).all()
    assert (np.diff(need, axis=1) >= 0).all()
    assert (table.weights_bytes + table.kv_bytes + table.overhead_bytes == table.total_bytes).all()
    assert (table.kv_bytes >= 0).all()


@pytest.mark.parametrize("asked", RULES, ids=IDS)
@quick
@given(model=models, context=st.integers(1, 32768), parallel=numbers)
def test_more_cards_never_raise_a_cards_weights_or_cache(
    asked: dict[str, Any], model: str, context: int, parallel: int
) -> None:
    rows = [fk.demand(model, contexts=context, parallel=parallel, gpus=n, **asked).iloc[0] for n in (1, 2, 4)]
    terms = [fk.explain(row).groupby("column").per_gpu_bytes.sum() for row in rows]
    for less, more in pairwise(terms):
        assert more["weights"] <= less["weights"]
        assert more["kv"] <= less["kv"]
    assert rows[0].weights_bytes == rows[2].weights_bytes
    assert rows[0].per_gpu_bytes == rows[0].total_bytes


@pytest.mark.parametrize(
    ("rules", "engine", "ladder"),
    [
        ("library", "llama.cpp", ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "BF16"]),
        ("library", "vllm", ["AWQ", "FP8", "BF16"]),
        ("budget", "vllm", ["Q3_K_M", "AWQ", "Q4_K_M", "Q5_K_M", "Q6_K", "FP8", "Q8_0", "BF16"]),
        ("shard", "vllm", ["FP8", "BF16"]),
    ],
)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b-it", "qwen3-235b-a22b"])
def test_more_bits_are_never_smaller(rules: str, engine: str, ladder: list[str], model: str) -> None:
    table = fk.demand(model, ladder, engine=engine, rules=rules)
    assert table.weights_bytes.notna().all()
    assert table.weights_bytes.is_monotonic_increasing


@pytest.mark.parametrize("asked", RULES, ids=IDS)
@quick
@given(
    model=models, context=st.integers(1, 32768), parallel=st.integers(1, 32),
    machine=st.sampled_from(["8x H100", "2x RTX 4090", "4x 12 GiB", "8x H200"]),
)  # fmt: skip
def test_a_verdict_agrees_with_its_numbers(
    asked: dict[str, Any], model: str, context: int, parallel: int, machine: str
) -> None:
    row = fk.fit(model, machine, contexts=context, parallel=parallel, **asked).iloc[0]
    assert row.fits == (row.need_per_gpu_bytes <= row.usable_per_gpu_bytes)
    assert row.free_per_gpu_bytes == row.usable_per_gpu_bytes - row.need_per_gpu_bytes
    assert row.fits == (row.max_parallel >= parallel)
    assert row.fits == (row.max_context >= context)
    assert bool(row.limited_by) != row.fits
    assert row.reason


ENGINE: list[dict[str, Any]] = [{"engine": "llama.cpp", "quants": "Q4_K_M"}, {"engine": "vllm", "quants": "BF16"}]
few = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
small = st.sampled_from(["llama-3.1-8b", "gemma-3-27b-it", "qwen3-8b"])


@pytest.mark.parametrize("asked", ENGINE, ids=["llama.cpp", "vllm"])
@few
@given(model=small, contexts=st.lists(st.integers(1, 32768), min_size=2, max_size=8), parallel=st.integers(1, 8))
def test_engines_more_never_needs_less(asked: dict[str, Any], model: str, contexts: list[int], parallel: int) -> None:
    """Exactly so for weights and cache; an allocator's plan for the work beside them may dip inside its stated range."""
    table = fk.demand(model, contexts=sorted(contexts), parallel=[parallel, parallel + 1], **asked)
    assert table.weights_bytes.nunique() == 1
    grid = {
        name: table[name].to_numpy().reshape(len(contexts), 2)
        for name in ("kv_bytes", "per_gpu_low_bytes", "per_gpu_high_bytes")
    }
    low, high = grid["per_gpu_low_bytes"], grid["per_gpu_high_bytes"]
    for axis in (0, 1):
        assert (np.diff(grid["kv_bytes"], axis=axis) >= 0).all()
    assert (high[1:] >= low[:-1]).all()
    assert (high[:, 1:] >= low[:, :-1]).all()
    assert (table.weights_bytes + table.kv_bytes + table.overhead_bytes == table.total_bytes).all()


@pytest.mark.parametrize("asked", ENGINE, ids=["llama.cpp", "vllm"])
@few
@given(model=small, context=st.integers(256, 32768), parallel=st.integers(1, 8))
def test_engines_more_cards_never_raise_a_cards_weights_or_cache(
    asked: dict[str, Any], model: str, context: int, parallel: int
) -> None:
    rows = [fk.demand(model, contexts=context, parallel=parallel, gpus=n, **asked).iloc[0] for n in (1, 2, 4)]
    terms = [fk.explain(row).groupby("column").per_gpu_bytes.sum() for row in rows]
    for less, more in pairwise(terms):
        assert more["weights"] <= less["weights"]
        assert more["kv"] <= less["kv"]


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_engines_more_bits_are_never_smaller(engine: str) -> None:
    ladder = ["Q2_K", "Q4_K_M", "Q6_K", "Q8_0", "BF16"] if engine == "llama.cpp" else ["AWQ", "FP8", "BF16"]
    for model in ("llama-3.1-8b", "gemma-3-27b-it"):
        assert fk.demand(model, ladder, engine=engine).weights_bytes.is_monotonic_increasing


@quick
@given(limits=st.lists(st.integers(0, 10**7), min_size=1, max_size=40), most=st.integers(0, 10**7))
def test_the_search_finds_the_largest(limits: list[int], most: int) -> None:
    wanted = np.array(limits)
    found = largest(lambda rows, n: n <= wanted[rows], np.full(len(limits), most))
    assert (found == np.minimum(wanted, most)).all()
