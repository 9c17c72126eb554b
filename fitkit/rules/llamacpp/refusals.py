"""What llama.cpp refuses or dies of, in its own words."""

from __future__ import annotations

import numpy as np

from fitkit.model import Model
from fitkit.rules.llamacpp.cache import stores
from fitkit.rules.llamacpp.context import Sizes
from fitkit.rules.llamacpp.flash import NEVER, heads_of
from fitkit.rules.llamacpp.rows import block_of, is_quantized
from fitkit.rules.llamacpp.settings import MOST_SEQUENCES, LlamaCppSettings

# No cache, so no tokens to serve: encoders and diffusion models.
NO_TEXT = frozenset({
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert",
    "gemma-embedding", "wavtokenizer-dec", "dream", "llada", "llada-moe", "rnd1",
})  # fmt: skip


def refusal(model: Model, settings: LlamaCppSettings) -> str:
    """Why the engine does not make this context, one sentence; empty where it does.

    Source: llama.cpp b11434, llama-context.cpp (llama_init_from_model); ggml.c's assertions for what aborts.
    """
    key, value = settings.type_k, settings.type_v
    if _is_mla(model) and key != value:
        return f"llama.cpp refuses: model does not support different K ({key}) and V ({value}) cache types."
    flash = settings.flash_attn != "off" and model.gguf_architecture not in NEVER
    if is_quantized(value) and not flash:
        return "llama.cpp refuses: quantized V cache requires flash_attn to be enabled."
    return _block_refusal(model, settings, flash)


# Their graph pads or repeats what does not divide, and dies of it: the batch must be whole tokens a sequence.
_EVEN_BATCH = frozenset({"kimi-linear", "minimax-01"})


def row_refusals(model: Model, settings: LlamaCppSettings, at: Sizes) -> list[str] | None:
    """Why the engine refuses or aborts each row of a grid ("" where it does not); None where it does with none."""
    slots = at.n_seq_max
    many = slots > MOST_SEQUENCES
    uneven = np.zeros_like(many)
    if model.gguf_architecture in _EVEN_BATCH and not settings.kv_unified:
        uneven = np.minimum(at.n_ctx, at.n_ubatch) % slots != 0
    if not (many | uneven).any():
        return None
    says = (
        f"llama.cpp refuses: n_seq_max must be <= {MOST_SEQUENCES}",
        f"llama.cpp aborts: {model.gguf_architecture} needs n_ubatch to be a multiple of n_seq_max",
    )
    return [
        f"{says[not high]} ({count})." if high or odd else ""
        for high, odd, count in zip(many.tolist(), uneven.tolist(), slots.tolist(), strict=True)
    ]


def _is_mla(model: Model) -> bool:
    return any(cache.kind == "latent" for cache in model.caches()) or model.gguf_architecture == "deepseek4"


def _block_refusal(model: Model, settings: LlamaCppSettings, flash: bool) -> str:
    """A quantized row of one head must be whole blocks."""
    for store in stores(model):
        if store.kind == "indexer":
            continue
        heads = heads_of(model, store)
        for side, kind, width in (("K", settings.type_k, heads.k_dim), ("V", settings.type_v, heads.v_dim)):
            if not is_quantized(kind) or width % block_of(kind) == 0:
                continue
            if flash:
                return (
                    f"llama.cpp refuses: {side} cache type {kind} with block size {block_of(kind)} does not divide "
                    f"n_embd_head_{side.lower()}={width}."
                )
            return (
                f"llama.cpp aborts: a {kind} row of {width} elements, one head, is no whole number of blocks of "
                f"{block_of(kind)} (ggml_row_size)."
            )
    return ""
