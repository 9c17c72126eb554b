"""Whole models: embeddings, blocks, head. One small function for each kind of block, found by general.architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fitkit.rules.llamacpp.flash import Heads
from fitkit.rules.llamacpp.graph.attention import Style, attend
from fitkit.rules.llamacpp.graph.build import F32, I32, I64, Builder
from fitkit.rules.llamacpp.graph.feedforward import Routing, dense, experts
from fitkit.rules.llamacpp.graph.tensor import TOKENS, Node, form


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What tells one decoder from another besides the weights it has."""

    style: Style = Style()
    routing: Routing = Routing()
    scaled_embeddings: bool = False
    parallel: bool = False  # attention and feed-forward from one input
    shared_first: bool = False  # shared experts before the routed ones
    softcap: bool = False
    scale_logits: bool = False


SHAPES: dict[str, Shape] = {}


def shape_of(b: Builder) -> Shape:
    return SHAPES.get(b.model.gguf_architecture, Shape())


def build(b: Builder, blocks: list[int]) -> None:
    """The whole graph, of these blocks only (a layer like another adds nothing to a peak)."""
    shape = shape_of(b)
    x = embed(b, shape)
    for number, block in enumerate(blocks):
        x = decoder_block(b, x, block, shape, last=number == len(blocks) - 1)
    head(b, x, shape)


def embed(b: Builder, shape: Shape) -> Node:
    """Tokens, vectors, or both: all three ways are in the graph, one is used."""
    width = b.model.hidden_size * (1 + int(b.model.get("n_deepstack_layers", 0) or 0))
    table = b.weight(-1, "token_embd")
    tokens = b.input("tokens", form(TOKENS, I32))
    x = b.make("get_rows", b.model.hidden_size, table, tokens, rows=TOKENS)
    if width != b.model.hidden_size:
        x = b.make("pad", width, x)
    b.graph.expand(x)
    b.graph.expand(b.input("vectors", form(TOKENS, width * F32)))
    mixed = b.make("get_rows", b.model.hidden_size, table, b.input("mixed_tokens", form(TOKENS, I32)), rows=TOKENS)
    if width != b.model.hidden_size:
        mixed = b.make("pad", width, mixed)
    copy = b.make("dup", width, b.input("mixed_vectors", form(TOKENS, width * F32)), rows=TOKENS)
    slots = b.input("mixed_slots", form(TOKENS, I64))
    joined = b.make("set_rows", width, mixed, slots, copy)
    joined.root = copy
    b.graph.expand(joined)
    if width != b.model.hidden_size:
        x = b.view(x, b.model.hidden_size)
    if shape.scaled_embeddings:
        x = b.like("mul", x, b.input("row_scales", form(TOKENS, F32)))
        b.graph.expand(x)
    if b.has(-1, "position_embd"):
        positions = b.make(
            "get_rows",
            b.model.hidden_size,
            b.weight(-1, "position_embd"),
            b.input("positions", form(TOKENS, I32)),
            rows=TOKENS,
        )
        x = b.like("add", x, positions)
    return x


def heads_in(b: Builder, block: int) -> tuple[Heads, bool] | None:
    """A block's attention heads and whether it slides."""
    layer = b.model.layers[block]
    for cache in layer.caches:
        if cache.kind in ("full", "sliding", "chunked"):
            return Heads(layer.heads, max(1, cache.kv_heads), cache.k_dim, cache.v_dim), cache.kind != "full"
    return None


def decoder_block(b: Builder, x: Node, block: int, shape: Shape, last: bool) -> Node:
    """Norm, attention, residual, norm, feed-forward, residual."""
    found = heads_in(b, block)
    residual = x
    rms = not b.has(block, "attn_norm.bias")
    cur = b.norm(x, block, "attn_norm", rms)
    normed = cur
    if found:
        cur = attend(b, cur, block, found[0], found[1], shape.style)
        cur = b.norm(cur, block, "post_attention_norm", rms)
    if last:
        cur, residual = b.rows_out(cur), b.rows_out(residual)
        if shape.parallel:
            normed = b.rows_out(normed)
    if shape.parallel:
        out = feed_forward(b, b.norm(normed, block, "ffn_norm", rms), block, shape)
        return b.add(b.add(cur, out), residual)
    joined = b.add(cur, residual)
    cur = b.norm(joined, block, "ffn_norm", rms)
    cur = feed_forward(b, cur, block, shape)
    cur = b.norm(cur, block, "post_ffw_norm", rms)
    return b.add(cur, joined)


def feed_forward(b: Builder, x: Node, block: int, shape: Shape) -> Node:
    """Dense, or routed experts with what they share."""
    if not b.has(block, "ffn_down_exps"):
        return dense(b, x, block) if b.has(block, "ffn_down") else x
    routing = replace(shape.routing, scale=bool(b.model.get("expert_weights_scale", 0) not in (0, 0.0, 1.0)))
    out = experts(b, x, block, routing)
    if b.has(block, "ffn_down_shexp"):
        shared = dense(b, x, block, "_shexp")
        if b.has(block, "ffn_gate_inp_shexp"):
            gate = b.like("unary", b.mm(x, block, "ffn_gate_inp_shexp", 1))
            shared = b.like("mul", shared, gate)
        out = b.add(out, shared)
    return out


def head(b: Builder, x: Node, shape: Shape) -> None:
    """The last norm and the logits."""
    x = b.norm(x, -1, "output_norm", not b.has(-1, "output_norm.bias"))
    x.is_output = True
    table = b.weight(-1, "output")
    logits = b.make("mul_mat", b.model.vocab_size, table, x, rows=x.rows)
    if shape.softcap or b.model.get("final_logit_softcapping"):
        for op in ("scale", "unary", "scale"):
            logits = b.like(op, logits)
    elif shape.scale_logits:
        logits = b.like("scale", logits)
    logits.is_output = True
    b.graph.expand(logits)


__all__ = ["SHAPES", "Callable", "Mapping", "Shape", "build"]
