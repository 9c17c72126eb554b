"""What tells one decoder's graph from another besides the weights it has: one row an architecture.

Source: llama.cpp b11434, src/models/*.cpp; an architecture without a row is Llama-like.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from fitkit.rules.llamacpp.graph.build import Builder
from fitkit.rules.llamacpp.graph.feedforward import Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Switches of the common decoder."""

    rope: bool = True
    rope_only_sliding: bool = False
    scaled_query: bool = False
    normed_values: bool = False
    layer_norm: bool = False  # not RMS
    post_norms: bool = False  # post_attention_norm comes after attention, though there is no ffn_norm
    scaled_embeddings: bool = False  # a factor a row
    plain_scale: bool = False
    embedding_norm: bool = False
    mixed_batches: bool = True
    late_rows: bool = False  # all rows reach the last norm
    parallel: Literal["", "feed_forward", "mixed", "residual"] = (
        ""  # what is summed first with the feed-forward's result
    )
    residual_first: bool = False
    last_residual_first: bool = False
    residual_scale: bool = False
    scale_before_head: bool = False
    norm_at_once: bool = False  # the first norm is put into the graph before anything of the mixing
    logits_first: bool = False  # the router's scores are made outside
    routed_before: bool = False  # of what comes into the block
    routing: Routing = field(default_factory=Routing)


_LATE = Shape(late_rows=True)
_DELTA = Shape(late_rows=True, norm_at_once=True)
_GEMMA = Shape(scaled_embeddings=True, scaled_query=True)
_LAYER_NORM = Shape(layer_norm=True)
SHAPES: dict[str, Shape] = {
    "plamo": Shape(parallel="feed_forward"), "smallthinker": Shape(routed_before=True),
    "afmoe": Shape(plain_scale=True, rope_only_sliding=True),
    "bailingmoe3": _LATE, "cohere2moe": replace(_LATE, parallel="feed_forward"), "hy_v3": _LATE, "gpt-oss": replace(_LATE, post_norms=False, routing=Routing(late_softmax=True, norm=False)),
    "qwen35": _DELTA, "qwen35moe": _DELTA, "qwen3next": _DELTA, "step35": _LATE,
    "nemotron_h": replace(_LATE, rope=False), "nemotron_h_moe": replace(_LATE, rope=False, logits_first=True),
    "gemma": _GEMMA, "gemma2": replace(_GEMMA, post_norms=True), "gemma3": replace(_GEMMA, post_norms=True),
    "gemma3n": Shape(scaled_embeddings=True, normed_values=True),
    "gemma4": Shape(scaled_embeddings=True, normed_values=True, late_rows=True),
    "falcon": replace(_LAYER_NORM, parallel="feed_forward"), "command-r": replace(_LAYER_NORM, parallel="residual"),
    "cohere2": replace(_LAYER_NORM, parallel="residual", rope_only_sliding=True),
    "phi2": replace(_LAYER_NORM, parallel="mixed", scaled_query=True),
    "phi3": Shape(scaled_query=True, last_residual_first=True), "phimoe": Shape(scaled_query=True, last_residual_first=True),
    "gpt2": replace(_LAYER_NORM, rope=False), "starcoder": replace(_LAYER_NORM, rope=False), "starcoder2": _LAYER_NORM,
    "bloom": replace(_LAYER_NORM, rope=False, embedding_norm=True), "mpt": replace(_LAYER_NORM, rope=False),
    "codeshell": _LAYER_NORM, "dbrx": _LAYER_NORM, "gptneox": replace(_LAYER_NORM, parallel=""), "jais": replace(_LAYER_NORM, rope=False),
    "jais2": _LAYER_NORM, "nemotron": _LAYER_NORM, "olmo": _LAYER_NORM, "orion": _LAYER_NORM, "stablelm": _LAYER_NORM,
    "kimi-linear": Shape(norm_at_once=True, rope=False),
    "rwkv7": _LAYER_NORM, "rwkv6": _LAYER_NORM, "refact": Shape(rope=False),
    "jamba": Shape(rope=False, residual_first=True, routing=Routing(norm=False)),
    "minicpm3": Shape(plain_scale=True, residual_scale=True, scale_before_head=True),
    "granite": Shape(residual_scale=True), "granitemoe": Shape(residual_scale=True),
    "granitehybrid": Shape(residual_scale=True), "minicpm": Shape(residual_scale=True),
    "glm4": Shape(post_norms=True),
    "llama4": Shape(routing=Routing(weigh_before=True, norm=False, sigmoid=True)),
    "olmo2": Shape(post_norms=True), "exaone4": Shape(post_norms=True),
    "cogvlm": Shape(mixed_batches=False), "deepseek4": Shape(mixed_batches=False),
}  # fmt: skip


def shape_of(b: Builder) -> Shape:
    """The architecture's row."""
    return SHAPES.get(b.model.gguf_architecture, Shape())
