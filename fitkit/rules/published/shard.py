"""`rules="shard"`: a gateway's per-card plan over cards and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from fitkit.errors import BadInput
from fitkit.hardware import Gpu
from fitkit.keywords import told_class
from fitkit.rules import register
from fitkit.rules.base import Allocation, IntArray, Job
from fitkit.rules.kv_types import cache_type
from fitkit.rules.published.parts import (
    ONE_TOKEN,
    constant,
    elements_per_token,
    kv_bytes,
    linear_note,
    max_parallel_of,
    per_gpu_without_cache,
    share,
    term,
    tokens_in,
)
from fitkit.units import GIB

SOURCE = "shard rules"
# Bytes a parameter, exactly as published.
BYTES = {"BF16": Fraction(2), "FP8": Fraction(1), "Q8_0": Fraction(106, 100), "Q4_K_M": Fraction(61, 100)}
_KV_BYTES = {"f16": 2, "bf16": 2, "auto": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "q8_0": 1}
_FIXED = 2 * GIB
_WEIGHTS_OVERHEAD = 50  # one part in so many of a card's own weights


@told_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What the shard plan lets the user set: over how many equal machines a model may lie (any number)."""

    max_nodes: int = 1
    name: ClassVar[str] = "shard"

    def __post_init__(self) -> None:
        if (
            isinstance(self.max_nodes, bool)
            or not isinstance(self.max_nodes, int)
            or not 1 <= self.max_nodes <= 100_000
        ):
            raise BadInput(f"max_nodes is a whole number from 1, not {self.max_nodes!r}.")


@register("shard", "llama.cpp", "vllm", "sglang")
class ShardRules:
    """Per GPU of n: (weights + KV) / n + 2 GiB + (weights / n) / 50; 90% of a card usable."""

    name = "shard"

    def check(self, job: Job) -> str:
        """Tensor parallelism divides the KV heads, or is a multiple of them; it always divides the query heads."""
        if job.gpus == 0:
            return "The shard rules plan GPUs; none was given."
        if cache_type(job.kv_dtype) not in _KV_BYTES:
            return f"The shard rules count a cache of 16 or 8 bits, not {job.kv_dtype}."
        if job.engine == "llama.cpp":
            return "llama.cpp serves from one node in these rules." if job.nodes > 1 else ""
        return tensor_parallel_refusal(job.gpus // job.nodes, job.model.heads, job.model.kv_heads)

    def allocate(self, job: Job, context: IntArray, parallel: IntArray) -> Allocation:
        """The pool is context x parallel tokens; the overhead is counted from the shard, not from the whole model."""
        size = BYTES[job.quant] * job.model.params
        weights = constant(-(-size.numerator // size.denominator), context)
        kv = kv_bytes(_per_token(job), context * parallel)
        on_card = share(weights, job.gpus)
        overhead = _FIXED + on_card // _WEIGHTS_OVERHEAD
        return Allocation(
            terms=(
                term(
                    "weights",
                    "weights",
                    weights,
                    on_card,
                    f"{SOURCE}: {float(BYTES[job.quant]):g} bytes a parameter",
                    "assumed",
                ),
                term("kv_cache", "kv", kv, share(kv, job.gpus), f"{SOURCE}: the pool's tokens"),
                term(
                    "runtime",
                    "overhead",
                    overhead * job.gpus,
                    overhead,
                    f"{SOURCE}: 2 GiB + 1/50 of the card's weights",
                    "assumed",
                ),
            ),
            note=" ".join(filter(None, (_notes(job), linear_note(job.model)))),
        )

    def depends_on(self, gpu: Gpu) -> object:
        """What of a GPU the allocation depends on."""
        return None

    def usable_bytes(self, job: Job) -> int:
        """90% of the nominal memory; an Apple GPU counts whole."""
        if job.gpu is None:
            return 0
        return job.gpu.usable_bytes or int(job.gpu.nominal_bytes * 9 // 10)

    def reserved_bytes(self, job: Job) -> int:
        """Nothing beyond the need."""
        return 0

    def max_tokens(self, job: Job, usable_per_gpu: int) -> int:
        """What the cards have left over the cache of one token."""
        rest = usable_per_gpu - per_gpu_without_cache(self.allocate(job, ONE_TOKEN, ONE_TOKEN))
        return tokens_in(rest * job.gpus, _per_token(job))

    def max_parallel(self, job: Job, context: IntArray, usable_per_gpu: int) -> IntArray | None:
        """The pool's tokens over the context."""
        return max_parallel_of(self.max_tokens(job, usable_per_gpu), context)


def tensor_parallel_refusal(ways: int, heads: int, kv_heads: int) -> str:
    """Why a model cannot be cut `ways` ways, in one sentence; empty where it can.

    >>> tensor_parallel_refusal(8, 64, 4)
    ''
    >>> tensor_parallel_refusal(3, 64, 8)
    'Tensor parallelism over 3 GPUs does not divide 8 KV heads: use 1, 2, 4 or 8 of them, or a multiple of 8.'
    """
    if kv_heads and kv_heads % ways and ways % kv_heads:
        good = [str(n) for n in range(1, kv_heads + 1) if kv_heads % n == 0]
        listed = " or ".join([", ".join(good[:-1]), good[-1]]) if len(good) > 1 else good[0]
        return (
            f"Tensor parallelism over {ways} GPUs does not divide {kv_heads} KV heads: use {listed} of them, "
            f"or a multiple of {kv_heads}."
        )
    if heads and heads % ways:
        return f"Tensor parallelism over {ways} GPUs does not divide {heads} attention heads."
    return ""


def _notes(job: Job) -> str:
    notes = []
    ways = job.gpus // job.nodes
    if job.engine != "llama.cpp" and job.model.kv_heads and ways > job.model.kv_heads:
        notes.append(
            f"Published as 1/{job.gpus} of the cache a card; with {job.model.kv_heads} KV heads over {ways} GPUs it is replicated, so a card really holds more."
        )
    if job.engine != "llama.cpp" and job.model.experts and job.gpus > 1:
        notes.append("Experts are spread with --enable-expert-parallel.")
    return " ".join(notes)


def _per_token(job: Job) -> Fraction:
    return elements_per_token(job.model) * _KV_BYTES[cache_type(job.kv_dtype)]
