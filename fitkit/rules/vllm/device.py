"""What vLLM's planning asks of a GPU: compute capability, memory, tier of batch defaults."""

from __future__ import annotations

from dataclasses import dataclass

from fitkit.hardware import Gpu
from fitkit.rules.vllm.settings import VLLMSettings
from fitkit.units import GIB

# Batch defaults (api tokens, llm tokens, sequences) by tier. Source: vLLM 0.33.0 engine/arg_utils.py get_batch_defaults.
TIERS: dict[str, tuple[int, int, int]] = {
    "large": (16384, 16384, 1024),  # from 160 GiB on: B200, B300, MI300
    "data center": (8192, 16384, 1024),  # from 70 GiB on, A100 and GB10 left out: H100, H200
    "small": (2048, 8192, 256),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The GPU as vLLM's code sees it."""

    name: str
    capability: tuple[int, int]  # (9, 0) for an H100; (0, 0) where it is no NVIDIA card
    total_bytes: int
    backend: str = "cuda"

    @property
    def cuda(self) -> bool:
        """Whether it is an NVIDIA card."""
        return self.backend == "cuda"

    @property
    def served(self) -> bool:
        """Whether vLLM itself runs on it (others need a plug-in)."""
        return self.backend in ("cuda", "rocm", "xpu")

    @property
    def family(self) -> int:
        """The major compute capability, 0 where it is no NVIDIA card."""
        return self.capability[0]

    @property
    def known(self) -> bool:
        """Whether the kernels vLLM would choose on it are known: NVIDIA from SM75 on."""
        return self.cuda and self.capability >= (7, 5)


DEFAULT = Device(name="H100 80GB", capability=(9, 0), total_bytes=81559 * 2**20)


def device_of(gpu: Gpu | None) -> Device:
    """The device vLLM's code would see; without a GPU the one most cases were measured for, an H100."""
    if gpu is None:
        return DEFAULT
    digits = gpu.compute_arch.removeprefix("sm_").rstrip("af") if gpu.compute_arch.startswith("sm_") else ""
    capability = (int(digits[:-1]), int(digits[-1])) if digits.isdigit() and len(digits) > 1 else (0, 0)
    return Device(name=gpu.name, capability=capability, total_bytes=gpu.seen_bytes, backend=gpu.backend)


def tier(settings: VLLMSettings, device: Device) -> str:
    """The row of TIERS. Source: the total memory and the name's test in get_batch_defaults."""
    if device.total_bytes >= 160 * GIB and settings.has("large_gpu_tier"):
        return "large"
    small = "a100" in device.name.lower() or device.capability == (12, 1)
    return "data center" if device.total_bytes >= 70 * GIB and not small else "small"


def batch(settings: VLLMSettings, device: Device, max_model_len: int, least_tokens: int = 0) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs as vLLM resolves them.

    `least_tokens` is one multimodal item of a prefix-LM model, which a batch must hold whole.
    """
    api, llm, seqs = TIERS[tier(settings, device)]
    sequences = settings.max_num_seqs if settings.max_num_seqs is not None else seqs
    if settings.max_num_batched_tokens is not None:
        tokens = settings.max_num_batched_tokens
    else:
        tokens = max(api if settings.usage == "api" else llm, least_tokens)
        tokens = min(tokens, sequences * max_model_len)
    if settings.max_num_seqs is None:
        sequences = min(sequences, tokens)
    return tokens, sequences


def in_flight(settings: VLLMSettings, batched_tokens: int) -> int:
    """Tokens scheduled but not yet settled, which windows must hold besides.

    Source: vLLM 0.33.0 config/vllm.py max_in_flight_tokens; before 0.26 one batch.
    """
    if not settings.has("concurrent_batches_in_flight"):
        return batched_tokens
    stages = settings.pipeline_parallel_size
    return batched_tokens * (stages + 1 if settings.async_scheduling else stages)
