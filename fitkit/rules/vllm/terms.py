"""What a GPU's memory goes to before the cache: weights, then the measured part, each with its range.

The sizes of the profiling run's peak, of CUDA graphs and of what is not torch's are no rules but estimates; their
ranges say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fitkit.model import Model
from fitkit.rules.base import Evidence
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.measured import Part, measured_parts
from fitkit.rules.vllm.packed import EngineRefuses
from fitkit.rules.vllm.plan import Plan
from fitkit.rules.vllm.quants import as_asked
from fitkit.rules.vllm.settings import VLLMSettings
from fitkit.rules.vllm.weights import stage_weights


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
    return Parts(
        requested_bytes=requested(settings, device),
        stage_weights=stages,
        subtracted=(
            *loaded_parts(settings, model, device, max(stages)),
            *measured_parts(settings, model, tokens, sequences),
        ),
        beside=(),
    )


def loaded_parts(settings: VLLMSettings, model: Model, device: Device, weights: int) -> tuple[Part, ...]:
    """What model loading takes: the parameters, the rotary tables, and what conversions after loading add or give back."""
    tables = sum(rows * width * {"F32": 4}.get(dtype, 2) for rows, width, dtype in model.get("rope_tables", ()))
    parts = [
        _exact(
            "weights", weights, "exact" if model.basis != "weights" else "assumed", "vLLM 0.33.0's modules as built"
        ),
        _exact(
            "rope_tables", tables, "engine", "vLLM 0.33.0 rotary_embedding: positions x rotary width, on every rank"
        ),
    ]
    if settings.quantization == "fp8" and not model.quant:
        less = weights - max(stage_weights(settings, as_asked(model, "FP8")[0], device))
        parts.append(_exact("online_fp8", -less, "engine", "vLLM 0.33.0 quantization/fp8.py: converted after loading"))
    copy = dequantized_latents(settings, model)
    if copy:
        parts.append(
            _exact(
                "mla_copy",
                copy,
                "engine",
                "vLLM 0.33.0 mla_attention.py: W_UK and W_UV of a quantized kv_b_proj in 16 bits",
            )
        )
    return tuple(parts)


def dequantized_latents(settings: VLLMSettings, model: Model) -> int:
    """The 16-bit copy MLA keeps of a quantized kv_b_proj [bytes of one rank]; of an unquantized one it keeps views."""
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    return sum(
        -(-tensor.elements * tensor.copies * 2 // ranks)
        for tensor in model.tensors
        if tensor.role == "attn_kv_b" and tensor.part != "mtp" and tensor.dtype not in ("", "BF16", "F16", "F32")
    )


def _exact(name: str, size: int, evidence: Evidence, source: str) -> Part:
    return Part(name=name, bytes=size, low=size, high=size, evidence=evidence, source=source)
