"""Multi-head latent attention, with its keys absorbed or unfolded.

Source: llama.cpp b11434, src/models/deepseek2.cpp, minicpm3.cpp, kimi-linear.cpp.
"""

from __future__ import annotations

from fitkit.rules.llamacpp.flash import Heads
from fitkit.rules.llamacpp.graph.attention import scores, store_v
from fitkit.rules.llamacpp.graph.build import Builder
from fitkit.rules.llamacpp.graph.tensor import Node


def attend_latent(b: Builder, x: Node, block: int, rope: bool = True) -> Node:
    """One latent row a token: queries are folded into it, values unfolded after."""
    layer = b.model.layers[block]
    heads, rank = max(1, layer.heads), int(b.model.get("attention.kv_lora_rank", 0))
    rotary = int(b.model.get("rope.dimension_count", 0)) or b.width(block, "attn_kv_a_mqa") - rank
    k_head = int(b.model.get("attention.key_length_mla", 0))
    v_head = int(b.model.get("attention.value_length_mla", 0))
    q, latent, k_pe = _projections(b, x, block, heads * k_head, rank, rotary)
    k_pe = b.rope(k_pe, block, False) if rope else k_pe
    latent = b.norm(latent, block, "attn_kv_a_norm")
    q_nope, q_pe = b.view(q, heads * (k_head - rotary)), b.view(q, heads * rotary)
    q_pe = b.rope(q_pe, block, False) if rope else q_pe
    absorbed = b.make(
        "mul_mat", heads * rank, b.weight(block, "attn_k_b"), b.view(q_nope, b.floats(q_nope), "permute"), rows=x.rows
    )
    q = b.make("concat", heads * (rank + rotary), b.view(absorbed, heads * rank, "permute"), q_pe, rows=x.rows)
    value = b.view(latent, rank, "reshape")
    k = b.make("concat", rank + rotary, value, k_pe, rows=x.rows)
    for node in (q, value, k):
        b.graph.expand(node)
    b.store(block, k, "k_cells", False)
    return scores(b, q, block, Heads(heads, 1, rank + rotary, rank), False, unfold=heads * v_head)


def attend_unfolded(b: Builder, x: Node, block: int, heads: Heads) -> Node:
    """Whole heads made from the latent and kept."""
    rank = int(b.model.get("attention.kv_lora_rank", 0))
    rotary = int(b.model.get("rope.dimension_count", 0))
    q, latent, k_pe = _projections(b, x, block, heads.heads * heads.k_dim, rank, rotary)
    latent = b.norm(latent, block, "attn_kv_a_norm")
    both = b.mm(latent, block, "attn_kv_b")
    v = b.make("cont", heads.heads * heads.v_dim, b.view(both, heads.heads * heads.v_dim))
    q, k_pe = b.rope(q, block, False), b.rope(k_pe, block, False)
    spread = b.make("repeat", heads.heads * rotary, k_pe)
    k = b.make("concat", heads.heads * heads.k_dim, b.view(both, heads.heads * (heads.k_dim - rotary)), spread)
    for node in (q, v, k):
        b.graph.expand(node)
    b.store(block, k, "k_cells", False)
    store_v(b, v, block, False)
    return b.mm(scores(b, q, block, heads, False), block, "attn_output")


def _projections(b: Builder, x: Node, block: int, wide: float, rank: int, rotary: int) -> tuple[Node, Node, Node]:
    if b.has(block, "attn_q_a"):
        low = b.norm(b.mm(x, block, "attn_q_a"), block, "attn_q_a_norm")
        q = b.mm(low, block, "attn_q_b")
    else:
        q = b.mm(x, block, "attn_q")
    joined = b.mm(x, block, "attn_kv_a_mqa")
    return b.view(q, wide, "reshape"), b.view(joined, rank), b.view(joined, rotary)
