"""`rules="library"`: how a model library sizes the deployments it offers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import ClassVar

import numpy as np

from fitkit.errors import BadInput, short
from fitkit.hardware import Gpu
from fitkit.keywords import told_class
from fitkit.rules import register
from fitkit.rules.base import Allocation, IntArray, Job, sum_of
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
from fitkit.rules.sizes import checkpoint_bytes, gguf_bytes
from fitkit.units import GIB

SOURCE = "library rules"
_MOST_SIZE = 10_000_000

# Parts that a GGUF keeps in a file of their own.
BESIDE = ("vision", "audio", "projector")


@told_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What a model library's rules let the user set.

    Parameters
    ----------
    overhead_gib
        Beside weights and cache [GiB]; vLLM takes 1 GiB more.
    copies
        Names of machines that hold a whole copy of the model already, so that their disk is not asked.
    copies_limit_gb
        How much of a data location copies may take [GB], None for all that is free.
    """

    overhead_gib: float = 0.5
    copies: tuple[str, ...] = ()
    copies_limit_gb: float | None = None
    name: ClassVar[str] = "library"

    def __post_init__(self) -> None:
        for name in ("overhead_gib", "copies_limit_gb"):
            value = getattr(self, name)
            if value is None and name == "copies_limit_gb":
                continue
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < _MOST_SIZE:
                raise BadInput(f"{name} is {short(value)}, where a size from 0 to {_MOST_SIZE:,} was expected.")
            object.__setattr__(self, name, float(value))
        if isinstance(self.copies, str):
            object.__setattr__(self, "copies", (self.copies,))
        if not isinstance(self.copies, tuple | list) or not all(isinstance(one, str) for one in self.copies):
            raise BadInput(f"copies is {short(self.copies)}, where names of machines were expected.")
        object.__setattr__(self, "copies", tuple(self.copies))


@register("library", "llama.cpp", "vllm")
class LibraryRules:
    """need = weights (files, projector) + KV + overhead; 90% of each GPU is usable, an Apple GPU counts whole."""

    name = "library"
    ram_share = 0.8  # of a machine's RAM, where no GPU holds it
    cpu_parallel = 2
    usable_share = 0.9
    split_share = 0.05  # llama.cpp over several GPUs needs so much more

    def check(self, job: Job) -> str:
        """Refuses vLLM without a GPU."""
        return "vLLM always needs a GPU." if job.engine == "vllm" and job.gpus == 0 else ""

    def allocate(self, job: Job, context: IntArray, parallel: IntArray) -> Allocation:
        """KV = 2 x layers x context x kv_heads x head_dim x 2 bytes a request held at once."""
        settings = job.settings or Library()
        size_of = gguf_bytes if job.engine == "llama.cpp" else checkpoint_bytes
        size, evidence = size_of(job.model, job.quant)
        cards = max(1, job.gpus)
        overhead = GIB if job.gpus == 0 else round(settings.overhead_gib * GIB) + (GIB if job.engine == "vllm" else 0)
        weights, kv = constant(size, context), kv_bytes(_per_token(job), context * parallel)
        terms = [
            term("weights", "weights", weights, share(weights, cards), f"{SOURCE}: the files", evidence),
            term("kv_cache", "kv", kv, share(kv, cards), f"{SOURCE}: 2 x layers x context x kv_heads x head_dim"),
            term(
                "runtime",
                "overhead",
                constant(overhead, context),
                share(constant(overhead, context), cards),
                f"{SOURCE}: a flat overhead",
                "assumed",
            ),
        ]
        inside = job.engine != "llama.cpp" and any(tensor.part in BESIDE for tensor in job.model.tensors)
        if job.model.projector_bytes and not inside:  # a checkpoint's own files hold it already
            projector = constant(job.model.projector_bytes, context)
            terms.insert(1, term("projector", "weights", projector, share(projector, cards), f"{SOURCE}: mmproj file"))
        if job.engine == "llama.cpp" and cards > 1:
            need = sum_of([part.total for part in terms])
            more = share(need * 105, 100 * cards) - sum_of([part.per_gpu for part in terms])
            terms.append(
                term("split", "overhead", np.zeros_like(need), more, f"{SOURCE}: 5% more over several GPUs", "assumed")
            )
        return Allocation(terms=tuple(terms), note=linear_note(job.model))

    def depends_on(self, gpu: Gpu) -> object:
        """What of a GPU the allocation depends on."""
        return None

    def usable_bytes(self, job: Job) -> int:
        """90% of the nominal memory; what macOS lets an Apple GPU use counts whole."""
        if job.gpu is None:
            return 0
        if job.gpu.usable_bytes:
            return job.gpu.usable_bytes
        return int(job.gpu.nominal_bytes * 9 // 10)

    def reserved_bytes(self, job: Job) -> int:
        """Nothing beyond the need."""
        return 0

    def max_tokens(self, job: Job, usable_per_gpu: int) -> int:
        """What the cards have left over the cache of one token."""
        cards = max(1, job.gpus)
        allocation = self.allocate(job, ONE_TOKEN, ONE_TOKEN)
        if job.engine == "llama.cpp" and cards > 1:
            rest = usable_per_gpu * cards * 100 // 105 - sum(
                int(part.total[0]) for part in allocation.terms if part.name != "kv_cache"
            )
        else:
            rest = (usable_per_gpu - per_gpu_without_cache(allocation)) * cards
        return tokens_in(rest, _per_token(job))

    def max_parallel(self, job: Job, context: IntArray, usable_per_gpu: int) -> IntArray | None:
        """The pool's tokens over the context."""
        return max_parallel_of(self.max_tokens(job, usable_per_gpu), context)


def _per_token(job: Job) -> Fraction:
    return elements_per_token(job.model) * element_bytes(job.kv_dtype)
