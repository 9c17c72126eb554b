"""Whole models: embeddings, blocks, head. What differs between architectures is a row of SHAPES or a small function in BLOCKS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fitkit.rules.llamacpp.flash import Heads, heads_at_once
from fitkit.rules.llamacpp.graph import gemma, latent, states
from fitkit.rules.llamacpp.graph.attention import attend, attend_at_once
from fitkit.rules.llamacpp.graph.build import F32, I32, I64, Builder
from fitkit.rules.llamacpp.graph.feedforward import Routing, dense, experts
from fitkit.rules.llamacpp.graph.shapes import Shape, shape_of
from fitkit.rules.llamacpp.graph.tensor import TOKENS, Node, form
from fitkit.rules.llamacpp.versions import has


@dataclass(slots=True)
class Run:
    """A graph being written: what blocks hand on besides the stream."""

    b: Builder
    shape: Shape
    inputs: Node | None = None  # per-layer inputs
    embedded: Node | None = None
    first_value: list[Node] | None = None


Block = Callable[[Run, Node, int, bool], Node]


def build(b: Builder, blocks: list[int]) -> None:
    """The whole graph, of these blocks only (a layer like another adds nothing to a peak)."""
    run = Run(b, shape_of(b), first_value=[])
    x = embed(run)
    if b.has(-1, "per_layer_token_embd"):
        run.inputs = gemma.per_layer_inputs(b, x)
    arch = b.model.gguf_architecture
    streams = int(b.model.get("altup.num_inputs", 4) or 4) if arch == "gemma3n" else 0
    if streams:
        x = gemma.widen(b, x, streams)
    if arch.startswith("rwkv"):
        x = b.norm(x, -1, "token_embd_norm", rms=False)
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1 and not run.shape.late_rows
        x = _block(run, x, block, last)
    head(run, gemma.narrow(b, x, streams) if streams else x)


def _block(run: Run, x: Node, block: int, last: bool) -> Node:
    arch = run.b.model.gguf_architecture
    if arch == "gemma3n":
        return gemma3n_block(run, x, block)
    if arch == "gemma4":
        return gemma4_block(run, x, block)
    if arch.startswith("rwkv"):
        assert run.first_value is not None
        return states.rwkv7(run.b, x, block, run.first_value, last)
    return decoder_block(run, x, block, last)


def embed(run: Run) -> Node:
    """Tokens, vectors, or both: all three ways are in the graph, one is used. Source: llama-graph.cpp, build_inp_embd."""
    b, shape = run.b, run.shape
    own = b.model.hidden_size
    width = own * (1 + int(b.model.get("n_deepstack_layers", 0) or 0))
    table = b.weight(-1, "token_embd")
    x = b.make("get_rows", own, table, b.input("tokens", form(TOKENS, I32)), rows=TOKENS)
    x = b.make("pad", width, x) if width != own else x
    b.graph.expand(x)
    b.graph.expand(b.input("vectors", form(TOKENS, width * F32)))
    if shape.mixed_batches and has(b.settings.build, "mixed_batches"):
        mixed = b.make("get_rows", own, table, b.input("mixed_tokens", form(TOKENS, I32)), rows=TOKENS)
        mixed = b.make("pad", width, mixed) if width != own else mixed
        copy = b.make("dup", width, b.input("mixed_vectors", form(TOKENS, width * F32)), rows=TOKENS)
        joined = b.make("set_rows", width, mixed, b.input("mixed_slots", form(TOKENS, I64)), copy)
        joined.root = copy
        b.graph.expand(joined)
    if width != own:
        x = b.view(x, own)
        x.size = form(TOKENS, width * F32)  # a row's stride, which a copy keeps
    run.embedded = x
    if b.model.get("embedding_scale") or shape.plain_scale:
        x = b.like("scale", x)
    if shape.scaled_embeddings:
        x = b.like("mul", x, b.input("row_scales", form(TOKENS, F32)))
    b.graph.expand(x)
    if b.has(-1, "token_embd_norm") and shape.embedding_norm:
        x = b.norm(x, -1, "token_embd_norm", not shape.layer_norm)
    if b.has(-1, "position_embd"):
        at = b.make(
            "get_rows", own, b.weight(-1, "position_embd"), b.input("positions", form(TOKENS, I32)), rows=TOKENS
        )
        x = b.like("add", x, at)
    return x


def heads_in(b: Builder, block: int) -> tuple[Heads, bool] | None:
    """A block's attention heads and whether it slides."""
    layer = b.model.layers[block]
    for cache in layer.caches:
        if cache.kind in ("full", "sliding", "chunked"):
            return Heads(layer.heads, max(1, cache.kv_heads), cache.k_dim, cache.v_dim), cache.kind != "full"
    return None


def mix(run: Run, x: Node, block: int) -> Node | None:
    """A block's token mixing: attention of its kind, a recurrence, or both; None where it has none."""
    b = run.b
    layer = b.model.layers[block]
    if any(cache.kind == "latent" for cache in layer.caches):
        return latent.attend_latent(b, x, block, run.shape.rope)
    state = states.state_of(b, block)
    found = heads_in(b, block)
    if found and b.has(block, "attn_kv_b"):
        return latent.attend_unfolded(b, x, block, found[0])
    own = attend(b, x, block, found[0], found[1], run.shape) if found else None
    at_once = None if layer.caches else heads_at_once(b.model)
    if at_once is not None and b.has(block, "attn_output"):
        own = attend_at_once(b, x, block, at_once, run.shape)
    if state is None:
        return own
    if state.variant == "mamba1":
        scanned = states.mamba1(b, x, block)
    elif state.variant == "shortconv":
        return states.short_convolution(b, x, block)
    elif state.variant == "kda":
        return states.kimi_delta(b, x, block)
    elif state.variant == "gdn":
        scanned = states.delta_net(b, x, block, b.model.gguf_architecture == "qwen3next")
    elif b.has(block, "ssm_in"):
        scanned = states.mamba2(b, x, block)
    else:
        return own
    return b.add(own, scanned) if own else scanned


def decoder_block(run: Run, x: Node, block: int, last: bool) -> Node:
    """Norm, mixing, residual, norm, feed-forward, residual."""
    b, shape = run.b, run.shape
    rms = not shape.layer_norm
    residual = x
    logits = b.mm(x, block, "ffn_gate_inp") if shape.routed_before else None
    normed = b.norm(x, block, "attn_norm", rms)
    if shape.norm_at_once:
        b.graph.expand(normed)
    cur = mix(run, b.norm(x, block, "attn_norm_2", rms) if b.has(block, "attn_norm_2") else normed, block)
    has_ff = b.has(block, "ffn_down") or b.has(block, "ffn_down_exps")
    if cur is None:  # a feed-forward of its own (Nemotron-H)
        cur = feed_forward(run, normed, block)
        return b.add(cur, residual)
    before_ff = "ffn_norm"
    if not b.has(block, "ffn_norm") and has_ff and b.has(block, "post_attention_norm") and not shape.post_norms:
        before_ff = "post_attention_norm"
    else:
        cur = b.norm(cur, block, "post_attention_norm", rms)
    if last:
        cur, residual = b.rows_out(cur), b.rows_out(residual)
        normed = b.rows_out(normed) if shape.parallel else normed
        logits = b.rows_out(logits) if logits else None
    if shape.parallel:
        return _parallel(run, cur, normed, residual, block)
    if shape.residual_scale:
        cur = b.like("scale", cur)
    joined = b.add(residual, cur) if shape.residual_first else b.add(cur, residual)
    if not has_ff:
        return joined
    cur = feed_forward(run, b.norm(joined, block, before_ff, rms), block, logits)
    cur = b.norm(cur, block, "post_ffw_norm", rms)
    if shape.residual_scale:
        cur = b.like("scale", cur)
    out = b.add(joined, cur) if shape.residual_first or shape.last_residual_first else b.add(cur, joined)
    return _deepstack(run, out, block)


def _parallel(run: Run, mixed: Node, normed: Node, residual: Node, block: int) -> Node:
    """Attention and feed-forward from one norm, summed in the architecture's order."""
    b = run.b
    out = feed_forward(run, b.norm(normed, block, "ffn_norm", not run.shape.layer_norm), block)
    if run.shape.parallel == "residual":
        return b.add(b.add(out, residual), mixed)
    if run.shape.parallel == "mixed":
        return b.add(b.add(mixed, out), residual)
    return b.add(b.add(out, mixed), residual)


def _deepstack(run: Run, x: Node, block: int) -> Node:
    """Picture features are added to the first blocks' results, read from the embeddings."""
    b = run.b
    if block >= int(b.model.get("n_deepstack_layers", 0) or 0) or run.embedded is None:
        return x
    width = b.model.hidden_size * (1 + int(b.model.get("n_deepstack_layers", 0)))
    part = b.view(run.embedded, b.model.hidden_size)
    part.size = form(TOKENS, width * F32)
    return b.like("add", x, part)


def feed_forward(run: Run, x: Node, block: int, logits: Node | None = None) -> Node:
    """Dense, or routed experts with what they share; `logits` are the router's scores where they are made earlier."""
    b, shape = run.b, run.shape
    if not b.has(block, "ffn_down_exps"):
        return dense(b, x, block)
    scale = b.model.get("expert_weights_scale", 0) not in (0, 0.0, 1.0)
    sigmoid = shape.routing.sigmoid or b.model.get("expert_gating_func", 0) == 2
    routing: Routing = replace(shape.routing, scale=bool(scale), sigmoid=sigmoid)
    shared = b.has(block, "ffn_down_shexp")
    logits = b.mm(x, block, "ffn_gate_inp") if shape.logits_first else logits
    out = experts(b, x, block, routing, logits)
    if b.has(block, "ffn_down") and not shared:  # dense beside routed (Arctic, Snowflake)
        return b.add(out, dense(b, x, block))
    if not shared:
        return out
    beside = dense(b, x, block, "_shexp")
    if b.has(block, "ffn_gate_inp_shexp"):
        gate = b.like("unary", b.mm(x, block, "ffn_gate_inp_shexp", 1))
        beside = b.like("mul", beside, gate)
    return b.add(out, beside)


def gemma4_block(run: Run, x: Node, block: int) -> Node:
    """Norms before and after; values normed; per-layer inputs at the end."""
    b = run.b
    cur = attend(
        b,
        b.norm(x, block, "attn_norm"),
        block,
        *shared_heads(b, block),
        run.shape,
        shared=not b.model.layers[block].caches,
    )
    joined = b.add(b.norm(cur, block, "post_attention_norm"), x)
    cur = b.norm(gemma.gemma4_feed_forward(b, joined, block), block, "post_ffw_norm")
    cur = b.add(cur, joined)
    if run.inputs is not None:
        cur = b.like("add", cur, gemma.gated_input(b, cur, block, run.inputs))
    if b.has(block, "layer_output_scale"):
        cur = b.like("mul", cur, b.weight(block, "layer_output_scale"))
    return cur


def gemma3n_block(run: Run, x: Node, block: int) -> Node:
    """Predict, attend and go past it, feed forward, correct."""
    b = run.b
    streams = int(b.model.get("altup.num_inputs", 4) or 4)
    width = b.model.hidden_size
    predictions = gemma.predict(b, x, block, streams)
    active = b.view(predictions, width, "slice")
    normed = b.norm(active, block, "attn_norm")
    past = gemma.laurel(b, normed, block)
    cur = attend(b, normed, block, *shared_heads(b, block), run.shape, shared=not b.model.layers[block].caches)
    cur = b.make("add", width, b.norm(cur, block, "post_attention_norm"), active)
    joined = b.like("scale", b.add(cur, past))
    sparse = bool(
        (b.model.get("activation_sparsity_scale") or (0,))[
            block % len(b.model.get("activation_sparsity_scale") or (0,))
        ]
    )
    cur = gemma.sparse_feed_forward(b, b.norm(joined, block, "ffn_norm"), block, sparse)
    cur = b.add(b.norm(cur, block, "post_ffw_norm"), joined)
    assert run.inputs is not None
    return gemma.join_first(b, gemma.correct(b, predictions, cur, block, streams), block, run.inputs, streams)


def shared_heads(b: Builder, block: int) -> tuple[Heads, bool]:
    """A block's heads; those of the last block of its kind that owns a cache where it shares one."""
    found = heads_in(b, block)
    if found:
        return found
    own = heads_in(b, b.owner(block))
    if own is None:
        raise ValueError(f"block {block} shares no cache")
    return replace(own[0], heads=b.model.layers[block].heads or own[0].heads), own[1]


def head(run: Run, x: Node) -> None:
    """The last norm and the logits."""
    b, shape = run.b, run.shape
    if b.model.gguf_architecture == "gemma3n":
        x = b.rows_out(x)
    norm = "token_embd_norm" if b.model.gguf_architecture.startswith("lfm2") else "output_norm"
    x = b.norm(x, -1, norm, not shape.layer_norm)
    x.is_output = True
    if shape.late_rows:
        x = b.rows_out(x)
        x.is_output = True
    if shape.scale_before_head:
        x = b.like("scale", x)
    table = b.weight(-1, "output" if b.has(-1, "output") else "token_embd")
    table.device = b.device(len(b.placed.blocks))
    logits = b.make("mul_mat", b.model.vocab_size, table, x, rows=x.rows)
    if b.has(-1, "output.bias"):
        logits = b.like("add", logits, b.weight(-1, "output.bias"))
    if b.model.get("final_logit_softcapping"):
        for op in ("scale", "unary", "scale"):
            logits = b.like(op, logits)
    elif b.model.get("logit_scale"):
        logits = b.like("scale", logits)
    logits.is_output = True
    b.graph.expand(logits)
