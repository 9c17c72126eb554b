"""Whether a model fits machines: tries the ways each machine offers, fewest GPUs first, over many contexts and requests at once.

Rows are machine x (context, parallel), machine by machine. Machines that the rules cannot tell apart share one allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fitkit.errors import FitError
from fitkit.hardware import Gpu, Machine
from fitkit.rules import Allocation, IntArray, Job
from fitkit.tables import reach
from fitkit.tables.axes import Ask, Layout
from fitkit.tables.disk import download_bytes, free_disk_bytes
from fitkit.tables.frames import NA
from fitkit.tables.layouts import layouts, more
from fitkit.tables.resolve import too_long
from fitkit.tables.terms import by_name, term_columns
from fitkit.units import show_gib


@dataclass(slots=True)
class Verdict:
    """Answers for machines of one kind; `at` holds the columns at the point the verdict uses, NA where nothing is known."""

    ask: Ask
    machines: Sequence[Machine]
    asked_context: IntArray  # one a combination
    asked_parallel: IntArray  # 0: fitted
    gpus: int | None
    context: IntArray = field(init=False)  # one a row
    parallel: IntArray = field(init=False)
    machine: IntArray = field(init=False)  # its place in `machines`
    pair: IntArray = field(init=False)  # its place among the combinations
    fits: np.ndarray = field(init=False)
    beyond: np.ndarray = field(init=False)  # more GPUs were asked than there are
    needs: IntArray = field(init=False)  # GPUs that would hold it where the machine has too few, 0: none would
    needs_nodes: IntArray = field(init=False)
    refused: list[str] = field(init=False)
    notes: np.ndarray = field(init=False)
    at: dict[str, IntArray] = field(default_factory=dict)
    per_gpu: dict[str, IntArray] = field(default_factory=dict)  # of each term
    impossible: str = ""  # why not one row can run, whatever the machine

    def __post_init__(self) -> None:
        pairs, machines = len(self.asked_context), len(self.machines)
        n = pairs * machines
        self.context, self.parallel = np.tile(self.asked_context, machines), np.tile(self.asked_parallel, machines)
        self.machine, self.pair = np.repeat(np.arange(machines), pairs), np.tile(np.arange(pairs), machines)
        self.fits, self.beyond = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        self.needs, self.needs_nodes = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self.refused = [""] * n
        self.notes = np.full(n, "", dtype=object)

    def put(self, name: str, rows: IntArray, values: Any) -> None:
        """Set one whole number a row."""
        if name not in self.at:
            self.at[name] = np.full(len(self.context), NA, dtype=np.int64)
        self.at[name][rows] = values


@dataclass(slots=True)
class Tried:
    """One way with its allocation over the combinations x the numbers of requests tried."""

    verdict: Verdict
    way: Layout
    tries: IntArray
    job: Job = field(init=False)
    allocation: Allocation = field(init=False)
    usable: IntArray = field(init=False)  # of each machine

    def __post_init__(self) -> None:
        ask = self.verdict.ask
        assert ask.counted is not None
        self.job = ask.job(self.way.gpus, gpu_of(self.verdict, self.way), self.way.nodes)
        context = np.repeat(self.verdict.asked_context, self.tries.shape[1])
        self.allocation = ask.counted.allocate(self.job, context, self.tries.ravel())
        self.usable = np.array([ask.usable(one, self.way) for one in self.verdict.machines], dtype=np.int64)

    def holds(self, rows: IntArray) -> np.ndarray:
        """For each row and number of requests whether it fits: on each card, in RAM beside it, started by the engine."""
        shape = self.tries.shape
        at, machine = self.verdict.pair[rows], self.verdict.machine[rows]
        need = self.allocation.per_gpu.reshape(shape)
        good = np.asarray(need[at] <= self.usable[machine][:, None])
        if self.allocation.refused is not None:
            starts = np.array([not sentence for sentence in self.allocation.refused], dtype=bool).reshape(shape)
            good = good & starts[at]
        if self.allocation.host_bytes is not None and self.way.gpus:
            ram = np.array([reach.ram_for_host(one) for one in self.verdict.machines], dtype=np.int64)
            good = good & (self.allocation.host_bytes.reshape(shape)[at] <= ram[machine][:, None])
        return good


def holds_at(ask: Ask, machine: Machine, context: int, parallel: int, gpus: int | None) -> bool:
    """Whether one combination fits (`parallel` 0: fitted), without how far it goes and without words."""
    verdict = Verdict(ask, [machine], np.array([context]), np.array([parallel]), gpus)
    try:
        decide(verdict, quick=True)
    except FitError:
        return False
    return bool(verdict.fits[0]) and not verdict.refused[0]


def gpu_of(verdict: Verdict, way: Layout) -> Gpu | None:
    """The GPU that stands for the verdict's machines."""
    return verdict.machines[0].gpu if way.gpus else None


# ---- deciding -------------------------------------------------------------------------------------------------------


def decide(verdict: Verdict, *, quick: bool = False) -> None:
    tries = np.repeat(np.array([verdict.ask.tries], dtype=np.int64), len(verdict.asked_context), axis=0)
    given = verdict.asked_parallel > 0
    tries[given] = verdict.asked_parallel[given][:, None]
    rows = _start(verdict)
    _refuse_taken(verdict)
    rows = rows[[not verdict.refused[row] for row in rows.tolist()]]
    if rows.size:
        rows = _try_ways(verdict, tries, rows)
    if rows.size:
        rows = _try_cpu(verdict, rows)
    _judge_disk(verdict)
    if quick:
        return
    if rows.size and verdict.gpus is None:
        _look_further(verdict, tries, rows)
    reach.fill(verdict)


def _start(verdict: Verdict) -> IntArray:
    """Rows that can run at all; the others get their sentence."""
    ask = verdict.ask
    for row, context in enumerate(verdict.context.tolist()):
        verdict.refused[row] = ask.refusal or too_long(ask.model, context)
    rows = np.flatnonzero(np.array([not sentence for sentence in verdict.refused]))
    if not rows.size:
        verdict.impossible = verdict.refused[0]
    return rows


def _refuse_taken(verdict: Verdict) -> None:
    """An engine that takes a share of the whole card (vLLM) does not start where others hold more than the rest."""
    ask = verdict.ask
    if ask.refusal or ask.takes_used_memory:
        return
    for place, one in enumerate(verdict.machines):
        if not one.taken_bytes or one.gpu is None or not one.count:
            continue
        share, free = ask.reserved(one, Layout(1)), one.gpu.seen_bytes - one.taken_bytes
        if share > free:
            sentence = (
                f"vLLM asks for {show_gib(share)} of each {one.gpu.name} and finds {show_gib(max(0, free))} free, as others hold "
                f"{show_gib(one.taken_bytes)}: lower gpu_memory_utilization to {int(100 * free / one.gpu.seen_bytes) / 100:g}."
            )
            for row in np.flatnonzero(verdict.machine == place).tolist():
                verdict.refused[row] = verdict.refused[row] or sentence


def _offered(verdict: Verdict, ways_of: Any) -> Iterator[tuple[Layout, np.ndarray]]:
    """Every way any machine offers, fewest GPUs first, with the machines that offer it."""
    offers: dict[Layout, list[int]] = {}
    for place, one in enumerate(verdict.machines):
        for way in ways_of(one):
            offers.setdefault(way, []).append(place)
    for way in sorted(offers, key=lambda way: (way.gpus, way.nodes)):
        has = np.zeros(len(verdict.machines), dtype=bool)
        has[offers[way]] = True
        yield way, has


def _try_ways(verdict: Verdict, tries: IntArray, rows: IntArray) -> IntArray:
    """Go through the machines' ways; returns the rows that none holds, filled in at the largest way of theirs."""
    ask = verdict.ask
    assert ask.counted is not None
    last: dict[int, Tried] = {}  # of each machine
    sentences: dict[int, str] = {}
    for way, has in _offered(verdict, lambda one: layouts(ask, one, verdict.gpus)):
        here = rows[has[verdict.machine[rows]]]
        if not here.size:
            continue
        sentence = ask.counted.check(ask.job(way.gpus, gpu_of(verdict, way), way.nodes))
        if sentence:
            sentences |= dict.fromkeys(np.flatnonzero(has).tolist(), sentence)
        else:
            tried = Tried(verdict, way, tries)
            last |= dict.fromkeys(np.flatnonzero(has).tolist(), tried)
            done = _keep(tried, here)
            rows = rows[~np.isin(rows, done)] if done.size else rows
    for place in dict.fromkeys(verdict.machine[rows].tolist()):
        mine = rows[verdict.machine[rows] == place]
        if place in last:
            _fill(last[place], mine, np.full(len(mine), tries.shape[1] - 1))
            verdict.beyond[mine] = last[place].way.beyond
        elif place in sentences:
            _refuse(verdict, mine, sentences[place])
    return rows[[not verdict.refused[row] for row in rows.tolist()]]


def _refuse(verdict: Verdict, rows: IntArray, sentence: str) -> None:
    for row in rows.tolist():
        verdict.refused[row] = sentence
    if all(verdict.refused) and any(one.count for one in verdict.machines):
        verdict.impossible = sentence


def _keep(tried: Tried, rows: IntArray) -> IntArray:
    """Fill in the rows that fit this way and return them."""
    if tried.way.beyond:
        return rows[:0]
    holds = tried.holds(rows)
    fitting = np.asarray(holds.any(axis=1))
    done: IntArray = rows[fitting]
    if done.size:
        _fill(tried, done, holds[fitting].argmax(axis=1))
        tried.verdict.fits[done] = True
    return done


def _fill(tried: Tried, rows: IntArray, which: IntArray) -> None:
    """Write one way's terms into the verdict's rows, at the number of requests in place `which`."""
    verdict, allocation, way = tried.verdict, tried.allocation, tried.way
    width = tried.tries.shape[1]
    picked = verdict.pair[rows] * width + which
    for column, values in term_columns(allocation, max(1, way.gpus)).items():
        verdict.put(column, rows, values[picked])
    for name, values in by_name(allocation).items():
        verdict.per_gpu.setdefault(name, np.zeros(len(verdict.context), dtype=np.int64))[rows] = values[picked]
    verdict.put("fit_gpus", rows, way.gpus)
    verdict.put("fit_nodes", rows, way.nodes)
    verdict.put("fit_parallel", rows, tried.tries.ravel()[picked])
    verdict.put("need_per_gpu_bytes", rows, allocation.per_gpu[picked])
    verdict.put("usable_per_gpu_bytes", rows, tried.usable[verdict.machine[rows]])
    reserved = np.array([verdict.ask.reserved(one, way) for one in verdict.machines], dtype=np.int64)
    verdict.put("reserved_per_gpu_bytes", rows, reserved[verdict.machine[rows]])
    verdict.notes[rows] = verdict.ask.note(allocation.note)
    if allocation.refused is not None:
        for row, at in zip(rows.tolist(), picked.tolist(), strict=True):
            verdict.refused[row] = allocation.refused[at]


def _try_cpu(verdict: Verdict, rows: IntArray) -> IntArray:
    """Library rules: a GGUF that no GPU holds runs from RAM where that holds it; returns the rows that still do not fit."""
    requests = getattr(verdict.ask.counted, "cpu_parallel", 0)
    if not requests or verdict.ask.engine != "llama.cpp" or verdict.gpus:
        return rows
    able = np.array([bool(one.ram_bytes and one.count and one.gpu and not one.gpu.unified) for one in verdict.machines])
    here = rows[able[verdict.machine[rows]]]
    if not here.size:
        return rows
    tries = np.where(verdict.asked_parallel > 0, verdict.asked_parallel, requests)[:, None]
    done = _keep(Tried(verdict, Layout(0), tries), here)
    return rows[~np.isin(rows, done)]


def _look_further(verdict: Verdict, tries: IntArray, rows: IntArray) -> None:
    """How many of these GPUs would hold it, where the machine has fewer."""
    ask = verdict.ask
    assert ask.counted is not None
    for way, has in _offered(verdict, lambda one: more(ask, one)):
        here = rows[has[verdict.machine[rows]]]
        if not here.size or ask.counted.check(ask.job(way.gpus, gpu_of(verdict, way), way.nodes)):
            continue
        found = here[Tried(verdict, way, tries).holds(here).any(axis=1)]
        verdict.needs[found], verdict.needs_nodes[found] = way.gpus, way.nodes
        rows = rows[~np.isin(rows, found)]


# ---- disk -----------------------------------------------------------------------------------------------------------


def _judge_disk(verdict: Verdict) -> None:
    """The download must fit the machine's data location, unless a whole copy lies there."""
    size = download_bytes(verdict.ask)
    if size is not None:
        verdict.put("download_bytes", np.arange(len(verdict.context)), size)
    for place, one in enumerate(verdict.machines):
        free = free_disk_bytes(verdict.ask, one)
        if free is not None and (free < 0 or (size is not None and size > free)):
            verdict.fits[verdict.machine == place] = False
