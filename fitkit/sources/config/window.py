"""Decoders some of whose layers see a window or a chunk of the context."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.errors import BadInput
from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds, of_kind
from fitkit.sources.config.moe import EXPERTS, USED, sparse_layers
from fitkit.sources.config.view import Config


def gemma_decoder(config: Config, **defaults: int) -> Decoder:
    """Gemma's defaults: tied, heads of 256."""
    return Decoder.read(config)


@family("gemma", architectures=("GemmaForCausalLM",))
def gemma(config: Config) -> Shape:
    """The first Gemma: full attention, wide heads, tied."""
    d = gemma_decoder(config, context=8192)
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
    d = gemma_decoder(config, context=8192, kv_heads=4)
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
    n = config.whole("num_hidden_layers", default=26)
    d = _gemma3_decoder(config)
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=6, low=0)
    kinds = layer_kinds(config, n, every(n, period, "sliding", "full"), ("full", "sliding"))
    d.embeddings()
    d.attention(bias=config.flag("attention_bias", default=False), qk_norm=(d.head_dim, d.head_dim))
    d.cache(kinds, config.whole("sliding_window", default=4096, low=0))
    d.feed_forward(ffn_dim=config.whole("intermediate_size", default=9216))
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    d.rope(local=True)
    return d.shape("gemma3")


def _gemma3_decoder(config: Config) -> Decoder:
    """Gemma-3's text configs leave out whatever equals the class's defaults (4B: heads, vocabulary)."""
    from fitkit.sources.config.build import Build
    from fitkit.sources.config.view import MOST_LAYERS

    return Decoder(
        config=config,
        build=Build(config.whole("num_hidden_layers", default=26, high=MOST_LAYERS)),
        hidden=config.whole("hidden_size", default=2304),
        vocab=config.whole("vocab_size", default=262208),
        heads=config.whole("num_attention_heads", default=8),
        kv_heads=config.whole("num_key_value_heads", default=4),
        head_dim=config.whole("head_dim", default=256),
        context=config.whole("max_position_embeddings", default=131072),
        tied=config.flag("tie_word_embeddings", default=True),
    )


@family("gemma4_text", architectures=("Gemma4ForCausalLM",))
def gemma4(config: Config) -> Shape:
    """Own head sizes for full layers, shared K/V in the last layers, per-layer inputs (E models), experts beside the MLP (A4B)."""
    d = gemma_decoder(config, context=131072, kv_heads=4)
    n, build = d.build.n, d.build
    kinds = layer_kinds(config, n, (*every(n, 6, "sliding", "full")[:-1], "full"), ("full", "sliding"))
    shared = config.whole("num_kv_shared_layers", default=0, low=0, high=n)
    same = config.flag("attention_k_eq_v", default=False)
    wide_dim = config.whole("global_head_dim", default=512)
    wide_heads = config.whole("num_global_key_value_heads", default=d.kv_heads) if same else d.kv_heads
    window = config.whole("sliding_window", default=512)
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
    per_layer = config.whole("hidden_size_per_layer_input", default=0, low=0)
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


@family("llama4_text", architectures=("Llama4ForCausalLM",))
def llama4(config: Config) -> Shape:
    """Three chunked layers to one full one without rotary positions; experts with a shared one every so many layers."""
    d = Decoder.read(config)
    n = d.build.n
    rotary = config.raw("no_rope_layers")  # 1 where a layer HAS rotary positions
    if not rotary:
        step = config.whole("no_rope_layer_interval", default=4)
        rotary = [int((i + 1) % step != 0) for i in range(n)]
    flags = Config({"no_rope_layers": rotary}, config.place).wholes("no_rope_layers", count=n, high=1)
    kinds = layer_kinds(config, n, ["chunked" if flag else "full" for flag in flags], ("full", "chunked"))
    chunk = config.whole("attention_chunk_size", default=8192, low=0)
    step = config.whole("interleave_moe_layer_step", default=1, low=0)
    listed = config.entries("moe_layers", default=())
    sparse = tuple(listed) if listed else tuple(range(step - 1, n, step)) if step else ()
    if any(not isinstance(i, int) or not 0 <= i < n for i in sparse):
        raise BadInput(f"{config.place}: moe_layers names a layer that is not there.")
    dim = config.whole("intermediate_size", default=8192)
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.cache(kinds, chunk)
    dense = tuple(i for i in range(n) if i not in set(sparse))
    if dense:
        d.feed_forward(
            dense, config.whole("intermediate_size_mlp", default=16384), module="model.layers.{}.feed_forward."
        )
    d.experts(
        sparse, config.whole("num_local_experts", default=16), config.whole("num_experts_per_tok", default=1), dim,
        shared_dim=dim, module="model.layers.{}.feed_forward.", router="router", shared="shared_expert.",
    )  # fmt: skip
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("llama4")


@family("mimo_v2_flash", "mimo_v2", architectures=("MiMoV2FlashForCausalLM",))
def mimo_v2(config: Config) -> Shape:
    """Windows with heads of their own, K and V of different width, sinks, experts without a shared one."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    default = ["full" if i % 6 == 0 else "sliding" for i in range(n)]
    pattern = config.raw("hybrid_layer_pattern")
    if pattern is not None:
        default = ["sliding" if one else "full" for one in config.wholes("hybrid_layer_pattern", count=n, high=1)]
    kinds = layer_kinds(config, n, default, ("full", "sliding"))
    window = config.whole("sliding_window", "sliding_window_size", default=128)
    config.raw("attention_chunk_size"), config.raw("sliding_window_size")  # the window again
    d.embeddings()
    for kind, prefix in (("full", ""), ("sliding", "swa_")):
        layers = of_kind(kinds, kind)
        heads = config.whole(f"{prefix}num_attention_heads", default=d.heads)
        kv_heads = config.whole(f"{prefix}num_key_value_heads", default=8 if prefix else d.kv_heads)
        k_dim = config.whole(f"{prefix}head_dim", default=d.head_dim)
        v_dim = config.whole(f"{prefix}v_head_dim", default=config.whole("v_head_dim", default=128))
        build.attention(
            layers, d.hidden, heads, kv_heads, k_dim, v_dim=v_dim, bias=config.flag("attention_bias", default=False)
        )
        if config.flag(f"add_{'swa' if prefix else 'full'}_attention_sink_bias", default=bool(prefix)):
            build.add("attn_sinks", (heads,), layers, module="model.layers.{}.self_attn.attention_sink_bias")
        build.keep(
            Cache(kind="full", kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim)
            if kind == "full"
            else Cache(kind="sliding", kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim, window=window),
            layers,
        )
    dense, sparse = sparse_layers(config, n)
    if dense:
        d.feed_forward(dense)
    d.experts(
        sparse, config.whole(*EXPERTS), config.whole(*USED), config.whole("moe_intermediate_size"), correction=True
    )
    d.norms("attn_norm", "ffn_norm")
    d.rope(partial=0.334, local=True)
    return d.shape("mimo2", router_dtype="F32", dense_layers=len(dense))


@family("step3p7", "step3p5", "step3p7_text", architectures=("Step3p7FlashForCausalLM", "Step3p5ForCausalLM"))
def step3(config: Config) -> Shape:
    """Windows with more query heads than the full layers, a gate a head, experts with a shared one after the dense layers."""
    d = Decoder.read(config)
    n = d.build.n
    kinds = layer_kinds(config, n, ["sliding" if i % 4 else "full" for i in range(n)], ("full", "sliding"))
    window = config.whole("sliding_window", default=512)
    other = config.view("attention_other_setting")
    wide = other.whole("num_attention_heads", default=d.heads) if other else d.heads
    wide = config.whole("num_sliding_attention_heads", default=wide)
    gate = config.flag("use_head_wise_attn_gate", default=True)
    dense, sparse = step_sparse(config, n)

    def block(one: Decoder, layers: Sequence[int], heads: int) -> None:
        one.build.attention(layers, one.hidden, heads, one.kv_heads, one.head_dim, qk_norm=(one.head_dim, one.head_dim))
        if gate:
            one.build.add("attn_gate", (one.hidden, heads), layers, module="model.layers.{}.self_attn.g_proj")

    d.embeddings()
    block(d, of_kind(kinds, "full"), d.heads)
    block(d, of_kind(kinds, "sliding"), wide)
    d.cache(kinds, window)
    if dense:
        d.feed_forward(dense)
    d.experts(
        sparse, config.whole("moe_num_experts", *EXPERTS, default=288), config.whole("moe_top_k", *USED, default=8),
        config.whole("moe_intermediate_size", default=1280), correction=True, shared_dim=config.whole("share_expert_dim", default=1280),
        module="model.layers.{}.moe.", shared="share_expert.",
    )  # fmt: skip
    d.norms("attn_norm", "ffn_norm")
    d.rope(local=True)

    def mtp(one: Decoder, layers: range) -> None:
        block(one, layers, wide)
        one.feed_forward(layers)
        one.norms("attn_norm", "ffn_norm", layers=layers)
        one.build.add(
            "nextn.shared_head_head", (one.hidden, one.vocab), layers, module="model.layers.{}.shared_head.output"
        )

    d.mtp(config.whole("num_nextn_predict_layers", default=0, low=0), mtp)
    return d.shape("step35", router_dtype="F32", dense_layers=len(dense))


def step_sparse(config: Config, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Step's expert layers: listed as a text of numbers, or the usual keys."""
    listed = config.raw("moe_layers_enum")
    if listed is None:
        return sparse_layers(config, n)
    words = listed.split(",") if isinstance(listed, str) else listed
    numbers = {int(word) for word in words if str(word).strip().isdigit()}
    return tuple(i for i in range(n) if i not in numbers), tuple(i for i in range(n) if i in numbers)
