"""What vLLM does for one family and no other. Everything here is keyed on config.json's model_type.

A family without a row has none of these habits.
"""

from __future__ import annotations

from fitkit.model import Model
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.settings import VLLMSettings

# Images attend both ways, so a kernel must take prefixes. Source: vLLM 0.33.0 model_arch_config_convertor.py; Gemma 4
# says it in its config (use_bidirectional_attention), which its family function keeps as extra "image_prefix".
IMAGE_PREFIX = frozenset({"bagel", "gemma3", "molmo2", "moondream3", "paligemma"})

# Delta-attention layers whose prefill kernel stores a checkpoint in the middle of a prefill: token alignment of it.
# Source: vLLM 0.33.0 models/kimi_k3/nvidia/kda.py (FlashKDA); Kimi-Linear's own layer has none.
KDA_CHECKPOINT = {"kimi_k3": 16}
GDN_CHECKPOINT = 64  # FlashInfer's gated-delta-net prefill


def image_prefix(settings: VLLMSettings, model: Model) -> bool:
    """Whether kernels must handle image prefixes."""
    limits = settings.limit_mm_per_prompt
    if limits is not None and limits and not any(limits.values()):
        return False
    prefix = bool(model.get("image_prefix")) or model.family in IMAGE_PREFIX
    return prefix and any(tensor.part == "vision" for tensor in model.tensors)


def has_sinks(model: Model) -> bool:
    """Whether attention has learned sinks."""
    return any(tensor.role.startswith("attn_sinks") for tensor in model.tensors)


def checkpoint(settings: VLLMSettings, model: Model, variant: str, head_dim: int, device: Device) -> int:
    """Token alignment of a mid-prefill checkpoint of a state layer, 0 where its kernel makes none.

    Mamba-2's mixer can stop at any token; gated delta net with FlashInfer's kernel (SM90, SM100 and SM120 with key heads
    of 128) at 64; the others cannot.
    """
    if not settings.has("prefill_checkpoint_block"):
        return 0
    if variant == "mamba2":
        return 1
    if variant == "gdn":
        flashinfer = device.family == 9 or (device.family in (10, 12) and head_dim == 128)
        return GDN_CHECKPOINT if flashinfer else 0
    if variant == "kda":
        return KDA_CHECKPOINT.get(model.family, 0)
    return 0


def prefix_caching(settings: VLLMSettings, model: Model) -> bool:
    """Whether prefix caching is on: asked for, else wherever the model has attention."""
    if settings.enable_prefix_caching is not None:
        return settings.enable_prefix_caching
    return any(cache.kind != "state" for cache in model.caches())
