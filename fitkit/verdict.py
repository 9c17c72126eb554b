"""Whether a model fits a machine: tries the ways the machine offers, fewest GPUs first, over many contexts and requests at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fitkit import words
from fitkit.axes import MOST_PARALLEL, Ask, too_long
from fitkit.frames import NA, PARTS
from fitkit.hardware import Gpu, Machine
from fitkit.layouts import Layout, layouts, more
from fitkit.rules import Allocation, IntArray, Job
from fitkit.rules.published.parts import MOST_POOL_TOKENS
from fitkit.rules.sizes import checkpoint_bytes, gguf_bytes
from fitkit.search import largest
from fitkit.units import GB

_RAM_SHARE = 0.9  # of a machine's RAM, where a rule set says nothing else
# The order in which terms fill a card: the first that no longer fits is what limits.
_ORDER = ("weights", "projector", "runtime", "compute", "output", "split", "state", "kv_cache")


@dataclass(slots=True)
class Verdict:
    """One answer a row, arrays of equal length; `at` holds the terms by column name at the point the verdict uses."""

    ask: Ask
    machine: Machine
    context: IntArray
    parallel: IntArray  # as asked, 0: fitted
    gpus: int | None
    fits: np.ndarray = field(init=False)
    beyond: np.ndarray = field(init=False)  # more GPUs were asked than there are
    needs: IntArray = field(init=False)  # GPUs that would hold it where the machine has too few, 0: none would
    needs_nodes: IntArray = field(init=False)
    refused: list[str] = field(init=False)
    at: dict[str, IntArray] = field(init=False)
    per_gpu: dict[str, IntArray] = field(init=False)  # of each term
    note: str = ""
    impossible: str = ""  # why not one row can run, whatever the machine

    def __post_init__(self) -> None:
        n = len(self.context)
        self.fits = np.zeros(n, dtype=bool)
        self.beyond = np.zeros(n, dtype=bool)
        self.needs, self.needs_nodes = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self.refused = [""] * n
        self.at = {}
        self.per_gpu = {}

    def put(self, name: str, rows: IntArray, values: Any) -> None:
        """Set one whole number a row."""
        if name not in self.at:
            self.at[name] = np.full(len(self.context), NA, dtype=np.int64)
        self.at[name][rows] = values


def judge(ask: Ask, machine: Machine, context: IntArray, parallel: IntArray, gpus: int | None) -> Verdict:
    """The verdict for each pair of `context` and `parallel` (0: fitted) on `machine`, with `gpus` of it (None: fitted)."""
    verdict = Verdict(ask, machine, context, parallel, gpus)
    tries = np.repeat(np.array([ask.tries]), len(context), axis=0)
    tries[parallel > 0] = parallel[parallel > 0][:, None]
    undecided = _refuse(verdict)
    if undecided.size:
        undecided = _try_layouts(verdict, tries, undecided)
    if undecided.size:
        undecided = _try_cpu(verdict, undecided)
    if undecided.size and gpus is None:
        _look_further(verdict, tries, undecided)
    _judge_disk(verdict)
    _limits(verdict)
    return verdict


def _refuse(verdict: Verdict) -> IntArray:
    """Rows that can run at all; the others get their sentence."""
    ask = verdict.ask
    for row, context in enumerate(verdict.context.tolist()):
        verdict.refused[row] = ask.refusal or too_long(ask.model, context)
    rows = np.flatnonzero(np.array([not sentence for sentence in verdict.refused]))
    if not rows.size:
        verdict.impossible = verdict.refused[0]
    return rows


def _try_layouts(verdict: Verdict, tries: IntArray, rows: IntArray) -> IntArray:
    """Go through the machine's ways; returns the rows that none holds, filled in at the largest."""
    ask, machine = verdict.ask, verdict.machine
    assert ask.counted is not None
    ways = layouts(ask, machine, verdict.gpus)
    good = [way for way in ways if not ask.counted.check(ask.job(way.gpus, machine.gpu, way.nodes))]
    if not good:
        sentence = ask.counted.check(ask.job(ways[0].gpus, machine.gpu, ways[0].nodes))
        if ways[0].gpus:
            verdict.impossible = sentence
        for row in rows:
            verdict.refused[row] = sentence
        return rows[:0]
    for way in good:
        job = ask.job(way.gpus, machine.gpu, way.nodes)
        last = way is good[-1]
        rows = _try(verdict, job, way, tries, rows, usable_bytes(ask, machine, job), keep_rest=last)
        if not rows.size:
            break
    return rows


def _try(
    verdict: Verdict, job: Job, way: Layout, tries: IntArray, rows: IntArray, usable: int, *, keep_rest: bool
) -> IntArray:
    """Fill in the rows that fit this way (with `keep_rest` the others too); returns those that do not fit."""
    width = tries.shape[1]
    context, parallel = np.repeat(verdict.context[rows], width), tries[rows].ravel()
    holds, allocation = _grid_holds(verdict, job, context, parallel, usable)
    holds = holds.reshape(len(rows), width)
    if way.beyond:
        holds = np.zeros_like(holds)
    fitting = holds.any(axis=1)
    first = np.where(fitting, holds.argmax(axis=1), width - 1)
    chosen = np.arange(len(rows)) if keep_rest else np.flatnonzero(fitting)
    if chosen.size:
        picked = chosen * width + first[chosen]
        if allocation is None:
            assert verdict.ask.counted is not None
            allocation = verdict.ask.counted.allocate(job, context[picked], parallel[picked])
            _fill(verdict, job, way, allocation, rows[chosen], np.arange(len(picked)), parallel[picked], usable)
        else:
            _fill(verdict, job, way, allocation, rows[chosen], picked, parallel, usable)
        verdict.fits[rows[chosen]] = fitting[chosen]
        verdict.beyond[rows[chosen]] = way.beyond
    return rows[~fitting]


def _grid_holds(
    verdict: Verdict, job: Job, context: IntArray, parallel: IntArray, usable: int
) -> tuple[np.ndarray, Allocation | None]:
    """Which pairs fit, and their allocation; None where the rules know it without one."""
    counted = verdict.ask.counted
    assert counted is not None
    pool = verdict.ask.pool(job, usable)
    if pool is not None:
        return np.asarray(context * parallel <= pool), None
    allocation = counted.allocate(job, context, parallel)
    return _holds(verdict.machine, job, allocation, usable), allocation


def _holds(machine: Machine, job: Job, allocation: Allocation, usable: int) -> np.ndarray:
    """Which rows of an allocation fit: on each card, in RAM beside it, and started by the engine."""
    good: np.ndarray = allocation.per_gpu <= usable
    if allocation.refused is not None:
        good = good & np.array([not sentence for sentence in allocation.refused], dtype=bool)
    if allocation.host_bytes is not None and machine.ram_bytes and job.gpus:
        good = good & (allocation.host_bytes <= int(machine.ram_bytes * _RAM_SHARE))
    return good


def _fill(
    verdict: Verdict,
    job: Job,
    way: Layout,
    allocation: Allocation,
    rows: IntArray,
    picked: IntArray,
    tried: IntArray,
    usable: int,
) -> None:
    """Write one way's terms into the verdict's rows."""
    for column, values in term_columns(allocation, max(1, job.gpus)).items():
        verdict.put(column, rows, values[picked])
    for name, values in _by_name(allocation).items():
        verdict.per_gpu.setdefault(name, np.zeros(len(verdict.context), dtype=np.int64))[rows] = values[picked]
    assert verdict.ask.counted is not None
    verdict.put("fit_gpus", rows, job.gpus)
    verdict.put("fit_nodes", rows, way.nodes)
    verdict.put("fit_parallel", rows, tried[picked])
    verdict.put("need_per_gpu_bytes", rows, allocation.per_gpu[picked])
    verdict.put("usable_per_gpu_bytes", rows, usable)
    verdict.put("reserved_per_gpu_bytes", rows, verdict.ask.counted.reserved_bytes(job) if job.gpus else 0)
    if allocation.refused is not None:
        for row, at in zip(rows.tolist(), picked.tolist(), strict=True):
            verdict.refused[row] = allocation.refused[at]
    verdict.note = allocation.note or verdict.note


def _by_name(allocation: Allocation) -> dict[str, IntArray]:
    out: dict[str, IntArray] = {}
    for term in allocation.terms:
        out[term.name] = out[term.name] + term.per_gpu if term.name in out else term.per_gpu
    return out


def term_columns(allocation: Allocation, gpus: int) -> dict[str, IntArray]:
    """The named columns of an allocation and its finer ones: column → array."""
    zero = np.zeros_like(allocation.terms[0].total)
    out = {f"{name}_bytes": zero for name in ("weights", "kv", "overhead", *PARTS)}
    low, high, total, per_gpu = zero, zero, zero, zero
    for term in allocation.terms:
        name = f"{term.column}_bytes"
        out[name] = out[name] + term.total
        if term.name in PARTS:
            out[f"{term.name}_bytes"] = out[f"{term.name}_bytes"] + term.total
        total, per_gpu = total + term.total, per_gpu + term.per_gpu
        low = low + (term.per_gpu if term.low is None else term.low)
        high = high + (term.per_gpu if term.high is None else term.high)
    out |= {"total_bytes": total, "per_gpu_bytes": per_gpu, "per_gpu_low_bytes": low, "per_gpu_high_bytes": high}
    out["total_low_bytes"] = np.maximum(total - (per_gpu - low) * gpus, 0)
    out["total_high_bytes"] = total + (high - per_gpu) * gpus
    if allocation.host_bytes is not None:
        out["host_bytes"] = allocation.host_bytes
    return out


def usable_bytes(ask: Ask, machine: Machine, job: Job) -> int:
    """What of one card (of RAM, without a GPU) the work may take, less what others hold of it [bytes]."""
    assert ask.counted is not None
    if job.gpus == 0:
        return int(machine.ram_bytes * getattr(ask.counted, "ram_share", _RAM_SHARE))
    usable = ask.counted.usable_bytes(job)
    if _takes_share(ask):
        return usable
    return max(0, usable - machine.taken_bytes)


def _takes_share(ask: Ask) -> bool:
    """VLLM takes a share of the whole card: others' memory only has to fit in the rest."""
    return ask.rules == "engine" and ask.engine != "llama.cpp"


# ---- no GPU holds it ------------------------------------------------------------------------------------------------


def _try_cpu(verdict: Verdict, rows: IntArray) -> IntArray:
    """Library rules: a GGUF that no GPU holds runs from RAM where that holds it; returns the rows that still do not fit."""
    ask, machine = verdict.ask, verdict.machine
    requests = getattr(ask.counted, "cpu_parallel", 0)
    if not requests or ask.engine != "llama.cpp" or not machine.ram_bytes or verdict.gpus or not machine.count:
        return rows
    if machine.gpu is not None and machine.gpu.unified:
        return rows
    tries = np.where(verdict.parallel > 0, verdict.parallel, requests)[:, None]
    job = ask.job(0, None)
    return _try(verdict, job, Layout(0), tries, rows, usable_bytes(ask, machine, job), keep_rest=False)


def _look_further(verdict: Verdict, tries: IntArray, rows: IntArray) -> None:
    """How many of these GPUs would hold it, where the machine has fewer."""
    ask, machine = verdict.ask, verdict.machine
    assert ask.counted is not None
    for way in more(ask, machine):
        job = ask.job(way.gpus, machine.gpu, way.nodes)
        if not rows.size or ask.counted.check(job):
            continue
        flat = np.repeat(verdict.context[rows], tries.shape[1])
        holds, _ = _grid_holds(verdict, job, flat, tries[rows].ravel(), usable_bytes(ask, machine, job))
        holds = holds.reshape(len(rows), -1).any(axis=1)
        verdict.needs[rows[holds]] = way.gpus
        verdict.needs_nodes[rows[holds]] = way.nodes
        rows = rows[~holds]


def _judge_disk(verdict: Verdict) -> None:
    """The download must fit the machine's data location, unless a whole copy lies there."""
    ask, machine = verdict.ask, verdict.machine
    size = download_bytes(ask)
    verdict.put("download_bytes", np.arange(len(verdict.context)), NA if size is None else size)
    free = free_disk_bytes(ask, machine)
    if free is not None and (free < 0 or (size is not None and size > free)):
        verdict.fits[:] = False


def download_bytes(ask: Ask) -> int | None:
    """Bytes of the files, None where the file type does not belong to the engine."""
    if ask.refusal or ask.rules == "budget":
        return None
    size_of = gguf_bytes if ask.engine == "llama.cpp" else checkpoint_bytes
    try:
        size: int = size_of(ask.model, ask.quant)[0]
    except (KeyError, ValueError):
        return None
    return size + ask.model.projector_bytes


def free_disk_bytes(ask: Ask, machine: Machine) -> int | None:
    """What a download may take there, -1 without a data location, None where nobody knows."""
    if machine.disk_free_bytes is None or machine.name in getattr(ask.settings, "copies", ()):
        return None
    limit = getattr(ask.settings, "copies_limit_gb", None)
    if limit is None or machine.disk_free_bytes < 0:
        return machine.disk_free_bytes
    return min(machine.disk_free_bytes, round(limit * GB))


# ---- how far it goes ---------------------------------------------------------------------------------------------------


def _limits(verdict: Verdict) -> None:
    """The most requests at each context and the longest context at each number of requests, on the GPUs of the verdict."""
    verdict.put("max_parallel", np.array([], dtype=np.int64), 0)
    verdict.put("max_context", np.array([], dtype=np.int64), 0)
    if "fit_gpus" not in verdict.at:
        return
    gpus, nodes = verdict.at["fit_gpus"], verdict.at["fit_nodes"]
    for count, over in sorted({pair for pair in zip(gpus.tolist(), nodes.tolist(), strict=True) if pair[0] != NA}):
        rows = np.flatnonzero((gpus == count) & (nodes == over))
        ask, machine = verdict.ask, verdict.machine
        job = ask.job(count, machine.gpu if count else None, over)
        usable = usable_bytes(ask, machine, job)
        contexts, back = np.unique(verdict.context[rows], return_inverse=True)
        verdict.put("max_parallel", rows, most_requests(ask, machine, job, contexts, usable)[back])
        requests, back = np.unique(verdict.at["fit_parallel"][rows], return_inverse=True)
        verdict.put("max_context", rows, longest_context(ask, machine, job, requests, usable)[back])


def most_requests(ask: Ask, machine: Machine, job: Job, contexts: IntArray, usable: int) -> IntArray:
    """The most requests of each context that fit at once."""
    assert ask.counted is not None
    pool = ask.pool(job, usable)
    if pool is not None:
        return np.asarray(max(0, pool) // np.maximum(contexts, 1))
    closed = ask.counted.max_parallel(job, contexts, usable)
    if closed is not None:
        return closed
    most = np.minimum(MOST_PARALLEL, MOST_POOL_TOKENS // contexts)
    return largest(_probe(ask, machine, job, usable, lambda rows, n: (contexts[rows], n)), most)


def longest_context(ask: Ask, machine: Machine, job: Job, requests: IntArray, usable: int) -> IntArray:
    """The longest context that fits with each number of requests, up to the model's own."""
    limit = ask.model.context or 2**20
    most = np.minimum(limit, MOST_POOL_TOKENS // np.maximum(requests, 1))
    pool = ask.pool(job, usable)
    if pool is not None:
        return np.minimum(most, max(0, pool) // np.maximum(requests, 1))
    return largest(_probe(ask, machine, job, usable, lambda rows, n: (n, requests[rows])), most)


def _probe(
    ask: Ask,
    machine: Machine,
    job: Job,
    usable: int,
    grid: Callable[[IntArray, IntArray], tuple[IntArray, IntArray]],
) -> Callable[[IntArray, IntArray], np.ndarray]:
    def holds(rows: IntArray, n: IntArray) -> np.ndarray:
        assert ask.counted is not None
        context, parallel = grid(rows, n)
        return _holds(machine, job, ask.counted.allocate(job, context, parallel), usable)

    return holds


# ---- in words ---------------------------------------------------------------------------------------------------------


def limited_by(verdict: Verdict) -> list[str]:
    """The binding term of each row that does not fit; empty for a yes."""
    out = np.full(len(verdict.context), "", dtype=object)
    if "usable_per_gpu_bytes" in verdict.at:
        usable = verdict.at["usable_per_gpu_bytes"]
        filled = np.zeros_like(usable)
        for name in (*_ORDER, *(set(verdict.per_gpu) - set(_ORDER))):
            if name in verdict.per_gpu:
                filled = filled + verdict.per_gpu[name]
                out[(out == "") & (filled > usable)] = name
        out[verdict.beyond] = "gpus"
    free = free_disk_bytes(verdict.ask, verdict.machine)
    out[verdict.fits] = ""
    if free is not None:
        out[(out == "") & ~verdict.fits] = "disk"
    out[np.array([bool(sentence) for sentence in verdict.refused])] = "engine"
    out[(out == "") & ~verdict.fits] = "host_memory"
    return list(out)


def block(verdict: Verdict) -> dict[str, Any]:
    """The verdict as columns of `fit`."""
    ask, machine = verdict.ask, verdict.machine
    limits = limited_by(verdict)
    told = words.tell(verdict, limits)
    gpu: Gpu | None = machine.gpu
    at = dict(verdict.at)
    if "need_per_gpu_bytes" in at:
        need, usable = at["need_per_gpu_bytes"], at["usable_per_gpu_bytes"]
        at["free_per_gpu_bytes"] = np.where(need == NA, NA, usable - need)
    return {
        "model": ask.model.name,
        "engine": ask.engine,
        "rules": ask.rules,
        "quant": ask.quant,
        "kv_dtype": ask.kv_dtype,
        "basis": ask.basis,
        "context": verdict.context,
        "parallel": np.where(verdict.parallel > 0, verdict.parallel, NA),
        "gpus": NA if verdict.gpus is None else verdict.gpus,
        "machine": machine.name,
        "gpu": gpu.name if gpu else "",
        "fits": verdict.fits,
        "limited_by": limits,
        "note": verdict.note,
        **told,
        **at,
    }
