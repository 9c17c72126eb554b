"""Gemma 3n and 4: per-layer embeddings, several residual streams, experts beside a dense feed-forward.

Source: llama.cpp b11434, src/models/gemma3n.cpp, gemma4.cpp.
"""

from __future__ import annotations

from fitkit.rules.llamacpp.graph.build import F32, I32, Builder
from fitkit.rules.llamacpp.graph.feedforward import Routing, dense, experts
from fitkit.rules.llamacpp.graph.tensor import TOKENS, Node, form


def per_layer_inputs(b: Builder, x: Node) -> Node:
    """What each block is given of the token besides the stream: all blocks' at once."""
    width = int(b.model.get("embedding_length_per_layer_input", 0)) * len(b.placed.blocks)
    table = b.weight(-1, "per_layer_token_embd")
    rows = b.make("get_rows", width, table, b.input("per_layer_tokens", form(TOKENS, I32)), rows=TOKENS)
    rows = b.like("scale", b.view(rows, width, "reshape"))
    b.graph.expand(rows)
    cur = b.like("scale", b.mm(x, -1, "per_layer_model_proj", width))
    cur = b.norm(b.view(cur, width, "reshape"), -1, "per_layer_proj_norm")
    cur = b.like("scale", b.like("add", cur, rows))
    return b.make("cont", width, b.view(cur, width, "permute"))


def gated_input(b: Builder, x: Node, block: int, inputs: Node) -> Node:
    """The block's own part of the per-layer inputs, gated by the stream, projected and normed."""
    own = int(b.model.get("embedding_length_per_layer_input", 0))
    cur = b.like("unary", b.mm(x, block, "inp_gate"))
    cur = b.like("mul", cur, b.view(inputs, own, "slice"))
    return b.norm(b.mm(cur, block, "proj"), block, "post_norm")


def gemma4_feed_forward(b: Builder, x: Node, block: int) -> Node:
    """Dense, or dense and routed experts side by side, each with its norms."""
    if not b.has(block, "ffn_gate_inp"):
        return dense(b, b.norm(x, block, "ffn_norm"), block)
    plain = b.norm(dense(b, b.norm(x, block, "ffn_norm"), block), block, "post_ffw_norm_1")
    routed = b.norm(x, block, "pre_ffw_norm_2")
    scores = b.like("mul", b.like("scale", b.like("rms_norm", x)), b.weight(block, "ffn_gate_inp.scale"))
    logits = b.mm(scores, block, "ffn_gate_inp")
    moe = experts(b, routed, block, Routing(), logits)
    return b.add(plain, b.norm(moe, block, "post_ffw_norm_2"))


# ---- Gemma 3n -----------------------------------------------------------------------------------------------------------------


def widen(b: Builder, x: Node, streams: int) -> Node:
    """One stream becomes several of equal magnitude."""
    width = b.model.hidden_size
    target = _magnitude(b, x)
    spread = b.make("repeat", width * (streams - 1), x)
    added = b.mm(spread, -1, "altup_proj", width * (streams - 1))
    size = _magnitude(b, added)
    added = b.like("div", b.like("mul", added, target), size)
    return b.make("concat", width * streams, x, added)


def _magnitude(b: Builder, x: Node) -> Node:
    return b.like("unary", b.make("sum_rows", b.floats(x) / b.model.hidden_size, b.like("unary", x)))


def _modalities(b: Builder, x: Node, block: int, streams: int) -> Node:
    cur = b.like("scale", b.norm(x, block, "altup_router_norm"))
    return b.like("unary", b.mm(cur, block, "altup_router", streams))


def predict(b: Builder, x: Node, block: int, streams: int) -> Node:
    """Every stream's next value from all of them."""
    width = b.floats(x)
    chosen = b.view(x, width / streams, "slice")
    coefficients = b.mm(_modalities(b, chosen, block, streams), block, "altup_predict_coef", streams * streams)
    turned = b.make("cont", width, b.view(x, width, "permute"))
    cur = b.make("mul_mat", width, turned, b.view(coefficients, streams * streams, "reshape"))
    cur = b.make("cont", width, b.view(cur, width, "permute"))
    return b.like("add", cur, x)


def laurel(b: Builder, x: Node, block: int) -> Node:
    """A low-rank way past the attention."""
    cur = b.norm(b.mm(b.mm(x, block, "laurel_l"), block, "laurel_r"), block, "laurel_post_norm")
    return b.add(cur, x)


def sparse_feed_forward(b: Builder, x: Node, block: int, sparse: bool) -> Node:
    """Up and gate apart, the gate cut below a quantile in the first blocks."""
    up, gate = b.mm(x, block, "ffn_up"), b.mm(x, block, "ffn_gate")
    if sparse:
        mean = b.make("mean", 1, gate)
        spread = b.like("unary", b.like("sub", gate, mean))
        deviation = b.like("unary", b.like("scale", b.make("sum_rows", 1, spread)))
        cutoff = b.like("add", mean, b.like("scale", deviation))
        gate = b.like("unary", b.like("sub", gate, cutoff))
    gate = b.like("unary", gate)
    return b.mm(b.like("mul", up, gate), block, "ffn_down")


def correct(b: Builder, predictions: Node, active: Node, block: int, streams: int) -> Node:
    """All streams moved by what the active one learned."""
    width = b.floats(active)
    modalities = _modalities(b, active, block, streams)
    news = b.like("sub", active, b.view(predictions, width, "slice"))
    coefficients = b.like("scale", b.mm(modalities, block, "altup_correct_coef", streams))
    coefficients = b.make("cont", streams, b.view(coefficients, streams, "permute"))
    spread = b.make("repeat", width * streams, news)
    return b.like("add", b.like("mul", spread, coefficients), predictions)


def join_first(b: Builder, corrected: Node, block: int, inputs: Node, streams: int) -> Node:
    """The per-layer input is added to all streams but the first."""
    width = b.floats(corrected) / streams
    first = b.like("mul", b.view(corrected, width, "slice"), b.weight(block, "altup_correct_scale"))
    first = gated_input(b, first, block, inputs)
    rest = b.make("add", width * (streams - 1), b.view(corrected, width * (streams - 1), "slice"), first)
    return b.make("concat", width * streams, b.view(corrected, width, "slice"), rest)


def narrow(b: Builder, x: Node, streams: int) -> Node:
    """The streams' mean."""
    width = b.model.hidden_size
    target = _magnitude(b, b.view(x, width, "slice"))
    back = b.mm(b.view(x, width * (streams - 1), "slice"), -1, "altup_unembd_proj", width * (streams - 1))
    size = _magnitude(b, back)
    back = b.like("div", b.like("mul", back, target), size)
    cur = b.view(x, width, "slice")
    for _ in range(streams - 1):
        cur = b.make("add", width, cur, b.view(back, width, "slice"))
    return b.like("scale", cur)


__all__ = [
    "F32",
    "correct",
    "gemma4_feed_forward",
    "join_first",
    "laurel",
    "narrow",
    "per_layer_inputs",
    "predict",
    "widen",
]
