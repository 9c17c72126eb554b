"""Latent attention (MLA), and the indexers of sparse attention."""

from __future__ import annotations

from fitkit.gguf_layers import Caches, Hparams, architecture
from fitkit.model import Cache


def latent(h: Hparams, il: int) -> Cache:
    """MLA as one K head of latent + rope elements and no V; whole heads where the file has no `_mla` keys."""
    if not h.whole("attention.key_length_mla", 0) or not h.whole("attention.value_length_mla", 0):
        return h.attention(il)
    return Cache(kind="latent", k_dim=h.widths[0] * h.kv_heads[il])


@architecture("deepseek2", "mistral4")
def mla(h: Hparams) -> Caches:
    """A latent in every block."""
    return [[latent(h, il)] if il < h.trunk else [] for il in range(h.blocks)]


@architecture("deepseek32", "glm-dsa", "hy_v4")
def sparse_mla(h: Hparams) -> Caches:
    """A latent, and one indexer key a token in the blocks that have an indexer of their own."""
    width = h.whole("attention.indexer.key_length", 0)
    full_ones = _indexed(h)
    kept: Caches = []
    for il in range(h.blocks):
        one = [latent(h, il)] if il < h.trunk else []
        if one and full_ones[il] and width:
            v_dim = 0 if one[0].kind == "latent" else h.widths[1]
            one.append(Cache(kind="indexer", k_dim=width, v_dim=v_dim))
        kept.append(one)
    return kept


def _indexed(h: Hparams) -> list[bool]:
    """The blocks with an indexer of their own; the others use the last one's choice."""
    listed = h.values.get("attention.indexer.types")
    if isinstance(listed, tuple):
        given = [bool(one) for one in listed]
        return given + [False] * (h.blocks - len(given))
    if h.arch == "hy_v4":
        return [False] * h.blocks
    if h.arch == "glm-dsa" and h.whole("context_length", 0) >= 2**20:
        return [il < 3 or il % 4 == 2 for il in range(h.blocks)]  # GLM-5.2 files from before the key
    return [True] * h.blocks


@architecture("minimax-m3")
def minimax_m3(h: Hparams) -> Caches:
    """Full attention; behind the dense lead also an indexer's single head, which llama.cpp gives a V as wide as the model's."""
    width, lead = h.whole("attention.indexer.key_length"), h.whole("leading_dense_block_count", 0)
    indexer = Cache(kind="indexer", kv_heads=1, k_dim=width, v_dim=h.widths[1])
    return [[h.attention(il), *([indexer] if il >= lead else [])] if il < h.trunk else [] for il in range(h.blocks)]
