"""What a GPU's memory goes to before the cache: weights, then the measured part, each with its range.

The sizes of the profiling run's peak, of CUDA graphs and of what is not torch's are no rules but estimates; their
ranges say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fitkit.model import Model
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.loaded import loaded_parts
from fitkit.rules.vllm.measured import Part, measured_parts, outside_parts
from fitkit.rules.vllm.packed import EngineRefuses
from fitkit.rules.vllm.plan import Plan
from fitkit.rules.vllm.settings import VLLMSettings, release_of
from fitkit.rules.vllm.weights import stage_weights
from fitkit.units import show_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All parts: `subtracted` from what was requested before the cache is sized, `beside` what must fit next to it."""

    requested_bytes: int
    stage_weights: tuple[int, ...]
    subtracted: tuple[Part, ...]
    beside: tuple[Part, ...]
    refusal: str = ""
    notes: tuple[str, ...] = ()


def requested(settings: VLLMSettings, device: Device) -> int:
    """What vLLM asks of each GPU: ceil(utilization x the memory torch sees)."""
    return math.ceil(device.total_bytes * settings.utilization)


def notes(settings: VLLMSettings, device: Device) -> list[str]:
    """What a prediction for this GPU and version leaves open."""
    said = (
        []
        if device.known
        else [f"Kernels on {device.name} were not looked at; the plan is that of NVIDIA's ordinary ones."]
    )
    return [*said, *(f"{what}." for what in settings.uncertain)]


def memory_parts(
    settings: VLLMSettings, model: Model, device: Device, plan: Plan, length: int, tokens: int, sequences: int
) -> Parts:
    """Every part at this batch shape. `length` in tokens, `tokens` and `sequences` the resolved batch limits."""
    method = settings.quantization
    if method not in (None, "fp8") and not model.quant:
        why = f"quantization={method!r} needs a checkpoint of that kind, and {model.name} is not quantized; only fp8 is made while loading."
        return Parts(
            requested_bytes=requested(settings, device), stage_weights=(0,), subtracted=(), beside=(), refusal=why
        )
    if plan.refusal:
        return Parts(requested_bytes=requested(settings, device), stage_weights=(0,), subtracted=(), beside=())
    try:
        stages = stage_weights(settings, model, device)
    except EngineRefuses as why:
        return Parts(
            requested_bytes=requested(settings, device), stage_weights=(0,), subtracted=(), beside=(), refusal=str(why)
        )
    measured = measured_parts(settings, model, tokens, sequences)
    beside = outside_parts(settings, model, tokens, sequences)
    return Parts(
        requested_bytes=requested(settings, device),
        stage_weights=stages,
        subtracted=(*loaded_parts(settings, model, device, max(stages)), *measured),
        beside=beside,
        notes=tight(settings, device, measured[0].bytes, sum(part.bytes for part in beside)),
    )


def tight(settings: VLLMSettings, device: Device, peak: int, beside: int) -> tuple[str, ...]:
    """A warning where what is left outside vLLM's share may not hold what it still allocates there [bytes].

    `beside` is the CUDA context and graphs that were not subtracted; warming up the sampler when the pool is already taken
    repeats the `peak` up to 0.29 (0.33 profiles with it). Two posted start-ups ended so: 0.19.0 and 0.28.0, both at 0.95.
    """
    needed = beside + (peak if release_of(settings.version) < (0, 30, 0) else 0)
    left = device.total_bytes - requested(settings, device)
    if settings.kv_cache_memory_bytes is not None or left >= needed:
        return ()
    leaves = f"utilization {settings.utilization:g} leaves {show_gib(left)} of a GPU"
    uses = f"the CUDA context, graphs and warming up the sampler, which take about {show_gib(needed)}"
    return (f"It may still run out of memory after the cache is taken: {leaves} for {uses}.",)
