"""Questions that somebody's calculator got wrong in public, and figures planners were told (measured/public_bugs.csv), asked of us.

A row has the question in our words, what a tool said (`wrong`, where it said a number), what was right, how close we must
come and why, and the kind of mistake. Memory in `kv_cache_memory_bytes` is given in GiB.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fitkit as fk
from fitkit.units import GB, GIB, MIB

Row = dict[str, str]
MEASURES: dict[str, Callable[[Row, dict[str, Any]], float]] = {}


def rows() -> list[Row]:
    with (Path(__file__).parent / "measured" / "public_bugs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def measure(function: Callable[[Row, dict[str, Any]], float]) -> Callable[[Row, dict[str, Any]], float]:
    MEASURES[function.__name__] = function
    return function


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']}-{row['measure']}-{row['right']}")
def test_the_right_value(row: Row) -> None:
    got = MEASURES[row["measure"]](row, json.loads(row["settings"] or "{}"))
    assert got == pytest.approx(float(row["right"]), rel=float(row["tolerance"]), abs=1e-9)


def test_no_tolerance_lets_the_wrong_value_pass() -> None:
    told = [row for row in rows() if row["wrong"].replace(".", "", 1).isdigit()]
    assert len(told) >= 30
    for row in told:
        right, wrong = float(row["right"]), float(row["wrong"])
        same = row["question"].startswith("31B with windows, 1 slot")  # the tool's figure was right for one slot
        assert same or abs(wrong - right) > float(row["tolerance"]) * abs(right), row["question"]


def test_every_row_says_where_it_comes_from_and_how_close() -> None:
    for row in rows():
        assert row["source"], row["question"]
        assert row["why_tolerance"], row["question"]
        assert row["mistake"], row["question"]


# ---- vLLM at start-up -----------------------------------------------------------------------------------------------


def model(row: Row, settings: dict[str, Any]) -> fk.Model:
    found = fk.load(row["model"])
    context = settings.pop("model_context", None)
    return replace(found, context=context) if context else found


def start(row: Row, settings: dict[str, Any], **more: Any) -> Any:
    options = settings | more
    if "kv_cache_memory_bytes" in options:
        options["kv_cache_memory_bytes"] = round(options["kv_cache_memory_bytes"] * GIB)
    return fk.VLLM(**options).startup(model(row, options), row["hardware"] or "H100 80GB")


@measure
def vllm_tokens(row: Row, settings: dict[str, Any]) -> float:
    return float(start(row, settings).kv_cache_tokens)


@measure
def vllm_concurrency(row: Row, settings: dict[str, Any]) -> float:
    return round(float(start(row, settings).max_concurrency), 2)


@measure
def vllm_estimated_length(row: Row, settings: dict[str, Any]) -> float:
    got = start(row, settings)
    assert not got.starts
    return float(got.estimated_max_model_len)


@measure
def vllm_request_gib(row: Row, settings: dict[str, Any]) -> float:
    """What one request of full length takes of a rank, as the refusal says it."""
    return float(start(row, settings).error.split(", ")[1].split(" GiB")[0])


@measure
def vllm_starts(row: Row, settings: dict[str, Any]) -> float:
    return float(start(row, settings).starts)


@measure
def vllm_tokens_against_one_gpu(row: Row, settings: dict[str, Any]) -> float:
    return float(start(row, settings).kv_cache_tokens / start(row, settings, tensor_parallel_size=1).kv_cache_tokens)


@measure
def vllm_tokens_against_half_the_gpus(row: Row, settings: dict[str, Any]) -> float:
    half = start(row, settings, tensor_parallel_size=settings["tensor_parallel_size"] // 2)
    return float(start(row, settings).kv_cache_tokens / half.kv_cache_tokens)


@measure
def vllm_default_share(row: Row, settings: dict[str, Any]) -> float:
    del row, settings
    return fk.VLLM().utilization


@measure
def reserved_ratio(row: Row, settings: dict[str, Any]) -> float:
    """What the engine grabs for one model over what it grabs for the other, whose needs differ."""
    del settings
    table = fk.fit(row["model"].split(), row["hardware"], row["quant"], engine=row["engine"])
    small, large = table["need_per_gpu_bytes"]
    assert small < large
    first, second = table["reserved_per_gpu_bytes"]
    return float(first / second)


# ---- llama.cpp's buffers --------------------------------------------------------------------------------------------


def buffers(row: Row, settings: dict[str, Any], **more: Any) -> Any:
    options = settings | more
    found = model(row, options)
    if "tensor_split" in options:
        options["tensor_split"] = tuple(options["tensor_split"])
    return fk.LlamaCpp(**options).buffers(found, row["quant"] or None)


def of_kind(row: Row, settings: dict[str, Any], kind: str) -> float:
    table = buffers(row, settings)
    return float(table.loc[table["kind"] == kind, "bytes"].sum())


@measure
def kv_mib(row: Row, settings: dict[str, Any]) -> float:
    return of_kind(row, settings, "kv") / MIB


@measure
def kv_gib_at(row: Row, settings: dict[str, Any]) -> float:
    return of_kind(row, settings, "kv") / GIB


@measure
def state_mib(row: Row, settings: dict[str, Any]) -> float:
    return of_kind(row, settings, "state") / MIB


@measure
def kv_bytes_per_token(row: Row, settings: dict[str, Any]) -> float:
    return of_kind(row, settings, "kv") / float(settings["n_ctx"])


@measure
def weights_gb(row: Row, settings: dict[str, Any]) -> float:
    return of_kind(row, settings, "model") / GB


@measure
def weights_gib(row: Row, settings: dict[str, Any]) -> float:
    del settings
    return float(fk.demand(row["model"], row["quant"])["weights_bytes"].iloc[0]) / GIB


@measure
def total_gb(row: Row, settings: dict[str, Any]) -> float:
    return float(buffers(row, settings)["bytes"].sum()) / GB


@measure
def total_gib(row: Row, settings: dict[str, Any]) -> float:
    return float(buffers(row, settings)["bytes"].sum()) / GIB


def on_gpus(row: Row, settings: dict[str, Any]) -> float:
    """What the engine itself allocates on GPUs, as its log sums it."""
    table = buffers(row, settings)
    mine = table["device"].str.fullmatch(r"GPU\d+") & (table["kind"] != "runtime")
    return float(table.loc[mine, "bytes"].sum())


@measure
def card_mib(row: Row, settings: dict[str, Any]) -> float:
    """What the first card shows, the driver's own part with it."""
    table = buffers(row, settings)
    return float(table.loc[table["device"] == "GPU0", "bytes"].sum()) / MIB


@measure
def gpu_gib(row: Row, settings: dict[str, Any]) -> float:
    return on_gpus(row, settings) / GIB


@measure
def gpu_gb(row: Row, settings: dict[str, Any]) -> float:
    return on_gpus(row, settings) / GB


def compute(row: Row, settings: dict[str, Any], **more: Any) -> list[float]:
    table = buffers(row, settings, **more)
    mine = table["device"].str.fullmatch(r"GPU\d+") & (table["kind"] == "compute")
    return [float(size) / MIB for size in table.loc[mine, "bytes"]]


@measure
def compute_mib_each(row: Row, settings: dict[str, Any]) -> float:
    sizes = compute(row, settings)
    assert len(sizes) == settings["gpus"]
    assert max(sizes) == pytest.approx(min(sizes), rel=0.01)
    return min(sizes)


@measure
def compute_mib_api_over_server(row: Row, settings: dict[str, Any]) -> float:
    return sum(compute(row, settings, caller="api")) - sum(compute(row, settings, caller="server"))


# ---- tables ---------------------------------------------------------------------------------------------------------


def question(row: Row, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a row as arguments of `fit` or `demand`."""
    left = dict(settings)
    names = {"context": "contexts", "parallel": "parallel", "kv_dtype": "kv_dtypes", "gpus": "gpus"}
    arguments = {name: left.pop(short) for short, name in names.items() if short in left}
    found = model(row, left)
    engine = fk.VLLM(**left) if row["engine"] == "vllm" else row["engine"]
    return arguments | {"models": found, "quants": row["quant"] or None, "engine": engine}


@measure
def fits(row: Row, settings: dict[str, Any]) -> float:
    name, _, taken = row["hardware"].partition(" taken ")
    machine = fk.machine(name, taken_gib=float(taken) if taken else None)
    return float(fk.fit(machines=machine, **question(row, settings))["fits"].iloc[0])


@measure
def kv_gib(row: Row, settings: dict[str, Any]) -> float:
    return float(fk.demand(**question(row, settings))["kv_bytes"].iloc[0]) / GIB


@measure
def kv_gb(row: Row, settings: dict[str, Any]) -> float:
    if "n_ctx" in settings:
        return of_kind(row, settings, "kv") / GB
    return float(fk.demand(**question(row, settings))["kv_bytes"].iloc[0]) / GB


@measure
def library_kv(row: Row, settings: dict[str, Any]) -> float:
    return float(fk.demand(**question(row, settings), rules="library")["kv_bytes"].iloc[0])


@measure
def slots_cost_more(row: Row, settings: dict[str, Any]) -> float:
    def total(context: int, parallel: int) -> int:
        return int(fk.demand(row["model"], row["quant"], context, parallel)["total_bytes"].iloc[0])

    return float(total(*settings["many"]) > total(*settings["few"]))


@measure
def growing_layers(row: Row, settings: dict[str, Any]) -> float:
    kinds = [{cache.kind for cache in layer.caches} for layer in model(row, settings).layers]
    return float(sum(bool(kind - {"state"}) for kind in kinds))


@measure
def constant_layers(row: Row, settings: dict[str, Any]) -> float:
    kinds = [{cache.kind for cache in layer.caches} for layer in model(row, settings).layers]
    return float(sum(kind == {"state"} for kind in kinds))
