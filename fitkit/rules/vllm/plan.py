"""From a model and settings to vLLM's plan of the KV cache: specs, block size, groups, bytes per block and stage."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fitkit.model import Model
from fitkit.rules.vllm import architectures
from fitkit.rules.vllm.capacity import Need, needs
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.groups import Group, bytes_per_block, grouped
from fitkit.rules.vllm.pipeline import stages
from fitkit.rules.vllm.settings import VLLMSettings
from fitkit.rules.vllm.specs import ATTENTION, PACKED_ALIGN, Builder


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How vLLM lays out the cache, whatever memory it gets."""

    refusal: str = ""  # why vLLM does not start at all
    kv_dtype: str = "auto"
    block_size: int = 0  # of ordinary attention layers, before pages are unified [tokens]
    groups: tuple[Group, ...] = ()
    needs: Counter[Need]
    stage_block_bytes: tuple[int, ...] = ()  # bytes of one block of the pool, per pipeline stage

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on the fullest stage."""
        return max(self.stage_block_bytes, default=0)


def refusal(settings: VLLMSettings, model: Model) -> str:
    """Why vLLM's own checks of the architecture and the parallel sizes stop it; empty where they pass."""
    unknown = architectures.refusal(settings, model.architecture)
    if unknown:
        return unknown
    tp, dcp = settings.tensor_parallel_size, settings.decode_context_parallel_size
    heads = model.heads
    if heads and heads % tp:
        return f"The model's {heads} attention heads are not divisible by tensor_parallel_size {tp}."
    mla = any(cache.kind in ("latent", "compressed") for cache in model.caches())
    for cache in model.caches():
        if cache.kind in ATTENTION and cache.kv_heads % tp and tp % cache.kv_heads:
            return f"tensor_parallel_size {tp} neither divides the model's {cache.kv_heads} KV heads nor is a multiple of them."
        if cache.kind == "state" and cache.variant not in ("mamba1", "shortconv") and cache.heads % tp:
            return f"The model's {cache.heads} state heads are not divisible by tensor_parallel_size {tp}."
    if dcp > 1 and not mla and 0 < tp <= model.kv_heads:
        return f"Decode context parallelism needs tensor_parallel_size ({tp}) greater than the model's {model.kv_heads} KV heads."
    if settings.pipeline_parallel_size > max(1, len(model.layers)):
        return f"pipeline_parallel_size {settings.pipeline_parallel_size} is more than the model's {len(model.layers)} layers."
    return ""


def make_plan(settings: VLLMSettings, model: Model, device: Device) -> Plan:
    """The plan; UnsupportedModel for a cache whose handling by vLLM is not modelled."""
    why = refusal(settings, model) if device.served else f"vLLM does not run on {device.name} without a plug-in."
    if why:
        return Plan(refusal=why, needs=Counter())
    builder = Builder(settings, model, device)
    if builder.refusal:
        return Plan(refusal=builder.refusal, kv_dtype=builder.kv_dtype, needs=Counter())
    specs = builder.specs()
    packed = builder.packed
    groups = grouped(
        specs,
        hybrid_manager=not settings.disable_hybrid_kv_cache_manager,
        packed=packed,
        even=1.5 if settings.has("groups_within_one_and_a_half") else 1.25,
    )
    per_stage = tuple(
        bytes_per_block(groups, layers, align=PACKED_ALIGN if packed else 1)
        for layers in stages(len(model.layers), settings.pipeline_parallel_size)
    )
    return Plan(
        kv_dtype=builder.kv_dtype, block_size=builder.block, groups=groups, needs=needs(groups),
        stage_block_bytes=per_stage,
    )  # fmt: skip
