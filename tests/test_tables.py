"""The frames' contract: columns, dtypes, axes, what a verdict says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fitkit as fk
from fitkit.tables.frames import DEMAND_COLUMNS, FIT_COLUMNS

DEMAND = [
    "model",
    "engine",
    "rules",
    "quant",
    "context",
    "parallel",
    "kv_dtype",
    "gpus",
    "weights_bytes",
    "kv_bytes",
    "overhead_bytes",
    "total_bytes",
    "per_gpu_bytes",
    "basis",
]
FIT = [
    "machine",
    "gpu",
    "fits",
    "badge",
    "fit_gpus",
    "fit_parallel",
    "max_parallel",
    "max_context",
    "need_per_gpu_bytes",
    "usable_per_gpu_bytes",
    "free_per_gpu_bytes",
    "reserved_per_gpu_bytes",
    "limited_by",
    "reason",
]
TEXTS = {"model", "engine", "rules", "quant", "kv_dtype", "basis", "machine", "gpu", "badge", "limited_by", "reason", "note", "line"}  # fmt: skip


def test_columns_and_dtypes_are_fixed() -> None:
    demand = fk.demand("llama-3.1-8b", "BF16", engine="vllm", rules="budget")
    fit = fk.fit("llama-3.1-8b", "RTX 4090", "BF16", engine="vllm", rules="budget")
    assert list(demand.columns[: len(DEMAND)]) == DEMAND
    assert list(fit.columns[: len(DEMAND) + len(FIT)]) == DEMAND + FIT
    assert tuple(demand.columns) == DEMAND_COLUMNS
    assert tuple(fit.columns) == FIT_COLUMNS
    for table in (demand, fit):
        for column, dtype in table.dtypes.items():
            assert str(dtype) == ("str" if column in TEXTS else "bool" if column == "fits" else "Int64"), column


@pytest.mark.parametrize(
    ("rules", "engine", "quant"),
    [
        ("library", "llama.cpp", "Q4_K_M"),
        ("library", "vllm", "FP8"),
        ("budget", "vllm", "AWQ"),
        ("shard", "sglang", "FP8"),
    ],
)
def test_named_terms_sum_and_parts_are_parts(rules: str, engine: str, quant: str) -> None:
    table = fk.demand(
        ["llama-3.1-8b", "gemma-3-27b-it"], quant, [512, 8192], [1, 3], gpus=[1, 2], engine=engine, rules=rules
    )
    assert (table.weights_bytes + table.kv_bytes + table.overhead_bytes == table.total_bytes).all()
    assert (table.runtime_bytes <= table.overhead_bytes).all()
    assert (table.per_gpu_low_bytes <= table.per_gpu_bytes).all()
    assert (table.per_gpu_bytes <= table.per_gpu_high_bytes).all()
    assert (table.per_gpu_bytes * table.gpus >= table.total_bytes).all()


@pytest.mark.parametrize(("engine", "quant"), [("llama.cpp", "Q4_K_M"), ("vllm", "BF16")])
def test_engine_rules_keep_the_contract(engine: str, quant: str) -> None:
    table = fk.fit(
        ["llama-3.1-8b", "gemma-3-27b-it"], ["1x RTX 4090", "8x H100 80GB"], quant, [4096, 32768], 2, engine=engine
    )
    assert tuple(table.columns) == FIT_COLUMNS
    assert len(table) == 8
    known = table[table.total_bytes.notna()]
    assert (known.weights_bytes + known.kv_bytes + known.overhead_bytes == known.total_bytes).all()
    assert (known.free_per_gpu_bytes == known.usable_per_gpu_bytes - known.need_per_gpu_bytes).all()
    assert (known.per_gpu_low_bytes <= known.need_per_gpu_bytes).all()
    assert (known.need_per_gpu_bytes <= known.per_gpu_high_bytes).all()
    assert (table.limited_by[table.fits] == "").all()
    assert (table.limited_by[~table.fits] != "").all()
    for row in table.itertuples():
        assert fk.explain(row).per_gpu_bytes.sum() == row.need_per_gpu_bytes
    fitted = fk.fit("llama-3.1-8b", "1x RTX 4090", quant, engine=engine).iloc[0]
    assert fitted.fit_parallel == (4 if engine == "llama.cpp" else 1)
    assert fitted.reason.startswith("Fits on 1× RTX 4090: ")


@pytest.mark.parametrize(("engine", "quant"), [("llama.cpp", "Q8_0"), ("vllm", "BF16")])
def test_engines_most_is_exactly_the_most(engine: str, quant: str) -> None:
    row = fk.fit("llama-3.1-8b", "RTX 4090", quant, 4096, 2, engine=engine).iloc[0]
    most, longest = int(row.max_parallel), int(row.max_context)
    assert list(fk.fit("llama-3.1-8b", "RTX 4090", quant, 4096, [most, most + 1], engine=engine).fits) == [True, False]
    assert list(fk.fit("llama-3.1-8b", "RTX 4090", quant, [longest, longest + 1], 2, engine=engine).fits) == [
        True,
        False,
    ]


def test_settings_objects_set_what_the_grid_does_not() -> None:
    row = fk.fit("llama-3.3-70b", "8x H100", "BF16", engine=fk.VLLM(tensor_parallel_size=4)).iloc[0]
    assert (row.gpus, row.fit_gpus, row.fits) == (4, 4, True)
    half = fk.fit("llama-3.1-8b", "RTX 4090", "BF16", engine=fk.VLLM(gpu_memory_utilization=0.5)).iloc[0]
    assert not half.fits
    assert half.reserved_per_gpu_bytes < 12 * 2**30
    small = fk.fit("llama-3.1-8b", "RTX 4090", "Q4_K_M", engine=fk.LlamaCpp(type_k="q8_0", type_v="q8_0")).iloc[0]
    plain = fk.fit("llama-3.1-8b", "RTX 4090", "Q4_K_M").iloc[0]
    assert small.kv_dtype == "q8_0"
    assert small.kv_bytes == plain.kv_bytes * 34 // 64


def test_vllm_does_not_start_where_others_hold_its_share() -> None:
    row = fk.fit("llama-3.1-8b", fk.machine("RTX 4090", taken_gib=4), "BF16", engine="vllm").iloc[0]
    assert (row.fits, row.limited_by) == (False, "engine")
    assert "lower gpu_memory_utilization to 0.83" in row.reason
    less = fk.VLLM(gpu_memory_utilization=0.83)
    assert fk.fit("llama-3.1-8b", fk.machine("RTX 4090", taken_gib=4), "BF16", engine=less).fits[0]


def test_a_model_an_engine_does_not_know_is_a_row_of_a_grid() -> None:
    table = fk.fit(["llama-3.1-8b", "opt-125m"], "RTX 4090", "Q4_K_M", rules="library")
    assert list(table.fits) == [True, False]
    assert table.limited_by[1] == "engine"
    assert "opt" in table.reason[1]
    for ask in (
        lambda: fk.fit("opt-125m", "RTX 4090", "Q4_K_M", rules="library"),
        lambda: fk.demand("opt-125m", rules="library"),
    ):
        with pytest.raises(fk.UnsupportedModel, match="opt"):
            ask()
    demand = fk.demand(["llama-3.1-8b", "opt-125m"], "Q4_K_M", rules="library")
    assert list(demand.total_bytes.isna()) == [False, True]
    assert "opt" in demand.note[1]


def test_llamacpp_starts_past_a_models_length_and_says_so() -> None:
    table = fk.demand("phi-2", "Q4_K_M", contexts=[2048, 4096])
    assert table.total_bytes.notna().all()
    assert table.note[0] == ""
    assert "llama.cpp starts with it and warns" in table.note[1]


def test_several_machines_of_one_kind_for_vllm() -> None:
    table = fk.fit("deepseek-v3", [fk.machine("8x H100", nodes=4), "8x H100"], "FP8", engine="vllm")
    assert list(table.fits) == [True, False]
    assert (table.fit_gpus[0], table.fit_nodes[0]) == (16, 2)


def test_every_axis_takes_scalars_and_lists() -> None:
    table = fk.demand(
        ["llama-3.1-8b", "qwen3-8b"], ["BF16", "FP8"], range(1024, 4096, 1024), np.array([1, 2]), ("auto", "fp8"),
        engine="vllm", rules=["budget", "library"], gpus=pd.Series([1, 2]),
    )  # fmt: skip
    assert len(table) == 2 * 2 * 3 * 2 * 2 * 2 * 2
    axes = ["model", "engine", "rules", "quant", "context", "parallel", "kv_dtype", "gpus"]
    assert not table.duplicated(axes).any()
    assert len(fk.demand("llama-3.1-8b", "BF16", engine="vllm", rules="budget")) == 1


def test_none_means_the_default() -> None:
    llama = fk.demand("llama-3.1-8b", rules="library").iloc[0]
    assert (llama.quant, llama.kv_dtype, llama.parallel, llama.gpus, llama.context) == ("Q4_K_M", "f16", 1, 1, 8192)
    own = fk.demand("gpt-oss-20b", engine="vllm", rules="library").iloc[0]
    assert (own.quant, own.kv_dtype) == ("MXFP4", "auto")


def test_asked_is_told_apart_from_fitted() -> None:
    fitted = fk.fit("llama-3.1-8b", "8x RTX 4090", "Q4_K_M", rules="library").iloc[0]
    assert pd.isna(fitted.parallel)
    assert pd.isna(fitted.gpus)
    assert (fitted.fit_parallel, fitted.fit_gpus) == (4, 1)
    asked = fk.fit("llama-3.1-8b", "8x RTX 4090", "Q4_K_M", rules="library", parallel=2, gpus=2).iloc[0]
    assert (asked.parallel, asked.gpus, asked.fit_parallel, asked.fit_gpus) == (2, 2, 2, 2)


def test_a_no_stands_at_the_most_gpus_and_fewest_requests() -> None:
    row = fk.fit("llama-3.1-70b", "2x RTX 3060", "Q4_K_M", rules="library").iloc[0]
    assert (row.fits, row.fit_gpus, row.fit_parallel) == (False, 2, 1)
    assert row.free_per_gpu_bytes == row.usable_per_gpu_bytes - row.need_per_gpu_bytes < 0
    assert row.limited_by == "weights"
    assert row.max_parallel == 0


def test_more_gpus_asked_than_there_are() -> None:
    row = fk.fit("llama-3.1-8b", "2x RTX 4090", "Q4_K_M", rules="library", gpus=4).iloc[0]
    assert (row.fits, row.limited_by, row.line) == (False, "gpus", "needs 4 GPUs, has 2")


def test_reserved_is_what_vllm_grabs() -> None:
    row = fk.fit("llama-3.1-8b", "RTX 4090", engine="vllm", rules=fk.Budget(gpu_memory_utilization=0.8)).iloc[0]
    assert row.reserved_per_gpu_bytes == int(0.8 * 24 * 2**30)
    assert fk.fit("llama-3.1-8b", "RTX 4090", rules="library").reserved_per_gpu_bytes[0] == 0


@pytest.mark.parametrize(
    ("rules", "engine", "machine"),
    [("library", "llama.cpp", "2x RTX 4090"), ("library", "vllm", "RTX 4090"), ("budget", "vllm", "RTX 4090"), ("shard", "vllm", "RTX 4090")],
)  # fmt: skip
def test_the_most_is_exactly_the_most(rules: str, engine: str, machine: str) -> None:
    """One more request, or one more token, no longer fits."""
    asked: Any = {"quants": "Q8_0" if engine == "llama.cpp" else "BF16", "engine": engine, "rules": rules}
    row = fk.fit("llama-3.1-8b", machine, parallel=3, contexts=4000, gpus=1, **asked).iloc[0]
    most, longest = int(row.max_parallel), int(row.max_context)
    assert 0 < longest < 131_072
    both = fk.fit("llama-3.1-8b", machine, parallel=[most, most + 1], contexts=4000, gpus=1, **asked)
    assert list(both.fits) == [True, False]
    both = fk.fit("llama-3.1-8b", machine, parallel=3, contexts=[longest, longest + 1], gpus=1, **asked)
    assert list(both.fits) == [True, False]


def test_machines_of_every_kind_at_once_are_judged_as_one_by_one() -> None:
    lines = [
        "8x H100",
        "RTX 4090",
        fk.machine("CPU", ram_gb=64),
        "M4 Max 128GB",
        "8x H100",
        fk.machine("RTX 4090", taken_gib=5),
    ]
    asked: Any = {"quants": ["Q4_K_M", "Q8_0"], "contexts": [2048, 65536], "parallel": None, "rules": "library"}
    together = fk.fit(["llama-3.1-8b", "llama-3.1-70b"], lines, **asked)
    apart = pd.concat([fk.fit(m, one, **asked) for m in ("llama-3.1-8b", "llama-3.1-70b") for one in lines])
    keys = ["model", "quant", "context", "machine", "usable_per_gpu_bytes"]
    apart = apart.drop_duplicates(keys)
    merged = together.merge(apart, on=keys, suffixes=("", "_alone"))
    assert len(merged) == len(together)
    for column in ("fits", "badge", "reason", "total_bytes", "max_parallel", "max_context"):
        left, right = merged[column].fillna(-1), merged[f"{column}_alone"].fillna(-1)
        assert (left == right).all(), column
    assert list(together.machine[:12:2]) == [fk.machine(one).name for one in lines]


def test_an_impossible_row_of_a_grid() -> None:
    table = fk.fit("llama-3.1-8b", "RTX 4090", ["Q4_K_M", "FP8"], contexts=[8192, 200_000], rules="library")
    assert list(table.fits) == [True, False, False, False]
    assert list(table.limited_by) == ["", "engine", "engine", "engine"]
    assert table.reason[1] == "A context of 200,000 tokens is more than the 131,072 that llama-3.1-8b was made for."
    assert "FP8 is no GGUF file type" in table.reason[2]
    assert pd.isna(table.total_bytes[2])
    demand = fk.demand("llama-3.1-8b", ["Q4_K_M", "FP8"], contexts=[8192, 200_000], rules="library")
    assert list(demand.total_bytes.isna()) == [False, True, True, True]


def test_the_default_context_is_the_models_own_where_shorter() -> None:
    assert fk.demand("phi-2", "BF16", engine="vllm", rules="budget").context[0] == 2048


def test_ram_only_machine() -> None:
    machine = fk.machine("CPU", ram_gb=64)
    row = fk.fit("llama-3.1-8b", machine, "Q4_K_M", rules="library").iloc[0]
    assert (row.fits, row.fit_gpus, row.badge) == (True, 0, "CPU only")
    vllm = fk.fit(["llama-3.1-8b", "qwen3-8b"], machine, "BF16", engine="vllm", rules="library")
    assert list(vllm.reason) == ["vLLM always needs a GPU."] * 2


def test_no_gpu_asked_of_a_machine_that_has_one() -> None:
    machine = fk.machine("RTX 4090", ram_gb=64)
    for rules in ("library", "engine"):
        row = fk.fit("llama-3.1-8b", machine, "Q4_K_M", rules=rules, gpus=0).iloc[0]
        assert (row.fits, row.fit_gpus, row.badge) == (True, 0, "CPU only")
        assert row.reason.casefold().count("runs from ram") == 1
    for rules in ("library", "budget", "shard", "engine"):
        table = fk.fit("llama-3.1-8b", machine, "BF16", engine="vllm", rules=rules, gpus=[0, 1])
        assert list(table.fits) == [False, True]
        assert table.limited_by[0] == "engine"


def test_ram_that_nobody_told() -> None:
    row = fk.fit("llama-3.1-8b", "CPU", "Q4_K_M", rules="library").iloc[0]
    assert not row.fits
    assert "give ram_gb" in row.reason
    assert row.limited_by == "host_memory"


def test_rows_carry_their_question() -> None:
    own = fk.load("llama-3.1-8b").with_(name="mine")
    table = fk.fit(own, "RTX 4090", "Q4_K_M", rules="library")
    for row in (table.iloc[0], table, next(table.itertuples()), table.iloc[0].to_dict()):
        assert fk.explain(row).bytes.sum() == table.total_bytes[0]
    copy = table.copy()
    assert fk.explain(copy.iloc[0]).bytes.sum() == table.total_bytes[0]


def test_rows_find_their_own_settings_and_machine() -> None:
    machines = [fk.machine("RTX 4090"), fk.machine("RTX 4090", taken_gib=5)]
    rules = [fk.Budget(), fk.Budget(overhead_gib=3), fk.Budget(gpu_memory_utilization=0.8)]
    table = fk.fit("llama-3.1-8b", machines, "BF16", engine="vllm", rules=rules)
    joined = pd.concat([table, fk.fit("llama-3.1-8b", machines, "BF16", engine="vllm", rules="shard")])
    for rows in (table, joined):
        for _, row in rows.iterrows():
            assert fk.explain(row).bytes.sum() == row.total_bytes
            more = fk.suggest(row)
            assert more.fits.all()
            same = more[more.usable_per_gpu_bytes.notna()]
            if row.rules == "budget" and row.fits:
                assert (same.usable_per_gpu_bytes == row.usable_per_gpu_bytes).all()


def test_frames_can_be_written_with_their_attrs() -> None:
    import copy
    import json

    table = fk.fit("llama-3.1-8b", "RTX 4090", "BF16", engine="vllm", rules="budget")
    assert json.loads(json.dumps(table.attrs)) == {"fitkit": "fitkit"}
    assert copy.deepcopy(table.attrs)["fitkit"] is table.attrs["fitkit"]
    assert fk.explain(table[table.fits].iloc[0]).bytes.sum() == table.total_bytes[0]
