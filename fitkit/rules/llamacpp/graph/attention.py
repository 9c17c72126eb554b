"""Attention: projections, the cache, flash attention or the scores written out."""

from __future__ import annotations

from fitkit.rules.llamacpp.flash import Heads
from fitkit.rules.llamacpp.graph.build import F16, F32, Builder
from fitkit.rules.llamacpp.graph.shapes import Shape
from fitkit.rules.llamacpp.graph.tensor import (
    CELLS,
    ONE,
    TOKENS,
    TOKENS_CELLS,
    TOKENS_WINDOW,
    WINDOW,
    Node,
    form,
    plus,
    times,
)
from fitkit.rules.llamacpp.rows import is_quantized, row_bytes


def attend(b: Builder, x: Node, block: int, heads: Heads, window: bool, shape: Shape, shared: bool = False) -> Node:
    """Self-attention of one block up to its output projection."""
    q, k, v, gate = project(b, x, block, heads, shared, shape)
    if shape.rope and (window or not shape.rope_only_sliding):
        q, k = b.rope(q, block, window), (b.rope(k, block, window) if k else None)
    if shape.scaled_query:
        q = b.same("scale", q)
    rotated = _rotate(b, heads, window)
    if rotated[0]:
        q, k = (
            _hadamard(b, q, rotated[0], f"k{int(window)}"),
            (_hadamard(b, k, rotated[0], f"k{int(window)}") if k else None),
        )
    if v and rotated[1]:
        v = _hadamard(b, v, rotated[1], f"v{int(window)}")
    for node in (q, k, v) if b.has_windows else (q, v, k):
        if node:
            b.graph.expand(node)
    if k:
        b.store(block, k, "k_cells", window)
    if v:
        store_v(b, v, block, window)
    cur = scores(b, q, block, heads, window)
    if rotated[1]:
        cur = _hadamard(b, cur, rotated[1], f"v{int(window)}")
    if gate:
        cur = b.like("mul", cur, b.like("unary", b.make("cont", b.floats(gate), gate)))
    elif b.has(block, "attn_gate"):
        cur = b.like("mul", cur, b.like("unary", b.mm(x, block, "attn_gate")))
    return b.mm(cur, block, "attn_output" if b.has(block, "attn_output") else "attn_out")


def attend_at_once(b: Builder, x: Node, block: int, heads: Heads, shape: Shape) -> Node:
    """Self-attention of an encoder's block, over the batch alone: K and V are results, the mask is as wide as the batch.

    Source: llama.cpp b11434, llama-graph.cpp, build_attn_inp_no_cache and build_attn_mha.
    """
    q, k, v, _ = project(b, x, block, heads, False, shape)
    assert k is not None
    assert v is not None
    if shape.rope and not b.has(-1, "position_embd"):
        q, k = b.rope(q, block, False), b.rope(k, block, False)
    for node in (q, k, v):
        b.graph.expand(node)
    q, k, v = (b.view(node, b.floats(node), "permute") for node in (q, k, v))
    if b.flash:
        k, v = (b.make("cast", 0, one, size=form(TOKENS, F16 * b.floats(one)), rows=TOKENS) for one in (k, v))
        size = form(TOKENS, heads.heads * heads.v_dim * F32)
        cur = b.make("flash_attn", 0, q, k, v, b.mask(False), size=size, rows=TOKENS)
        cur.cpu_only = not b.kernel(heads)
        b.attention.append((cur, block))
        cur = b.view(cur, heads.heads * heads.v_dim, "reshape")
    else:
        cur = _written_out(b, q, k, v, heads, False, block, 0)
    b.graph.expand(cur)
    return b.mm(cur, block, "attn_output")


def project(
    b: Builder, x: Node, block: int, heads: Heads, shared: bool, shape: Shape
) -> tuple[Node, Node | None, Node | None, Node | None]:
    """Q, K and V of the batch, normed where the block has weights for it, and the output's gate where Q carries one."""
    n_q, n_k, n_v = heads.heads * heads.k_dim, heads.kv_heads * heads.k_dim, heads.kv_heads * heads.v_dim
    k: Node | None = None
    v: Node | None = None
    gate: Node | None = None
    if b.has(block, "attn_qkv"):
        fused = b.mm(x, block, "attn_qkv")
        q, k, v = b.view(fused, n_q), b.view(fused, n_k), b.view(fused, n_v)
    else:
        q = b.mm(x, block, "attn_q")
        if b.floats(q) == 2 * n_q:
            q, gate = b.view(q, n_q), b.view(q, n_q)
        else:
            q = b.view(q, b.floats(q), "reshape")
        if not shared:
            k = b.mm(x, block, "attn_k")
            v = b.mm(x, block, "attn_v") if b.has(block, "attn_v") else k
            k, v = b.view(k, b.floats(k), "reshape"), b.view(v, b.floats(v), "reshape")
    if b.has(block, "attn_q_norm"):
        q = _head_norm(b, q, block, "attn_q_norm", heads.heads)
    if k and b.has(block, "attn_k_norm"):
        k = _head_norm(b, k, block, "attn_k_norm", heads.kv_heads)
    if v and shape.normed_values:
        v = b.like("rms_norm", v)
    return q, k, v, gate


def _head_norm(b: Builder, x: Node, block: int, role: str, heads: int) -> Node:
    """A norm of each head; its result lies as a rotated one does."""
    cur = b.like("rms_norm", x)
    cur.layout = ("heads", b.floats(x), x.rows)
    cur = b.like("mul", cur, b.weight(block, role))
    cur.layout, cur.lines = ("heads", b.floats(x), x.rows), heads
    return cur


def store_v(b: Builder, v: Node, block: int, window: bool) -> None:
    """V goes in as rows, or element by element where it is kept transposed."""
    if b.v_transposed:
        b.store(block, v, "v_cells", window, b.widest_v)
    else:
        b.store(block, v, "v_cells", window)


def scores(b: Builder, q: Node, block: int, heads: Heads, window: bool, unfold: float = 0) -> Node:
    """The attention itself; `unfold` is the width a latent's result is unfolded to."""
    q = b.view(b.view(q, b.floats(q)), b.floats(q), "permute")
    k = _cache_view(b, block, b.settings.type_k, heads.kv_heads * heads.k_dim, window)
    v = _cache_view(b, block, b.settings.type_v, heads.kv_heads * heads.v_dim, window)
    if b.flash:
        cur = _flash(b, q, k, v, heads, window, block)
        if unfold:
            cur = b.view(cur, b.floats(cur), "permute")
            cur = b.make("mul_mat", unfold, b.weight(block, "attn_v_b"), cur, rows=TOKENS)
            cur = b.make("cont", unfold, b.view(cur, unfold, "permute"))
        out = b.view(cur, unfold or heads.heads * heads.v_dim, "reshape")
    else:
        out = _written_out(b, q, k, v, heads, window, block, unfold)
    b.graph.expand(out)
    return out


def _cache_view(b: Builder, block: int, kind: str, width: float, window: bool) -> Node:
    """A layer's cache; its size counts only where another device needs a copy."""
    cache = b.cache(block)
    size = form(b.cells(window), row_bytes(kind, int(width)))
    return Node("permute", size, ("cache",), [cache], root=cache)


def _flash(b: Builder, q: Node, k: Node, v: Node, heads: Heads, window: bool, block: int) -> Node:
    """One operation; on CUDA its result carries f16 copies of a K or V of another type."""
    n_k, n_v = heads.kv_heads * heads.k_dim, heads.kv_heads * heads.v_dim
    sides = [(b.settings.type_k, n_k), (b.settings.type_v, n_v)]
    if b.is_latent(heads):
        sides = sides[:1]
    cast: list[Node] = []
    for (kind, width), node in zip(sides, (k, v), strict=False):
        if kind == "f32":
            node = b.make("cast", 0, node, size=form(b.cells(window), F16 * width), rows=TOKENS)
        cast.append(node)
    if len(cast) == 1:
        cast.append(b.view(cast[0], 0) if cast[0] is not k else v)
    size = form(TOKENS, heads.heads * heads.v_dim * F32)
    if b.cpu and b.kernel(heads):
        for kind, width in sides:
            if kind not in ("f16", "f32"):
                size = plus(size, b.f16_copy(kind, width, window))
    cur = b.make("flash_attn", 0, q, *cast, b.mask(window), size=size, rows=TOKENS)
    cur.cpu_only = not b.kernel(heads)
    b.attention.append((cur, block))
    return cur


def _written_out(b: Builder, q: Node, k: Node, v: Node, heads: Heads, window: bool, block: int, unfold: float) -> Node:
    """Scores for every head, token and cell."""
    each = TOKENS_WINDOW if window else TOKENS_CELLS
    kq = b.make("mul_mat", 0, k, q, size=form(each, heads.heads * F32), layout="kq", rows=TOKENS)
    if b.model.get("attn_logit_softcapping"):
        for op in ("scale", "unary", "scale"):
            kq = b.make(op, 0, kq, size=kq.size, layout="kq", rows=TOKENS)
    kq = b.make("soft_max", 0, kq, b.mask(window), size=kq.size, layout="kq", rows=TOKENS)
    if not b.v_transposed:
        element = F32 if is_quantized(b.settings.type_v) or b.settings.type_v == "f32" else F16
        n_v = heads.v_dim if b.is_latent(heads) else heads.kv_heads * heads.v_dim
        v = b.make("cont", 0, v, size=form(WINDOW if window else CELLS, element * n_v), rows=TOKENS)
    kqv = b.make("mul_mat", heads.heads * heads.v_dim, v, kq, rows=TOKENS)
    if unfold:
        kqv = b.make("mul_mat", unfold, b.weight(block, "attn_v_b"), kqv, rows=TOKENS)
    return b.make("cont", b.floats(kqv), b.view(kqv, b.floats(kqv), "permute"))


# ---- rotated caches -------------------------------------------------------------------------------------------------------


def _rotate(b: Builder, heads: Heads, window: bool) -> tuple[int, int]:
    """Sizes of the Hadamard matrices that spread a quantized cache's outliers, 0 for none.

    Source: llama.cpp b11434, llama-kv-cache.cpp (attn_rot_k, attn_rot_v); needs equal heads in the whole cache.
    """
    turn_k = turn_v = 0
    if is_quantized(b.settings.type_k) and heads.k_dim % 64 == 0 and b.equal_heads[window]:
        turn_k = 64
        while heads.k_dim % (2 * turn_k) == 0:
            turn_k *= 2
    if is_quantized(b.settings.type_v) and heads.v_dim % 64 == 0 and b.equal_heads[window]:
        turn_v = 64
    return turn_k, turn_v


def _hadamard(b: Builder, x: Node, size: int, name: str) -> Node:
    matrix = b.input(f"rotation_{name}", form(ONE, size * size * F32))
    flat = b.view(x, b.floats(x), "reshape")
    turned = b.make("mul_mat", b.floats(x), matrix, flat, rows=x.rows)
    return b.view(turned, b.floats(x), "reshape")


__all__ = ["attend", "project", "scores", "store_v", "times"]
