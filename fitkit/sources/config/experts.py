"""More mixture-of-experts decoders."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.errors import UnsupportedModel
from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, layer_kinds, of_kind
from fitkit.sources.config.dense import windows
from fitkit.sources.config.moe import EXPERTS, USED, shared_experts, sparse_decoder, sparse_layers
from fitkit.sources.config.variants import refuse_shared_layers
from fitkit.sources.config.view import Config


@family("hy_v3", architectures=("HYV3ForCausalLM",))
def hy_v3(config: Config) -> Shape:
    """Hunyuan 3: norms on q and k, a correction bias, the router in 32 bits; an MTP block."""
    bias = config.flag("attention_bias", default=False)
    d = Decoder.read(config)
    if config.raw("mlp_layer_types", "first_k_dense_replace") is None:
        config = d.config = Config({**config.mapping, "first_k_dense_replace": 1}, config.place)
    sparse_decoder(d, correction=True, qk_norm=True, bias=bias, out_bias=bias)
    d.rope()

    def mtp(one: Decoder, layers: range) -> None:
        one.attention(layers, bias=bias, out_bias=bias, qk_norm=(one.head_dim, one.head_dim))
        shared_experts(one, layers)
        one.norms("attn_norm", "ffn_norm", layers=layers)

    d.mtp(config.whole("num_nextn_predict_layers", "num_mtp_layers", default=0, low=0), mtp)
    return d.shape("hy_v3", router_dtype="F32")


@family("ernie4_5_moe", architectures=("Ernie4_5_MoeForCausalLM",))
def ernie_moe(config: Config) -> Shape:
    """Shared experts of their own count, a correction bias, one switch for all biases; MTP blocks."""
    d = Decoder.read(config)
    n = d.build.n
    bias = config.flag("use_bias", default=False)
    start = config.whole("moe_layer_start_index", default=1, low=0)
    end = config.raw("moe_layer_end_index", default=-1)
    end = n - 1 if end == -1 else config.whole("moe_layer_end_index", low=0)
    step = config.whole("moe_layer_interval", default=1)
    sparse = [i for i in range(n) if start <= i <= end and (i + 1) % step == 0]
    width = config.whole("moe_intermediate_size", default=1536)

    def block(one: Decoder, layers: Sequence[int], dense: Sequence[int], sparse: Sequence[int]) -> None:
        one.attention(layers, bias=bias, out_bias=bias)
        if dense:
            one.feed_forward(dense, bias=bias)
        if sparse:
            shared = width * config.whole("moe_num_shared_experts", default=2, low=0)
            one.experts(
                sparse,
                config.whole("moe_num_experts", default=64),
                config.whole("moe_k", default=6),
                width,
                shared_dim=shared,
                correction=True,
            )
        one.norms("attn_norm", "ffn_norm", layers=layers)

    d.embeddings()
    dense = [i for i in range(n) if i not in set(sparse)]
    block(d, d.all, dense, sparse)
    d.cache()
    d.rope()
    d.mtp(
        config.whole("num_nextn_predict_layers", default=0, low=0), lambda one, layers: block(one, layers, layers, ())
    )
    return d.shape("ernie4_5-moe", dense_layers=len(dense), router_dtype="F32")


@family("hunyuan_v1_moe", architectures=("HunYuanMoEV1ForCausalLM",))
def hunyuan_moe(config: Config) -> Shape:
    """Norms on q and k; experts, their width, the shared ones and how many a token takes may be said a layer."""
    d = Decoder.read(config)
    refuse_shared_layers(config)
    n = d.build.n
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    norms = (d.head_dim, d.head_dim) if config.flag("use_qk_norm", default=True) else ()
    d.attention(bias=bias, out_bias=bias, qk_norm=norms)
    d.cache()
    experts = config.wholes("num_experts", count=n, default=1, low=1)
    used = config.wholes("moe_topk", count=n, default=1, low=1)
    width = config.wholes("moe_intermediate_size", count=n, default=d.ffn_dim, low=1)
    shared = config.wholes("num_shared_expert", count=n, default=1)
    for plan in sorted(set(zip(experts, used, width, shared, strict=True))):
        layers = [i for i in range(n) if (experts[i], used[i], width[i], shared[i]) == plan]
        count, top, dim, extra = plan
        d.experts(layers, count, top, dim, shared_dim=d.ffn_dim * extra, router="gate.wg", shared="shared_mlp.")
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("hunyuan-moe", router_dtype="F32")


@family("minimax_m2", architectures=("MiniMaxM2ForCausalLM",))
def minimax_m2(config: Config) -> Shape:
    """Norms over all heads of q and k, a correction bias, no shared expert; the files hold no MTP blocks."""
    d = Decoder.read(config)
    kinds = config.wholes("attn_type_list", count=d.build.n, default=1, high=1)
    if 0 in kinds:
        raise UnsupportedModel(
            f"{config.place}: attn_type_list has lightning layers, which MiniMax-M2's function does not model."
        )
    width = d.heads * d.head_dim, d.kv_heads * d.head_dim
    if config.text("qk_norm_type", default="per_layer") != "per_layer":
        width = d.head_dim, d.head_dim
    d.embeddings()
    d.attention(qk_norm=width if config.flag("use_qk_norm", default=True) else ())
    d.cache()
    d.experts(
        d.all, config.whole(*EXPERTS), config.whole(*USED), config.whole("intermediate_size"),
        correction=config.flag("use_routing_bias", default=True), shared_dim=config.whole("shared_intermediate_size", default=0, low=0),
        module="model.layers.{}.block_sparse_moe.",
    )  # fmt: skip
    d.norms("attn_norm", "ffn_norm")
    rotary = config.whole("rotary_dim", default=0, low=0)
    d.rope(rotary, whole=True) if rotary else d.rope(partial=0.5)
    return d.shape("minimax-m2", router_dtype="F32")


@family(
    "minimax_m3",
    "minimax_m3_vl_text",
    architectures=("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM"),
)
def minimax_m3(config: Config) -> Shape:
    """Ordinary grouped heads; most layers choose blocks of the context by an indexer of their own."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    dense, sparse = sparse_layers(config, n)
    d.embeddings()
    d.attention(qk_norm=(d.head_dim, d.head_dim))
    d.cache()
    chosen, dim, heads = blocks_chosen(config, n)
    module = "model.layers.{}.self_attn.index_"
    build.add("indexer.q_proj", (d.hidden, heads * dim), chosen, module=module + "q_proj")
    build.add("indexer.k_proj", (d.hidden, dim), chosen, module=module + "k_proj")
    build.add("indexer.q_norm", (dim,), chosen, module=module + "q_norm")
    build.add("indexer.k_norm", (dim,), chosen, module=module + "k_norm")
    build.keep(Cache(kind="indexer", k_dim=dim), chosen)
    if chosen:
        d.extra.update(index_heads=heads, index_head_dim=dim)
    width = config.whole("moe_intermediate_size", "intermediate_size")
    if dense:
        d.feed_forward(dense, config.whole("dense_intermediate_size", "intermediate_size"))
    config.raw("intermediate_size")
    shared = config.whole("shared_intermediate_size", default=0, low=0)
    count = config.whole("n_shared_experts", default=int(shared > 0), low=0)
    d.experts(
        sparse, config.whole(*EXPERTS), config.whole(*USED), width, correction=config.flag("use_routing_bias", default=False),
        shared_dim=(shared or width) * count, module="model.layers.{}.block_sparse_moe.",
    )  # fmt: skip
    d.norms("attn_norm", "ffn_norm")
    d.rope(partial=0.5)
    return d.shape("minimax-m3", router_dtype="F32", dense_layers=len(dense))


def blocks_chosen(config: Config, n: int) -> tuple[tuple[int, ...], int, int]:
    """The layers that choose blocks of the context, the width of their index and its heads, in either layout of the file."""
    said = config.view("sparse_attention_config")
    kinds = layer_kinds(config, n, ("full",) * n, ("full", "sparse"))
    chosen = of_kind(kinds, "sparse")
    if said is None:
        return chosen, config.whole("index_head_dim", default=128), config.whole("index_n_heads", default=4)
    listed = tuple(i for i, on in enumerate(said.wholes("sparse_attention_freq", count=n, default=0)) if on)
    return (
        chosen or listed,
        said.whole("sparse_index_dim", default=128),
        said.whole("sparse_num_index_heads", default=4),
    )


@family("phimoe", architectures=("PhiMoEForCausalLM",))
def phimoe(config: Config) -> Shape:
    """Layer norms with a bias, biases on attention and on the head, 16 experts."""
    d = Decoder.read(config)
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.build.add("output_norm.bias", (d.hidden,), module="model.norm")
    if config.flag("lm_head_bias", default=False):
        d.build.add("output.bias", (d.vocab,), module="lm_head")
    d.attention(bias=bias, out_bias=bias)
    d.cache(*windows(d))
    d.experts(
        d.all,
        config.whole(*EXPERTS),
        config.whole(*USED),
        config.whole("intermediate_size"),
        module="model.layers.{}.block_sparse_moe.",
    )
    d.norms("attn_norm", "ffn_norm", bias=True)
    d.rope()
    return d.shape("phimoe")


@family("granitemoe", "granitemoeshared", architectures=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"))
def granite_moe(config: Config) -> Shape:
    """Granite with experts, some with a shared one beside them."""
    d = Decoder.read(config)
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.cache()
    d.experts(
        d.all, config.whole(*EXPERTS), config.whole(*USED), config.whole("intermediate_size"),
        shared_dim=config.whole("shared_intermediate_size", default=0, low=0),
        module="model.layers.{}.block_sparse_moe.", router="router.layer", shared="shared_mlp.",
    )  # fmt: skip
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("granitemoe")


@family("dbrx", architectures=("DbrxForCausalLM",))
def dbrx(config: Config) -> Shape:
    """Joint q, k, v; experts in every layer; its sizes are in two inner mappings."""
    d = Decoder.read(config)
    attention, ffn = config.view("attn_config"), config.view("ffn_config")
    d.kv_heads = attention.whole("kv_n_heads", default=8) if attention else 8
    d.embeddings(prefix="transformer.")
    module = "transformer.blocks.{}."
    width = (d.heads + 2 * d.kv_heads) * d.head_dim
    d.build.add("attn_qkv", (d.hidden, width), d.all, module=module + "norm_attn_norm.attn.Wqkv")
    d.build.add("attn_output", (d.heads * d.head_dim, d.hidden), d.all, module=module + "norm_attn_norm.attn.out_proj")
    d.build.wide(d.all, heads=d.heads)
    d.cache()
    sizes = ffn or config
    d.experts(
        d.all, sizes.whole("moe_num_experts", default=16), sizes.whole("moe_top_k", default=4),
        sizes.whole("ffn_hidden_size", default=10752), module=module + "ffn.", router="router.layer",
    )  # fmt: skip
    d.norms("attn_norm", "attn_output_norm")
    d.rope()
    return d.shape("dbrx")


@family(
    "sarvam_moe",
    "bailing_moe",
    "bailing_moe_v2",
    architectures=("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM", "SarvamMoEForCausalLM"),
)
def bailing_moe(config: Config) -> Shape:
    """Ling 1 and 2: joint q, k, v; experts with shared ones after the dense layers; MTP blocks in the second."""
    d = Decoder.read(config)
    bias = config.flag("use_qkv_bias", default=False) or config.flag("use_bias", default=False)
    second = (
        config.raw("use_qk_norm", default=None) is not None or config.text("model_type", default="") != "bailing_moe"
    )
    norms = second and config.flag("use_qk_norm", default=True)
    correction = config.flag("moe_router_enable_expert_bias", default=second)
    if config.text("router_dtype", default="") == "fp32":
        d.extra["router_dtype"] = "F32"
    dense, sparse = sparse_layers(config, d.build.n)

    def block(one: Decoder, layers: Sequence[int], dense: Sequence[int], sparse: Sequence[int]) -> None:
        one.attention(layers, bias=bias, qk_norm=(one.head_dim, one.head_dim) if norms else ())
        if dense:
            one.feed_forward(dense)
        shared_experts(one, sparse, correction=correction)
        one.norms("attn_norm", "ffn_norm", layers=layers)

    d.embeddings()
    block(d, d.all, dense, sparse)
    d.cache()
    d.rope()
    d.mtp(
        config.whole("num_nextn_predict_layers", default=0, low=0), lambda one, layers: block(one, layers, (), layers)
    )
    return d.shape("bailingmoe2" if second else "bailingmoe", dense_layers=len(dense))
