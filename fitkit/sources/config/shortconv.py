"""Short convolutions and lightning attention: LFM2, Inkling, MiniMax-01."""

from __future__ import annotations

from fitkit.errors import BadInput, UnsupportedModel
from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds, of_kind
from fitkit.sources.config.moe import EXPERTS, USED, sparse_layers
from fitkit.sources.config.view import Config


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
    if width < 1:
        raise BadInput(f"{config.place}: block_ffn_dim_multiplier leaves no width for the feed-forward.")
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
    if (states := config.whole("number_of_conv_states", default=4)) != 4:
        raise UnsupportedModel(
            f"{config.place}: number_of_conv_states is {states}; four are modelled, of k, v and both halves' outputs."
        )
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
