"""Gemma: wide heads, tied, four norms from the second on; windows, shared K and V, inputs a layer."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds, of_kind
from fitkit.sources.config.view import Config


@family("gemma", architectures=("GemmaForCausalLM",))
def gemma(config: Config) -> Shape:
    """The first Gemma: full attention, wide heads, tied."""
    d = Decoder.read(config)
    d.embeddings()
    d.attention(bias=config.flag("attention_bias", default=False))
    d.cache()
    d.feed_forward()
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("gemma")


@family("gemma2", architectures=("Gemma2ForCausalLM",))
def gemma2(config: Config) -> Shape:
    """Windows on the even layers, four norms."""
    d = Decoder.read(config)
    config.raw("sliding_window_size", "cache_implementation")  # other words for the same window
    d.embeddings()
    d.attention(bias=config.flag("attention_bias", default=False))
    kinds = layer_kinds(config, d.build.n, every(d.build.n, 2, "sliding", "full"), ("full", "sliding"))
    d.cache(kinds, config.whole("sliding_window", default=4096, low=0))
    d.feed_forward()
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    d.rope()
    return d.shape("gemma2")


@family("gemma3_text", architectures=("Gemma3ForCausalLM",))
def gemma3(config: Config) -> Shape:
    """Five windows to one full layer, four norms, norms on q and k; Gemma3TextConfig's defaults where a file is silent."""
    d = Decoder.read(config)
    n = d.build.n
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=6, low=0)
    kinds = layer_kinds(config, n, every(n, period, "sliding", "full"), ("full", "sliding"))
    d.embeddings()
    d.attention(bias=config.flag("attention_bias", default=False), qk_norm=(d.head_dim, d.head_dim))
    d.cache(kinds, config.whole("sliding_window", default=4096, low=0))
    d.feed_forward()
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    d.rope(local=True)
    return d.shape("gemma3")


@family("gemma4_text", "gemma4_unified_text", architectures=("Gemma4ForCausalLM",))
def gemma4(config: Config) -> Shape:
    """Own head sizes for full layers, shared K/V in the last layers, per-layer inputs (E models), experts beside the MLP (A4B)."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    unified = config.text("model_type", default="") == "gemma4_unified_text"  # no inputs a layer, a wider window
    kinds = layer_kinds(config, n, (*every(n, 6, "sliding", "full")[:-1], "full"), ("full", "sliding"))
    shared = config.whole("num_kv_shared_layers", default=0, low=0, high=n)
    same = config.flag("attention_k_eq_v", default=False)
    wide_dim = config.whole("global_head_dim", default=512)
    wide_heads = config.whole("num_global_key_value_heads", default=d.kv_heads) if same else d.kv_heads
    window = config.whole("sliding_window", default=1024 if unified else 512)
    d.embeddings()
    for kind, dim, kv_heads in (("sliding", d.head_dim, d.kv_heads), ("full", wide_dim, wide_heads)):
        layers = of_kind(kinds, kind)
        owning = tuple(i for i in layers if i < n - shared)
        has_v = layers if kind == "sliding" or not same else ()
        _gemma4_attention(d, layers, has_v, kv_heads, dim)
        cache = Cache(kind="sliding", kv_heads=kv_heads, k_dim=dim, v_dim=dim, window=window) if kind == "sliding" else Cache(kind="full", kv_heads=kv_heads, k_dim=dim, v_dim=dim)  # fmt: skip
        build.keep(cache, owning)
    ffn = config.whole("intermediate_size")
    double = config.flag("use_double_wide_mlp", default=False)
    d.feed_forward(range(n - shared), ffn)
    d.feed_forward(range(n - shared, n), ffn * (2 if double else 1))
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    build.add("layer_output_scale", (1,), d.all, module="model.layers.{}.layer_scalar")
    if config.flag("enable_moe_block", default=False):
        _gemma4_experts(d)
    per_layer = config.nullable("hidden_size_per_layer_input", 0 if unified or not config.nested else 256)
    per_layer_inputs(d, per_layer, config.whole("vocab_size_per_layer_input", default=d.vocab) if per_layer else 0)
    d.rope()
    full = [wide_dim if kind == "full" else d.head_dim for kind in ("full", "sliding")]
    d.extra["rope_tables"] = tuple((d.context, width, "") for width in full)
    d.extra["rope_positions"], d.extra["rope_dim"] = d.context, wide_dim
    return d.shape("gemma4", shared_kv_layers=shared)


def _gemma4_attention(d: Decoder, layers: Sequence[int], has_v: Sequence[int], kv_heads: int, dim: int) -> None:
    """Projections of one kind of layer; V is K's own where `has_v` leaves a layer out."""
    module = "model.layers.{}.self_attn."
    build = d.build
    build.add("attn_q", (d.hidden, d.heads * dim), layers, module=module + "q_proj")
    build.add("attn_k", (d.hidden, kv_heads * dim), layers, module=module + "k_proj")
    build.add("attn_v", (d.hidden, kv_heads * dim), has_v, module=module + "v_proj")
    build.add("attn_output", (d.heads * dim, d.hidden), layers, module=module + "o_proj")
    build.add("attn_q_norm", (dim,), layers, module=module + "q_norm")
    build.add("attn_k_norm", (dim,), layers, module=module + "k_norm")
    build.wide(layers, heads=d.heads)


def _gemma4_experts(d: Decoder) -> None:
    """Routed experts beside the dense feed-forward of every layer, with norms of their own."""
    config, build = d.config, d.build
    experts = config.whole("num_experts")
    d.experts(
        d.all,
        experts,
        config.whole("top_k_experts", "num_experts_per_tok"),
        config.whole("moe_intermediate_size", "expert_intermediate_size"),
        module="model.layers.{}.",
        router="router.proj",
    )
    build.add("ffn_gate_inp.scale", (d.hidden,), d.all, module="model.layers.{}.router.scale")
    build.add("ffn_down_exps.scale", (experts,), d.all, module="model.layers.{}.router.per_expert_scale")
    d.norms("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")


def per_layer_inputs(d: Decoder, width: int, vocab: int) -> None:
    """Gemma 3n's and 4 E's second embedding: `width` values for each layer and token, gated into it."""
    if not width:
        return
    n, build, module = d.build.n, d.build, "model.layers.{}."
    build.add("per_layer_token_embd", (n * width, vocab), module="model.embed_tokens_per_layer")
    build.add("per_layer_model_proj", (d.hidden, n * width), module="model.per_layer_model_projection")
    build.add("per_layer_proj_norm", (width,), module="model.per_layer_projection_norm")
    build.add("inp_gate", (d.hidden, width), d.all, module=module + "per_layer_input_gate")
    build.add("proj", (width, d.hidden), d.all, module=module + "per_layer_projection")
    d.norms("post_norm")
    d.extra["per_layer_input_dim"] = width


@family("gemma3n_text", architectures=("Gemma3nForCausalLM",))
def gemma3n(config: Config) -> Shape:
    """Four parallel streams (AltUp), a low-rank shortcut (Laurel), per-layer inputs; the last layers reuse K and V."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    kinds = layer_kinds(config, n, every(n, 5, "sliding", "full"), ("full", "sliding"))
    shared = config.whole("num_kv_shared_layers", default=15, low=0, high=n)
    widths = config.wholes("intermediate_size", count=n, low=1, default=16384)
    d.embeddings()
    d.attention(qk_norm=(d.head_dim, d.head_dim))
    window = config.whole("sliding_window", default=512)
    for kind in ("full", "sliding"):
        cache = Cache(
            kind=kind,
            kv_heads=d.kv_heads,
            k_dim=d.head_dim,
            v_dim=d.head_dim,
            window=window if kind == "sliding" else 0,
        )
        build.keep(cache, [i for i in of_kind(kinds, kind) if i < n - shared])
    for width in sorted(set(widths)):
        d.feed_forward([i for i in range(n) if widths[i] == width], width)
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    altup, rank = config.whole("altup_num_inputs", default=4), config.whole("laurel_rank", default=64)
    module = "model.layers.{}."
    for role, shape, name in (
        ("altup_correct_coef", (altup, altup), "altup.correction_coefs"),
        ("altup_correct_scale", (d.hidden,), "altup.correct_output_scale"),
        ("altup_predict_coef", (altup, altup * altup), "altup.prediction_coefs"),
        ("altup_router", (d.hidden, altup), "altup.modality_router"),
        ("altup_router_norm", (d.hidden,), "altup.router_norm"),
        ("laurel_l", (d.hidden, rank), "laurel.linear_left"),
        ("laurel_r", (rank, d.hidden), "laurel.linear_right"),
        ("laurel_post_norm", (d.hidden,), "laurel.post_laurel_norm"),
    ):
        build.add(role, shape, d.all, module=module + name)
    for role, name in (("altup_proj", "altup_projections"), ("altup_unembd_proj", "altup_unembed_projections")):
        build.add(role, (d.hidden, d.hidden, altup - 1), module=f"model.{name}")
    per_layer = config.whole("hidden_size_per_layer_input", default=256, low=0)
    per_layer_inputs(d, per_layer, config.whole("vocab_size_per_layer_input", default=262144) if per_layer else 0)
    d.rope(local=True)
    return d.shape("gemma3n", shared_kv_layers=shared, altup_inputs=altup)
