"""`rules="budget"`: a vLLM memory-budget calculator."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import ClassVar

from fitkit.errors import BadInput, short
from fitkit.hardware import Gpu
from fitkit.keywords import told_class
from fitkit.rules import register
from fitkit.rules.base import Allocation, IntArray, Job
from fitkit.rules.kv_types import element_bytes
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

SOURCE = "budget rules"
_OVERHEAD_GIB = {"rocm": 2.5}  # ROCm's lie between 2 and 3
_DEFAULT_OVERHEAD_GIB = 1.5


@told_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the budget calculator lets the user set.

    Parameters
    ----------
    gpu_memory_utilization
        vLLM's own setting, 0.9 here, 0.92 in current versions.
    overhead_gib
        Beside weights and cache on each card [GiB]; None: 1.5 on CUDA, 2.5 on ROCm. Best read from a log.
    bits_per_weight
        Overrides the quantization's own.
    """

    gpu_memory_utilization: float = 0.9
    overhead_gib: float | None = None
    bits_per_weight: float | None = None
    name: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        for name in ("gpu_memory_utilization", "overhead_gib", "bits_per_weight"):
            value = getattr(self, name)
            if isinstance(value, Real) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))
            elif value is not None or name == "gpu_memory_utilization":
                raise BadInput(f"{name} is {short(value)}, where a number was expected.")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise BadInput(
                f"gpu_memory_utilization is a share above 0 and up to 1, not {self.gpu_memory_utilization!r}."
            )
        if self.overhead_gib is not None and not 0 <= self.overhead_gib < 10_000:
            raise BadInput(f"overhead_gib is a size in GiB, not {self.overhead_gib!r}.")
        if self.bits_per_weight is not None and not 0 < self.bits_per_weight <= 64:
            raise BadInput(f"bits_per_weight lies above 0 and up to 64, not {self.bits_per_weight!r}.")


@register("budget", "vllm")
class BudgetRules:
    """budget = utilization x GPU memory x TP - weights - overhead x TP; the cache takes what is left."""

    name = "budget"

    def check(self, job: Job) -> str:
        """A size, not a promise that it loads: any bits, any number of cards."""
        return "vLLM always needs a GPU." if job.gpus == 0 else ""

    def allocate(self, job: Job, context: IntArray, parallel: IntArray) -> Allocation:
        """Weights = parameters x bits / 8; KV = 2 x layers x kv_heads x head_dim x bytes a token; 1/TP of both on each card."""
        settings = job.settings or Budget()
        bits = settings.bits_per_weight or job.bits
        weights = constant(round(job.model.params * bits / 8), context)
        kv = kv_bytes(_per_token(job), context * parallel)
        overhead = constant(_overhead(job), context)
        return Allocation(
            terms=(
                term(
                    "weights",
                    "weights",
                    weights,
                    share(weights, job.gpus),
                    f"{SOURCE}: parameters x {bits:g} bits",
                    "assumed",
                ),
                term(
                    "kv_cache", "kv", kv, share(kv, job.gpus), f"{SOURCE}: 2 x layers x kv_heads x head_dim x context"
                ),
                term("runtime", "overhead", overhead * job.gpus, overhead, f"{SOURCE}: a card's overhead", "assumed"),
            ),
            note=linear_note(job.model),
        )

    def depends_on(self, gpu: Gpu) -> object:
        """What of a GPU the allocation depends on."""
        return gpu.backend

    def usable_bytes(self, job: Job) -> int:
        """Utilization x the nominal memory."""
        settings = job.settings or Budget()
        return int(settings.gpu_memory_utilization * job.gpu.nominal_bytes) if job.gpu else 0

    def reserved_bytes(self, job: Job) -> int:
        """The whole share: vLLM takes it at the start."""
        return self.usable_bytes(job)

    def max_tokens(self, job: Job, usable_per_gpu: int) -> int:
        """What is left of the budget over the cache of one token: vLLM's `GPU KV cache size`."""
        rest = usable_per_gpu - per_gpu_without_cache(self.allocate(job, ONE_TOKEN, ONE_TOKEN))
        return tokens_in(rest * job.gpus, _per_token(job))

    def max_parallel(self, job: Job, context: IntArray, usable_per_gpu: int) -> IntArray | None:
        """The pool's tokens over the context."""
        return max_parallel_of(self.max_tokens(job, usable_per_gpu), context)


def _overhead(job: Job) -> int:
    settings = job.settings or Budget()
    if settings.overhead_gib is not None:
        return round(settings.overhead_gib * GIB)
    return round(_OVERHEAD_GIB.get(job.gpu.backend if job.gpu else "cuda", _DEFAULT_OVERHEAD_GIB) * GIB)


def _per_token(job: Job) -> Fraction:
    return elements_per_token(job.model) * element_bytes(job.kv_dtype)
