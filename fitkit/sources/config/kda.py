"""Kimi delta attention beside latent attention: Kimi Linear and K3, Ling 3, GLM-5.3-Flash."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.errors import UnsupportedModel
from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds, of_kind
from fitkit.sources.config.latent import (
    indexed_layers,
    indexer,
    latent_attention,
    latent_cache,
    latent_sizes,
    note_latent,
)
from fitkit.sources.config.moe import EXPERTS, USED, shared_experts, sparse_layers
from fitkit.sources.config.view import Config


def kda_cache(heads: int, dim: int, kernel: int) -> Cache:
    """What one KDA layer keeps: the convolution's memory of q, k and v, and a matrix a head in 32 bits."""
    return Cache(
        kind="state", variant="kda", heads=heads, head_dim=dim, state_dim=dim, groups=heads, conv_kernel=kernel, dtype="float32"
    )  # fmt: skip


def kda_layers(
    d: Decoder,
    layers: Sequence[int],
    heads: int,
    dim: int,
    kernel: int,
    *,
    full_gate: bool = False,
    full_decay: bool = False,
) -> None:
    """q, k, v each with a convolution, a decay and an output gate, each through a low rank (`full_decay`, `full_gate`: at once)."""
    build, module, inner = d.build, "model.layers.{}.self_attn.", heads * dim
    for letter in "qkv":
        build.add(f"attn_{letter}", (d.hidden, inner), layers, module=f"{module}{letter}_proj")
        build.add(f"ssm_conv1d_{letter}", (kernel, inner), layers, module=f"{module}{letter}_conv1d", dtype="F32")
    if full_decay:
        build.add("ssm_f", (d.hidden, inner), layers, module=module + "f_proj")
    else:
        build.add("ssm_f_a", (d.hidden, dim), layers, module=module + "f_a_proj")
        build.add("ssm_f_b", (dim, inner), layers, module=module + "f_b_proj")
    build.add("ssm_dt.bias", (inner,), layers, module=module + "dt_bias", dtype="F32")
    build.add("ssm_beta", (d.hidden, heads), layers, module=module + "b_proj")
    build.add("ssm_a", (heads,), layers, module=module + "A_log", dtype="F32")
    if full_gate:
        build.add("ssm_g", (d.hidden, inner), layers, module=module + "g_proj")
    else:
        build.add("ssm_g_a", (d.hidden, dim), layers, module=module + "g_a_proj")
        build.add("ssm_g_b", (dim, inner), layers, module=module + "g_b_proj")
    build.add("ssm_norm", (dim,), layers, module=module + "o_norm")
    build.add("attn_output", (inner, d.hidden), layers, module=module + "o_proj")
    build.keep(kda_cache(heads, dim, kernel), layers)
    build.wide(layers, heads=heads)


def kda_by_layer_types(config: Config, n: int) -> tuple[tuple[int, ...], tuple[int, ...], Config]:
    """Full and KDA layers, and the view that says the KDA widths: linear_attn_config, or the keys linear_* with layer_types."""
    linear = config.view("linear_attn_config")
    if linear is not None:
        return numbered(linear, "full_attn_layers", n), numbered(linear, "kda_layers", n), linear
    if config.raw("layer_types") is None:
        raise UnsupportedModel(
            f"{config.place} has no linear_attn_config and no layer_types: which layers are KDA is not said."
        )
    kinds = layer_kinds(config, n, (), ("full", "linear"))
    return of_kind(kinds, "full"), of_kind(kinds, "linear"), config


def numbered(linear: Config, key: str, n: int) -> tuple[int, ...]:
    """Layer numbers that a file counts from 1."""
    return tuple(sorted(i - 1 for i in linear.wholes(key, count=len(linear.entries(key)), low=1, high=n)))


def latent_experts(d: Decoder, layers: Sequence[int], latent: int) -> None:
    """Routed experts on `latent` values of the hidden width, projected down and up around them; shared ones on all of it."""
    config, build, module = d.config, d.build, "model.layers.{}.block_sparse_moe."
    experts, dim = config.whole(*EXPERTS), config.whole("moe_intermediate_size")
    shared = dim * config.whole("num_shared_experts", default=0, low=0)
    build.add("ffn_gate_inp", (d.hidden, experts), layers, module=module + "gate")
    build.add("exp_probs_b.bias", (experts,), layers, dtype="F32", module=module + "gate.e_score_correction_bias")
    build.add("ffn_routed_down", (d.hidden, latent), layers, module=module + "routed_expert_down_proj")
    build.add("ffn_routed_up", (latent, d.hidden), layers, module=module + "routed_expert_up_proj")
    if config.flag("latent_moe_use_norm", default=False):
        build.add("ffn_routed_norm", (latent,), layers, module=module + "routed_expert_norm")
    for role, name, n_in, n_out, s_in, s_out in (
        ("ffn_gate", "gate_proj", latent, dim, d.hidden, shared),
        ("ffn_up", "up_proj", latent, dim, d.hidden, shared),
        ("ffn_down", "down_proj", dim, latent, shared, d.hidden),
    ):
        build.add(f"{role}_exps", (n_in, n_out, experts), layers, module=f"{module}experts.*.{name}")
        build.add(f"{role}_shexp", (s_in, s_out), layers, module=f"{module}shared_experts.{name}")
    build.wide(layers, experts=experts, experts_used=config.whole(*USED), expert_dim=dim, shared_dim=shared)


@family("kimi_linear", architectures=("KimiLinearForCausalLM",))
def kimi_linear(config: Config) -> Shape:
    """KDA layers with a few of latent attention without rotary positions; experts after the first dense layers.

    Kimi K3 adds an output gate to the latent layers, experts on a latent of the hidden width, and scores by which
    blocks of layers are read again.
    """
    d = Decoder.read(config)
    full, kda, linear = kda_by_layer_types(config, d.build.n)
    sizes = latent_sizes(config)
    d.embeddings()
    latent_attention(d, full, sizes)
    if config.flag("mla_use_output_gate", default=False):
        gate = (d.hidden, d.heads * sizes.v_dim)
        d.build.add("attn_gate", gate, full, module="model.layers.{}.self_attn.g_proj")
    d.build.keep(latent_cache(sizes), full)
    kda_layers(
        d, kda, linear.whole("num_heads", "linear_num_heads", default=32), linear.whole("linear_head_dim", "head_dim", default=128),
        linear.whole("short_conv_kernel_size", "linear_conv_kernel_dim", default=4), full_gate=linear.flag("use_full_rank_gate", default=False),
    )  # fmt: skip
    dense, sparse = sparse_layers(config, d.build.n)
    if dense:
        d.feed_forward(dense)
    latent = config.whole("routed_expert_hidden_size", default=0, low=0)
    latent_experts(d, sparse, latent) if latent else shared_experts(d, sparse)
    d.norms("attn_norm", "ffn_norm")
    if config.whole("attn_res_block_size", default=0, low=0):
        d.norms("attn_res_norm", "attn_res_score", "ffn_res_norm", "ffn_res_score")
        for role in ("output_res_norm", "output_res_score"):
            d.build.add(role, (d.hidden,), module="model.output_attn_res")
    note_latent(d, sizes)
    if not config.flag("mla_use_nope", default=False):
        d.rope(sizes.rope)
    return d.shape("kimi-k3" if latent else "kimi-linear", dense_layers=len(dense))


@family("bailing_hybrid", architectures=("BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"))
def bailing_hybrid(config: Config) -> Shape:
    """Ling 3: five KDA layers to one of latent attention with a gate a head; experts with a shared one; an MTP block."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    group = config.whole("layer_group_size", default=6)
    kinds = layer_kinds(config, n, every(n, group, "linear", "full"), ("full", "linear"))
    full, linear = of_kind(kinds, "full"), of_kind(kinds, "linear")
    sizes = latent_sizes(config)
    dense, sparse = sparse_layers(config, n)

    def latent(one: Decoder, layers: Sequence[int]) -> None:
        latent_attention(one, layers, sizes, bias=config.flag("attention_bias", default=False))
        one.build.add("attn_gate", (one.hidden, one.heads), layers, module="model.layers.{}.self_attn.g_proj")

    d.embeddings()
    latent(d, full)
    build.keep(latent_cache(sizes), full)
    heads, dim = config.whole("linear_num_heads", "num_attention_heads"), config.whole("linear_head_dim", default=128)
    kda_layers(
        d,
        linear,
        heads,
        dim,
        config.whole("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
        full_gate=True,
        full_decay=True,
    )
    config.raw("short_conv_kernel_size")
    if dense:
        d.feed_forward(dense)
    shared_experts(d, sparse)
    d.norms("attn_norm", "ffn_norm")
    note_latent(d, sizes)
    d.rope(sizes.rope)

    def mtp(one: Decoder, layers: range) -> None:
        latent(one, layers)
        shared_experts(one, layers)
        one.norms("attn_norm", "ffn_norm", layers=layers)

    d.mtp(config.whole("num_nextn_predict_layers", "num_mtp_layers", default=0, low=0), mtp)
    return d.shape("bailingmoe3", dense_layers=len(dense), router_dtype="F32")


@family("glm5_next_text", architectures=("Glm5NextForCausalLM",))
def glm5_next(config: Config) -> Shape:
    """KDA layers with every fourth of latent attention chosen by a pooled indexer; hyper-connections; experts."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    kinds = layer_kinds(config, n, every(n, 4, "linear", "full"), ("full", "linear"))
    full, linear = of_kind(kinds, "full"), of_kind(kinds, "linear")
    sizes = latent_sizes(config)
    dense, sparse = sparse_layers(config, n)
    owners = set(indexed_layers(config, n))
    pool = config.whole("index_kpool", default=16)
    d.embeddings()
    latent_attention(d, full, sizes, bias=config.flag("attention_bias", default=False))
    build.keep(latent_cache(sizes), full)
    indexed = [i for i in full if i in owners]
    dim = indexer(d, indexed, sizes.q_rank or d.hidden)
    module = "model.layers.{}.self_attn.indexer.index_kpool_compress_"
    build.add("indexer_compressor_ape", (dim, pool), indexed, module=module + "ape")
    build.add("indexer_compressor_gate", (d.hidden, dim), indexed, module=module + "gate")
    build.keep(Cache(kind="indexer", k_dim=dim, ratio=pool), indexed)
    heads, width = config.whole("linear_num_heads", default=64), config.whole("linear_head_dim", default=128)
    kda_layers(d, linear, heads, width, config.whole("linear_conv_kernel_dim", default=4))
    mult = config.whole("hc_mult", default=4)
    mix = (2 + mult) * mult
    for half in ("attn", "ffn"):
        for part, shape in (("fn", (mult * d.hidden, mix)), ("base", (mix,)), ("scale", (3,))):
            build.add(f"hc_{half}_{part}", shape, d.all, module=f"model.layers.{{}}.hc_{half}_{part}", dtype="F32")
    if dense:
        d.feed_forward(dense)
    shared_experts(d, sparse)
    d.norms("attn_norm", "ffn_norm")
    note_latent(d, sizes)
    return d.shape("glm5-next", dense_layers=len(dense), index_pool=pool)
