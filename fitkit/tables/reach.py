"""How far a verdict goes: the most requests at its context, the longest context at its requests."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fitkit.hardware import Machine
from fitkit.rules import IntArray, Job, Rules
from fitkit.rules.published.parts import MOST_POOL_TOKENS
from fitkit.tables.axes import Ask, Layout
from fitkit.tables.frames import NA
from fitkit.tables.resolve import MOST_PARALLEL
from fitkit.tables.search import largest

if TYPE_CHECKING:
    from fitkit.tables.verdict import Verdict

_RAM_SHARE = 0.9  # what may be used beside the GPUs; assumed
_NO_LIMIT = 2**62
_FEW = 64  # rows, as a page asks for
Sought = Literal["context", "requests"]


def ram_for_host(machine: Machine) -> int:
    """What the work may take of RAM beside the GPUs [bytes]; no limit where the RAM is not known."""
    return int(machine.ram_bytes * _RAM_SHARE) if machine.ram_bytes else _NO_LIMIT


def fill(verdict: Verdict) -> None:
    """Put `max_parallel` and `max_context` into every row that has a point, on the GPUs of that point."""
    if "fit_gpus" not in verdict.at:
        return
    gpus, nodes = verdict.at["fit_gpus"], verdict.at["fit_nodes"]
    for count, over in sorted({pair for pair in zip(gpus.tolist(), nodes.tolist(), strict=True) if pair[0] != NA}):
        rows = np.flatnonzero((gpus == count) & (nodes == over))
        way = Layout(count, over)
        usable = verdict.at["usable_per_gpu_bytes"][rows]
        requests = verdict.at["fit_parallel"][rows]
        if getattr(verdict.ask.counted, "max_tokens", None) is not None:
            pool = _pools(verdict, way, rows)
            most = np.minimum(verdict.ask.model.context or 2**20, MOST_POOL_TOKENS // requests)
            verdict.put("max_parallel", rows, pool // verdict.context[rows])
            verdict.put("max_context", rows, np.minimum(most, pool // requests))
            continue
        host = np.array([ram_for_host(one) for one in verdict.machines], dtype=np.int64)[verdict.machine[rows]]
        job = verdict.ask.job(count, verdict.machines[0].gpu if count else None, over)
        verdict.put("max_parallel", rows, _most_requests(verdict.ask, job, verdict.context[rows], usable, host))
        verdict.put("max_context", rows, _longest_context(verdict.ask, job, requests, usable, host))


def _pools(verdict: Verdict, way: Layout, rows: IntArray) -> IntArray:
    """The tokens that fit on each row's machine."""
    pools = np.array([max(0, verdict.ask.pool(one, way)) for one in verdict.machines], dtype=np.int64)
    out: IntArray = pools[verdict.machine[rows]]
    return out


def _most_requests(ask: Ask, job: Job, contexts: IntArray, usable: IntArray, host: IntArray) -> IntArray:
    """The most requests of each context that fit at once."""
    assert ask.counted is not None
    keys, back = np.unique(np.stack([contexts, usable, host]), axis=1, return_inverse=True)
    contexts, usable, host = keys
    out = np.zeros_like(contexts)
    for size in np.unique(usable):
        closed = ask.counted.max_parallel(job, contexts[usable == size], int(size))
        if closed is None:
            most = np.minimum(MOST_PARALLEL, MOST_POOL_TOKENS // contexts)
            out = _search(ask.counted, job, "requests", contexts, usable, host, most)
            break
        out[usable == size] = closed
    return np.asarray(out[back.ravel()])


def _longest_context(ask: Ask, job: Job, requests: IntArray, usable: IntArray, host: IntArray) -> IntArray:
    """The longest context that fits with each number of requests, up to the model's own."""
    keys, back = np.unique(np.stack([requests, usable, host]), axis=1, return_inverse=True)
    requests, usable, host = keys
    most = np.minimum(ask.model.context or 2**20, MOST_POOL_TOKENS // np.maximum(requests, 1))
    return np.asarray(_search(ask.counted, job, "context", requests, usable, host, most)[back.ravel()])


def _search(counted: Any, job: Job, sought: Sought, *columns: IntArray) -> IntArray:
    """The largest `sought` beside the first column that fits in `usable` and `host`, up to `most`.

    Few rows are remembered: a slider moves one axis, and how far the others go is asked with each step.
    """
    if len(columns[0]) > _FEW or not _is_hashable(job):
        return _found(counted, job, sought, *columns)
    return _found_before(counted, job, sought, *(tuple(column.tolist()) for column in columns))


def _is_hashable(job: Job) -> bool:
    """Whether there is anything to look up by: settings and profiles may hold mappings."""
    try:
        hash(job)
    except TypeError:
        return False
    return True


@lru_cache(maxsize=512)
def _found_before(counted: Any, job: Job, sought: Sought, *columns: tuple[int, ...]) -> IntArray:
    return _found(counted, job, sought, *(np.array(column, dtype=np.int64) for column in columns))


def _found(
    counted: Rules, job: Job, sought: Sought, given: IntArray, usable: IntArray, host: IntArray, most: IntArray
) -> IntArray:
    def holds(rows: IntArray, n: IntArray) -> np.ndarray:
        context, parallel = (n, given[rows]) if sought == "context" else (given[rows], n)
        return _holds(counted, job, context, parallel, usable[rows], host[rows])

    return largest(holds, most)


def _holds(
    counted: Rules, job: Job, context: IntArray, parallel: IntArray, usable: IntArray, host: IntArray
) -> np.ndarray:
    """Which pairs fit, row by row."""
    allocation = counted.allocate(job, context, parallel)
    good = np.asarray(allocation.per_gpu <= usable)
    if allocation.refused is not None:
        good = good & np.array([not sentence for sentence in allocation.refused], dtype=bool)
    if allocation.host_bytes is not None and job.gpus:
        good = good & (allocation.host_bytes <= host)
    return good
