"""GLM: joint gate and up, half of a head rotated; experts from 4.5 on."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder
from fitkit.sources.config.legacy import joint_qkv, up_down
from fitkit.sources.config.moe import own_embeddings, shared_experts, sparse_decoder, sparse_layers
from fitkit.sources.config.view import Config


@family("chatglm", architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration"))
def chatglm(config: Config) -> Shape:
    """ChatGLM 2 and 3 and the first GLM-4: joint q, k, v, joint gate and up; llama.cpp calls them chatglm."""
    d = Decoder.read(config)
    if config.flag("multi_query_attention", default=False):
        d.kv_heads = config.whole("multi_query_group_num", default=1)
    bias = config.flag("add_bias_linear", default=False)
    d.embeddings(prefix="transformer.encoder.", head="transformer.output_layer")
    module = "transformer.encoder.layers.{}."
    qkv_bias = config.flag("add_qkv_bias", default=False) or bias
    joint_qkv(
        d, qkv_bias=qkv_bias, out_bias=bias, module=module + "self_attention.", names=("query_key_value", "dense")
    )
    ffn = config.whole("ffn_hidden_size")
    up_down(d, ffn, bias=bias, module=module + "mlp.", names=("dense_h_to_4h", "dense_4h_to_h"), fused_gate=True)
    d.norms("attn_norm", "ffn_norm")
    d.cache()
    d.rope(partial=0.5)
    return d.shape("chatglm")


def glm_layers(d: Decoder, *norms: str) -> None:
    """GLM-4's layers: a bias on q, k and v where the file says so, gate and up in one tensor, `norms`."""
    d.embeddings()
    d.attention(bias=d.config.flag("attention_bias", default=False))
    up_down(
        d, d.ffn_dim, bias=False, module="model.layers.{}.mlp.", names=("gate_up_proj", "down_proj"), fused_gate=True
    )
    d.norms(*norms)
    d.cache()
    d.rope(partial=0.5)


@family("glm", architectures=("GlmForCausalLM",))
def glm(config: Config) -> Shape:
    """GLM-4 in the library's own form."""
    d = Decoder.read(config)
    glm_layers(d, "attn_norm", "ffn_norm")
    return d.shape("chatglm")


@family("glm4", "glm4v_text", architectures=("Glm4ForCausalLM",))
def glm4(config: Config) -> Shape:
    """GLM-4-0414: norms before and after both halves."""
    d = Decoder.read(config)
    glm_layers(d, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    return d.shape("glm4")


@family("glm4_moe", "glm4v_moe_text", architectures=("Glm4MoeForCausalLM",))
def glm4_moe(config: Config) -> Shape:
    """Experts with a shared one after the first dense layers; biases on q, k, v; the router in 32 bits."""
    d = Decoder.read(config)
    dense, sparse = sparse_layers(config, d.build.n)

    def block(one: Decoder, layers: Sequence[int], dense: Sequence[int], sparse: Sequence[int]) -> None:
        norms = (one.head_dim, one.head_dim) if config.flag("use_qk_norm", default=False) else ()
        one.attention(layers, bias=config.flag("attention_bias", default=False), qk_norm=norms)
        if dense:
            one.feed_forward(dense)
        shared_experts(one, sparse)
        one.norms("attn_norm", "post_attention_norm", layers=layers)

    d.embeddings()
    block(d, d.all, dense, sparse)
    d.cache()
    d.rope(partial=0.5)

    def mtp(one: Decoder, layers: range) -> None:
        block(one, layers, (), layers)
        own_embeddings(one, layers)

    d.mtp(config.whole("num_nextn_predict_layers", default=0, low=0), mtp)
    return d.shape("glm4moe", router_dtype="F32", dense_layers=len(dense))


@family("solar_open", architectures=("SolarOpenForCausalLM",))
def solar_open(config: Config) -> Shape:
    """GLM-4-MoE's plan without biases; every layer has experts."""
    bias = config.flag("attention_bias", default=False)
    d = sparse_decoder(
        Decoder.read(config), correction=True, qk_norm=config.flag("use_qk_norm", default=False), bias=bias
    )
    d.rope()
    return d.shape("glm4moe", router_dtype="F32")
