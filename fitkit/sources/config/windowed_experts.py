"""Mixture-of-experts decoders with windows."""

from __future__ import annotations

from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds
from fitkit.sources.config.moe import EXPERT_DIM, EXPERTS, USED, shared_experts, sparse_layers
from fitkit.sources.config.view import Config
from fitkit.sources.config.window import granite_windows


@family("exaone_moe", architectures=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"))
def exaone_moe(config: Config) -> Shape:
    """Windows in three layers of four, norms on q and k; experts with a shared one; an MTP block."""
    d = Decoder.read(config)
    n = d.build.n
    said = config.raw("sliding_window_pattern", default=4)
    default = (
        tuple("full" if said[i % len(said)] == "G" else "sliding" for i in range(n))
        if isinstance(said, str) and said
        else every(n, config.whole("sliding_window_pattern", default=4, low=0), "sliding", "full")
    )
    kinds = layer_kinds(config, n, default, ("full", "sliding"))
    dense, sparse = sparse_layers(config, n)
    d.embeddings()
    d.attention(qk_norm=(d.head_dim, d.head_dim))
    d.cache(kinds, config.nullable("sliding_window", 4096))
    if dense:
        d.feed_forward(dense)
    shared_experts(d, sparse)
    d.norms("attn_norm", "ffn_norm")
    d.rope()

    def mtp(one: Decoder, layers: range) -> None:
        one.attention(layers, qk_norm=(one.head_dim, one.head_dim))
        one.feed_forward(layers)
        one.norms("attn_norm", "ffn_norm", layers=layers)

    d.mtp(config.whole("num_nextn_predict_layers", default=0, low=0), mtp)
    return d.shape("exaone-moe", dense_layers=len(dense))


@family("afmoe", architectures=("AfmoeForCausalLM",))
def afmoe(config: Config) -> Shape:
    """Trinity: windows in three layers of four, a gate as wide as q, four norms, experts with shared ones."""
    d = Decoder.read(config)
    n = d.build.n
    period = config.whole("global_attn_every_n_layers", default=4, low=0)
    kinds = layer_kinds(config, n, every(n, period, "sliding", "full"), ("full", "sliding"))
    dense, sparse = sparse_layers(config, n)
    d.embeddings()
    d.attention(qk_norm=(d.head_dim, d.head_dim))
    d.build.add("attn_gate", (d.hidden, d.heads * d.head_dim), d.all, module="model.layers.{}.self_attn.gate_proj")
    d.cache(kinds, config.nullable("sliding_window", 1024))
    if dense:
        d.feed_forward(dense)
    width = config.whole(*EXPERT_DIM)
    d.experts(
        sparse, config.whole(*EXPERTS), config.whole(*USED), width, correction=True, router="router.gate",
        shared_dim=width * config.whole("num_shared_experts", default=1, low=0),
    )  # fmt: skip
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    d.rope()
    return d.shape("afmoe", dense_layers=len(dense), router_dtype="F32")


@family("laguna", architectures=("LagunaForCausalLM",))
def laguna(config: Config) -> Shape:
    """Query heads that differ from layer to layer, a gate a head or as wide as q, windows where layer_types says so, experts with a shared one."""
    d = Decoder.read(config)
    n = d.build.n
    kinds = layer_kinds(config, n, ("full",) * n, ("full", "sliding"))
    heads = config.wholes("num_attention_heads_per_layer", count=n, default=d.heads, low=1)
    said = config.raw("mlp_layer_types")
    dense, sparse = sparse_layers(config, n) if said is not None else ((0,), tuple(range(1, n)))
    gating = config.raw("gating", default=True)
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    for count in sorted(set(heads)):
        layers = [i for i in range(n) if heads[i] == count]
        d.build.attention(
            layers, d.hidden, count, d.kv_heads, d.head_dim, bias=bias, out_bias=bias, qk_norm=(d.head_dim, d.head_dim)
        )
        width = count if gating is True or gating == "per-head" else count * d.head_dim
        d.build.add("attn_gate", (d.hidden, width), layers, module="model.layers.{}.self_attn.g_proj")
    d.cache(kinds, config.whole("sliding_window", default=512))
    if dense:
        d.feed_forward(dense)
    d.experts(
        sparse, config.whole(*EXPERTS), config.whole(*USED), config.whole("moe_intermediate_size"), correction=True,
        shared_dim=config.whole("shared_expert_intermediate_size", default=0, low=0), shared="shared_expert.",
    )  # fmt: skip
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("laguna", dense_layers=len(dense))


@family("cohere2_moe", architectures=("Cohere2MoeForCausalLM",))
def cohere2_moe(config: Config) -> Shape:
    """Cohere 2 with experts after its first dense layers, which have a pattern of windows of their own."""
    d = Decoder.read(config)
    n = d.build.n
    dense, sparse = sparse_layers(config, n)
    period = config.whole("sliding_window_pattern", default=4, low=0)
    first = every(len(dense), config.whole("prefix_dense_sliding_window_pattern", default=1, low=0), "sliding", "full")
    kinds = layer_kinds(config, n, (*first, *every(n - len(dense), period, "sliding", "full")), ("full", "sliding"))
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.cache(kinds, config.nullable("sliding_window", 4096))
    if dense:
        d.feed_forward(dense, config.whole("prefix_dense_intermediate_size", default=d.ffn_dim))
    shared = d.ffn_dim * config.whole("num_shared_experts", default=0, low=0)
    d.experts(sparse, config.whole(*EXPERTS), config.whole(*USED), d.ffn_dim, shared_dim=shared)
    d.norms("attn_norm")
    d.rope()
    return d.shape("cohere2moe", dense_layers=len(dense))


@family("granitemoe_swa", architectures=("GraniteMoeSWAForCausalLM",))
def granite_moe_swa(config: Config) -> Shape:
    """The same with experts."""
    d = Decoder.read(config)
    granite_windows(d)
    d.experts(
        d.all, config.whole(*EXPERTS), config.whole(*USED), config.whole("intermediate_size"),
        shared_dim=config.whole("shared_intermediate_size", default=0, low=0),
        module="model.layers.{}.block_sparse_moe.", router="router.layer", shared="shared_mlp.",
    )  # fmt: skip
    return d.shape("granite_swa")
