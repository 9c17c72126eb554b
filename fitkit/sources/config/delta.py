"""Linear attention with a state of fixed size: gated delta net, Kimi delta attention, lightning attention, short convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from fitkit.sources.config.moe import EXPERTS, USED, qwen_moe_layers, qwen_sparse, shared_experts, sparse_layers
from fitkit.sources.config.view import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """The widths of a gated delta net layer."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    kernel: int
    dtype: str = ""

    @classmethod
    def read(cls, config: Config) -> DeltaNet:
        """The linear_* keys."""
        return cls(
            key_heads=config.whole("linear_num_key_heads", default=16),
            key_dim=config.whole("linear_key_head_dim", default=128),
            value_heads=config.whole("linear_num_value_heads", default=32),
            value_dim=config.whole("linear_value_head_dim", default=128),
            kernel=config.whole("linear_conv_kernel_dim", default=4),
            dtype=config.text("mamba_ssm_dtype", default=""),
        )

    @property
    def conv(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def cache(self) -> Cache:
        """What one layer keeps."""
        return Cache(
            kind="state", variant="gdn", heads=self.value_heads, head_dim=self.value_dim, state_dim=self.key_dim,
            groups=self.key_heads, conv_kernel=self.kernel, dtype=self.dtype,
        )  # fmt: skip


def delta_net(d: Decoder, layers: Sequence[int], g: DeltaNet, *, joint: bool) -> None:
    """Projections to q, k, v and the gate z, to beta and alpha, a convolution over q, k, v; `joint`: qkvz and ba are one tensor each."""
    build, module = d.build, "model.layers.{}.linear_attn."
    inner = g.value_heads * g.value_dim
    build.add("attn_qkv", (d.hidden, g.conv), layers, module=module + ("in_proj_qkvz" if joint else "in_proj_qkv"))
    build.add("attn_gate", (d.hidden, inner), layers, module=module + ("in_proj_qkvz" if joint else "in_proj_z"))
    if joint:
        build.add("ssm_ba", (d.hidden, 2 * g.value_heads), layers, module=module + "in_proj_ba")
    else:
        build.add("ssm_beta", (d.hidden, g.value_heads), layers, module=module + "in_proj_b")
        build.add("ssm_alpha", (d.hidden, g.value_heads), layers, module=module + "in_proj_a")
    build.add("ssm_conv1d", (g.kernel, g.conv), layers, module=module + "conv1d")
    build.add("ssm_dt.bias", (g.value_heads,), layers, module=module + "dt_bias")
    build.add("ssm_a", (g.value_heads,), layers, module=module + "A_log", dtype="F32")
    build.add("ssm_norm", (g.value_dim,), layers, module=module + "norm")
    build.add("ssm_out", (inner, d.hidden), layers, module=module + "out_proj")
    build.keep(g.cache(), layers)


def qwen_linear(config: Config, gguf: str, *, joint: bool, sparse: bool) -> Shape:
    """Three gated delta nets to one gated full attention; dense or with experts; an MTP block."""
    d = Decoder.read(config)
    n = d.build.n
    interval = config.whole("full_attention_interval", default=4)
    kinds = layer_kinds(config, n, every(n, interval, "linear", "full"), ("full", "linear"))
    dense_layers, sparse_layers = qwen_sparse(config, n) if sparse else (tuple(d.all), ())
    bias = config.flag("attention_bias", default=False)
    gate = config.flag("attn_output_gate", default=True)
    config.flag("use_sliding_window", default=False)

    def feed(one: Decoder, dense: Sequence[int], sparse: Sequence[int]) -> None:
        if sparse:
            qwen_moe_layers(one, dense, sparse, shared=True)
        else:
            one.feed_forward(dense)

    d.embeddings()
    full = of_kind(kinds, "full")
    d.attention(full, bias=bias, out_bias=bias, qk_norm=(d.head_dim, d.head_dim), gate=gate)
    d.cache(kinds)
    if linear := of_kind(kinds, "linear"):
        delta_net(d, linear, DeltaNet.read(config), joint=joint)
    feed(d, dense_layers, sparse_layers)
    d.norms("attn_norm", "post_attention_norm")
    d.rope(partial=0.25)

    def mtp(one: Decoder, layers: range) -> None:
        one.attention(layers, bias=bias, out_bias=bias, qk_norm=(d.head_dim, d.head_dim), gate=gate)
        feed(one, () if sparse else layers, layers if sparse else ())
        one.norms("attn_norm", "post_attention_norm", layers=layers)

    d.mtp(config.whole("mtp_num_hidden_layers", "num_nextn_predict_layers", default=0, low=0), mtp)
    return d.shape(gguf)


@family("qwen3_next", architectures=("Qwen3NextForCausalLM",))
def qwen3_next(config: Config) -> Shape:
    """Experts with a gated shared one; the state in the model's own dtype."""
    return qwen_linear(config, "qwen3next", joint=True, sparse=True)


@family("qwen3_5_text", architectures=("Qwen3_5ForCausalLM",))
def qwen3_5(config: Config) -> Shape:
    """The dense one."""
    return qwen_linear(config, "qwen35", joint=False, sparse=False)


@family("qwen3_5_moe_text", architectures=("Qwen3_5MoeForCausalLM",))
def qwen3_5_moe(config: Config) -> Shape:
    """The one with experts."""
    return qwen_linear(config, "qwen35moe", joint=False, sparse=True)


# ---- Kimi delta attention ------------------------------------------------------------------------------------------------


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


@family("kimi_linear", "kimi_k3_text", architectures=("KimiLinearForCausalLM",))
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


@family("olmo_hybrid", architectures=("OlmoHybridForCausalLM",))
def olmo_hybrid(config: Config) -> Shape:
    """Three gated delta nets, normed before, to one full attention of Olmo's, normed behind. llama.cpp does not build it."""
    d = Decoder.read(config)
    n = d.build.n
    kinds = layer_kinds(config, n, every(n, 4, "linear", "full"), ("full", "linear"))
    full, linear = of_kind(kinds, "full"), of_kind(kinds, "linear")
    g = DeltaNet(
        key_heads=config.whole("linear_num_key_heads", default=d.heads), key_dim=config.whole("linear_key_head_dim", default=96),
        value_heads=config.whole("linear_num_value_heads", default=d.heads), value_dim=config.whole("linear_value_head_dim", default=192),
        kernel=config.whole("linear_conv_kernel_dim", default=4), dtype=config.text("mamba_ssm_dtype", default=""),
    )  # fmt: skip
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(full, bias=bias, out_bias=bias, qk_norm=(d.heads * d.head_dim, d.kv_heads * d.head_dim))
    d.cache(kinds)
    delta_net(d, linear, g, joint=False)
    d.feed_forward()
    d.norms("post_attention_norm", "post_ffw_norm", layers=full)
    d.norms("attn_norm", "ffn_norm", layers=linear)
    d.rope()
    return d.shape("")


@family(
    "minimax",
    "minimax_text_01",
    architectures=("MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"),
)
def minimax(config: Config) -> Shape:
    """MiniMax-01: seven layers of lightning attention, a matrix a head, to one of softmax; experts in every layer."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    listed = config.raw("attn_type_list")
    default = ["full" if (i + 1) % 2 else "linear" for i in range(n)]
    if listed is not None:
        default = ["full" if one else "linear" for one in config.wholes("attn_type_list", count=n, high=1)]
    kinds = layer_kinds(config, n, default, ("full", "linear"))
    full, linear = of_kind(kinds, "full"), of_kind(kinds, "linear")
    inner, module = d.heads * d.head_dim, "model.layers.{}.self_attn."
    d.embeddings()
    d.attention(full)
    d.cache(kinds)
    build.add("attn_qkv", (d.hidden, 3 * inner), linear, module=module + "qkv_proj")
    build.add("attn_gate", (d.hidden, inner), linear, module=module + "output_gate")
    build.add("attn_output", (inner, d.hidden), linear, module=module + "out_proj")
    build.add("attn_output_norm", (inner,), linear, module=module + "norm")
    build.wide(linear, heads=d.heads)
    build.keep(
        Cache(kind="state", variant="lightning", heads=d.heads, head_dim=d.head_dim, state_dim=d.head_dim), linear
    )
    shared = config.raw("shared_intermediate_size", default=0)
    d.experts(
        d.all, config.whole(*EXPERTS, default=8), config.whole(*USED, default=2), config.whole("intermediate_size"),
        shared_dim=max(shared) if isinstance(shared, list) and shared else config.whole("shared_intermediate_size", default=0, low=0),
        module="model.layers.{}.block_sparse_moe.",
    )  # fmt: skip
    d.norms("attn_norm", "ffn_norm")
    d.rope(config.whole("rotary_dim", default=d.head_dim), whole=True)
    return d.shape("minimax-01")


# ---- short convolutions -----------------------------------------------------------------------------------------------------


def short_conv_cache(width: int, kernel: int, variant: str = "shortconv") -> Cache:
    """The last kernel - 1 inputs of a convolution over `width` channels."""
    return Cache(kind="state", variant=variant, heads=1, head_dim=width, conv_kernel=kernel)


def lfm(config: Config) -> tuple[Decoder, tuple[str, ...]]:
    """LFM2's mixers: gated short convolutions with a few layers of attention, norms on q and k."""
    d = Decoder.read(config)
    if (said := config.raw("tie_embedding")) is not None:
        d.tied = config.flag("tie_embedding") if said is not None else d.tied
    n, build = d.build.n, d.build
    attention = config.entries("full_attn_idxs", default=range(n))
    kinds = layer_kinds(config, n, ["full" if i in set(attention) else "conv" for i in range(n)], ("full", "conv"))
    full, conv = of_kind(kinds, "full"), of_kind(kinds, "conv")
    kernel, bias = config.whole("conv_L_cache", default=3), config.flag("conv_bias", default=False)
    module = "model.layers.{}.conv."
    build.add("token_embd", (d.hidden, d.vocab), module="model.embed_tokens")
    build.add("token_embd_norm", (d.hidden,), module="model.embedding_norm")
    if not d.tied:
        build.add("output", (d.hidden, d.vocab), module="lm_head")
    d.attention(full, qk_norm=(d.head_dim, d.head_dim))
    d.cache(kinds)
    for role, name, shape in (
        ("shortconv.in_proj", "in_proj", (d.hidden, 3 * d.hidden)),
        ("shortconv.conv", "conv", (kernel, d.hidden)),
        ("shortconv.out_proj", "out_proj", (d.hidden, d.hidden)),
    ):
        build.add(role, shape, conv, module=module + name)
        if bias:
            build.add(f"{role}.bias", shape[-1:], conv, module=module + name)
    build.keep(short_conv_cache(d.hidden, kernel), conv)
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d, kinds


def lfm_width(config: Config, ffn: int) -> int:
    """LFM2 trims its feed-forward to two thirds, then rounds it up."""
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return ffn
    multiple = config.whole("block_multiple_of", default=256)
    width = int(config.number("block_ffn_dim_multiplier", default=1.0) * int(2 * ffn / 3))
    return -(-width // multiple) * multiple


@family("lfm2", architectures=("Lfm2ForCausalLM", "LFM2ForCausalLM"))
def lfm2(config: Config) -> Shape:
    """The dense one."""
    d, _ = lfm(config)
    d.feed_forward(
        ffn_dim=lfm_width(config, config.whole("block_ff_dim", default=0, low=0) or d.ffn_dim),
        module="model.layers.{}.feed_forward.",
    )
    return d.shape("lfm2")


@family("lfm2_moe", architectures=("Lfm2MoeForCausalLM",))
def lfm2_moe(config: Config) -> Shape:
    """The one with experts after its first dense layers."""
    d, _ = lfm(config)
    dense, sparse = sparse_layers(config, d.build.n)
    if dense:
        d.feed_forward(dense, module="model.layers.{}.feed_forward.")
    d.experts(
        sparse, config.whole(*EXPERTS), config.whole(*USED), config.whole("moe_intermediate_size"),
        correction=config.flag("use_expert_bias", default=True), module="model.layers.{}.feed_forward.",
    )  # fmt: skip
    return d.shape("lfm2moe", dense_layers=len(dense))


@family("inkling_text", architectures=("InklingForCausalLM",))
def inkling(config: Config) -> Shape:
    """Windows in five layers of six; short convolutions over k, v and both halves' outputs in every layer; experts with shared ones."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    local = config.raw("local_layer_ids")
    default = (
        every(n, 6, "sliding", "full")
        if local is None
        else ["sliding" if i in set(config.entries("local_layer_ids")) else "full" for i in range(n)]
    )
    kinds = layer_kinds(config, n, default, ("full", "sliding"))
    window = config.whole("sliding_window_size", "sliding_window", default=512)
    kernel = config.whole("conv_kernel_size", "sconv_kernel_size", default=4)
    rel, extent = config.whole("d_rel", default=16), config.whole("rel_extent", default=1024)
    d.embeddings()
    build.add("token_embd_norm", (d.hidden,), module="model.embed_tokens.embed_norm")
    module = "model.layers.{}.self_attn."
    for kind, prefix, reach in (("full", "", extent), ("sliding", "swa_", window)):
        layers = of_kind(kinds, kind)
        heads = config.whole(f"{prefix}num_attention_heads", default=d.heads)
        kv_heads, dim = (
            config.whole(f"{prefix}num_key_value_heads", default=d.kv_heads),
            config.whole(f"{prefix}head_dim", default=d.head_dim),
        )
        build.attention(layers, d.hidden, heads, kv_heads, dim, qk_norm=(dim, dim))
        build.add("attn_rel", (d.hidden, heads * rel), layers, module=module + "r_proj")
        build.add("attn_rel_logits", (rel, reach), layers, module=module + "rel_logits_proj")
        for role, width in (("attn_k_conv", kv_heads * dim), ("attn_v_conv", kv_heads * dim)):
            build.add(role, (kernel, width), layers, module=f"{module}{role[5]}_sconv", dtype="F32")
        build.keep(
            Cache(kind="full", kv_heads=kv_heads, k_dim=dim, v_dim=dim) if kind == "full"
            else Cache(kind="sliding", kv_heads=kv_heads, k_dim=dim, v_dim=dim, window=window), layers,
        )  # fmt: skip
        build.keep(short_conv_cache(2 * kv_heads * dim + 2 * d.hidden, kernel, "inkling"), layers)
    for role in ("attn_output_conv", "ffn_output_conv"):
        build.add(role, (kernel, d.hidden), d.all, module=f"model.layers.{{}}.{role}", dtype="F32")
    dense, sparse = sparse_layers(config, n)
    if dense:
        d.feed_forward(dense, config.whole("dense_intermediate_size", default=d.ffn_dim))
        build.add("ffn_scale", (1,), dense, module="model.layers.{}.mlp.global_scale")
    experts, width, shared = (
        config.whole(*EXPERTS),
        config.whole("moe_intermediate_size"),
        config.whole("n_shared_experts", default=2, low=0),
    )
    d.experts(sparse, experts, config.whole(*USED), width, shared_dim=shared * width, correction=True)
    build.add("ffn_gate_inp_shexp", (d.hidden, shared), sparse, module="model.layers.{}.mlp.gate")
    build.add("ffn_gate_inp.scale", (1,), sparse, module="model.layers.{}.mlp.gate.global_scale", dtype="F32")
    d.norms("attn_norm", "ffn_norm")
    return d.shape("")
