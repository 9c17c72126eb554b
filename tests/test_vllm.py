"""vLLM's memory planning against what its own planning code gave (tests/measured/vllm_*.csv), exactly."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fitkit as fk
from fitkit.errors import BadInput, UnknownName
from fitkit.facts import shape
from fitkit.hardware import gpu
from fitkit.rules import Job, rules_for
from fitkit.rules.vllm.device import device_of
from fitkit.rules.vllm.groups import least_padding
from fitkit.rules.vllm.pipeline import stages
from fitkit.rules.vllm.settings import _IN_WORDS, CHANGES, release_of
from fitkit.rules.vllm.weights import stage_weights
from fitkit.sources.config import model_from_config

MEASURED = Path(__file__).parent / "measured"
GPUS = {"H100": "H100 80GB", "B200": "B200", "A100": "A100 80GB", "L40S": "L40S", "RTX4090": "RTX 4090"}
# What our sentence says where vLLM's says the same in its own words.
SAME_CAUSE = {
    "heads": ("not divisible by tensor_parallel_size", "KV heads"), "architecture": ("architecture",),
    "backend": ("no attention backend", "Triton"), "context parallel": ("Decode context parallelism",),
    "expert width": ("expert width",),
}  # fmt: skip


def rows(name: str) -> list[dict[str, str]]:
    with (MEASURED / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


SHAPES = {row["model"]: row["shape"] for row in rows("vllm_shapes")}


@cache
def model(name: str) -> fk.Model:
    return model_from_config(shape.decode(SHAPES[name]), name=name)


def named(row: dict[str, str]) -> str:
    return " ".join(filter(None, (row["model"], row["gpu"], row.get("tag", ""), row["settings"])))


@pytest.mark.parametrize("row", rows("vllm_plans"), ids=named)
def test_plan_is_exact(row: dict[str, str]) -> None:
    available = int(row["available_bytes"] or 8 * 2**30)
    settings = fk.VLLM(kv_cache_memory_bytes=available, version="0.33", **json.loads(row["settings"]))
    got = settings.startup(model(row["model"]), GPUS[row["gpu"]])
    if row["refusal"]:
        assert not got.starts
        assert any(words in got.error for words in SAME_CAUSE[row["refusal"]]), got.error
        return
    assert got.bytes_per_block == int(row["bytes_per_block"])
    assert got.num_groups == int(row["groups"])
    if row["block_size"]:
        assert got.block_size == int(row["block_size"])
    if row["estimated_max_len"]:
        assert not got.starts
        assert got.estimated_max_model_len == int(row["estimated_max_len"])
        assert f"{row['needed_gib']} GiB KV cache is needed" in got.error
        return
    assert got.starts, got.error
    assert (got.num_gpu_blocks, got.kv_cache_tokens) == (int(row["blocks"]), int(row["tokens"]))
    assert got.max_concurrency == float(row["concurrency"])
    assert got.max_model_len == int(row["max_model_len"])
    assert got.log_line == (
        f"GPU KV cache size: {int(row['tokens']):,} tokens, "
        f"Maximum concurrency for {int(row['max_model_len']):,} tokens per request: {float(row['concurrency']):.2f}x"
    )


@pytest.mark.parametrize(
    "row", rows("vllm_weights"), ids=lambda row: f"{named(row)} tp{row['tp']} pp{row['pp']}.{row['pp_rank']}"
)
def test_weights_are_exact(row: dict[str, str]) -> None:
    more = json.loads(row["settings"]) if row["settings"] else {}
    settings = fk.VLLM(tensor_parallel_size=int(row["tp"]), pipeline_parallel_size=int(row["pp"]), **more)
    got = stage_weights(settings, model(row["model"]), device_of(gpu(GPUS[row["gpu"]])))
    assert got[int(row["pp_rank"])] == int(row["total_bytes"])


def test_two_log_lines_and_the_old_formula_before_their_versions() -> None:
    options = {"kv_cache_memory_bytes": 8 * 2**30, "max_model_len": 8192}
    old = fk.VLLM(version="0.19.1", **options).startup(model("gemma-3-4b"), "H100 80GB")
    new = fk.VLLM(version="0.28.0", **options).startup(model("gemma-3-4b"), "H100 80GB")
    assert "\n" in old.log_line
    assert "\n" not in new.log_line
    assert old.kv_cache_tokens == old.num_gpu_blocks // old.num_groups * 16


def test_what_changed_between_versions() -> None:
    assert fk.VLLM(version="0.19.1").utilization == 0.90
    assert fk.VLLM(version="0.20.2").utilization == 0.92
    assert fk.VLLM().utilization == 0.92
    between = fk.VLLM(version="0.25.0").startup(model("gemma-2-9b"), "H100 80GB")
    assert "How many batches are in flight changed between vLLM 0.24.0 and 0.26.0." in between.note
    assert release_of("v0.20.2rc1.dev16+g7a1eb8ac2")[:2] == (0, 20)


def test_hybrids_cache_prefixes_by_default_since_0_26() -> None:
    """A published log of 0.24 with prefix caching on: 6.01 GiB, 569,878 tokens, 4.35x at 131,072."""
    one = model("Qwen__Qwen3.5-35B-A3B")
    options = {"kv_cache_memory_bytes": int(6.01 * 2**30), "max_model_len": 131072, "kv_cache_dtype": "fp8"}
    off = fk.VLLM(version="0.24.0", **options).startup(one, "RTX 5090")
    asked = fk.VLLM(version="0.24.0", enable_prefix_caching=True, **options).startup(one, "RTX 5090")
    assert asked.max_concurrency == pytest.approx(4.35, abs=0.005)
    assert asked.kv_cache_tokens == pytest.approx(569878, rel=0.005)
    assert off.max_concurrency > asked.max_concurrency
    with pytest.raises(fk.UnsupportedModel, match="prefix caching"):
        fk.VLLM(version="0.24.0", enable_prefix_caching=True).startup(model("falcon-h1-7b"), "H100 80GB")


def test_the_null_block_must_be_free() -> None:
    one = model("llama-3.1-8b")  # 8192 tokens are 512 blocks of 2 MiB
    full = fk.VLLM(kv_cache_memory_bytes=512 * 2**21, max_model_len=8192).startup(one, "H100 80GB")
    more = fk.VLLM(kv_cache_memory_bytes=513 * 2**21, max_model_len=8192).startup(one, "H100 80GB")
    assert (full.starts, full.estimated_max_model_len) == (False, 8176)
    assert more.starts


def test_batch_defaults_follow_gpu_and_usage() -> None:
    one = model("llama-3.1-8b")
    seen = {
        (name, usage): (got.max_num_batched_tokens, got.max_num_seqs)
        for name in ("H100 80GB", "A100 80GB", "B200")
        for usage in ("api", "llm")
        for got in [fk.VLLM(usage=usage).startup(one, name)]
    }
    assert seen["H100 80GB", "api"] == (8192, 1024)
    assert seen["H100 80GB", "llm"] == (16384, 1024)
    assert seen["A100 80GB", "api"] == (2048, 256)
    assert seen["B200", "api"] == (16384, 1024)


def test_terms_sum_to_what_was_requested() -> None:
    got = fk.VLLM(tensor_parallel_size=2).startup(model("llama-3.3-70b"), "H100 80GB")
    assert got.available_kv_bytes == -(-int(gpu("H100 80GB").seen_bytes * 92) // 100) - sum(t.bytes for t in got.terms)
    assert all(term.low <= term.bytes <= term.high for term in got.terms)
    assert got.terms[0].bytes == got.weights_bytes


def test_grid_agrees_with_start_up() -> None:
    one, card = model("gemma-3-27b"), gpu("H100 80GB")
    counted = rules_for("engine", "vllm")
    assert counted is not None
    job = Job(model=one, quant="BF16", kv_dtype="auto", gpus=2, gpu=card, engine="vllm")
    context = np.array([1024, 8192, 32768, 131072])
    need = counted.allocate(job, context, np.ones_like(context)).per_gpu
    most = counted.max_parallel(job, context, counted.usable_bytes(job))
    for i, length in enumerate(context.tolist()):
        got = fk.VLLM(tensor_parallel_size=2, max_model_len=length).startup(one, card)
        assert got.starts == bool(need[i] <= counted.usable_bytes(job))
        assert most is not None
        assert most[i] == int(got.max_concurrency)


def test_a_pool_of_a_given_size_is_what_the_cache_gets() -> None:
    given = fk.VLLM(kv_cache_memory_bytes=4 * 2**30)
    table = fk.fit(model("llama-3.1-8b"), "1x RTX 4090", quants="BF16", contexts=[8192, 65536], engine=given)
    assert table.fits.tolist() == [True, False]
    assert table.kv_bytes.tolist() == [4 * 2**30] * 2
    assert table.max_parallel.tolist() == [4, 0]
    assert "kv_cache_memory_bytes" in table.reason[1]


def test_types_a_catalog_model_may_be_asked_for() -> None:
    one = model("llama-3.1-8b")
    got = fk.demand(one, quants=["BF16", "FP8", "AWQ", "NVFP4", "INT8"], engine="vllm").set_index("quant").weights_bytes
    assert got["AWQ"] == 5727854592  # vLLM's own modules, tests/measured/vllm_weights.csv
    assert got["BF16"] > got["FP8"] >= got["INT8"] > got["NVFP4"] > got["AWQ"]


def test_every_change_between_versions_has_words() -> None:
    assert {name for name, _, _ in CHANGES} == set(_IN_WORDS)


def test_bad_options_are_told() -> None:
    with pytest.raises(BadInput, match="gpu_memory_utilization"):
        fk.VLLM(gpu_memory_utilization=1.5)
    with pytest.raises(UnknownName, match="fp8_e4m3"):
        fk.VLLM(kv_cache_dtype="fp8_e4m")
    with pytest.raises(BadInput, match="version"):
        fk.VLLM(version="latest")
    with pytest.raises(BadInput, match="older than"):
        fk.VLLM(version="0.6.3")
    with pytest.raises(TypeError):
        fk.VLLM(tensor_parallel=2)  # type: ignore[call-arg]


def test_left_over_layers_and_group_sizes() -> None:
    assert [len(part) for part in stages(61, 4)] == [15, 15, 16, 15]
    assert least_padding([43, 21, 20], 21) == 22
