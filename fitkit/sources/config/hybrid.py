"""Decoders with Mamba layers, alone or beside attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.build import Build
from fitkit.sources.config.decoder import Decoder, context_of, layer_kinds, of_kind
from fitkit.sources.config.view import MOST_LAYERS, Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """The widths of a Mamba layer; `heads` 1 and `dt_rank` set for Mamba 1."""

    heads: int
    head_dim: int
    state: int
    kernel: int
    groups: int = 0
    dt_rank: int = 0
    conv_bias: bool = True
    bias: bool = False
    norm: bool = True  # Mamba 2's gated norm; Mamba 1: Jamba's three norms
    dtype: str = ""

    @property
    def inner(self) -> int:
        """Channels of the scan."""
        return self.heads * self.head_dim

    @property
    def conv(self) -> int:
        """Channels of the convolution."""
        return self.inner + 2 * self.groups * self.state

    def cache(self) -> Cache:
        """What one layer keeps."""
        return Cache(
            kind="state", variant="mamba1" if self.dt_rank else "mamba2", heads=self.heads, head_dim=self.head_dim,
            state_dim=self.state, groups=self.groups, conv_kernel=self.kernel, dtype=self.dtype,
        )  # fmt: skip


def mamba2_layers(build: Build, hidden: int, layers: Sequence[int], m: Mamba, module: str) -> None:
    """Mamba 2: one input projection for z, x, B, C and dt, a convolution over x, B and C, the scan, a gated norm."""
    build.add("ssm_in", (hidden, m.inner + m.conv + m.heads), layers, module=module + "in_proj")
    build.add("ssm_out", (m.inner, hidden), layers, module=module + "out_proj")
    if m.bias:
        build.add("ssm_in.bias", (m.inner + m.conv + m.heads,), layers, module=module + "in_proj")
        build.add("ssm_out.bias", (hidden,), layers, module=module + "out_proj")
    _convolution(build, layers, m, module)
    build.add("ssm_dt.bias", (m.heads,), layers, module=module + "dt_bias")
    build.add("ssm_a", (m.heads,), layers, module=module + "A_log", dtype="F32")
    build.add("ssm_d", (m.heads,), layers, module=module + "D")
    if m.norm:
        build.add("ssm_norm", (m.inner,), layers, module=module + "norm")
    build.keep(m.cache(), [i for i in layers if i < build.n])


def mamba1_layers(build: Build, hidden: int, layers: Sequence[int], m: Mamba, module: str) -> None:
    """Mamba 1: input projection for x and z, a convolution over x, projections to dt, B and C, the scan."""
    for role, name, n_in, n_out in (
        ("ssm_in", "in_proj", hidden, 2 * m.inner),
        ("ssm_x", "x_proj", m.inner, m.dt_rank + 2 * m.state),
        ("ssm_dt", "dt_proj", m.dt_rank, m.inner),
        ("ssm_out", "out_proj", m.inner, hidden),
    ):
        build.add(role, (n_in, n_out), layers, module=module + name)
        if m.bias and role in ("ssm_in", "ssm_out"):
            build.add(f"{role}.bias", (n_out,), layers, module=module + name)
    build.add("ssm_dt.bias", (m.inner,), layers, module=module + "dt_proj")
    _convolution(build, layers, m, module)
    build.add("ssm_a", (m.state, m.inner), layers, module=module + "A_log", dtype="F32")
    build.add("ssm_d", (m.inner,), layers, module=module + "D")
    if m.norm:
        for role, width in (("ssm_dt_norm", m.dt_rank), ("ssm_b_norm", m.state), ("ssm_c_norm", m.state)):
            build.add(role, (width,), layers, module=module + role.removeprefix("ssm_") + "_layernorm")
    build.keep(m.cache(), layers)


def _convolution(build: Build, layers: Sequence[int], m: Mamba, module: str) -> None:
    """The causal convolution."""
    build.add("ssm_conv1d", (m.kernel, m.conv), layers, module=module + "conv1d")
    if m.conv_bias:
        build.add("ssm_conv1d.bias", (m.conv,), layers, module=module + "conv1d")


def auto(config: Config, key: str, otherwise: int) -> int:
    """A whole number, or `otherwise` where the file says "auto" or nothing."""
    return otherwise if config.raw(key, default="auto") == "auto" else config.whole(key)


def pure_mamba(config: Config, kind: str) -> Shape:
    """A model of nothing but Mamba layers."""
    n, hidden = config.whole("num_hidden_layers", "n_layer", high=MOST_LAYERS), config.whole("hidden_size", "d_model")
    vocab = config.whole("vocab_size")
    inner = config.whole("intermediate_size", default=hidden * config.whole("expand", default=2))
    tied = config.flag("tie_word_embeddings", default=kind == "mamba")
    build = Build(n)
    m = Mamba(
        heads=1,
        head_dim=inner,
        state=config.whole("state_size", default=16 if kind == "mamba" else 128),
        kernel=config.whole("conv_kernel", default=4),
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
        norm=False,
    )
    if kind == "mamba":
        m = replace(m, dt_rank=auto(config, "time_step_rank", -(-hidden // 16)))
        mamba1_layers(build, hidden, build.all, m, "backbone.layers.{}.mixer.")
    else:
        inner, head_dim = hidden * config.whole("expand", default=2), config.whole("head_dim", default=64)
        m = replace(
            m,
            heads=config.whole("num_heads", default=inner // head_dim),
            head_dim=head_dim,
            groups=config.whole("n_groups", default=8),
            norm=config.flag("rms_norm", default=True),
        )
        mamba2_layers(build, hidden, build.all, m, "backbone.layers.{}.mixer.")
    build.add("token_embd", (hidden, vocab), module="backbone.embeddings")
    build.add("output_norm", (hidden,), module="backbone.norm_f")
    if not tied:
        build.add("output", (hidden, vocab), module="lm_head")
    build.norms(build.all, hidden, "attn_norm")
    return Shape(
        build=build, hidden_size=hidden, vocab_size=vocab, context=context_of(config, 1048576), tied_embeddings=tied,
        gguf_architecture=kind, extra={"served_context": context_of(config, 2048)},  # no length in the file: vLLM's own default
    )  # fmt: skip


@family("mamba", architectures=("MambaForCausalLM",))
def mamba(config: Config) -> Shape:
    """Mamba 1."""
    return pure_mamba(config, "mamba")


@family("mamba2", architectures=("Mamba2ForCausalLM",))
def mamba2(config: Config) -> Shape:
    """Mamba 2."""
    return pure_mamba(config, "mamba2")


@family("falcon_mamba", architectures=("FalconMambaForCausalLM",))
def falcon_mamba(config: Config) -> Shape:
    """Mamba 1 with norms of dt, B and C that have no weights."""
    return pure_mamba(config, "mamba")


def prefixed_mamba2(config: Config, hidden: int, *, norm: bool, groups: int = 1) -> Mamba:
    """The mamba_* keys Falcon-H1, Granite 4 and Bamba share."""
    heads = config.whole("mamba_n_heads", default=128)
    expand = config.whole("mamba_expand", default=2)
    inner = config.whole("mamba_d_ssm", default=hidden * expand)
    return Mamba(
        heads=heads,
        head_dim=auto(config, "mamba_d_head", inner // heads),
        state=config.whole("mamba_d_state", default=256),
        kernel=config.whole("mamba_d_conv", default=4),
        groups=config.whole("mamba_n_groups", default=groups),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        norm=norm,
    )


@family("falcon_h1", architectures=("FalconH1ForCausalLM",))
def falcon_h1(config: Config) -> Shape:
    """Every layer has attention and Mamba 2 side by side."""
    d = Decoder.read(config)
    m = prefixed_mamba2(config, d.hidden, norm=config.flag("mamba_rms_norm", default=False))
    config.raw("mamba_use_mlp")  # every layer has its feed-forward whatever this says
    d.build.add("token_embd", (d.hidden, d.vocab), module="model.embed_tokens")
    d.build.add("output_norm", (d.hidden,), module="model.final_layernorm")
    if not d.tied:
        d.build.add("output", (d.hidden, d.vocab), module="lm_head")
    d.attention(bias=config.flag("attention_bias", default=False))
    d.cache()
    mamba2_layers(d.build, d.hidden, d.all, m, "model.layers.{}.mamba.")
    d.feed_forward(bias=config.flag("mlp_bias", default=False), module="model.layers.{}.feed_forward.")
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("falcon-h1")


@family("granitemoehybrid", architectures=("GraniteMoeHybridForCausalLM",))
def granite_hybrid(config: Config) -> Shape:
    """Mamba 2 layers with a few of attention; a shared feed-forward beside the experts, or alone where there are none."""
    d = Decoder.read(config)
    n = d.build.n
    kinds = layer_kinds(config, n, ["mamba"] * n, ("full", "mamba"), "layer_types")
    attention, mamba = of_kind(kinds, "full"), of_kind(kinds, "mamba")
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(attention, bias=bias, out_bias=bias)
    d.cache(kinds)
    mamba2_layers(d.build, d.hidden, mamba, prefixed_mamba2(config, d.hidden, norm=True), "model.layers.{}.mamba.")
    experts = config.whole("num_local_experts", default=8, low=0)
    shared = config.whole("shared_intermediate_size", default=1024, low=0)
    if experts:
        d.experts(
            d.all, experts, config.whole("num_experts_per_tok", default=2), config.whole("intermediate_size"), shared_dim=shared,
            module="model.layers.{}.block_sparse_moe.", router="router.layer", shared="shared_mlp.",
        )  # fmt: skip
    elif shared:
        d.feed_forward(ffn_dim=shared, module="model.layers.{}.shared_mlp.")
    d.norms("attn_norm", "ffn_norm")
    if config.text("position_embedding_type", default="nope") == "rope":
        d.rope()
    return d.shape("granitehybrid")


@family("jamba", architectures=("JambaForCausalLM",))
def jamba(config: Config) -> Shape:
    """Mamba 1 with attention every attn_layer_period layers and experts every expert_layer_period."""
    d = Decoder.read(config)
    n = d.build.n
    period, offset = config.whole("attn_layer_period", default=8), config.whole("attn_layer_offset", default=4, low=0)
    e_period, e_offset = (
        config.whole("expert_layer_period", default=2),
        config.whole("expert_layer_offset", default=1, low=0),
    )
    kinds = ["full" if i % period == offset else "mamba" for i in range(n)]
    kinds = list(layer_kinds(config, n, kinds, ("full", "mamba"), "layers_block_type"))
    inner = d.hidden * config.whole("mamba_expand", default=2)
    m = Mamba(
        heads=1, head_dim=inner, state=config.whole("mamba_d_state", default=16), kernel=config.whole("mamba_d_conv", default=4),
        dt_rank=auto(config, "mamba_dt_rank", -(-d.hidden // 16)),
        conv_bias=config.flag("mamba_conv_bias", default=True), bias=config.flag("mamba_proj_bias", default=False),
    )  # fmt: skip
    d.embeddings()
    d.attention(of_kind(kinds, "full"))
    d.cache(kinds)
    mamba1_layers(d.build, d.hidden, of_kind(kinds, "mamba"), m, "model.layers.{}.mamba.")
    experts = config.whole("num_experts", default=16)
    sparse = [i for i in range(n) if i % e_period == e_offset] if experts > 1 else []
    d.feed_forward([i for i in range(n) if i not in set(sparse)], module="model.layers.{}.feed_forward.")
    if sparse:
        d.experts(
            sparse, experts, config.whole("num_experts_per_tok", default=2), config.whole("intermediate_size"),
            module="model.layers.{}.feed_forward.", router="router",
        )  # fmt: skip
    d.norms("attn_norm", "ffn_norm")
    return d.shape("jamba")


@family("bamba", architectures=("BambaForCausalLM",))
def bamba(config: Config) -> Shape:
    """Mamba 2 layers with a few of attention, a dense feed-forward in each."""
    d = Decoder.read(config)
    n = d.build.n
    full = set(config.entries("attn_layer_indices", default=()))
    kinds = layer_kinds(
        config, n, ["full" if i in full else "mamba" for i in range(n)], ("full", "mamba"), "layers_block_type"
    )
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(of_kind(kinds, "full"), bias=bias, out_bias=bias)
    d.cache(kinds)
    mamba2_layers(
        d.build,
        d.hidden,
        of_kind(kinds, "mamba"),
        prefixed_mamba2(config, d.hidden, norm=True),
        "model.layers.{}.mamba.",
    )
    d.feed_forward(bias=config.flag("mlp_bias", default=False), module="model.layers.{}.feed_forward.")
    d.norms("attn_norm", "ffn_norm")
    d.rope(partial=0.5)
    return d.shape("granitehybrid")
