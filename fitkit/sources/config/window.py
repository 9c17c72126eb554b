"""Other decoders some of whose layers see a window or a chunk of the context."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.errors import BadInput, UnsupportedModel
from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds, of_kind
from fitkit.sources.config.moe import EXPERTS, USED, sparse_layers
from fitkit.sources.config.view import Config


@family("exaone4", architectures=("Exaone4ForCausalLM",))
def exaone4(config: Config) -> Shape:
    """Norms behind both halves; the larger ones have windows in three layers of four, the last layer is full."""
    d = Decoder.read(config)
    n = d.build.n
    window = config.nullable("sliding_window", 4096)
    said = config.raw("sliding_window_pattern", default=4 if window else 0)
    default: tuple[str, ...] = ("full",) * n
    if isinstance(said, str):  # "LLLG": local and global layers in turn
        default = (
            tuple("full" if said[i % len(said)] == "G" or i == n - 1 else "sliding" for i in range(n))
            if said
            else default
        )
    elif window:
        default = (*every(n, config.whole("sliding_window_pattern", default=4, low=0), "sliding", "full")[:-1], "full")
    kinds = layer_kinds(config, n, default, ("full", "sliding"))
    d.embeddings()
    d.attention(qk_norm=(d.head_dim, d.head_dim))
    d.cache(kinds, window)
    d.feed_forward()
    d.norms("post_attention_norm", "post_ffw_norm")
    d.rope()
    return d.shape("exaone4")


@family("cohere2", architectures=("Cohere2ForCausalLM",))
def cohere2(config: Config) -> Shape:
    """Parallel halves behind one norm, tied; windows in three layers of four."""
    d = Decoder.read(config)
    n = d.build.n
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=4, low=0)
    kinds = layer_kinds(config, n, every(n, period, "sliding", "full"), ("full", "sliding"))
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.cache(kinds, config.nullable("sliding_window", 4096))
    d.feed_forward()
    d.norms("attn_norm")
    d.rope()
    return d.shape("cohere2")


@family("muse_glimmer_text", architectures=("MuseGlimmerForCausalLM",))
def muse_glimmer(config: Config) -> Shape:
    """A gate as wide as q, four norms; every fourth layer counted from the last is full, the others have windows."""
    d = Decoder.read(config)
    n = d.build.n
    window = config.nullable("sliding_window", 2048)
    kinds = layer_kinds(config, n, ["sliding" if (n - 1 - i) % 4 else "full" for i in range(n)], ("full", "sliding"))
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.build.add("attn_gate", (d.hidden, d.heads * d.head_dim), d.all, module="model.layers.{}.self_attn.gate_proj")
    d.cache(kinds, window)
    d.feed_forward()
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    d.rope()
    return d.shape("muse-glimmer")


def granite_windows(d: Decoder) -> None:
    """Everything but the feed-forward of Granite's windowed models."""
    config, n = d.config, d.build.n
    kinds = layer_kinds(config, n, ["sliding" if i % 4 else "full" for i in range(n)], ("full", "sliding"))
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.build.add("attn_sinks", (d.heads,), d.all, module="model.layers.{}.self_attn.sinks")
    d.cache(kinds, config.nullable("sliding_window", 128))
    d.norms("attn_norm", "ffn_norm")
    d.rope()


@family("granite_swa", architectures=("GraniteSWAForCausalLM",))
def granite_swa(config: Config) -> Shape:
    """Granite with windows in three layers of four, the first full, and attention sinks."""
    d = Decoder.read(config)
    granite_windows(d)
    d.feed_forward(bias=config.flag("mlp_bias", default=False))
    return d.shape("granite_swa")


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


@family("step3p7", "step3p5", architectures=("Step3p7FlashForCausalLM", "Step3p5ForCausalLM"))
def step3(config: Config) -> Shape:
    """Windows with more query heads than the full layers, a gate a head, experts with a shared one after the dense layers."""
    if "text_config" in config:
        raise UnsupportedModel(
            f"{config.place}: Step 3 with its tower for pictures is not modelled; its text_config alone is."
        )
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
