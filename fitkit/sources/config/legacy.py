"""Older designs: learned positions, joint projections, layer norms with biases, feed-forwards without a gate."""

from __future__ import annotations

from collections.abc import Iterable

from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder
from fitkit.sources.config.view import Config


def joint_qkv(
    d: Decoder,
    *,
    qkv_bias: bool,
    out_bias: bool,
    module: str,
    names: tuple[str, str] = ("c_attn", "c_proj"),
    out_in: int = 0,
) -> None:
    """One tensor for q, k and v, one for the output."""
    width = (d.heads + 2 * d.kv_heads) * d.head_dim
    d.build.add("attn_qkv", (d.hidden, width), d.all, module=module + names[0])
    d.build.add("attn_output", (out_in or d.heads * d.head_dim, d.hidden), d.all, module=module + names[1])
    if qkv_bias:
        d.build.add("attn_qkv.bias", (width,), d.all, module=module + names[0])
    if out_bias:
        d.build.add("attn_output.bias", (d.hidden,), d.all, module=module + names[1])
    d.build.wide(d.all, heads=d.heads)


def up_down(
    d: Decoder,
    ffn: int,
    *,
    bias: bool,
    module: str,
    names: tuple[str, str] = ("c_fc", "c_proj"),
    fused_gate: bool = False,
) -> None:
    """A feed-forward of two tensors; `fused_gate`: the first holds gate and up."""
    wide = 2 * ffn if fused_gate else ffn
    d.build.add("ffn_up", (d.hidden, wide), d.all, module=module + names[0])
    d.build.add("ffn_down", (ffn, d.hidden), d.all, module=module + names[1])
    if bias:
        d.build.add("ffn_up.bias", (wide,), d.all, module=module + names[0])
        d.build.add("ffn_down.bias", (d.hidden,), d.all, module=module + names[1])
    d.build.wide(d.all, ffn_dim=ffn)


def with_biases(d: Decoder, norms: Iterable[str], *, final: bool = True) -> None:
    """Layer norms with a bias, the final one too."""
    d.norms(*norms, bias=True)
    if final:
        d.build.add("output_norm.bias", (d.hidden,), module="model.norm")


def learned_positions(d: Decoder, config: Config, gguf: str) -> Shape:
    """GPT-2's body: a table of positions, joint q, k, v, biases everywhere."""
    d.embeddings(prefix="transformer.")
    d.build.add("position_embd", (d.hidden, d.context), module="transformer.wpe")
    joint_qkv(d, qkv_bias=True, out_bias=True, module="transformer.h.{}.attn.")
    up_down(d, config.whole("n_inner", default=4 * d.hidden), bias=True, module="transformer.h.{}.mlp.")
    with_biases(d, ("attn_norm", "ffn_norm"))
    d.cache()
    return d.shape(gguf)


@family("gpt2", architectures=("GPT2LMHeadModel",))
def gpt2(config: Config) -> Shape:
    """Learned positions, biases everywhere, tied."""
    return learned_positions(Decoder.read(config), config, "gpt2")


@family("gpt_bigcode", architectures=("GPTBigCodeForCausalLM",))
def gpt_bigcode(config: Config) -> Shape:
    """GPT-2 with one K/V head for all (multi_query)."""
    d = Decoder.read(config)
    if config.flag("multi_query", default=True):
        d.kv_heads = 1
    return learned_positions(d, config, "starcoder")


@family("gpt_neox", architectures=("GPTNeoXForCausalLM",))
def gpt_neox(config: Config) -> Shape:
    """Joint q, k, v with a bias; two norms even where the halves run side by side."""
    d = Decoder.read(config)
    bias = config.flag("attention_bias", default=True)
    d.embeddings(prefix="gpt_neox.", head="embed_out")
    joint_qkv(
        d, qkv_bias=bias, out_bias=bias, module="gpt_neox.layers.{}.attention.", names=("query_key_value", "dense")
    )
    up_down(d, d.ffn_dim, bias=True, module="gpt_neox.layers.{}.mlp.", names=("dense_h_to_4h", "dense_4h_to_h"))
    with_biases(d, ("attn_norm", "ffn_norm"))
    d.cache()
    d.rope(partial=0.25)
    return d.shape("gptneox")


@family("gptj", architectures=("GPTJForCausalLM",))
def gptj(config: Config) -> Shape:
    """Parallel halves behind one norm; a bias on the head. llama.cpp does not build it."""
    d = Decoder.read(config)
    d.embeddings(prefix="transformer.")
    d.build.add("output.bias", (d.vocab,), module="lm_head")
    d.attention(module="transformer.h.{}.attn.")
    up_down(
        d,
        config.whole("n_inner", default=4 * d.hidden),
        bias=True,
        module="transformer.h.{}.mlp.",
        names=("fc_in", "fc_out"),
    )
    with_biases(d, ("attn_norm",))
    d.cache()
    d.rope(config.whole("rotary_dim", default=64))
    return d.shape("")


@family("opt", architectures=("OPTForCausalLM",))
def opt(config: Config) -> Shape:
    """Learned positions (two more than the context), biases everywhere; embeddings may be narrower. llama.cpp does not read it."""
    d = Decoder.read(config)
    build, prefix = d.build, "model.decoder."
    narrow = config.whole("word_embed_proj_dim", default=d.hidden)
    bias = config.flag("enable_bias", default=True)
    build.add("token_embd", (narrow, d.vocab), module=prefix + "embed_tokens")
    build.add("position_embd", (d.hidden, d.context + 2), module=prefix + "embed_positions")
    if narrow != d.hidden:
        build.add("token_embd_proj", (narrow, d.hidden), module=prefix + "project_in")
        build.add("output_proj", (d.hidden, narrow), module=prefix + "project_out")
    if not d.tied:
        build.add("output", (narrow, d.vocab), module="lm_head")
    d.attention(bias=bias, out_bias=bias, module=prefix + "layers.{}.self_attn.")
    up_down(d, d.ffn_dim, bias=bias, module=prefix + "layers.{}.", names=("fc1", "fc2"))
    d.norms("attn_norm", "ffn_norm", bias=True)
    if config.flag("do_layer_norm_before", default=True) and not config.flag("_remove_final_layer_norm", default=False):
        build.add("output_norm", (d.hidden,), module=prefix + "final_layer_norm")
        build.add("output_norm.bias", (d.hidden,), module=prefix + "final_layer_norm")
    d.cache()
    return d.shape("")


@family("bloom", architectures=("BloomForCausalLM",))
def bloom(config: Config) -> Shape:
    """ALiBi, a norm behind the embeddings, biases everywhere."""
    d = Decoder.read(config)
    d.embeddings(prefix="transformer.")
    d.build.norms((), d.hidden)
    for role in ("token_embd_norm", "token_embd_norm.bias"):
        d.build.add(role, (d.hidden,), module="transformer.word_embeddings_layernorm")
    module = "transformer.h.{}."
    joint_qkv(d, qkv_bias=True, out_bias=True, module=module + "self_attention.", names=("query_key_value", "dense"))
    up_down(d, 4 * d.hidden, bias=True, module=module + "mlp.", names=("dense_h_to_4h", "dense_4h_to_h"))
    with_biases(d, ("attn_norm", "ffn_norm"))
    d.cache()
    return d.shape("bloom")


@family("falcon", architectures=("FalconForCausalLM", "RWForCausalLM"))
def falcon(config: Config) -> Shape:
    """Parallel halves; one K/V head for all, or groups and two norms in the new architecture."""
    d = Decoder.read(config)
    new = config.flag("new_decoder_architecture", default="n_head_kv" in config)
    if not new:
        d.kv_heads = 1 if config.flag("multi_query", default=True) else d.heads
    bias = config.flag("bias", default=False)
    d.embeddings(prefix="transformer.")
    module = "transformer.h.{}."
    joint_qkv(d, qkv_bias=bias, out_bias=bias, module=module + "self_attention.", names=("query_key_value", "dense"))
    ffn = config.whole("ffn_hidden_size", default=4 * d.hidden)
    up_down(d, ffn, bias=bias, module=module + "mlp.", names=("dense_h_to_4h", "dense_4h_to_h"))
    two = config.whole("num_ln_in_parallel_attn", default=2 if new else 1) == 2
    parallel = config.flag("parallel_attn", default=True)
    with_biases(d, ("attn_norm",) if parallel and not two else ("attn_norm", "attn_norm_2" if parallel else "ffn_norm"))
    d.cache()
    if not config.flag("alibi", default=False):
        d.rope()
    return d.shape("falcon")


@family("mpt", architectures=("MPTForCausalLM",))
def mpt(config: Config) -> Shape:
    """ALiBi or learned positions, no biases unless the file wants them."""
    d = Decoder.read(config)
    bias = not config.flag("no_bias", default=True)
    attention = config.view("attn_config")
    d.kv_heads = attention.whole("kv_n_heads", default=d.heads) if attention else d.heads
    d.embeddings(prefix="transformer.")
    alibi = attention.flag("alibi", default=True) if attention else True
    if not alibi and config.flag("learned_pos_emb", default=True):
        d.build.add("position_embd", (d.hidden, d.context), module="transformer.wpe")
    module = "transformer.blocks.{}."
    joint_qkv(d, qkv_bias=bias, out_bias=bias, module=module + "attn.", names=("Wqkv", "out_proj"))
    ffn = config.whole("expansion_ratio", default=4) * d.hidden
    up_down(d, ffn, bias=bias, module=module + "ffn.", names=("up_proj", "down_proj"))
    d.norms("attn_norm", "ffn_norm", bias=bias)
    d.cache()
    return d.shape("mpt")


@family("phi", "phi-msft", architectures=("PhiForCausalLM",))
def phi(config: Config) -> Shape:
    """Parallel halves behind one norm, biases everywhere, the head's too."""
    d = Decoder.read(config)
    d.embeddings()
    d.build.add("output.bias", (d.vocab,), module="lm_head")
    joint_qkv(d, qkv_bias=True, out_bias=True, module="model.layers.{}.self_attn.", names=("qkv_proj", "dense"))
    ffn = config.whole("intermediate_size", "n_inner", default=4 * d.hidden)
    up_down(d, ffn, bias=True, module="model.layers.{}.mlp.", names=("fc1", "fc2"))
    with_biases(d, ("attn_norm",))
    d.cache()
    rotary = config.whole("rotary_dim", default=0, low=0)
    d.rope(rotary) if rotary else d.rope(partial=0.5)
    return d.shape("phi2")


@family("phi3small", architectures=("Phi3SmallForCausalLM",))
def phi3_small(config: Config) -> Shape:
    """Joint projections with biases, tied; half of its layers read blocks of the context only, but keep all of it. Not in llama.cpp."""
    d = Decoder.read(config)
    for key in ("dense_attention_every_n_layers", "blocksparse_block_size", "blocksparse_num_local_blocks"):
        config.raw(key)  # which tokens are read, not which are kept
    d.embeddings()
    joint_qkv(d, qkv_bias=True, out_bias=True, module="model.layers.{}.self_attn.", names=("query_key_value", "dense"))
    ffn = config.whole("ff_intermediate_size", "intermediate_size")
    up_down(d, ffn, bias=True, module="model.layers.{}.mlp.", names=("up_proj", "down_proj"), fused_gate=True)
    with_biases(d, ("attn_norm", "ffn_norm"))
    d.cache()
    d.rope()
    return d.shape("")


@family("qwen", architectures=("QWenLMHeadModel",))
def qwen1(config: Config) -> Shape:
    """Joint q, k, v with a bias; intermediate_size counts gate and up together."""
    d = Decoder.read(config)
    d.embeddings(prefix="transformer.")
    joint_qkv(d, qkv_bias=True, out_bias=False, module="transformer.h.{}.attn.")
    d.feed_forward(ffn_dim=d.ffn_dim // 2, module="transformer.h.{}.mlp.")
    d.norms("attn_norm", "ffn_norm")
    d.cache()
    d.rope()
    return d.shape("qwen")
