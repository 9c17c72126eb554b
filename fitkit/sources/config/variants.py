"""Dense decoders that differ from Llama in a bias, a norm or a gate."""

from __future__ import annotations

from fitkit.errors import BadInput, UnsupportedModel
from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder
from fitkit.sources.config.dense import llama_like, windows
from fitkit.sources.config.legacy import up_down, with_biases
from fitkit.sources.config.view import Config


@family("arcee", architectures=("ArceeForCausalLM",))
def arcee(config: Config) -> Shape:
    """As Llama, with a feed-forward without a gate."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(
        config, bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", default=False), plain_mlp=True
    ).shape("arcee")


@family("apertus", architectures=("ApertusForCausalLM",))
def apertus(config: Config) -> Shape:
    """As Llama, norms on q and k, no gate, an activation with two values a layer."""
    bias = config.flag("attention_bias", default=False)
    d = llama_like(config, bias=bias, out_bias=bias, qk_norm=True, plain_mlp=True)
    for role in ("ffn_act.alpha_p", "ffn_act.alpha_n"):
        d.build.add(role, (1,), d.all, module="model.layers.{}.mlp.act_fn")
    return d.shape("apertus")


def refuse_shared_layers(config: Config) -> None:
    """Hunyuan's cross-layer attention lets layers share K and V; none of its published checkpoints in this form uses it."""
    config.raw("cla_share_factor")
    if config.flag("use_cla", default=False):
        raise UnsupportedModel(
            f"{config.place}: use_cla shares K and V between layers, which is not modelled; add it in fitkit/sources/config/variants.py."
        )


@family("hunyuan_v1_dense", architectures=("HunYuanDenseV1ForCausalLM",))
def hunyuan_dense(config: Config) -> Shape:
    """As Llama, with norms on q and k."""
    refuse_shared_layers(config)
    bias = config.flag("attention_bias", default=False)
    norms = config.flag("use_qk_norm", default=True)
    return llama_like(config, bias=bias, out_bias=bias, qk_norm=norms).shape("hunyuan-dense")


@family("internlm2", architectures=("InternLM2ForCausalLM", "InternLM2ForRewardModel"))
def internlm2(config: Config) -> Shape:
    """As Llama; the checkpoint keeps q, k and v in one tensor."""
    bias = config.flag("bias", default=False)
    return llama_like(config, bias=bias, out_bias=bias).shape("internlm2")


@family("internlm3", architectures=("InternLM3ForCausalLM",))
def internlm3(config: Config) -> Shape:
    """As Llama, with two switches for biases."""
    bias = config.flag("bias", default=False)
    return llama_like(config, bias=config.flag("qkv_bias", default=False), out_bias=bias, mlp_bias=bias).shape("llama")


@family("internlm", architectures=("InternLMForCausalLM",))
def internlm(config: Config) -> Shape:
    """As Llama, with biases on all four projections; llama.cpp reads it no more."""
    bias = config.flag("bias", default=True)
    return llama_like(config, bias=bias, out_bias=bias).shape("")


@family("baichuan", architectures=("BaichuanForCausalLM", "BaiChuanForCausalLM"))
def baichuan(config: Config) -> Shape:
    """As Llama with one joint q, k, v tensor; every query head has its own K and V."""
    return llama_like(config).shape("baichuan")


@family("xverse", architectures=("XverseForCausalLM",))
def xverse(config: Config) -> Shape:
    """As Llama."""
    return llama_like(config).shape("xverse")


@family("iquestcoder", architectures=("IQuestCoderForCausalLM",))
def iquestcoder(config: Config) -> Shape:
    """As Llama."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(config, bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", default=False)).shape("llama")


@family("ernie4_5", architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"))
def ernie(config: Config) -> Shape:
    """As Llama, with one switch for all biases."""
    bias = config.flag("use_bias", default=False)
    return llama_like(config, bias=bias, out_bias=bias, mlp_bias=bias).shape("ernie4_5")


@family("exaone", architectures=("ExaoneForCausalLM",))
def exaone(config: Config) -> Shape:
    """As Llama under other names."""
    return llama_like(config).shape("exaone")


@family("orion", architectures=("OrionForCausalLM",))
def orion(config: Config) -> Shape:
    """As Llama, with layer norms that have a bias."""
    d = Decoder.read(config)
    d.embeddings()
    d.build.add("output_norm.bias", (d.hidden,), module="model.norm")
    bias = config.flag("attention_bias", default=False)
    d.attention(bias=bias, out_bias=bias)
    d.cache()
    d.feed_forward()
    d.norms("attn_norm", "ffn_norm", bias=True)
    d.rope()
    return d.shape("orion")


@family("nemotron", architectures=("NemotronForCausalLM",))
def nemotron(config: Config) -> Shape:
    """Layer norms with a bias, a feed-forward without a gate."""
    d = Decoder.read(config)
    d.embeddings()
    d.build.add("output_norm.bias", (d.hidden,), module="model.norm")
    bias = config.flag("attention_bias", default=False)
    d.attention(bias=bias, out_bias=bias)
    d.cache()
    d.feed_forward(gated=False, bias=config.flag("mlp_bias", default=False))
    d.norms("attn_norm", "ffn_norm", bias=True)
    d.rope(partial=0.5)
    return d.shape("nemotron")


@family("stablelm", "stablelm_epoch", architectures=("StableLmForCausalLM", "StableLMEpochForCausalLM"))
def stablelm(config: Config) -> Shape:
    """Layer norms with a bias; q, k, v may have one; q and k may have a norm a head."""
    d = Decoder.read(config)
    d.embeddings()
    per_head = config.flag("qk_layernorm", default=False)
    d.attention(
        bias=config.flag("use_qkv_bias", default=False),
        qk_norm=(d.heads * d.head_dim, d.kv_heads * d.head_dim) if per_head else (),
    )
    d.feed_forward()
    parallel = config.flag("use_parallel_residual", default=False)
    with_biases(d, ("attn_norm",) if parallel else ("attn_norm", "ffn_norm"))
    d.cache()
    d.rope(partial=0.25)
    return d.shape("stablelm")


@family("starcoder2", architectures=("Starcoder2ForCausalLM",))
def starcoder2(config: Config) -> Shape:
    """Biases everywhere, no gate, a window in the larger ones."""
    d = Decoder.read(config)
    bias = config.flag("use_bias", default=True)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    up_down(d, d.ffn_dim, bias=bias, module="model.layers.{}.mlp.")
    with_biases(d, ("attn_norm", "ffn_norm"))
    d.cache(*windows(d))
    d.rope()
    return d.shape("starcoder2")


@family("cohere", architectures=("CohereForCausalLM",))
def cohere(config: Config) -> Shape:
    """Parallel halves behind one norm, tied; the largest have a norm for each head of q and k."""
    d = Decoder.read(config)
    d.embeddings()
    bias = config.flag("attention_bias", default=False)
    norms = (d.heads * d.head_dim, d.kv_heads * d.head_dim) if config.flag("use_qk_norm", default=False) else ()
    d.attention(bias=bias, out_bias=bias, qk_norm=norms)
    d.feed_forward()
    d.norms("attn_norm")
    d.cache()
    d.rope()
    return d.shape("command-r")


@family("nemotron-nas", architectures=("DeciLMForCausalLM",))
def nemotron_nas(config: Config) -> Shape:
    """A Llama whose every layer has its own KV heads and feed-forward width, or lacks one of the halves."""
    d = Decoder.read(config)
    build, n = d.build, d.build.n
    blocks = [
        Config(block, f"{config.place}: block_configs[{i}]") if isinstance(block, dict) else None
        for i, block in enumerate(config.entries("block_configs", length=n))
    ]
    d.embeddings()
    bias = config.flag("attention_bias", default=False)
    for i, block in enumerate(blocks):
        attention, ffn = (block.view("attention"), block.view("ffn")) if block else (None, None)
        if attention is None or ffn is None:
            raise BadInput(f"{config.place}: block_configs[{i}] does not say its attention and ffn.")
        if attention.raw("window_length", "sparsify") or ffn.raw("sparsify"):
            raise UnsupportedModel(
                f"{attention.place} has a window or is sparse, which is not modelled; add it in fitkit/sources/config/dense.py."
            )
        if attention.flag("replace_with_linear", default=False):
            build.add("attn_output", (d.hidden, d.hidden), (i,), module="model.layers.{}.self_attn.linear_attn")
        elif not attention.flag("no_op", default=False):
            kv_heads = max(1, d.heads // attention.whole("n_heads_in_group", default=1))
            build.attention((i,), d.hidden, d.heads, kv_heads, d.head_dim, bias=bias, out_bias=bias)
            build.keep(Cache(kind="full", kv_heads=kv_heads, k_dim=d.head_dim, v_dim=d.head_dim), (i,))
        if not attention.flag("no_op", default=False):
            d.norms("attn_norm", layers=(i,))
        if ffn.flag("no_op", default=False):
            continue
        d.norms("ffn_norm", layers=(i,))
        if ffn.flag("replace_with_linear", default=False):
            build.add("ffn_down", (d.hidden, d.hidden), (i,), module="model.layers.{}.mlp.linear_mlp")
            continue
        width = int(2 * ffn.number("ffn_mult", default=1.0) * d.hidden / 3)
        d.feed_forward((i,), -(-width // 256) * 256)
    d.rope()
    return d.shape("deci")
