"""Flash attention: whether the engine turns it on, and where its kernels run."""

from __future__ import annotations

from dataclasses import dataclass

from fitkit.model import Model
from fitkit.rules.llamacpp.cache import Store, stores
from fitkit.rules.llamacpp.rows import is_quantized
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.split import HOST, Split

# Head sizes with a CUDA kernel where K and V are equally wide; others by (K, V): what the query heads per KV head must
# be a multiple of (0: more than one). Source: llama.cpp b11434, ggml-cuda/fattn.cu, get_best_fattn_kernel.
EQUAL_HEADS = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
OTHER_HEADS = {(192, 128): 8, (320, 256): 32, (512, 512): 0, (576, 512): 0}
CUDA_TYPES = frozenset({"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"})
NEVER = frozenset({"grok"})  # forced off; llama-context.cpp, llama_init_from_model


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer: query heads, KV heads, K and V of one head."""

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int


def heads_of(model: Model, store: Store) -> Heads:
    """The heads of the layer that owns `store`."""
    layer = model.layers[store.layer]
    for cache in layer.caches:
        if cache.kind == "latent":
            rank = int(model.get("attention.kv_lora_rank", 0) or model.get("attention.value_length", 0) or cache.k_dim)
            return Heads(max(1, layer.heads), 1, cache.k_dim, rank)
        if cache.kind not in ("state", "indexer"):
            return Heads(max(1, layer.heads), max(1, cache.kv_heads), cache.k_dim, cache.v_dim)
    return Heads(1, 1, store.k_width, store.v_width)


def heads_at_once(model: Model) -> Heads | None:
    """The heads of an encoder, which keeps no cache: its tokens see each other within one batch; None for all else."""
    heads = max((layer.heads for layer in model.layers), default=0)
    inner = next((one.shape[0] for one in model.tensors if one.layers and one.role == "attn_output"), 0)
    if not heads or not inner or any(layer.caches for layer in model.layers):
        return None
    keys = next((one.shape[1] for one in model.tensors if one.layers and one.role == "attn_k"), inner)
    return Heads(heads, max(1, keys * heads // inner), inner // heads, inner // heads)


def has_kernel(heads: Heads, settings: LlamaCppSettings) -> bool:
    """Whether the GPU backend computes this flash attention itself (else it runs on the CPU)."""
    if settings.type_k not in CUDA_TYPES or settings.type_v not in CUDA_TYPES:
        return False
    if heads.k_dim in EQUAL_HEADS:
        return heads.k_dim == heads.v_dim
    multiple = OTHER_HEADS.get((heads.k_dim, heads.v_dim))
    ratio = heads.heads // heads.kv_heads
    return multiple is not None and ratio >= 2 and ratio % (multiple or 1) == 0


def is_asked(model: Model, settings: LlamaCppSettings, placed: Split) -> bool:
    """Whether attention is computed as flash attention, as far as the heads tell.

    "auto" turns it off where a layer's kernel does not exist on the device that holds the layer; a quantized V cache needs
    it and turns it on. Where "auto" also depends on the scheduler, compute.resolve asks further.

    Source: llama.cpp b11434, llama-context.cpp (llama_init_from_model, resolve_fused_ops).
    """
    if settings.flash_attn == "off" or model.gguf_architecture in NEVER:
        return False
    if settings.flash_attn == "on" or is_quantized(settings.type_v):
        return True
    if not placed.used or settings.backend == "cpu":
        return True
    at_once = heads_at_once(model)
    if at_once is not None:
        return has_kernel(at_once, settings)
    return all(
        has_kernel(heads_of(model, store), settings)
        for store in stores(model)
        if store.kind != "indexer" and placed.blocks[store.layer] != HOST
    )
