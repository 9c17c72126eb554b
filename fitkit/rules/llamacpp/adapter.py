"""llama.cpp's rules over a grid: n_ctx is context x parallel, n_seq_max is parallel."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fitkit.errors import FitError
from fitkit.hardware import Gpu
from fitkit.rules import register
from fitkit.rules.base import Allocation, Column, IntArray, Job, Term
from fitkit.rules.llamacpp.context import sizes
from fitkit.rules.llamacpp.engine import Part, parts
from fitkit.rules.llamacpp.loaded import loaded
from fitkit.rules.llamacpp.placement import unread_bytes
from fitkit.rules.llamacpp.refusals import refusal, row_refusals
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.units import MIB

# Left free on each GPU beside what is counted: allocation granularity, CUDA graphs, cuBLAS workspaces.
MARGIN_BYTES = 128 * MIB
UNREAD = "{:.2f} GB of the weights are prediction blocks: pages of the file that are mapped and never read"
# kind -> (name of the term, column)
_TERMS: dict[str, tuple[str, Column]] = {
    "model": ("weights", "weights"), "mmproj": ("projector", "weights"), "draft": ("draft", "overhead"),
    "lora": ("lora", "weights"), "kv": ("kv_cache", "kv"), "state": ("state", "kv"), "compute": ("compute", "overhead"),
    "output": ("output", "overhead"), "runtime": ("runtime", "overhead"), "head": ("tied_head", "overhead"),
}  # fmt: skip


@register("engine", "llama.cpp")
class LlamaCppRules:
    """What llama.cpp allocates; see rules/llamacpp/*.py for each part."""

    name = "engine"

    def check(self, job: Job) -> str:
        """Why llama.cpp does not start this at all."""
        try:
            settings = settings_of(job)
            return refusal(loaded(job.model, job.quant or None).model, settings)
        except FitError as why:
            return str(why)

    def allocate(self, job: Job, context: IntArray, parallel: IntArray) -> Allocation:
        """Every buffer, summed by what it is for; per GPU on the fullest one, on the host where there is no GPU."""
        settings = settings_of(job)
        found = parts(job.model, job.quant or None, settings, context * parallel, parallel)
        gpus = settings.devices
        found = tuple(part for part in found if part.note != "pages")
        counted = [part for part in found if part.gpu >= 0 or not gpus]
        fullest = _fullest(counted, gpus, context)
        terms = []
        for name, column in dict.fromkeys(_TERMS.values()):
            own = [part for part in found if _named(part) == (name, column)]
            if own:
                terms.append(_term(name, column, own, counted, fullest, context))
        host = _sum([part.bytes for part in found if part.gpu < 0], context)
        unread = unread_bytes(loaded(job.model, job.quant or None)) if settings.mmap else 0
        if unread:
            terms[0] = replace(terms[0], total=terms[0].total + unread)
        at = sizes(settings, job.model.context, context * parallel, parallel)
        return Allocation(
            terms=tuple(terms),
            refused=row_refusals(job.model, settings, at),
            note=UNREAD.format(unread / 1e9) if unread else "",
            host_bytes=host if gpus else None,
        )

    def depends_on(self, gpu: Gpu) -> object:
        """What of a GPU the buffers depend on: tables ask once for all machines of one kind."""
        return gpu.backend

    def usable_bytes(self, job: Job) -> int:
        """What the driver reports of one card, less a margin; what macOS lets an Apple GPU use counts whole."""
        if job.gpu is None:
            return 0
        if job.gpu.usable_bytes:
            return job.gpu.usable_bytes
        return max(0, (job.gpu.torch_bytes or job.gpu.driver_bytes or job.gpu.nominal_bytes) - MARGIN_BYTES)

    def reserved_bytes(self, job: Job) -> int:
        """llama.cpp takes what it needs and no more."""
        return 0

    def max_parallel(self, job: Job, context: IntArray, usable_per_gpu: int) -> IntArray | None:
        """No closed form: tables bisect."""
        return None


def settings_of(job: Job) -> LlamaCppSettings:
    """The job's options: an object's own, with the grid's cache types and GPUs."""
    given = job.settings if isinstance(job.settings, LlamaCppSettings) else None
    return _settings(given, job.kv_dtype, job.gpus, job.gpu.backend if job.gpu else "")


@lru_cache(maxsize=1024)
def _settings(given: LlamaCppSettings | None, kv_dtype: str, gpus: int, backend: str) -> LlamaCppSettings:
    settings = given or LlamaCppSettings()
    changes: dict[str, Any] = {}
    if kv_dtype:
        key, _, value = kv_dtype.partition("/")
        changes |= {"type_k": key, "type_v": value or key}
    if gpus != settings.gpus:
        changes["gpus"] = gpus
        if settings.tensor_split is not None and gpus < len(settings.tensor_split):
            changes["tensor_split"] = None
    if backend in ("rocm", "metal", "vulkan") and settings.backend == "cuda":
        changes["backend"] = backend
    return replace(settings, **changes) if changes else settings


def _named(part: Part) -> tuple[str, Column]:
    return _TERMS["head"] if part.note == "head" else _TERMS[part.kind]


def _fullest(counted: list[Part], gpus: int, like: IntArray) -> IntArray:
    """The number of the fullest GPU in each row."""
    if gpus <= 1:
        return np.zeros_like(like)
    loads = np.stack([_sum([part.bytes for part in counted if part.gpu == number], like) for number in range(gpus)])
    fullest: IntArray = loads.argmax(axis=0).astype(np.int64)
    return fullest


def _term(name: str, column: Column, own: list[Part], counted: list[Part], fullest: IntArray, like: IntArray) -> Term:
    inside = [part for part in own if any(part is other for other in counted)]  # equal arrays are no same part
    on_one = [part.bytes if part.gpu < 0 else np.where(fullest == part.gpu, part.bytes, 0) for part in inside]
    firm = all(part.low is None for part in inside)
    low = [_bound(part, part.low, fullest) for part in inside]
    high = [_bound(part, part.high, fullest) for part in inside]
    return Term(
        name=name, column=column, total=_sum([part.bytes for part in own], like), per_gpu=_sum(on_one, like),
        evidence=own[0].evidence, source=own[0].source, low=None if firm else _sum(low, like),
        high=None if firm else _sum(high, like),
    )  # fmt: skip


def _bound(part: Part, bound: IntArray | None, fullest: IntArray) -> IntArray:
    value = part.bytes if bound is None else bound
    return value if part.gpu < 0 else np.where(fullest == part.gpu, value, 0)


def _sum(arrays: list[IntArray], like: IntArray) -> IntArray:
    total = np.zeros(like.shape, dtype=np.int64)
    for array in arrays:
        total = total + array
    return total
