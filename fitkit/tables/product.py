"""The product of all axes as one tidy frame: what each combination needs, and whether machines hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fitkit.errors import BadInput, FitError
from fitkit.keywords import told
from fitkit.rules import Allocation, IntArray
from fitkit.rules.published.parts import MOST_POOL_TOKENS
from fitkit.tables.asked import mark
from fitkit.tables.axes import Ask
from fitkit.tables.combine import asks
from fitkit.tables.frames import DEMAND_COLUMNS, FIT_COLUMNS, NA, Block, frame
from fitkit.tables.resolve import (
    DEFAULT_CONTEXT,
    MOST_CONTEXT,
    MOST_GPUS,
    MOST_PARALLEL,
    contexts_for,
    machines_of,
    models_of,
    too_long,
    wholes,
)
from fitkit.tables.terms import term_columns
from fitkit.tables.together import judge
from fitkit.tables.words import NO_MACHINES

MOST_ROWS = 20_000_000


@told
def demand(
    models: Any,
    quants: Any = None,
    contexts: Any = DEFAULT_CONTEXT,
    parallel: Any = None,
    kv_dtypes: Any = None,
    engine: Any = "llama.cpp",
    rules: Any = "engine",
    gpus: Any = 1,
    profile: Any = None,
) -> pd.DataFrame:
    """What every combination takes, one row each [bytes].

    Parameters
    ----------
    models
        Names, paths, mappings or Models.
    quants
        GGUF file types or checkpoint types; None: Q4_K_M for llama.cpp, the checkpoint's own for vLLM.
    contexts
        Tokens a request, also as "32k" (of 1024); the default 8192 is the model's own length where that is shorter.
    parallel
        Requests at once; None: one.
    kv_dtypes
        Cache types by either engine's name; None: the engine's default.
    engine
        "llama.cpp", "vllm", "sglang", or an engine's settings object.
    rules
        "engine", "library", "budget", "shard", their settings objects, or a list of them for the same question side by side.
    gpus
        GPUs the work is spread over.
    profile
        A calibration that replaces published constants.

    Raises
    ------
    BadInput, UnknownName
        For values and names nobody knows. A single impossible combination raises too; inside a grid its bytes are NA.

    Examples
    --------
    >>> import fitkit as fk
    >>> row = fk.demand("llama-3.1-8b", "Q4_K_M", rules="budget", engine="vllm", parallel=8).iloc[0]
    >>> print(f"{row.total_bytes / 2**30:.2f} GiB")
    14.03 GiB
    """
    asked = asks(models_of(models), quants, kv_dtypes, engine, rules, profile)
    context = _needed(wholes("contexts", contexts, MOST_CONTEXT))
    requests = wholes("parallel", 1 if parallel is None else parallel, MOST_PARALLEL)
    cards = wholes("gpus", 1 if gpus is None else gpus, MOST_GPUS, least=0)
    assert requests is not None
    assert cards is not None
    _refuse_size(len(asked) * len(context) * len(requests) * len(cards), context, requests)
    blocks: list[tuple[int, Block]] = []
    errors: list[FitError] = []
    for ask in asked:
        own = contexts_for(ask.model, context)
        flat_context, flat_requests = np.repeat(own, len(requests)), np.tile(requests, len(own))
        for count in [ask.own_gpus] if ask.own_gpus and cards.tolist() == [1] else cards.tolist():
            columns, refused = _terms(ask, count, flat_context, flat_requests)
            errors += refused
            blocks.append(
                (
                    len(flat_context),
                    {**_names(ask, count), "context": flat_context, "parallel": flat_requests, **columns},
                )
            )
    if len(blocks) == 1 and blocks[0][0] == 1 and errors:
        raise errors[0]
    return mark(frame(DEMAND_COLUMNS, blocks), asked, [])


def _terms(ask: Ask, count: int, context: IntArray, requests: IntArray) -> tuple[dict[str, Any], list[FitError]]:
    """The columns of one combination's terms, NA with a note where it cannot run, and the errors that say why not."""
    try:
        sentence = ask.refusal or (ask.counted.check(ask.job(count)) if ask.counted else "")
        if sentence or ask.counted is None:
            raise BadInput(sentence)
        allocation = ask.counted.allocate(ask.job(count), context, requests)
    except FitError as error:  # of one combination; the others are answered all the same
        return {"note": str(error)}, [error]
    note = ask.note(allocation.note)
    columns: dict[str, Any] = {**term_columns(allocation, max(1, count)), "note": note}
    refused = _refused(ask, allocation, context)
    if not any(refused.values()):
        return columns, []
    notes = [refused.get(row) or note for row in range(len(context))]
    out = np.array([bool(refused.get(row)) for row in range(len(context))])
    if (ask.engine, ask.rules) == ("llama.cpp", "engine") and allocation.refused is None:
        columns["note"] = [
            f"{text.removesuffix('.')}; llama.cpp starts with it and warns." if no else text
            for no, text in zip(out, notes, strict=True)
        ]
        return columns, []
    columns = {
        name: np.where(out, NA, value) if isinstance(value, np.ndarray) else value for name, value in columns.items()
    }
    return columns | {"note": notes}, [BadInput(next(filter(None, refused.values())))]


def _refused(ask: Ask, allocation: Allocation, context: IntArray) -> dict[int, str]:
    """Rows that do not start, or are longer than the model was made for, and why."""
    refused = dict(enumerate(allocation.refused)) if allocation.refused is not None and any(allocation.refused) else {}
    if ask.model.context and context.max() > ask.model.context:
        for row in np.flatnonzero(context > ask.model.context).tolist():
            refused[row] = refused.get(row) or too_long(ask.model, int(context[row]))
    return refused


@told
def fit(
    models: Any,
    machines: Any = None,
    quants: Any = None,
    contexts: Any = DEFAULT_CONTEXT,
    parallel: Any = None,
    kv_dtypes: Any = None,
    engine: Any = "llama.cpp",
    rules: Any = "engine",
    gpus: Any = None,
    profile: Any = None,
) -> pd.DataFrame:
    """Whether each combination fits each machine, and what limits it: one row a combination and machine.

    Takes what `demand` takes, and `machines`: lines such as "8x H100 80GB", Machines, or None for all of the catalog.
    `parallel` and `gpus` None are fitted: 4, 2, then 1 requests for llama.cpp (one full-length request for vLLM) on 1, 2,
    4, then 8 GPUs (any number under the shard rules); fewer GPUs come before more requests.

    `context`, `parallel` and `gpus` say what was asked (NA: fitted), `fit_gpus` and `fit_parallel` what the verdict and the
    terms stand for: of a "no", the most GPUs and the fewest requests tried.

    Raises
    ------
    BadInput, UnknownName
        As demand. A single impossible combination raises; inside a grid it is a row that does not fit, with the reason.

    Examples
    --------
    >>> import fitkit as fk
    >>> fk.fit("llama-3.1-8b", "1x RTX 4090", "Q4_K_M", rules="library").badge[0]
    'fits on a GPU'
    """
    found = machines_of(machines)
    asked = asks(models_of(models), quants, kv_dtypes, engine, rules, profile)
    context = _needed(wholes("contexts", contexts, MOST_CONTEXT))
    requests = wholes("parallel", parallel, MOST_PARALLEL)
    requests = np.zeros(1, dtype=np.int64) if requests is None else requests
    cards = wholes("gpus", gpus, MOST_GPUS, least=0)
    counts: Sequence[int | None] = [None] if cards is None else cards.tolist()
    rows = len(asked) * len(context) * len(requests) * len(counts) * max(1, len(found))
    _refuse_size(rows, context, requests)
    single = len(asked) * len(context) * len(requests) * len(counts) == 1
    blocks: list[tuple[int, Block]] = []
    for ask in asked:
        own = contexts_for(ask.model, context)
        flat_context, flat_requests = np.repeat(own, len(requests)), np.tile(requests, len(own))
        for count in [ask.own_gpus] if cards is None else counts:
            if not found:
                blocks.append((len(flat_context), _no_machines(ask, flat_context, flat_requests, count)))
                continue
            judged, impossible = judge(ask, found, flat_context, flat_requests, count)
            if single and impossible:
                raise impossible
            blocks += [(len(flat_context), one) for one in judged]
    return mark(frame(FIT_COLUMNS, blocks), asked, found)


def _no_machines(ask: Ask, context: IntArray, requests: IntArray, count: int | None) -> Block:
    """What is said where no machine was chosen."""
    return {
        **_names(ask, NA if count is None else count),
        "context": context,
        "parallel": np.where(requests > 0, requests, NA),
        "fits": False,
        "badge": NO_MACHINES,
        "limited_by": "machines",
        "reason": "No machine was chosen: name at least one, such as '1x RTX 4090'.",
        "line": NO_MACHINES,
    }


def _names(ask: Ask, gpus: int) -> dict[str, Any]:
    return {
        "model": ask.model.name,
        "engine": ask.engine,
        "rules": ask.rules,
        "quant": ask.quant,
        "kv_dtype": ask.kv_dtype,
        "gpus": gpus,
        "basis": ask.basis,
    }


def _needed(values: Any) -> IntArray:
    if values is None:
        raise BadInput("contexts is None, where tokens a request were expected, such as 8192.")
    return values  # type: ignore[no-any-return]


def _refuse_size(rows: int, context: IntArray, requests: IntArray) -> None:
    if rows > MOST_ROWS:
        raise BadInput(f"The question has {rows:,} combinations; up to {MOST_ROWS:,} are answered at once.")
    if int(context.max()) * int(requests.max()) > MOST_POOL_TOKENS:
        raise BadInput(
            f"{int(context.max()):,} tokens x {int(requests.max()):,} requests are more than any engine holds."
        )
