"""Bytes a cache element takes under each of vLLM's KV dtypes, and which dtype `auto` becomes.

Source: vLLM 0.33.0, v1/kv_cache_interface.py and the packing hooks of its attention backends.
"""

from __future__ import annotations

from dataclasses import dataclass

from fitkit.model import Model
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.settings import DTYPES, SAME_KV_DTYPE, VLLMSettings

FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")
PER_TOKEN_HEAD = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
PACKED_LATENT = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}  # bytes of one token's 512 + 64 latent, scales included

# TurboQuant: (bits of a key element, bits of a value element); a value slot has a scale and a zero (4 B), a key that is
# not plain fp8 has two norms (4 B).
TURBOQUANT = {
    "turboquant_k8v4": (8, 4), "turboquant_4bit_nc": (4, 4), "turboquant_k3v4_nc": (3, 4), "turboquant_3bit_nc": (3, 3),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KvType:
    """A resolved cache dtype: its name as vLLM logs it and the bytes of one plain element."""

    name: str
    element_bytes: int

    @property
    def quantized(self) -> bool:
        """Whether kernels read it as a quantized cache."""
        return self.name != "auto"


def model_element_bytes(settings: VLLMSettings, model: Model) -> int:
    """Bytes of the model's own dtype; vLLM serves a float32 checkpoint in 16 bits unless told otherwise."""
    return 4 if DTYPES[settings.dtype] == "F32" else 2


def resolve_kv_dtype(settings: VLLMSettings, model: Model, device: Device) -> str:
    """The dtype the cache gets: `auto` follows the checkpoint, and a few families have their own default.

    What a sparse-MLA kernel makes of fp8 is decided with the kernel (backends.py).
    """
    asked = SAME_KV_DTYPE.get(settings.kv_cache_dtype, settings.kv_cache_dtype)
    if any(cache.kind == "compressed" for cache in model.caches()):
        return "fp8_ds_mla"
    if asked != "auto":
        return asked
    if settings.kv_cache_dtype == "auto" and model.kv_dtype:
        return "fp8_e4m3" if model.kv_dtype.lower().startswith("fp8") else model.kv_dtype
    if settings.kv_cache_dtype == "auto" and model.family in FP8_ON_SM100 and device.family == 10:
        return "fp8_e4m3"
    return "auto"


FP8_ON_SM100 = frozenset({"glm_moe_dsa"})  # models/config.py: auto becomes fp8 there


def head_token_bytes(kv_dtype: str, k_dim: int, v_dim: int, element_bytes: int) -> int:
    """Bytes one token takes of one KV head."""
    if kv_dtype in TURBOQUANT:
        k_bits, v_bits = TURBOQUANT[kv_dtype]
        key = k_dim if k_bits == 8 else -(-k_dim * k_bits // 8) + 2
        slot = key + -(-v_dim * v_bits // 8) + 4
        return slot + slot % 2
    if kv_dtype == "int4_per_token_head":
        return k_dim // 2 + v_dim // 2 + 8
    if kv_dtype in PER_TOKEN_HEAD:
        return k_dim + v_dim + 8
    if kv_dtype == "nvfp4":
        return (k_dim + v_dim) // 2 + (k_dim + v_dim) // 16
    return (k_dim + v_dim) * (1 if kv_dtype in FP8 else element_bytes)


def latent_token_bytes(kv_dtype: str, width: int, element_bytes: int) -> int:
    """Bytes one token takes of an MLA latent of `width` elements."""
    if kv_dtype in PACKED_LATENT:
        return PACKED_LATENT[kv_dtype]
    return width * (1 if kv_dtype in FP8 else element_bytes)


def state_element_bytes(name: str, element_bytes: int) -> int:
    """Bytes of an element of a recurrent state."""
    return {"float32": 4, "float16": 2, "bfloat16": 2}.get(name.removeprefix("torch."), element_bytes)
