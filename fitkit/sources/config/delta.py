"""Gated delta nets: Qwen from 3-Next on, Olmo Hybrid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds, of_kind
from fitkit.sources.config.moe import qwen_moe_layers, qwen_sparse
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
