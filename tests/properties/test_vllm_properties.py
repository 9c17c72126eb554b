"""What must hold of vLLM's planning whatever the model and settings."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import fitkit as fk
from fitkit.errors import FitError
from fitkit.facts import shape
from fitkit.hardware import gpu
from fitkit.rules.vllm.capacity import blocks_per_request, longest
from fitkit.rules.vllm.device import device_of
from fitkit.rules.vllm.plan import make_plan
from fitkit.rules.vllm.weights import stage_weights
from fitkit.sources.config import model_from_config

SHAPES = Path(__file__).parents[1] / "measured" / "vllm_shapes.csv"
MODELS = [row["model"] for row in csv.DictReader(SHAPES.open(newline="")) if "--" not in row["model"]]
H100 = device_of(gpu("H100 80GB"))
models = st.sampled_from(MODELS)
kv_dtypes = st.sampled_from(["auto", "fp8"])


@cache
def model(name: str) -> fk.Model:
    row = next(row for row in csv.DictReader(SHAPES.open(newline="")) if row["model"] == name)
    return model_from_config(shape.decode(row["shape"]), name=name)


def weights(name: str, **options: int | bool) -> tuple[int, ...] | None:
    """Bytes a stage, None where vLLM cannot cut the model so."""
    try:
        return stage_weights(fk.VLLM(**options), model(name), H100)  # type: ignore[arg-type]
    except FitError:
        return None


@settings(max_examples=40, deadline=None)
@given(models, st.sampled_from([1, 2, 4]))
def test_more_ranks_never_hold_more_each(name: str, ranks: int) -> None:
    one, two = weights(name, tensor_parallel_size=ranks), weights(name, tensor_parallel_size=2 * ranks)
    if one and two:
        assert two[0] <= one[0] <= 2 * two[0]


@settings(max_examples=40, deadline=None)
@given(models, st.integers(1, 6))
def test_stages_hold_the_whole_model(name: str, count: int) -> None:
    whole, parts = weights(name), weights(name, pipeline_parallel_size=count)
    assert whole
    assert parts
    assert len(parts) == count
    assert sum(parts) >= whole[0]
    assert max(parts) <= whole[0]


@settings(max_examples=40, deadline=None)
@given(models, kv_dtypes, st.lists(st.integers(1, 2**20), min_size=2, max_size=20), st.sampled_from([1, 2, 4]))
def test_more_context_never_needs_fewer_blocks(name: str, kv: str, lengths: list[int], dcp: int) -> None:
    plan = make_plan(fk.VLLM(kv_cache_dtype=kv), model(name), H100)
    length = np.sort(np.array(lengths, dtype=np.int64))
    need = blocks_per_request(plan.needs, length, np.full_like(length, 16384), decode_context_parallel=dcp)
    assert (np.diff(need) >= 0).all()
    assert (need >= 0).all()


@settings(max_examples=40, deadline=None)
@given(models, kv_dtypes, st.integers(0, 20000), st.integers(1, 2**20))
def test_the_longest_that_fits_is_the_longest(name: str, kv: str, blocks: int, most: int) -> None:
    plan = make_plan(fk.VLLM(kv_cache_dtype=kv), model(name), H100)
    best = longest(plan.needs, blocks, most, 16384)

    def need(length: int) -> int:
        return int(blocks_per_request(plan.needs, np.array([length]), np.array([16384]))[0])

    assert best == 0 or need(best) <= blocks
    assert best == most or need(best + 1) > blocks


@settings(max_examples=40, deadline=None)
@given(models, kv_dtypes, st.integers(1, 64))
def test_a_block_of_the_whole_is_no_smaller_than_a_stage_s(name: str, kv: str, count: int) -> None:
    one = model(name)
    count = min(count, len(one.layers))
    whole = make_plan(fk.VLLM(kv_cache_dtype=kv), one, H100)
    cut = make_plan(fk.VLLM(kv_cache_dtype=kv, pipeline_parallel_size=count), one, H100)
    if not whole.refusal:
        assert max(cut.stage_block_bytes) <= whole.block_bytes
        assert sum(cut.stage_block_bytes) >= whole.block_bytes
