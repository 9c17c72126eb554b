"""What every set of rules answers: arrays in, terms in bytes out. Knows no files, no frames, no widgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fitkit.hardware import Gpu
from fitkit.model import Model

IntArray: TypeAlias = npt.NDArray[np.int64]
Evidence = Literal["exact", "engine", "fitted", "assumed"]
Column = Literal["weights", "kv", "overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One combination of everything that is not swept as an array: the rules sweep context and parallel."""

    model: Model
    quant: str  # already resolved: "Q4_K_M", "BF16", ...
    kv_dtype: str  # as asked, either engine's name
    gpus: int  # 0: CPU only
    nodes: int = 1  # equal machines the gpus are spread over; tensor parallel within one, pipeline parallel across
    gpu: Gpu | None = None  # None: not said (demand); rules that need one use their documented default
    engine: str = "llama.cpp"
    settings: Any = None  # an engine's settings object, a rule set's object, or None for the defaults
    bits: float = 0.0  # a weight's nominal bits under `quant` (facts/quants.csv), for rules that count by them
    profile: Any = None  # a calibration (logs.py), None: the published constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of what is allocated; arrays have the length of the grid [bytes].

    `total` is over all GPUs (and the host where the rule counts it there), `per_gpu` what lies on the fullest one.
    `low` and `high` bound `per_gpu` where it is not exact, else None.
    """

    name: str  # weights, kv_cache, state, compute, output, runtime, projector, ...
    column: Column  # which of the three named columns it is a part of
    total: IntArray
    per_gpu: IntArray
    evidence: Evidence
    source: str
    low: IntArray | None = None
    high: IntArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """All terms of one job over the grid. `refused` holds one sentence a row ("" where the engine starts), or None."""

    terms: tuple[Term, ...]
    refused: Sequence[str] | None = None
    note: str = ""  # said with every row (an upper bound, what is not counted, ...)
    host_bytes: IntArray | None = None  # RAM beside the GPUs

    @property
    def per_gpu(self) -> IntArray:
        """What the fullest card holds [bytes]."""
        return sum_of([term.per_gpu for term in self.terms])

    @property
    def total(self) -> IntArray:
        """Everything, over all cards [bytes]."""
        return sum_of([term.total for term in self.terms])


class Rules(Protocol):
    """A way to count: published (library, budget, shard) or an engine's own."""

    name: str

    def check(self, job: Job) -> str:
        """Why this job cannot run at all, in one sentence; empty where it can."""

    def allocate(self, job: Job, context: IntArray, parallel: IntArray) -> Allocation:
        """Bytes of every term for each pair of `context` [tokens a request] and `parallel` [requests]."""

    def usable_bytes(self, job: Job) -> int:
        """What of one card of `job.gpu` the work may take [bytes]."""

    def reserved_bytes(self, job: Job) -> int:
        """What the engine grabs of one card whatever the work (vLLM: utilization x memory); 0 where it grabs what it needs."""

    def max_parallel(self, job: Job, context: IntArray, usable_per_gpu: int) -> IntArray | None:
        """How many requests of each context fit in `usable_per_gpu` bytes a card, or None: tables find it by bisection."""


class LinearRules(Rules, Protocol):
    """Rules whose need grows with the pool's tokens alone: what fits is known without a search."""

    def max_tokens(self, job: Job, usable_per_gpu: int) -> int:
        """The largest context x parallel that fits in `usable_per_gpu` bytes a card, -1 where not even none does."""


def sum_of(arrays: Sequence[IntArray]) -> IntArray:
    """The element-wise sum."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = total + array
    return total
