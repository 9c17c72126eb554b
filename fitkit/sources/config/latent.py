"""Latent attention (MLA) and its sparse kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, layer_kinds
from fitkit.sources.config.moe import EXPERTS, own_embeddings, shared_experts, sparse_layers
from fitkit.sources.config.view import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """The widths of latent attention."""

    q_rank: int  # 0: q is projected at once
    kv_rank: int
    nope: int
    rope: int
    v_dim: int

    @property
    def qk_dim(self) -> int:
        """Width of one head of q and k."""
        return self.nope + self.rope


def latent_sizes(config: Config) -> Latent:
    """The five widths; q_lora_rank may be null."""
    nope = config.whole("qk_nope_head_dim", default=128, low=0)
    return Latent(
        q_rank=config.whole("q_lora_rank", default=0, low=0),
        kv_rank=config.whole("kv_lora_rank", default=512),
        nope=nope,
        rope=config.whole("qk_rope_head_dim", default=64, low=0),
        v_dim=config.whole("v_head_dim", default=nope),
    )


def latent_attention(
    d: Decoder, layers: Sequence[int], sizes: Latent, *, bias: bool = False, module: str = "model.layers.{}.self_attn."
) -> None:
    """Q (through its rank), the joint K/V latent, its expansion and the output projection; `bias` on the two first projections and the last."""
    build, heads = d.build, d.heads
    parts = [("attn_q", "q_proj", d.hidden, heads * sizes.qk_dim, False)]
    if sizes.q_rank:
        parts = [
            ("attn_q_a", "q_a_proj", d.hidden, sizes.q_rank, bias),
            ("attn_q_b", "q_b_proj", sizes.q_rank, heads * sizes.qk_dim, False),
        ]
        build.add("attn_q_a_norm", (sizes.q_rank,), layers, module=module + "q_a_layernorm")
    parts += [
        ("attn_kv_a_mqa", "kv_a_proj_with_mqa", d.hidden, sizes.kv_rank + sizes.rope, bias),
        ("attn_kv_b", "kv_b_proj", sizes.kv_rank, heads * (sizes.nope + sizes.v_dim), False),
        ("attn_output", "o_proj", heads * sizes.v_dim, d.hidden, bias),
    ]
    for role, name, n_in, n_out, biased in parts:
        build.add(role, (n_in, n_out), layers, module=module + name)
        if biased:
            build.add(f"{role}.bias", (n_out,), layers, module=module + name)
    build.add("attn_kv_a_norm", (sizes.kv_rank,), layers, module=module + "kv_a_layernorm")
    build.wide([i for i in layers if i < len(build.widths)], heads=heads)


def latent_cache(sizes: Latent) -> Cache:
    """One vector a token, whatever the heads."""
    return Cache(kind="latent", k_dim=sizes.kv_rank + sizes.rope)


def note_latent(d: Decoder, sizes: Latent) -> None:
    """The widths engines ask for besides."""
    d.extra.update(
        kv_lora_rank=sizes.kv_rank,
        q_lora_rank=sizes.q_rank,
        qk_nope_head_dim=sizes.nope,
        qk_rope_head_dim=sizes.rope,
        v_head_dim=sizes.v_dim,
    )


def indexer(d: Decoder, layers: Sequence[int], q_rank: int) -> int:
    """The lightning indexer of `layers`: its own q (from q's rank), one k vector with a layer norm, a weight a head. Returns its width."""
    config, build = d.config, d.build
    heads, dim = config.whole("index_n_heads"), config.whole("index_head_dim")
    module = "model.layers.{}.self_attn.indexer."
    build.add("indexer.attn_q_b", (q_rank, heads * dim), layers, module=module + "wq_b")
    build.add("indexer.attn_k", (d.hidden, dim), layers, module=module + "wk")
    build.add("indexer.k_norm", (dim,), layers, module=module + "k_norm", dtype="F32")
    build.add("indexer.k_norm.bias", (dim,), layers, module=module + "k_norm", dtype="F32")
    build.add("indexer.proj", (d.hidden, heads), layers, module=module + "weights_proj")
    d.extra.update(index_heads=heads, index_head_dim=dim, index_topk=config.whole("index_topk", default=2048))
    return dim


def deepseek(
    config: Config,
    gguf: str,
    *,
    correction: bool,
    sparse_attention: bool = False,
    own: bool = True,
    rope_dtype: str = "",
) -> Shape:
    """DeepSeek V2 to V3.2 and their many relatives: latent attention, first dense layers, then experts with shared ones."""
    d = Decoder.read(config)
    sizes = latent_sizes(config)
    n = d.build.n
    experts = config.whole(*EXPERTS, default=0, low=0)
    dense, sparse = sparse_layers(config, n) if experts else (tuple(d.all), ())
    bias = config.flag("attention_bias", default=False)
    layer_kinds(config, n, ["full"] * n, ("full",))
    indexed = indexed_layers(config, n) if sparse_attention else ()

    def block(
        one: Decoder, layers: Sequence[int], dense: Sequence[int], sparse: Sequence[int], indexed: Sequence[int]
    ) -> None:
        latent_attention(one, layers, sizes, bias=bias)
        if indexed:
            indexer(one, indexed, sizes.q_rank or one.hidden)
        if dense:
            one.feed_forward(dense)
        shared_experts(one, sparse, correction=correction) if sparse else None
        one.norms("attn_norm", "ffn_norm", layers=layers)

    d.embeddings()
    block(d, d.all, dense, sparse, indexed)
    d.build.keep(latent_cache(sizes), d.all)
    d.build.keep(Cache(kind="indexer", k_dim=int(d.extra.get("index_head_dim", 0))), indexed)
    note_latent(d, sizes)
    d.rope(sizes.rope, dtype=rope_dtype, whole=True)
    if rope_dtype and indexed:  # the indexer turns its halves another way and has a table of its own
        d.extra["rope_tables"] *= 2

    def mtp(one: Decoder, layers: range) -> None:
        block(one, layers, (), layers, layers if sparse_attention else ())
        if own:
            own_embeddings(one, layers)

    d.mtp(config.whole("num_nextn_predict_layers", default=0, low=0), mtp)
    return d.shape(gguf, dense_layers=len(dense))


def indexed_layers(config: Config, n: int) -> tuple[int, ...]:
    """Which layers own an indexer: all, or those whose indexer_types says "full" (the others share its choice)."""
    said = config.entries("indexer_types", default=())
    if not said:
        return tuple(range(n))
    return tuple(i for i, kind in enumerate(said[:n]) if kind == "full")


@family("deepseek_v2", architectures=("DeepseekV2ForCausalLM",))
def deepseek_v2(config: Config) -> Shape:
    """Softmax router without correction bias."""
    return deepseek(config, "deepseek2", correction=False)


@family("deepseek_v3", "kimi_k2", architectures=("DeepseekV3ForCausalLM",))
def deepseek_v3(config: Config) -> Shape:
    """Sigmoid router with a correction bias, an MTP block."""
    return deepseek(config, "deepseek2", correction=True)


@family("deepseek_v32", architectures=("DeepseekV32ForCausalLM",))
def deepseek_v32(config: Config) -> Shape:
    """V3 with a lightning indexer in every layer."""
    return deepseek(config, "deepseek32", correction=True, sparse_attention=True, rope_dtype="F32")


@family("glm_moe_dsa", architectures=("GlmMoeDsaForCausalLM",))
def glm_moe_dsa(config: Config) -> Shape:
    """GLM-5: latent attention with an indexer that some layers share."""
    return deepseek(config, "glm-dsa", correction=True, sparse_attention=True)


@family("minicpm3", architectures=("MiniCPM3ForCausalLM",))
def minicpm3(config: Config) -> Shape:
    """Latent projections, but both engines keep whole heads in the cache: K of nope + rope, V as wide in vLLM."""
    d = Decoder.read(config)
    sizes = latent_sizes(config)
    d.embeddings()
    latent_attention(d, d.all, sizes)
    d.head_dim = sizes.qk_dim
    d.cache()
    d.feed_forward()
    d.norms("attn_norm", "ffn_norm")
    d.rope(sizes.rope)
    note_latent(d, sizes)
    return d.shape("minicpm3")


@family("glm4_moe_lite", architectures=("Glm4MoeLiteForCausalLM",))
def glm4_moe_lite(config: Config) -> Shape:
    """GLM-4.7-Flash: DeepSeek-V3's plan."""
    return deepseek(config, "deepseek2", correction=True)


@family("sarvam_mla", architectures=("SarvamMLAForCausalLM",))
def sarvam_mla(config: Config) -> Shape:
    """Sarvam: DeepSeek-V3's plan without a rank for q."""
    return deepseek(config, "", correction=True)


@family("youtu", architectures=("YoutuForCausalLM",))
def youtu(config: Config) -> Shape:
    """Latent attention, dense feed-forwards."""
    return deepseek(config, "deepseek2", correction=False)


@family("mistral4", architectures=("Mistral4ForCausalLM",))
def mistral4(config: Config) -> Shape:
    """Mistral Small 4: latent attention, experts in every layer, a plain softmax router."""
    return deepseek(config, "mistral4", correction=False)
