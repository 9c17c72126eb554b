"""Answers about rows: their terms, badges over machines, and the questions asked the other way round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fitkit.errors import BadInput
from fitkit.hardware import Machine
from fitkit.model import Model
from fitkit.rules import Term
from fitkit.tables import fit
from fitkit.tables.asked import RowQuestion, question, whole
from fitkit.tables.layouts import COUNTS
from fitkit.tables.resolve import MOST_GPUS, bits_of, engine_of, machines_of, models_of, own_quant, rules_of, some

EXPLAIN_COLUMNS = (
    "term", "column", "bytes", "low", "high", "per_gpu_bytes", "per_gpu_low", "per_gpu_high", "evidence", "source",
)  # fmt: skip
QUANT_ORDER = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K", "IQ2_XXS")
_CHECKPOINTS = ("BF16", "FP8", "AWQ")


def explain(row: Any) -> pd.DataFrame:
    """One row of `demand` or `fit`, term by term, at the point the verdict uses.

    Columns: `term`, `column` (which named column it is a part of), `bytes` over all GPUs with `low` and `high`, the same on
    the fullest card (`per_gpu_...`), `evidence` (exact | engine | fitted | assumed), `source`. `bytes` sum to `total_bytes`,
    `per_gpu_bytes` to `per_gpu_bytes`.

    Raises BadInput for what is no such row, or for one whose engine does not start.
    """
    asked = question(row)
    ask = asked.ask()
    if ask.refusal or ask.counted is None:
        raise BadInput(ask.refusal)
    gpus = _point(asked, "fit_gpus", asked.gpus, 1)
    job = ask.job(gpus, asked.machine.gpu if asked.machine and gpus else None, _point(asked, "fit_nodes", None, 1))
    refused = ask.counted.check(job)
    if refused:
        raise BadInput(refused)
    requests = _point(asked, "fit_parallel", asked.parallel, 1)
    allocation = ask.counted.allocate(job, np.array([asked.context]), np.array([requests]))
    return pd.DataFrame([_term_row(term, max(1, gpus)) for term in allocation.terms], columns=list(EXPLAIN_COLUMNS))


def _term_row(term: Term, gpus: int) -> tuple[Any, ...]:
    total, per_gpu = int(term.total[0]), int(term.per_gpu[0])
    low = per_gpu if term.low is None else int(term.low[0])
    high = per_gpu if term.high is None else int(term.high[0])
    return (
        term.name, term.column, total, max(0, total - (per_gpu - low) * gpus), total + (high - per_gpu) * gpus,
        per_gpu, low, high, term.evidence, term.source,
    )  # fmt: skip


def _point(asked: RowQuestion, column: str, given: int | None, default: int) -> int:
    """What the verdict uses, else what was asked."""
    value = whole(asked.row.get(column))
    if value is not None:
        return value
    return default if given is None else given


def badges(table: pd.DataFrame) -> pd.DataFrame:
    """The library's badge of each combination over all its machines, with the machines' lines.

    Takes a frame of `fit`; returns one row a combination: `model engine rules quant context parallel kv_dtype badge lines`.
    `fits on a GPU` where one GPU of at least one machine holds it, else the fewest GPUs of one machine, else the CPU.
    """
    keys = ["model", "engine", "rules", "quant", "context", "parallel", "kv_dtype"]
    rows = []
    for values, group in table.groupby(keys, sort=False, dropna=False):
        ranks = [_rank(fits, gpus, at_once, badge) for fits, gpus, at_once, badge in zip(
            group["fits"], group["fit_gpus"].fillna(0), group["fit_parallel"].fillna(0), group["badge"], strict=True)]  # fmt: skip
        best = group.iloc[ranks.index(min(ranks))]
        named = zip(group["machine"], group["line"], strict=True)
        rows.append((*values, best["badge"], tuple(f"{name}: {line}" if name else line for name, line in named)))
    return pd.DataFrame(rows, columns=[*keys, "badge", "lines"])


def _rank(fits: bool, gpus: int, at_once: int, badge: str) -> tuple[int, int, int]:
    """Fits on fewer GPUs first, then more requests; then the CPU; then what fits nowhere."""
    if not fits:
        return (3, 0, 0) if badge.startswith("choose") else (4, 0, 0)
    return (2, int("slow" in badge), 0) if gpus == 0 else (1, int(gpus), -int(at_once))


# ---- the questions asked the other way round ------------------------------------------------------------------------


def max_context(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row of the longest context that fits (of all that is asked: the longest of any combination).

    Takes `fit`'s arguments. Where not even one token fits, the row of the shortest that was asked, with its reason.
    """
    best = _best(_on_all_gpus(models, machines, arguments), "max_context")
    tokens = whole(best["max_context"])
    return _again(best, contexts=tokens) if tokens else best


def max_parallel(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row of the most requests at once that fit on all GPUs of a machine. Takes `fit`'s arguments."""
    best = _best(_on_all_gpus(models, machines, arguments), "max_parallel")
    requests = whole(best["max_parallel"])
    return _again(best, parallel=requests) if requests else best


def best_quant(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row of the best quantization that fits: the one of most bits a weight. Takes `fit`'s arguments.

    `quants` narrows the choice; without it llama.cpp's usual file types are tried from 16 bits down, those of a checkpoint
    with MXFP4 experts without the ones that would only blow these up, and vLLM's usual checkpoints beside the model's own.
    """
    models, arguments = models_of(models), _listed(arguments)
    if arguments.get("quants") is None:
        arguments["quants"] = quants_offered(models, arguments.get("engine", "llama.cpp"))
    table = fit(models, machines, **arguments)
    if not table["fits"].any():
        return table.iloc[len(table) - 1]
    bits = [bits_of(quant) if fits else -1.0 for quant, fits in zip(table["quant"], table["fits"], strict=True)]
    return table.iloc[int(np.argmax(bits))]


def min_gpus(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row that takes the fewest GPUs. Takes `fit`'s arguments."""
    table = fit(models, machines, **arguments)
    counts = table["fit_gpus"].where(table["fits"]).fillna(MOST_GPUS + 1).to_numpy(dtype=np.int64)
    return table.iloc[int(counts.argmin())]


def min_utilization(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row of the smallest vLLM `gpu_memory_utilization` (to a hundredth) that still fits what is asked.

    Takes `fit`'s arguments; the rules are the budget's or vLLM's own. The row has one more entry, `gpu_memory_utilization`.
    """
    models, machines = models_of(models), machines_of(machines)
    arguments = _listed(arguments)
    shared = [one for one in machines if one.gpu and one.taken_bytes]
    alone = [one for one in machines if one not in shared]
    found = [_least_share(models, [one], arguments, _most_share(one)) for one in shared]
    if alone or not shared:
        found.append(_least_share(models, alone, arguments, 100))
    hundredths, row = min(found, key=lambda one: (not one[1]["fits"], one[0]))
    row = row.copy()
    row["gpu_memory_utilization"] = hundredths / 100
    return row


def _listed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments that can be asked more than once."""
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in arguments.items()}


def _least_share(models: Any, machines: Any, arguments: dict[str, Any], most: int) -> tuple[int, pd.Series[Any]]:
    """The smallest share in hundredths that fits somewhere, with its row; else `most` and its reason."""
    low, high, found = 1, most, None
    while low <= high:
        middle = (low + high) // 2
        row = _first_yes(fit(models, machines, **with_utilization(arguments, middle / 100)))
        if row["fits"]:
            found, high = (middle, row), middle - 1
        else:
            low = middle + 1
    return found or (most, _first_yes(fit(models, machines, **with_utilization(arguments, most / 100))))


def _most_share(machine: Machine) -> int:
    """What others leave of each GPU, in hundredths: vLLM does not start with a larger share."""
    assert machine.gpu is not None
    return max(1, 100 * (machine.gpu.seen_bytes - machine.taken_bytes) // machine.gpu.seen_bytes)


def _first_yes(table: pd.DataFrame) -> pd.Series[Any]:
    return table.iloc[int(table["fits"].to_numpy(dtype=bool).argmax())]


def with_utilization(arguments: dict[str, Any], share: float) -> dict[str, Any]:
    from fitkit.rules.published.budget import Budget

    rules, budget = rules_of(arguments.get("rules", "engine"))
    engine, settings = engine_of(arguments.get("engine", "vllm"))
    if rules == "budget":
        changed = replace(budget or Budget(), gpu_memory_utilization=share)
        return arguments | {"engine": "vllm", "rules": changed}
    if rules != "engine" or engine != "vllm":
        raise BadInput(
            "min_utilization speaks of vLLM's gpu_memory_utilization: ask with engine='vllm' or rules='budget'."
        )
    from fitkit.predict import VLLM

    return arguments | {"engine": replace(settings or VLLM(), gpu_memory_utilization=share)}


def _best(table: pd.DataFrame, column: str) -> pd.Series[Any]:
    """The row with the most, the first where there is none."""
    return table.iloc[int(table[column].fillna(-1).to_numpy(dtype=np.int64).argmax())]


def _again(row: pd.Series[Any], **changes: Any) -> pd.Series[Any]:
    """The same question on the row's GPUs, with some of it changed."""
    asked = question(row)
    arguments = asked.arguments(parallel=whole(row.get("fit_parallel")), gpus=whole(row.get("fit_gpus")))
    return fit(**(arguments | changes)).iloc[0]


def _on_all_gpus(models: Any, machines: Any, arguments: dict[str, Any]) -> pd.DataFrame:
    """The question's rows, and where GPUs are not asked again with every larger number its machines have."""
    first = fit(models, machines, **arguments)
    if arguments.get("gpus") is not None:
        return first
    tables = [first]
    for _, row in first.iterrows():
        asked = question(row)
        if asked.machine is not None and asked.gpus is None:
            fewest = whole(row["fit_gpus"]) or 1
            counts = {n for n in (*COUNTS, asked.machine.count) if fewest < n <= asked.machine.count}
            tables += [fit(**asked.arguments(gpus=n)) for n in sorted(counts) if _runs(asked, n)]
    attrs = first.attrs
    together = pd.concat(tables, ignore_index=True)
    together.attrs = attrs
    return together


def _runs(asked: RowQuestion, gpus: int) -> bool:
    ask = asked.ask()
    return not ask.refusal and ask.counted is not None and not ask.counted.check(ask.job(gpus, _gpu(asked)))


def _gpu(asked: RowQuestion) -> Any:
    return asked.machine.gpu if asked.machine else None


def quants_offered(models: Any, engine: Any) -> list[str]:
    """What is usual for the engines, most bits first."""
    engines = {engine_of(one)[0] for one in some("engine", engine)}
    models = models_of(models)
    found = _file_types(models) if "llama.cpp" in engines else []
    if engines == {"llama.cpp"}:
        return found
    own = {own_quant(model) for model in models}
    return [*dict.fromkeys((*(() if own <= set(_CHECKPOINTS) else sorted(own)), *_CHECKPOINTS, *found))]


def _file_types(models: list[Model]) -> list[str]:
    """llama.cpp's usual file types of these models; more bits than MXFP4 experts have make them larger and no better."""
    sixteen = "F16" if all(model.dtype == "F16" for model in models) else "BF16"
    if not any(model.quant == "MXFP4" for model in models):
        return [sixteen, *QUANT_ORDER]
    both = sorted((*QUANT_ORDER, "MXFP4_MOE"), key=bits_of, reverse=True)
    every = all(model.quant == "MXFP4" for model in models)
    return [sixteen, *(both[both.index("MXFP4_MOE") :] if every else both)]
