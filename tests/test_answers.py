"""Plans, explanations, suggestions and the questions asked the other way round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fitkit as fk
from fitkit.units import GB, GIB

LIBRARY: dict[str, Any] = {"quants": "Q4_K_M", "rules": "library"}
BUDGET: dict[str, Any] = {"quants": "Q4_K_M", "engine": "vllm", "rules": "budget"}
SHARD: dict[str, Any] = {"quants": "BF16", "engine": "vllm", "rules": "shard"}


# ---- explain -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [LIBRARY, BUDGET, SHARD], ids=["library", "budget", "shard"])
def test_explained_terms_sum_to_the_row(asked: dict[str, Any]) -> None:
    row = fk.fit("llama-3.1-8b", "2x H100 80GB", gpus=2, parallel=3, **asked).iloc[0]
    terms = fk.explain(row)
    assert list(terms.columns[:4]) == ["term", "column", "bytes", "low"]
    assert terms.bytes.sum() == row.total_bytes
    assert terms.per_gpu_bytes.sum() == row.need_per_gpu_bytes
    for column in ("weights", "kv", "overhead"):
        assert terms.bytes[terms.column == column].sum() == row[f"{column}_bytes"]
    assert set(terms.evidence) <= {"exact", "engine", "fitted", "assumed"}
    assert (terms.low <= terms.bytes).all()
    assert (terms.bytes <= terms.high).all()


def test_a_row_of_demand_is_explained_too() -> None:
    row = fk.demand("llama-3.1-8b", contexts=1024, parallel=2, gpus=2, **BUDGET).iloc[0]
    assert fk.explain(row).bytes.sum() == row.total_bytes


def test_what_cannot_run_is_not_explained() -> None:
    table = fk.fit("llama-3.1-8b", "RTX 4090", ["Q4_K_M", "FP8"], rules="library")
    with pytest.raises(fk.BadInput, match="FP8 is no GGUF file type"):
        fk.explain(table.iloc[1])


# ---- suggest -----------------------------------------------------------------------------------------------------------

NOS: list[tuple[str, Any, dict[str, Any]]] = [
    ("llama-3.1-8b", "RTX 4090", BUDGET | {"contexts": 32768, "parallel": 8}),
    ("llama-3.1-70b", "RTX 4090", LIBRARY),
    ("llama-3.1-70b", "1x 8 GiB", LIBRARY | {"parallel": 4}),
    ("llama-3.1-8b", "1x 8 GiB", LIBRARY | {"contexts": 131_072}),
    ("llama-3.3-70b", "1x H100", SHARD),
    ("llama-3.1-70b", fk.machine("CPU", ram_gb=16), LIBRARY),
    ("qwen3-32b", "RTX 4090", {"engine": "vllm", "rules": "library"}),
    ("llama-3.1-405b", "8x H100", {"quants": "BF16", "engine": "vllm", "rules": "budget"}),
]


@pytest.mark.parametrize(("model", "machine", "asked"), NOS, ids=[f"{m} on {n}" for m, n, _ in NOS])
def test_every_no_has_two_changes_that_make_it_fit(model: str, machine: Any, asked: dict[str, Any]) -> None:
    row = fk.fit(model, machine, **asked).iloc[0]
    assert not row.fits
    found = fk.suggest(row)
    assert len(found) >= 2
    assert found.fits.all()
    for change, changes in zip(found.change, found.changes, strict=True):
        again = fk.fit(**({"models": model, "machines": machine} | asked | changes)).iloc[0]
        assert again.fits, change
    assert found.change.is_unique


def test_of_a_yes_it_says_what_there_is_room_for() -> None:
    row = fk.fit("llama-3.1-8b", "RTX 4090", **LIBRARY).iloc[0]
    found = fk.suggest(row)
    assert any("requests" in text for text in found.change)
    assert any("Q8_0 also fits" in text for text in found.change)


# ---- the other way round -----------------------------------------------------------------------------------------------


def test_max_context_is_the_longest() -> None:
    row = fk.max_context("llama-3.1-8b", "RTX 4090", parallel=4, **LIBRARY)
    assert row.fits
    assert row.parallel == 4
    longer = fk.fit("llama-3.1-8b", "RTX 4090", contexts=int(row.context) + 1, parallel=4, **LIBRARY).iloc[0]
    assert not longer.fits


def test_max_context_takes_more_gpus_where_it_may() -> None:
    one = fk.max_context("llama-3.1-70b", "4x RTX 4090", gpus=4, parallel=1, **LIBRARY)
    any_number = fk.max_context("llama-3.1-70b", "4x RTX 4090", parallel=1, **LIBRARY)
    assert any_number.context == one.context
    assert any_number.fit_gpus == 4


def test_max_parallel_is_the_most() -> None:
    row = fk.max_parallel("llama-3.1-8b", "RTX 4090", **BUDGET)
    assert (row.fits, row.parallel, row.context) == (True, 15, 8192)
    assert not fk.fit("llama-3.1-8b", "RTX 4090", parallel=16, **BUDGET).fits[0]


def test_best_quant_is_the_best_that_fits() -> None:
    row = fk.best_quant("llama-3.1-70b", "2x RTX 4090", rules="library")
    assert row.fits
    table = fk.fit("llama-3.1-70b", "2x RTX 4090", ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M"], rules="library")
    assert list(table.fits) == [False] * 4
    assert row.quant in ("IQ4_XS", "Q3_K_M")
    assert fk.best_quant("qwen3-8b", "H100", engine="vllm", rules="library").quant == "BF16"
    assert fk.best_quant("qwen3-32b", "RTX 4090", engine="vllm", rules="library", quants=["AWQ", "BF16"]).quant == "AWQ"


def test_min_gpus() -> None:
    assert fk.min_gpus("llama-3.1-70b", "8x RTX 4090", **LIBRARY).fit_gpus == 4
    assert not fk.min_gpus("llama-3.1-405b", "2x RTX 4090", **LIBRARY).fits
    row = fk.min_gpus("llama-3.1-70b", ["8x RTX 4090", "8x H100"], **LIBRARY)
    assert (row.machine, row.fit_gpus) == ("8x H100 80GB", 1)


def test_min_utilization_is_the_smallest() -> None:
    row = fk.min_utilization("llama-3.1-8b", "RTX 4090", parallel=8, **BUDGET)
    assert row.gpu_memory_utilization == 0.59
    least = fk.Budget(gpu_memory_utilization=0.58)
    assert not fk.fit("llama-3.1-8b", "RTX 4090", parallel=8, **(BUDGET | {"rules": least})).fits[0]
    with pytest.raises(fk.BadInput, match="gpu_memory_utilization"):
        fk.min_utilization("llama-3.1-8b", "RTX 4090", **LIBRARY)


def test_what_fits_nowhere_is_answered_with_its_row() -> None:
    for ask in (fk.max_context, fk.max_parallel, fk.best_quant, fk.min_gpus):
        row = ask("llama-3.1-405b", "1x 8 GiB", engine="vllm", rules="library")
        assert not row.fits
        assert row.reason


# ---- plan --------------------------------------------------------------------------------------------------------------


def test_plan_takes_the_fewest_gpus_of_the_largest_kind() -> None:
    plan = fk.plan("llama-3.1-70b", ["8x RTX 4090", "8x H100 80GB"], **LIBRARY)
    assert (plan.machine, plan.gpus, plan.waits) == ("8x H100 80GB", 1, False)
    assert abs(plan.min_gpu_memory_gb - 53.8) < 0.06
    assert plan.memory_basis == "arch"


def test_plan_takes_smaller_gpus_where_the_largest_do_not_hold_it() -> None:
    plan = fk.plan("llama-3.1-70b", ["1x H100 80GB", "8x RTX 4090"], quants="BF16", engine="vllm", rules="library")
    assert (plan.machine, plan.gpus, plan.tensor_parallel) == ("8x RTX 4090", 8, 8)


def test_a_plan_that_waits() -> None:
    plan = fk.plan("llama-3.1-70b", "4x RTX 3060", **LIBRARY)
    assert (plan.waits, plan.gpus) == (True, 1)
    assert "needs 8 GPUs, has 4" in plan.reason
    assert plan.min_gpu_memory_gb > 45
    assert fk.plan("llama-3.1-8b", [], **LIBRARY).waits


def test_plan_terms_are_per_gpu_and_for_all() -> None:
    plan = fk.plan("llama-3.3-70b", "2x H100", **SHARD)
    assert sum(term["per_gpu_bytes"] for term in plan.terms) == round(75.454441553 * GB)
    assert sum(term["bytes"] for term in plan.terms) == 2 * round(75.454441553 * GB)


def test_shard_plan_over_nodes() -> None:
    plan = fk.plan("qwen3-235b-a22b", "2x H100", quants="BF16", engine="vllm", rules=fk.Shard(max_nodes=9))
    assert plan.nodes * plan.gpus_per_node == plan.gpus
    assert (plan.tensor_parallel, plan.pipeline_parallel) == (plan.gpus_per_node, plan.nodes)
    assert plan.expert_parallel
    assert "--enable-expert-parallel" in plan.command


def test_still_fits() -> None:
    plan = fk.plan("llama-3.3-70b", "2x H100", **SHARD)
    assert plan.still_fits()
    assert plan.still_fits(context=plan.max_context)
    longer = plan.still_fits(context=plan.max_context + 1)
    assert not longer
    assert "cache" in longer.reason
    assert not plan.still_fits(parallel=100)
    too_long = plan.still_fits(context=10**6)
    assert not too_long
    assert "131,072" in too_long.reason
    with pytest.raises(fk.BadInput):
        plan.still_fits(context=-1)


def test_plan_round_trip(tmp_path: Path) -> None:
    machine = fk.machine("2x 24 GiB", ram_gb=64, disk_free_gb=500, taken_gib=1)
    plan = fk.plan("llama-3.1-8b", machine, parallel=8, **(BUDGET | {"rules": fk.Budget(overhead_gib=2.25)}))
    again = fk.Plan.from_json(plan.to_json())
    assert again == plan
    assert again.still_fits(parallel=plan.max_parallel)
    assert not again.still_fits(parallel=plan.max_parallel + 1)
    assert again.still_fits().reason == plan.still_fits().reason
    plan.save(tmp_path / "plan.json")
    assert fk.Plan.load(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "engine",
    [
        fk.VLLM(tensor_parallel_size=2, max_num_seqs=64, kv_cache_dtype="fp8"),
        fk.LlamaCpp(n_ubatch=256, type_k="q8_0", type_v="q8_0"),
    ],
    ids=["vllm", "llama.cpp"],
)
def test_plan_round_trip_with_an_engines_settings(engine: Any) -> None:
    plan = fk.plan("llama-3.1-8b", "2x RTX 4090", engine=engine)
    again = fk.Plan.from_json(plan.to_json())
    assert again == plan
    assert again.still_fits().reason == plan.still_fits().reason
    read = fk.read_command(plan.command)
    row = fk.fit(machines="2x RTX 4090", **(read.arguments() | {"quants": plan.quant})).iloc[0]
    assert row.need_per_gpu_bytes == sum(term["per_gpu_bytes"] for term in plan.terms)


def test_min_utilization_of_the_engine() -> None:
    row = fk.min_utilization("llama-3.1-8b", "RTX 4090", engine="vllm", parallel=2)
    assert row.fits
    less = fk.VLLM(gpu_memory_utilization=round(row.gpu_memory_utilization - 0.01, 2))
    assert not fk.fit("llama-3.1-8b", "RTX 4090", engine=less, parallel=2).fits[0]


def test_layers_and_experts_go_to_ram() -> None:
    for model, flag in (("gpt-oss-120b", "--n-cpu-moe"), ("llama-3.3-70b", "-ngl")):
        row = fk.fit(model, "RTX 4090").iloc[0]
        found = fk.suggest(row)
        moved = found[found.change.str.contains("in RAM")]
        assert len(moved) == 1
        assert flag in fk.command(moved.iloc[0])
        assert moved.iloc[0].host_bytes > 10 * GIB


def _changed(text: str, **changes: Any) -> str:
    values = json.loads(text)
    return json.dumps({name: value for name, value in (values | changes).items() if value is not None})


def test_broken_plans_are_refused(tmp_path: Path) -> None:
    text = fk.plan("llama-3.1-8b", "RTX 4090", **BUDGET).to_json()
    broken = ["", "[]", "{}", text[:-20], "[" * 100_000, _changed(text, gpus="two"), _changed(text, gpus=None)]
    broken += [
        _changed(text, extra=1),
        _changed(text, terms=[1]),
        _changed(text, fitkit_plan=99),
        _changed(text, waits=1),
    ]
    for one in broken:
        with pytest.raises(fk.BadInput):
            fk.Plan.from_json(one)
    with pytest.raises(fk.BadInput, match="nowhere"):
        fk.Plan.load(tmp_path / "nowhere.json")
    with pytest.raises(fk.BadInput, match="cannot be written"):
        fk.plan("llama-3.1-8b", "RTX 4090", **BUDGET).save(tmp_path / "no" / "plan.json")


def test_a_plans_need_is_not_less_than_asked_for() -> None:
    plan = fk.plan("llama-3.1-8b", "RTX 4090", **LIBRARY)
    need = sum(term["per_gpu_bytes"] for term in plan.terms)
    assert need <= plan.min_gpu_memory_gb * GB < need + GIB


# ---- catalog frames ------------------------------------------------------------------------------------------------------


def test_catalog_frames() -> None:
    models = fk.models()
    assert len(models) >= 120
    assert models.downloads.dropna().is_monotonic_decreasing
    assert str(models.params.dtype) == "Int64"
    assert len(fk.gpus()) >= 120
    assert len(fk.machines()) >= 30
    for table in (models, fk.gpus(), fk.machines(), fk.quants(), fk.kv_dtypes()):
        assert (table.source != "").all()
        assert table.name.is_unique


def test_the_smallest_utilization_lies_below_what_others_leave() -> None:
    taken = fk.min_utilization("qwen2.5-3b", fk.machine("RTX 4090", taken_gib=15), contexts=2048, engine="vllm")
    alone = fk.min_utilization("qwen2.5-3b", "RTX 4090", contexts=2048, engine="vllm")
    assert taken["fits"]
    assert taken["gpu_memory_utilization"] == alone["gpu_memory_utilization"] < 0.4
    both = fk.min_utilization("qwen2.5-3b", ["RTX 4090", "H100"], contexts=2048, engine="vllm")
    assert both["gpu"].startswith("H100")


def test_the_best_quantization_is_the_one_of_most_bits() -> None:
    for quants in (["Q4_K_M", "Q8_0"], ["q8_0", "q4_k_m"]):
        assert fk.best_quant("llama-3.1-8b", "RTX 4090", quants=quants)["quant"] == "Q8_0"
    assert fk.best_quant("llama-3.1-8b", "H100")["quant"] == "BF16"
    assert fk.best_quant("llama-3.1-8b", "RTX 3060")["quant"] == "Q8_0"


def test_experts_published_in_four_bits_stay_so() -> None:
    table = fk.fit("gpt-oss-120b", "1x H100 80GB", ["Q4_K_M", "MXFP4_MOE", "BF16"])
    blown_up, published, sixteen = (row for _, row in table.iterrows())
    assert not blown_up.fits
    for said in (blown_up.reason, blown_up.note):
        assert said.endswith("keep the experts in MXFP4: ask for MXFP4_MOE.")
    assert "MXFP4" not in published.reason + published.note + sixteen.reason + sixteen.note
    assert published.weights_bytes < sixteen.weights_bytes < blown_up.weights_bytes
    first = fk.suggest(blown_up).iloc[0]
    assert (first.quant, first.changes) == ("MXFP4_MOE", {"quants": "MXFP4_MOE"})
    assert fk.best_quant("gpt-oss-120b", "1x H100 80GB").quant == "BF16"
    tight = fk.machine("1x 60.5 GiB")
    assert fk.best_quant("gpt-oss-120b", tight, parallel=1, contexts=2048).quant == "MXFP4_MOE"
    assert "MXFP4" not in fk.fit("llama-3.1-8b", "1x RTX 4090", "Q4_K_M").iloc[0].reason


def test_two_changes_are_offered_where_no_gpu_or_a_small_one_is_there() -> None:
    asked = [
        ("llama-3.1-8b", "CPU", rules, quant)
        for rules, quant in (("engine", "FP8"), ("budget", "Q4_K_M"), ("shard", "FP8"))
    ]
    for model, machine, rules, quant in [*asked, ("llama-3.1-nemotron-ultra-253b", "M4 Max 128GB", "budget", "BF16")]:
        row = fk.fit(model, [machine, "RTX 4090"], quant, engine="vllm", rules=rules).iloc[0]
        assert not row["fits"]
        assert len(fk.suggest(row)) >= 2


def test_what_cannot_be_asked_gets_two_changes_too() -> None:
    grid = [
        ("yi-1.5-34b", "FP8", "vllm", "engine"), ("llama-3.1-8b", "Q4_K_M", "vllm", "engine"), ("llama-3.1-8b", "AWQ", "vllm", "engine"),
        ("llama-3.1-8b", "AWQ", "llama.cpp", "engine"), ("llama-3.1-8b", "BF16", "llama.cpp", "shard"),
    ]  # fmt: skip
    for model, quant, engine, rules in grid:
        row = fk.fit(
            model, ["M4 Max 128GB", "RTX 4090"], [quant, "Q8_0"], [8192, 4096], engine=engine, rules=rules
        ).iloc[0]
        assert not row["fits"]
        found = fk.suggest(row)
        assert len(found) >= 2, row["reason"]
        assert found["fits"].all()


def test_nothing_to_suggest_is_an_empty_frame_of_the_same_columns() -> None:
    row = fk.fit("kimi-k3", "RTX 4090", "BF16", 2**20, engine="vllm", rules="budget").iloc[0]
    found = fk.suggest(row)
    assert list(found.columns)[:3] == ["change", "changes", "model"]
    assert len(found.columns) == len(row) + 2


def test_data_parallel_is_offered_where_every_rank_keeps_the_whole_latent() -> None:
    row = fk.fit("deepseek-v3", "8x H200", engine="vllm", parallel=300, gpus=8).iloc[0]
    assert not row.fits
    found = fk.suggest(row)
    first = found.iloc[0]
    assert first.change.startswith("data_parallel_size")
    assert (first.fits, first.fit_gpus) == (True, 8)
    assert first.max_parallel >= 300
    assert "--data-parallel-size" in fk.command(
        fk.fit(**{"models": "deepseek-v3", "machines": "8x H200", "parallel": 300, **first.changes}).iloc[0]
    )
    dense = fk.fit("llama-3.3-70b", "8x H200", engine="vllm", parallel=3000).iloc[0]
    assert not fk.suggest(dense).change.str.contains("data_parallel").any()
