"""Answers about one row or one deployment: its terms, what would make it fit, and the questions asked the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from fitkit import facts
from fitkit.asked import RowQuestion, question, whole
from fitkit.axes import DEFAULT_CONTEXT, MOST_GPUS, many, models_of, own_quant
from fitkit.errors import BadInput, FitError
from fitkit.hardware import machine
from fitkit.layouts import COUNTS
from fitkit.rules import Term
from fitkit.tables import fit
from fitkit.units import show_gib

EXPLAIN_COLUMNS = (
    "term", "column", "bytes", "low", "high", "per_gpu_bytes", "per_gpu_low", "per_gpu_high", "evidence", "source",
)  # fmt: skip
_QUANT_ORDER = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K", "IQ2_XXS")
_USUAL = (
    "1x RTX 4090", "1x RTX 5090", "1x L40S", "1x H100 80GB", "1x H200 141GB", "2x H100 80GB", "4x H100 80GB", "8x H100 80GB",
    "8x H200 141GB", "8x B200", "8x B300",
)  # fmt: skip
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
    if not best["max_context"]:
        return best
    return _again(best, contexts=int(best["max_context"]))


def max_parallel(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row of the most requests at once that fit on all GPUs of a machine. Takes `fit`'s arguments."""
    best = _best(_on_all_gpus(models, machines, arguments), "max_parallel")
    if not best["max_parallel"]:
        return best
    return _again(best, parallel=int(best["max_parallel"]))


def best_quant(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row of the best quantization that fits, most bits first. Takes `fit`'s arguments; `quants` narrows the choice."""
    engine = arguments.get("engine", "llama.cpp")
    if arguments.get("quants") is None:
        arguments["quants"] = _quants_offered(models, engine)
    order = {quant: place for place, quant in enumerate(many(arguments["quants"]))}
    table = fit(models, machines, **arguments)
    if not table["fits"].any():
        return table.iloc[len(table) - 1]
    places = [
        order.get(quant, len(order)) if fits else len(order) + 1
        for quant, fits in zip(table["quant"], table["fits"], strict=True)
    ]
    return table.iloc[int(np.argmin(places))]


def min_gpus(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row that takes the fewest GPUs. Takes `fit`'s arguments."""
    table = fit(models, machines, **arguments)
    counts = table["fit_gpus"].where(table["fits"]).fillna(MOST_GPUS + 1).to_numpy(dtype=np.int64)
    return table.iloc[int(counts.argmin())]


def min_utilization(models: Any, machines: Any = None, **arguments: Any) -> pd.Series[Any]:
    """The `fit` row of the smallest vLLM `gpu_memory_utilization` (to a hundredth) that still fits what is asked.

    Takes `fit`'s arguments; the rules are the budget's or vLLM's own. The row has one more entry, `gpu_memory_utilization`.
    """
    low, high, found = 1, 100, None
    while low <= high:
        middle = (low + high) // 2
        row = fit(models, machines, **_with_utilization(arguments, middle / 100)).iloc[0]
        if row["fits"]:
            found, high = (middle, row), middle - 1
        else:
            low = middle + 1
    hundredths, row = found or (100, fit(models, machines, **_with_utilization(arguments, 1.0)).iloc[0])
    row = row.copy()
    row["gpu_memory_utilization"] = hundredths / 100
    return row


def _with_utilization(arguments: dict[str, Any], share: float) -> dict[str, Any]:
    from fitkit.rules.published.budget import Budget

    rules, engine = arguments.get("rules", "engine"), arguments.get("engine", "vllm")
    if rules == "budget" or isinstance(rules, Budget):
        budget = rules if isinstance(rules, Budget) else Budget()
        return arguments | {"engine": "vllm", "rules": replace(budget, gpu_memory_utilization=share)}
    if rules != "engine" or engine in ("llama.cpp", "sglang") or type(engine).__name__.startswith("LlamaCpp"):
        raise BadInput(
            "min_utilization speaks of vLLM's gpu_memory_utilization: ask with engine='vllm' or rules='budget'."
        )
    from fitkit.predict import VLLM

    settings: Any = VLLM() if isinstance(engine, str) else engine
    return arguments | {"engine": replace(settings, gpu_memory_utilization=share)}


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
        if asked.machine is not None:
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


def _quants_offered(models: Any, engine: Any) -> list[str]:
    """What is usual for the engine, most bits first."""
    if engine == "llama.cpp" or type(engine).__name__.startswith("LlamaCpp"):
        return list(_QUANT_ORDER)
    own = {own_quant(model) for model in models_of(models)}
    return [*dict.fromkeys((*(() if own <= set(_CHECKPOINTS) else sorted(own)), *_CHECKPOINTS))]


# ---- what would make it fit -----------------------------------------------------------------------------------------


def suggest(row: Any) -> pd.DataFrame:
    """Changes that make a row that does not fit fit (of one that fits: what more there is room for), each checked by `fit`.

    Returns the changed `fit` rows, most wanted first, with two columns before them: `change` (in words) and `changes` (the
    arguments of `fit` that differ).
    """
    asked = question(row)
    if asked.machine is None:
        raise BadInput("A row of fk.fit with a machine was expected; fk.demand judges none.")
    wanted = bool(asked.row.get("fits"))
    found: list[tuple[str, dict[str, Any], pd.Series[Any]]] = []
    for text, changes in _more(asked) if wanted else chain(_remedies(asked), _combined(asked)):
        if not wanted and len(found) > 1 and len(changes) > 2:
            break  # two changes at once only where one does not mend it
        if _holds(asked, changes):
            changed = fit(**asked.arguments(**changes)).iloc[0]
            found.append((text(changed) if callable(text) else text, changes, changed))
    table = pd.DataFrame([one for _, _, one in found]).reset_index(drop=True)
    table.insert(0, "change", pd.Series([text for text, _, _ in found], dtype="str"))
    table.insert(1, "changes", pd.Series([changes for _, changes, _ in found], dtype=object))
    return table


Words = str | Callable[[Any], str]


def _holds(asked: RowQuestion, changes: dict[str, Any]) -> bool:
    """Whether the changed question fits; what cannot be asked does not."""
    try:
        return asked.holds(**changes)
    except FitError:
        return False


def _remedies(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """Changes worth a try, least painful first."""
    yield from _smaller_cache(asked)
    requests = whole(asked.row.get("max_parallel")) or 0
    if asked.parallel and 0 < requests < asked.parallel:
        yield f"{requests:,} request{'s' if requests != 1 else ''} at once", {"parallel": requests}
    context = _round_context(whole(asked.row.get("max_context")) or 0)
    if 0 < context < asked.context:
        yield f"{context:,} tokens of context", {"contexts": context}
    yield from _more_gpus(asked)
    yield from _smaller_quant(asked)
    yield from _offload(asked)
    yield from _utilization(asked)
    yield from _larger_gpu(asked)


def _more(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """What a row that fits has room for."""
    requests = whole(asked.row.get("max_parallel")) or 0
    if requests > (whole(asked.row.get("fit_parallel")) or 1):
        yield f"room for {requests:,} requests at once", {"parallel": requests}
    context = whole(asked.row.get("max_context")) or 0
    if context > asked.context:
        yield f"up to {context:,} tokens of context", {"contexts": context}
    better = list(_QUANT_ORDER) if asked.quant in _QUANT_ORDER else _quants_offered(asked.model, asked.engine)
    if asked.quant in better:
        for quant in better[: better.index(asked.quant)]:
            yield f"{quant} also fits", {"quants": quant}


def _smaller_cache(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    llama = str(asked.row["engine"]) == "llama.cpp"
    if asked.kv_dtype in ("f16", "auto", "bf16", "f32"):
        for kind in ("q8_0", "q4_0") if llama else ("fp8",):
            yield partial(_room, kind), {"kv_dtypes": kind}


def _room(kind: str, row: Any) -> str:
    return f"{kind} cache: {int(row['max_parallel']):,} request{'s' if row['max_parallel'] != 1 else ''} of {int(row['context']):,}"


def _more_gpus(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """More GPUs of the machine; else as many machines or such GPUs as would hold it."""
    one = asked.machine
    assert one is not None
    if one.gpu is None:
        return
    if asked.gpus is not None and asked.gpus < one.count:
        yield partial(_all_of, one.name), {"gpus": None}
    for count in (n for n in (2, 4, 8, 16) if n > one.count and not one.gpu.unified):
        larger = replace(one, name=f"{count}x {one.gpu.name}", count=count)
        changes = {"machines": larger, "gpus": None}
        if _holds(asked, changes):
            yield f"{count}× {one.gpu.name}", changes
            return


def _all_of(name: str, row: Any) -> str:
    return f"{row['fit_gpus']} GPUs of {name}"


def _offload(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """llama.cpp: experts of some layers, or some layers, in RAM."""
    if str(asked.row["engine"]) != "llama.cpp" or asked.rules != "engine":
        return
    one = asked.machine
    if one is None or one.gpu is None or one.gpu.unified:
        return
    from fitkit.predict import LlamaCpp

    settings: Any = LlamaCpp() if isinstance(asked.engine, str) else asked.engine
    layers = len(asked.model.layers)
    least = 1 + _guess_layers(asked, settings)
    for n in sorted({least, least + 1, least + 2, layers}):
        if asked.model.experts:
            option, value, text = "n_cpu_moe", n, f"experts of {n} of {layers} layers in RAM"
        else:
            option, value, text = "n_gpu_layers", layers + 1 - n, f"{n} of {layers} layers in RAM"
        changes = {"engine": replace(settings, **{option: value})}
        if n <= layers and _holds(asked, changes):
            yield partial(_beside, text), changes
            return


def _guess_layers(asked: RowQuestion, settings: Any) -> int:
    """About how many layers are too many for the GPU, by what their weights take."""
    need, usable = whole(asked.row.get("need_per_gpu_bytes")), whole(asked.row.get("usable_per_gpu_bytes"))
    if need is None or usable is None:
        return 0
    moved = [
        tensor
        for tensor in asked.model.tensors
        if tensor.layers and ("_exps" in tensor.role or not asked.model.experts)
    ]
    share = sum(tensor.elements * tensor.copies for tensor in moved) / max(1, asked.model.params)
    each = share * (whole(asked.row.get("weights_bytes")) or 0) / max(1, whole(asked.row.get("fit_gpus")) or 1)
    return max(0, int((need - usable) / max(1.0, each) * len(asked.model.layers)))


def _beside(text: str, row: Any) -> str:
    return f"{text} ({show_gib(row['host_bytes'])} there)"


def _larger_gpu(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """The smallest usual machine of larger GPUs that holds it."""
    assert asked.machine is not None
    here = asked.machine.gpu.nominal_bytes if asked.machine.gpu else 0
    for line in _USUAL:
        other = machine(line)
        if other.gpu is not None and other.gpu.nominal_bytes > here:
            changes = {"machines": other, "gpus": None}
            if _holds(asked, changes):
                yield f"{line.replace('x ', '× ')}", changes
                return


def _smaller_quant(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """The first smaller quantization that fits."""
    for quant in _smaller_quants(asked):
        if _holds(asked, {"quants": quant}):
            yield f"{quant} weights", {"quants": quant}
            return


def _utilization(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    share = getattr(asked.rules, "gpu_memory_utilization", None) or getattr(
        asked.engine, "gpu_memory_utilization", None
    )
    if asked.rules not in ("budget", "engine") and share is None:
        return
    arguments = asked.arguments()
    for value in (0.92, 0.95):
        if share is None or value > share:
            try:
                changed = _with_utilization(arguments, value)
            except BadInput:
                return
            yield f"gpu_memory_utilization {value:g}", {key: changed[key] for key in ("rules", "engine")}


def _combined(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """A smaller quantization and a shorter context together, for what one does not mend."""
    for quant in _smaller_quants(asked):
        for context in dict.fromkeys((min(asked.context, 8192), min(asked.context, DEFAULT_CONTEXT // 2), 2048)):
            changes = {"quants": quant, "contexts": context, "parallel": 1}
            if context <= asked.context and _holds(asked, changes):
                yield f"{quant} weights, one request of {context:,} tokens", changes
                return


def _smaller_quants(asked: RowQuestion) -> list[str]:
    """Smaller quantizations, without those whose weights alone are clearly too much."""
    ladder = _QUANT_ORDER if asked.quant in _QUANT_ORDER else _quants_offered(asked.model, str(asked.row["engine"]))
    bits, weights = _bits(asked.quant), whole(asked.row.get("weights_bytes")) or 0
    usable = (whole(asked.row.get("usable_per_gpu_bytes")) or 0) * max(1, whole(asked.row.get("fit_gpus")) or 1)
    smaller = [quant for quant in ladder if _bits(quant) < bits]
    return [quant for quant in smaller if not usable or weights * _bits(quant) / bits * 0.8 < usable]


def _bits(quant: str) -> float:
    row = facts.find("quants", quant.removesuffix("+imatrix"))
    return float(row["bits"]) if row else 16.0


def _round_context(tokens: int) -> int:
    """Down to what people use: a power of two, or half way to the next."""
    if tokens < 256:
        return tokens
    power = 1 << (tokens.bit_length() - 1)
    return power + power // 2 if tokens >= power + power // 2 else power
