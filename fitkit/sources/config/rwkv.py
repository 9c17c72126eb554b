"""RWKV 7: no attention at all; each layer keeps two shifted tokens and a matrix a head."""

from __future__ import annotations

from fitkit.errors import UnsupportedModel
from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.build import Build
from fitkit.sources.config.decoder import context_of
from fitkit.sources.config.view import MOST_LAYERS, Config

LERPS = 6  # mixtures of a token with the one before it: r, w, k, v, a, g


@family("rwkv7", architectures=("RWKV7ForCausalLM", "Rwkv7ForCausalLM"))
def rwkv7(config: Config) -> Shape:
    """Decay, learning rate, value mix and gate each through a low rank; the first layer has no value mix and norms the embeddings."""
    if config.raw("attn"):
        raise UnsupportedModel(
            f"{config.place}: attn mixes attention layers in, which RWKV 7's function does not model."
        )
    n, hidden = config.whole("num_hidden_layers", high=MOST_LAYERS), config.whole("hidden_size")
    vocab, head_dim = config.whole("vocab_size"), config.whole("head_dim", default=64)
    ffn = config.whole("intermediate_size", default=4 * hidden)
    build = Build(n)
    build.add("token_embd", (hidden, vocab), module="model.embeddings")
    tied = config.flag("tie_word_embeddings", default=False)
    if not tied:
        build.add("output", (hidden, vocab), module="lm_head")
    bias = config.flag("norm_bias", default=True)
    for role in ("token_embd_norm", "output_norm"):
        for name in (role, f"{role}.bias") if bias else (role,):
            build.add(name, (hidden,), module="model.norm")
    build.norms(build.all, hidden, "attn_norm", "attn_norm_2", "time_mix_ln", bias=bias)
    for letter, key, default in (("w", "decay", 64), ("a", "a", 64), ("v", "v", 32), ("g", "gate", 128)):
        rank = config.whole(f"{key}_low_rank_dim", default=default)
        layers = build.all[1:] if letter == "v" else build.all
        module = f"model.layers.{{}}.attn.{letter}_lora.lora"
        build.add(f"time_mix_{letter}1", (hidden, rank), layers, module=module + ".0")
        build.add(f"time_mix_{letter}2", (rank, hidden), layers, module=module + ".2")
        if letter != "g":
            build.add(f"time_mix_{letter}0", (hidden,), layers, module=module + ".2")
    build.add("time_mix_lerp_fused", (hidden, 1, 1, LERPS), build.all, module="model.layers.{}.attn.x_x")
    for role in ("k_k", "k_a", "r_k"):
        build.add(f"time_mix_{role}", (hidden,), build.all, module=f"model.layers.{{}}.attn.{role}")
    for role, name in (("key", "k_proj"), ("value", "v_proj"), ("receptance", "r_proj"), ("output", "o_proj")):
        build.add(f"time_mix_{role}", (hidden, hidden), build.all, module=f"model.layers.{{}}.attn.{name}")
    build.add("channel_mix_lerp_k", (hidden,), build.all, module="model.layers.{}.ffn.x_k")
    build.add("channel_mix_key", (hidden, ffn), build.all, module="model.layers.{}.ffn.key")
    build.add("channel_mix_value", (ffn, hidden), build.all, module="model.layers.{}.ffn.value")
    heads = hidden // head_dim
    build.wide(build.all, ffn_dim=ffn)
    state = Cache(kind="state", variant="rwkv7", heads=heads, head_dim=head_dim, state_dim=head_dim, conv_kernel=3)
    build.keep(state, build.all)
    return Shape(
        build=build, hidden_size=hidden, vocab_size=vocab, context=context_of(config, 1048576), tied_embeddings=tied,
        gguf_architecture="rwkv7",
    )  # fmt: skip
