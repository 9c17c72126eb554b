"""vLLM's rules over a grid: one plan for a model and layout, then closed forms over contexts and requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fitkit.errors import FitError
from fitkit.model import Model
from fitkit.rules import register
from fitkit.rules.base import Allocation, Column, Evidence, IntArray, Job, Term
from fitkit.rules.remember import once_a_model
from fitkit.rules.vllm.capacity import blocks_per_request
from fitkit.rules.vllm.device import Device, batch, device_of, in_flight
from fitkit.rules.vllm.measured import Part
from fitkit.rules.vllm.plan import Plan, make_plan
from fitkit.rules.vllm.quants import as_asked, served
from fitkit.rules.vllm.settings import KV_CACHE_DTYPES, NEWEST, SAME_KV_DTYPE, VLLMSettings, parallel_sizes, release_of
from fitkit.rules.vllm.terms import Parts, memory_parts, notes, requested
from fitkit.units import show_gib

# Our names of the parts, as every engine's tables have them.
NAMES = {"activation_peak": "compute", "non_torch": "runtime", "sampler_state": "output", "cuda_graphs": "graphs"}
POOL_SOURCE = "vLLM's block pool: blocks a request x bytes a block, with the null block"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All of a job that does not depend on the context: why it does not run, or its plan and parts."""

    refusal: str = ""
    settings: VLLMSettings
    device: Device
    plan: Plan | None = None
    parts: Parts | None = None
    own: bool = True  # the checkpoint's own type, not the usual layout of another


@register("engine", "vllm")
class VLLMRules:
    """What vLLM 0.10 to 0.33 allocates; see rules/vllm/*.py for each part."""

    name = "engine"

    def check(self, job: Job) -> str:
        """Why vLLM does not start this at all."""
        return prepared(job).refusal

    def allocate(self, job: Job, context: IntArray, parallel: IntArray) -> Allocation:
        """Weights, overhead and the pool of `parallel` requests of full length, per rank and over all."""
        ready = prepared(job)
        if ready.plan is None or ready.parts is None:
            zero = np.zeros_like(context)
            none = Term(name="weights", column="weights", total=zero, per_gpu=zero, evidence="assumed", source="")
            return Allocation(terms=(none,), refused=[ready.refusal] * len(context))
        plan, parts, settings = ready.plan, ready.parts, ready.settings
        stage_bytes = np.array(plan.stage_block_bytes or (0,), dtype=np.int64)
        weights = np.array(parts.stage_weights, dtype=np.int64)
        blocks = pool_blocks(ready, context, parallel)
        loads = weights[None, :] + blocks[:, None] * stage_bytes[None, :] if len(weights) > 1 else None
        worst = loads.argmax(axis=1) if loads is not None else np.zeros(len(context), dtype=np.intp)
        replicas = settings.tensor_parallel_size * settings.data_parallel_size
        terms = [
            _term(
                "weights", "weights", _full(context, int(weights.sum()) * replicas), weights[worst], parts.subtracted[0]
            )
        ]
        ranks = replicas * settings.pipeline_parallel_size
        for part in parts.subtracted[1:]:
            if part.bytes or part.high:
                each = _full(context, part.bytes)
                terms.append(_term(NAMES.get(part.name, part.name), "overhead", each * ranks, each, part))
        pool, total = blocks * stage_bytes[worst], blocks * int(stage_bytes.sum()) * replicas
        refused = None
        if settings.kv_cache_memory_bytes is not None:  # vLLM takes just that, and looks at no utilization
            largest = settings.kv_cache_memory_bytes
            refused = [_over(need, largest) for need in (blocks * int(stage_bytes.max())).tolist()]
            pool, total = _full(context, largest), _full(context, largest * ranks)
        terms.append(
            Term(name="kv_cache", column="kv", total=total, per_gpu=pool, evidence=_firmness(ready), source=POOL_SOURCE)
        )
        return Allocation(terms=tuple(terms), refused=refused, note=_note(ready))

    def usable_bytes(self, job: Job) -> int:
        """Utilization x the memory torch sees; all of it where the pool's size is asked for."""
        if job.gpu is None:
            return 0
        settings, device = _settings(job), device_of(job.gpu)
        return requested(settings, device) if settings.kv_cache_memory_bytes is None else device.total_bytes

    def reserved_bytes(self, job: Job) -> int:
        """VLLM takes its share whatever the work, or its weights, overhead and the pool asked for."""
        ready = prepared(job)
        pool = ready.settings.kv_cache_memory_bytes
        if pool is None or ready.parts is None:
            return self.usable_bytes(job)
        return pool + sum(part.bytes for part in ready.parts.subtracted)

    def max_parallel(self, job: Job, context: IntArray, usable_per_gpu: int) -> IntArray | None:
        """The whole part of vLLM's concurrency, 0 where not even one request lets it start."""
        ready = prepared(job)
        if ready.plan is None or ready.parts is None:
            return np.zeros_like(context)
        need = request_blocks(ready, context)
        beside = sum(part.bytes for part in ready.parts.subtracted[1:])
        blocks: IntArray | None = None
        for weights, each in zip(ready.parts.stage_weights, ready.plan.stage_block_bytes, strict=True):
            if each:
                pool = ready.settings.kv_cache_memory_bytes or max(0, usable_per_gpu - weights - beside)
                held = _full(context, pool // each)
                blocks = held if blocks is None else np.minimum(blocks, held)
        if blocks is None:
            return np.ones_like(context)
        starts = need + _null(ready) <= blocks
        most: IntArray = np.where(starts, blocks // np.maximum(need, 1), 0) * ready.settings.data_parallel_size
        return most


def request_blocks(ready: Prepared, context: IntArray) -> IntArray:
    """Blocks one request of each context needs when that is max_model_len."""
    assert ready.plan is not None
    settings = ready.settings
    lengths, back = np.unique(context, return_inverse=True)
    flight = np.array(
        [in_flight(settings, batch(settings, ready.device, int(length))[0]) for length in lengths], dtype=np.int64
    )
    need = blocks_per_request(
        ready.plan.needs, lengths, flight, decode_context_parallel=settings.decode_context_parallel_size
    )
    rows: IntArray = need[back]
    return rows


def pool_blocks(ready: Prepared, context: IntArray, parallel: IntArray) -> IntArray:
    """Blocks that hold `parallel` requests of full length; the start-up check wants the null block beside the first."""
    need = request_blocks(ready, context)
    each = -(-parallel // ready.settings.data_parallel_size)
    blocks: IntArray = np.maximum(need * each, need + _null(ready))
    return blocks


def _over(need: int, pool: int) -> str:
    if need <= pool:
        return ""
    return f"The cache needs {show_gib(need)} a rank, more than kv_cache_memory_bytes gives it ({show_gib(pool)})."


def _null(ready: Prepared) -> int:
    return int(ready.settings.has("reserves_null_block"))


def prepared(job: Job) -> Prepared:
    """The job's plan and parts, worked out once a model and layout."""
    try:
        settings = _settings(job)
    except FitError as why:
        return Prepared(refusal=str(why), settings=VLLMSettings(), device=device_of(job.gpu))
    return _prepare(job.model, job.quant, settings, device_of(job.gpu), job.gpus)


@once_a_model
def _prepare(model: Model, quant: str, settings: VLLMSettings, device: Device, gpus: int) -> Prepared:
    if not gpus:
        return Prepared(refusal="vLLM always needs a GPU.", settings=settings, device=device)
    if not served(quant) and quant != (model.quant or model.dtype):
        why = f"{quant} is no type vLLM checkpoints have; GGUF is a plug-in that is not modelled: ask for BF16, FP8, AWQ or GPTQ."
        return Prepared(refusal=why, settings=settings, device=device)
    if settings.kv_cache_dtype not in KV_CACHE_DTYPES and settings.kv_cache_dtype not in SAME_KV_DTYPE:
        return Prepared(refusal=f"vLLM has no {settings.kv_cache_dtype} cache.", settings=settings, device=device)
    asked, own = as_asked(model, quant)
    try:
        plan = make_plan(settings, asked, device)
        tokens, sequences = batch(settings, device, model.context or 2048)
        parts = memory_parts(settings, asked, device, plan, model.context, tokens, sequences)
    except FitError as why:
        return Prepared(refusal=str(why), settings=settings, device=device)
    refusal = plan.refusal or parts.refusal
    if refusal:
        return Prepared(refusal=refusal, settings=settings, device=device)
    return Prepared(settings=settings, device=device, plan=plan, parts=parts, own=own)


def _settings(job: Job) -> VLLMSettings:
    """The job's options: an object's own, with the grid's cache type and, where it says none, the grid's GPUs."""
    settings = job.settings if isinstance(job.settings, VLLMSettings) else VLLMSettings()
    changes: dict[str, object] = {}
    if job.kv_dtype and job.kv_dtype != settings.kv_cache_dtype:
        changes["kv_cache_dtype"] = job.kv_dtype
    if job.gpus:
        tensor, pipeline, _ = parallel_sizes(settings, job.gpus, job.nodes)
        if (tensor, pipeline) != (settings.tensor_parallel_size, settings.pipeline_parallel_size):
            changes |= {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    return replace(settings, **changes) if changes else settings  # type: ignore[arg-type]


def _full(like: IntArray, value: int) -> IntArray:
    return np.full(like.shape, value, dtype=np.int64)


def _term(name: str, column: Column, total: IntArray, per_gpu: IntArray, part: Part) -> Term:
    firm = part.low == part.high
    return Term(
        name=name, column=column, total=total, per_gpu=per_gpu, evidence=part.evidence, source=part.source,
        low=None if firm else _full(per_gpu, part.low), high=None if firm else _full(per_gpu, part.high),
    )  # fmt: skip


def _firmness(ready: Prepared) -> Evidence:
    """Checked byte for byte for 0.33 on NVIDIA cards of three generations; elsewhere the same rule."""
    if not ready.device.known:
        return "assumed"
    newest = release_of(ready.settings.version)[:2] == release_of(NEWEST)[:2]
    return "exact" if newest and ready.device.family in (8, 9, 10) else "engine"


def _note(ready: Prepared) -> str:
    layout = [] if ready.own else ["The checkpoint is taken to have the usual layout of its type."]
    warned = ready.parts.notes if ready.parts is not None else ()
    return " ".join((*layout, *warned, *notes(ready.settings, ready.device)))
