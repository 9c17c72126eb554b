"""vLLM's logs as people posted them (tests/measured/reported_vllm.csv) against what we say from the same settings.

A row names its version, or the two that bracket its date (`between`). `fitted` says which constants were found on it,
`left_out`, `no_tokens`, `no_memory` and `no_loading` why it, or a part of it, is not compared. Memory is in GiB, rounded
by the log to 0.01. `beside_gib` is what the log's figures leave of the requested memory next to weights and cache.
"""

from __future__ import annotations

import csv
import json
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fitkit as fk
from fitkit.facts import shape
from fitkit.hardware import gpu
from fitkit.rules.vllm.loaded import slack
from fitkit.rules.vllm.measured import ERAS, PEAK_CONSTANT_GIB, expert_workspace
from fitkit.rules.vllm.quants import as_asked
from fitkit.rules.vllm.settings import release_of
from fitkit.sources.config import model_from_config
from fitkit.units import GIB

BESIDE = ("activation_peak", "non_torch", "sampler_state", "cuda_graphs")
HALF_STEP = 0.005  # the logs round to 0.01 GiB
Row = dict[str, str]


def rows() -> list[Row]:
    with (Path(__file__).parent / "measured" / "reported_vllm.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if not row["left_out"]]


@cache
def model(name: str, text: str, quant: str) -> fk.Model:
    found = model_from_config(shape.decode(text), name=name) if text else fk.load(name)
    return as_asked(found, quant)[0] if quant else found


def versions(row: Row) -> list[str]:
    return [row["version"]] if row["version"] else row["between"].split()


def start(row: Row, version: str, **more: Any) -> Any:
    settings = fk.VLLM(version=version, **json.loads(row["settings"]) | more)
    return settings.startup(model(row["model"], row["shape"], row["quant"]), row["gpu"] or "H100 80GB")


def named(row: Row) -> str:
    return f"{row['model']} {row['quant']} {row['version'] or row['between']} {row['settings']} {row['kv_gib']}"


# ---- tokens and concurrency, given the logged memory --------------------------------------------------------------------


def same_pool(row: Row, version: str) -> bool:
    """Whether tokens and concurrency are within 0.5% of the log's for some memory that rounds to the logged one."""
    ends = [
        start(row, version, kv_cache_memory_bytes=round((float(row["kv_gib"]) + step) * GIB))
        for step in (-HALF_STEP, HALF_STEP)
    ]
    tokens, concurrency = float(row["tokens"] or 0), float(row["concurrency"] or 0)
    low, high = ends
    return bool(
        (not tokens or low.kv_cache_tokens * 0.995 <= tokens <= high.kv_cache_tokens * 1.005)
        and (
            not concurrency
            or low.max_concurrency * 0.995 - HALF_STEP <= concurrency <= high.max_concurrency * 1.005 + HALF_STEP
        )
    )


def with_pool(known: bool) -> list[Row]:
    return [
        row
        for row in rows()
        if bool(row["version"]) is known
        and row["kv_gib"]
        and (row["tokens"] or row["concurrency"])
        and not row["no_tokens"]
    ]


def test_tokens_of_known_versions() -> None:
    found = [same_pool(row, row["version"]) for row in with_pool(known=True)]
    assert len(found) >= 40
    assert sum(found) >= 0.95 * len(found)


def test_tokens_where_the_version_is_not_known() -> None:
    """Every row agrees with a version of its date's bracket; they are no part of the figure above."""
    for row in with_pool(known=False):
        assert any(same_pool(row, version) for version in versions(row)), named(row)


def test_the_estimated_length_of_a_refusal() -> None:
    refused = [row for row in rows() if row["estimated_len"]]
    assert refused
    for row in refused:
        got = start(row, row["version"], kv_cache_memory_bytes=round(float(row["kv_gib"]) * GIB))
        assert not got.starts
        assert got.estimated_max_model_len == pytest.approx(int(row["estimated_len"]), rel=0.005)


# ---- model loading ---------------------------------------------------------------------------------------------------------


def loading(got: Any) -> float:
    return sum(term.bytes for term in got.terms if term.name not in BESIDE) / GIB


def test_model_loading() -> None:
    """Weights, rotary tables, kernels' layouts and torch's rounding: within 0.02 GiB of the log, most within its rounding.

    Not so: Qwen3-235B FP8 on four ranks (0.06), Kimi-VL (0.13), gpt-oss-120b on eight RTX PRO 4500 (1.33).
    """
    used = [row for row in rows() if row["loading_gib"] and not row["no_loading"]]
    errors = [abs(float(row["loading_gib"]) - loading(start(row, versions(row)[0]))) for row in used]
    assert len(errors) >= 45
    assert sum(error <= 0.02 for error in errors) >= len(errors) - 3
    assert statistics.median(errors) <= HALF_STEP


# ---- memory that is neither weights nor cache ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beside:
    """Logged and predicted GiB beside weights and cache; `unseen` rows had no part in any constant."""

    row: Row
    logged: float
    expected: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return abs(self.logged - self.expected)

    @property
    def held(self) -> bool:
        return self.low - 2 * HALF_STEP <= self.logged <= self.high + 2 * HALF_STEP

    @property
    def unseen(self) -> bool:
        return not self.row["fitted"]


@cache
def beside(of_0_19: bool) -> list[Beside]:
    used = [row for row in rows() if row["kv_gib"] and row["gpu"] and not row["no_memory"]]
    return [compared(row) for row in used if row["version"].startswith("0.19.0") is of_0_19]


def compared(row: Row) -> Beside:
    got = [start(row, version) for version in versions(row)]
    terms = [[term for term in one.terms if term.name in BESIDE] for one in got]
    if row["beside_gib"]:
        logged = float(row["beside_gib"])
    else:
        utilization = json.loads(row["settings"])["gpu_memory_utilization"]
        weights = float(row["loading_gib"] or loading(got[0]))
        logged = gpu(row["gpu"]).seen_bytes * utilization / GIB - weights - float(row["kv_gib"])
    return Beside(
        row=row, logged=logged,
        expected=statistics.mean(sum(term.bytes for term in each) / GIB for each in terms),
        low=min(sum(term.low for term in each) / GIB for each in terms),
        high=max(sum(term.high for term in each) / GIB for each in terms),
    )  # fmt: skip


def test_memory_beside_of_0_19() -> None:
    errors = sorted(one.error for one in beside(of_0_19=True))
    assert len(errors) >= 28
    assert statistics.median(errors) <= 0.1
    assert errors[round(0.9 * (len(errors) - 1))] <= 0.5
    assert all(one.held for one in beside(of_0_19=True))


def test_memory_beside_elsewhere() -> None:
    found = beside(of_0_19=False)
    assert len(found) >= 20
    assert sum(one.held for one in found) >= 0.8 * len(found)
    constant = statistics.median(one.logged for one in found)  # the best single one for the mean error
    from_constant = [abs(one.logged - constant) for one in found]
    assert statistics.mean(one.error for one in found) <= statistics.mean(from_constant) / 2
    assert statistics.median(one.error for one in found) <= statistics.median(from_constant) / 2


def test_memory_beside_of_rows_nothing_was_fitted_on() -> None:
    found = [one for one in beside(of_0_19=False) if one.unseen]
    assert len(found) >= 10
    assert sum(one.held for one in found) >= 0.8 * len(found)
    constant = statistics.median(one.logged for one in found)
    from_constant = [abs(one.logged - constant) for one in found]
    assert statistics.median(one.error for one in found) <= statistics.median(from_constant) / 2
    assert statistics.mean(one.error for one in found) < statistics.mean(from_constant)


def peak_equations(used: list[Row]) -> tuple[Any, Any]:
    """Logits in GiB and what the log's peak leaves next to hidden states and experts' workspaces."""
    logits, left = [], []
    for row in used:
        one = model(row["model"], row["shape"], row["quant"])
        settings = fk.VLLM(version=row["version"], **json.loads(row["settings"]))
        tokens, sequences = settings.max_num_batched_tokens or 0, settings.max_num_seqs or 0
        workspace = expert_workspace(settings, one, tokens, 2)
        logits.append((sequences * one.vocab_size / GIB, 1.0))
        left.append(float(row["peak_gib"]) - (tokens * one.hidden_size * 2 + workspace) / GIB)
    return np.array(logits), np.array(left)


def test_the_constants_are_those_of_the_fitted_rows() -> None:
    """Least squares over the rows marked so gives them again, and half of the rows gives those that foretell the others."""
    used = [row for row in rows() if row["version"] == "0.19.0" and "peak" in row["fitted"]]
    logits, left = peak_equations(used)
    era = next(era for era in ERAS if era.first == (0, 17))
    (slope, constant), *_ = np.linalg.lstsq(logits, left, rcond=None)
    assert slope == pytest.approx(era.scratch.expected + 2, abs=0.1)
    assert constant == pytest.approx(PEAK_CONSTANT_GIB, abs=0.01)
    for half in (0, 1):
        found, *_ = np.linalg.lstsq(logits[half::2], left[half::2], rcond=None)
        assert np.abs(logits[1 - half :: 2] @ found - left[1 - half :: 2]).max() < 0.05


# ---- what is promised --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in rows() if row["starts"] == "no"], ids=named)
def test_no_row_that_did_not_start_is_promised(row: Row) -> None:
    for version in versions(row):
        more = {"kv_cache_memory_bytes": round(float(row["kv_gib"]) * GIB)} if row["no_memory"] else {}
        got = start(row, version, **more)
        assert not got.starts or "may still run out of memory" in got.note


def test_the_logged_cache_lies_within_the_range() -> None:
    """From settings alone, rows of known version; an H100's total differs by driver, 0.1 GiB of what is requested."""
    used = [row for row in rows() if row["version"] and row["kv_gib"] and row["gpu"] and not row["no_memory"]]
    held = []
    for row in used:
        got = start(row, row["version"])
        assert got.available_kv_low_bytes <= got.available_kv_bytes <= got.available_kv_high_bytes
        low, high = got.available_kv_low_bytes / GIB, got.available_kv_high_bytes / GIB
        held.append(low - 0.1 <= float(row["kv_gib"]) <= high + 0.1)
    assert len(held) >= 40
    assert sum(held) >= 0.95 * len(held)


def test_rows_that_started_start() -> None:
    used = [row for row in rows() if row["starts"] == "yes" and row["gpu"] and not row["no_memory"]]
    started = [start(row, versions(row)[0]).starts for row in used]
    assert len(started) >= 45
    assert sum(started) >= 0.95 * len(started)


def test_where_nothing_was_measured_the_evidence_says_so() -> None:
    logged = {release_of(row["version"])[:2] for row in rows() if row["version"] and row["peak_gib"]}
    assert logged == {version for era in ERAS for version in era.measured}
    one = fk.load("llama-3.1-8b")
    for version in ("0.10.2", "0.11.0", "0.14.0", "0.16.0", "0.18.0", "0.19.0", "0.24.0", "0.33"):
        got = fk.VLLM(version=version).startup(one, "H100 80GB")
        terms = {term.name: term for term in got.terms}
        evidence = "fitted" if release_of(version)[:2] in logged else "assumed"
        assert {terms["activation_peak"].evidence, terms["non_torch"].evidence} == {evidence}
        for term in (*got.terms, *got.outside):
            assert term.low <= term.bytes <= term.high
            assert term.source
        assert "max_num_seqs" in terms["activation_peak"].moved_by


@pytest.mark.parametrize("lower", [{"max_num_seqs": 64}, {"max_num_batched_tokens": 2048}, {"enforce_eager": True}])
def test_the_options_named_lower_what_they_are_named_for(lower: dict[str, Any]) -> None:
    one = fk.load("gemma-3-12b-it")
    usual, less = (fk.VLLM(**more).startup(one, "H100 80GB") for more in ({}, lower))
    moved = [
        term for term in usual.terms if any(name in term.moved_by for name in lower) and term.name != "activation_peak"
    ]
    now = {term.name: term.bytes for term in less.terms}
    assert all(now.get(term.name, 0) < term.bytes for term in moved)
    assert less.available_kv_bytes > usual.available_kv_bytes


def test_blocks_are_rounded_as_torch_rounds_them() -> None:
    """259 MiB takes 260, as what is left is too small to split off; 64.5 takes 66 of which 1.5 stay free for others."""
    half, one = 2**19, 2**20
    assert slack([259 * one]) == one
    assert slack([64 * one]) == 0
    assert slack([129 * one + half]) == half
    assert slack([64 * one + half]) == 0
    assert slack([half] * 100) == 0
    assert slack([12 * one + half, one + half]) == 0  # the second fills the rest of the first


def test_the_tokens_of_a_pipeline_from_its_settings() -> None:
    """The last stage decides: it samples, though the logged memory is the first stage's."""
    (row,) = [row for row in rows() if row["no_tokens"].startswith("pipeline")]
    got = start(row, row["version"])
    assert got.kv_cache_tokens == pytest.approx(int(row["tokens"]), rel=0.005)
