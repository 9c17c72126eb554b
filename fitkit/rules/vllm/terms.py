"""What a GPU's memory goes to before the cache: weights, then the measured part, each with its range.

The sizes of the profiling run's peak, of CUDA graphs and of what is not torch's are no rules but estimates; their
ranges say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fitkit.model import Model
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.measured import Part, measured_parts
from fitkit.rules.vllm.plan import Plan
from fitkit.rules.vllm.settings import VLLMSettings


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


def memory_parts(
    settings: VLLMSettings, model: Model, device: Device, plan: Plan, length: int, tokens: int, sequences: int
) -> Parts:
    """Every part at this batch shape. `length` in tokens, `tokens` and `sequences` the resolved batch limits."""
    # weights (and RoPE tables, which count as model memory) belong before the measured parts
    measured = measured_parts(settings, model, tokens, sequences)
    return Parts(requested_bytes=requested(settings, device), stage_weights=(0,), subtracted=measured, beside=())
