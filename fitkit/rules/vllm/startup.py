"""vLLM's start-up predicted: what it grabs, subtracts and logs, or why it stops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fitkit.hardware import Gpu
from fitkit.model import Model
from fitkit.rules.vllm import capacity
from fitkit.rules.vllm.device import Device, batch, device_of, in_flight
from fitkit.rules.vllm.measured import Part
from fitkit.rules.vllm.plan import Plan, make_plan
from fitkit.rules.vllm.settings import VLLMSettings
from fitkit.rules.vllm.terms import memory_parts, notes
from fitkit.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """What vLLM would say. Byte counts are of the fullest rank; the pool is the smallest rank's, as vLLM shares it.

    Where it does not start, `error` is why in one sentence, and `estimated_max_model_len` the length vLLM says would
    fit (0 where it names none). `stage_weights_bytes` has one figure for each pipeline stage. `terms` are taken from what
    is requested before the cache gets the rest, whose bounds are `available_kv_low_bytes` and `available_kv_high_bytes`;
    `outside` must fit in what is not requested.
    """

    starts: bool
    error: str
    weights_bytes: int
    stage_weights_bytes: tuple[int, ...]
    available_kv_bytes: int
    kv_cache_dtype: str
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_groups: int
    bytes_per_block: int
    blocks_per_request: int
    num_gpu_blocks: int
    kv_cache_tokens: int
    max_concurrency: float
    estimated_max_model_len: int
    needed_kv_bytes: int
    log_line: str
    terms: tuple[Part, ...]
    outside: tuple[Part, ...] = ()
    available_kv_low_bytes: int = 0
    available_kv_high_bytes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The cache a start-up ends with, or the error it stops with."""

    error: str = ""
    length: int
    needed: int = 0
    estimated: int = 0
    blocks_per_request: int = 0
    blocks: int = 0
    tokens: int = 0
    concurrency: float = 0.0


def startup(settings: VLLMSettings, model: Model, gpu: Gpu | None = None) -> Startup:
    """The start-up of `model` on GPUs of one kind.

    Raises UnsupportedModel where vLLM's handling of the model is not modelled.
    """
    device = device_of(gpu)
    length = settings.max_model_len
    if length is None or length == -1:
        length = int(model.get("served_context") or model.context)
    tokens, sequences = batch(settings, device, length)
    plan = make_plan(settings, model, device)
    parts = memory_parts(settings, model, device, plan, length, tokens, sequences)
    available = least = most = settings.kv_cache_memory_bytes or 0
    if settings.kv_cache_memory_bytes is None:
        available = parts.requested_bytes - sum(part.bytes for part in parts.subtracted)
        least = parts.requested_bytes - sum(part.high for part in parts.subtracted)
        most = parts.requested_bytes - sum(part.low for part in parts.subtracted)
    refusal = plan.refusal or parts.refusal
    if refusal:
        pool = Pool(error=refusal, length=length)
    else:
        pool = fill_pool(settings, plan, length, available, in_flight(settings, tokens))
    return Startup(
        starts=not pool.error,
        error=pool.error,
        weights_bytes=max(parts.stage_weights, default=0),
        stage_weights_bytes=parts.stage_weights,
        available_kv_bytes=max(0, available),
        kv_cache_dtype=plan.kv_dtype,
        max_model_len=pool.length,
        max_num_batched_tokens=tokens,
        max_num_seqs=sequences,
        block_size=plan.block_size,
        num_groups=len(plan.groups),
        bytes_per_block=plan.block_bytes,
        blocks_per_request=pool.blocks_per_request,
        num_gpu_blocks=pool.blocks,
        kv_cache_tokens=pool.tokens,
        max_concurrency=pool.concurrency,
        estimated_max_model_len=pool.estimated,
        needed_kv_bytes=pool.needed,
        log_line="" if pool.error else log_line(settings, pool, device),
        terms=parts.subtracted,
        outside=parts.beside,
        available_kv_low_bytes=max(0, least),
        available_kv_high_bytes=max(0, most),
        note=" ".join((*parts.notes, *notes(settings, device))),
    )


def fill_pool(settings: VLLMSettings, plan: Plan, length: int, available: int, flight: int) -> Pool:
    """Blocks, tokens and concurrency for `available` bytes a rank; the fullest stage decides, and vLLM's own check."""
    if available <= 0:
        return Pool(error=NO_MEMORY, length=length)
    usable = [available - (each if settings.has("reserves_null_block") else 0) for each in plan.stage_block_bytes]
    holds = min(
        max(0, free) // each for free, each in zip(usable, plan.stage_block_bytes, strict=True) if each
    ) if any(plan.stage_block_bytes) else 0  # fmt: skip
    if min(usable) <= 0:
        return Pool(error=NO_MEMORY, length=length)
    dcp = settings.decode_context_parallel_size
    if settings.max_model_len == -1:
        length = capacity.longest(plan.needs, holds, length, flight, decode_context_parallel=dcp)
        if not length:
            return Pool(
                error="Not enough GPU memory to serve even a single token; raise gpu_memory_utilization.", length=0
            )
    need = int(
        capacity.blocks_per_request(
            plan.needs,
            np.array([length], dtype=np.int64),
            np.array([flight], dtype=np.int64),
            decode_context_parallel=dcp,
        )[0]
    )
    blocks = min(available // each for each in plan.stage_block_bytes if each) if any(plan.stage_block_bytes) else 1
    if need > holds:
        estimated = capacity.longest(plan.needs, holds, length, flight, decode_context_parallel=dcp)
        stage = max(range(len(usable)), key=lambda i: plan.stage_block_bytes[i])
        needed = need * plan.stage_block_bytes[stage]
        return Pool(
            error=too_long(length, needed, usable[stage], estimated), length=length, needed=needed,
            estimated=estimated, blocks_per_request=need,
        )  # fmt: skip
    concurrency = blocks / need if need else 0.0
    return Pool(
        length=length, needed=need * plan.block_bytes, blocks_per_request=need, blocks=blocks, concurrency=concurrency,
        tokens=pool_tokens(settings, plan, blocks, concurrency, length),
    )  # fmt: skip


NO_MEMORY = "No available memory for the cache blocks; raise gpu_memory_utilization."


def pool_tokens(settings: VLLMSettings, plan: Plan, blocks: int, concurrency: float, length: int) -> int:
    """The log's size in tokens: concurrency x length, up to 0.19 blocks over groups times the smallest block."""
    if settings.has("tokens_from_concurrency"):
        return int(concurrency * length)
    smallest = min((spec.block for group in plan.groups for spec in group), default=0)
    return blocks // max(1, len(plan.groups)) * smallest * settings.decode_context_parallel_size


def too_long(length: int, needed: int, available: int, estimated: int) -> str:
    """VLLM's refusal of a length, with its figures rounded as it rounds them."""
    hint = f" The estimated maximum model length is {estimated}." if estimated else ""
    return (
        f"To serve at least one request with the model's max seq len ({length}), {round(needed / GIB, 2)} GiB KV cache is "
        f"needed, which is larger than the available KV cache memory ({round(available / GIB, 2)} GiB).{hint}"
    )


def log_line(settings: VLLMSettings, pool: Pool, device: Device) -> str:
    """What vLLM logs of the pool: one line since 0.28, two before."""
    size = f"GPU KV cache size: {pool.tokens:,} tokens"
    concurrency = f"Maximum concurrency for {pool.length:,} tokens per request: {pool.concurrency:.2f}x"
    return f"{size}, {concurrency}" if settings.has("one_log_line") else f"{size}\n{concurrency}"
