"""Olmo: norms over all heads of q and k, behind both halves."""

from __future__ import annotations

from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds
from fitkit.sources.config.moe import EXPERTS, USED
from fitkit.sources.config.view import Config


def full_width_norms(d: Decoder) -> tuple[int, int]:
    """Norms over all heads of q and of k together."""
    return d.heads * d.head_dim, d.kv_heads * d.head_dim


def olmo_attention(d: Decoder) -> None:
    """Olmo 2's: a switch for biases, norms over all heads of q and k."""
    bias = d.config.flag("attention_bias", default=False)
    d.attention(bias=bias, out_bias=bias, qk_norm=full_width_norms(d))


@family("olmo", architectures=("OlmoForCausalLM",))
def olmo(config: Config) -> Shape:
    """The first Olmo: norms without any weights."""
    d = Decoder.read(config)
    bias = config.flag("attention_bias", default=False)
    d.build.add("token_embd", (d.hidden, d.vocab), module="model.embed_tokens")
    if not d.tied:
        d.build.add("output", (d.hidden, d.vocab), module="lm_head")
    d.attention(bias=bias, out_bias=bias)
    d.cache()
    d.feed_forward()
    d.rope()
    return d.shape("olmo")


@family("olmo2", architectures=("Olmo2ForCausalLM",))
def olmo2(config: Config) -> Shape:
    """Norms behind both halves."""
    d = Decoder.read(config)
    d.embeddings()
    olmo_attention(d)
    d.cache()
    d.feed_forward()
    d.norms("post_attention_norm", "post_ffw_norm")
    d.rope()
    return d.shape("olmo2")


@family("olmo3", architectures=("Olmo3ForCausalLM",))
def olmo3(config: Config) -> Shape:
    """Olmo 2 with windows in three layers of four."""
    d = Decoder.read(config)
    kinds = layer_kinds(config, d.build.n, every(d.build.n, 4, "sliding", "full"), ("full", "sliding"))
    d.embeddings()
    olmo_attention(d)
    d.cache(kinds, config.nullable("sliding_window", 4096))
    d.feed_forward()
    d.norms("post_attention_norm", "post_ffw_norm")
    d.rope(local=True)
    return d.shape("olmo2")


@family("olmoe", architectures=("OlmoeForCausalLM",))
def olmoe(config: Config) -> Shape:
    """Norms over all heads of q and k, experts in every layer."""
    d = Decoder.read(config)
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias, qk_norm=(d.heads * d.head_dim, d.kv_heads * d.head_dim))
    d.cache()
    d.experts(d.all, config.whole(*EXPERTS), config.whole(*USED), config.whole("intermediate_size"))
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("olmoe")


@family("flex_olmo", architectures=("FlexOlmoForCausalLM",))
def flex_olmo(config: Config) -> Shape:
    """Olmo 2 with experts. llama.cpp does not read it."""
    d = Decoder.read(config)
    d.embeddings()
    olmo_attention(d)
    d.cache()
    d.experts(d.all, config.whole(*EXPERTS), config.whole(*USED), config.whole("intermediate_size"))
    d.norms("post_attention_norm", "post_ffw_norm")
    d.rope()
    return d.shape("")
