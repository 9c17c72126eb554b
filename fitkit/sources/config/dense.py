"""Dense decoders: Llama and what is built like it."""

from __future__ import annotations

from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.build import Build
from fitkit.sources.config.view import MOST_LAYERS, Config


@family("llama", architectures=("LlamaForCausalLM",))
def llama(config: Config) -> Shape:
    """Full attention with grouped heads, gated feed-forward, two norms a layer."""
    n = config.whole("num_hidden_layers", high=MOST_LAYERS)
    hidden, vocab = config.whole("hidden_size"), config.whole("vocab_size")
    heads = config.whole("num_attention_heads")
    kv_heads = config.whole("num_key_value_heads", default=heads)
    head_dim = config.whole("head_dim", default=hidden // heads)
    tied = config.flag("tie_word_embeddings", default=False)
    build = Build(n)
    build.embeddings(vocab, hidden, tied=tied)
    build.attention(build.all, hidden, heads, kv_heads, head_dim, bias=config.flag("attention_bias", default=False))
    build.keep(Cache(kind="full", kv_heads=kv_heads, k_dim=head_dim, v_dim=head_dim), build.all)
    build.feed_forward(
        build.all, hidden, config.whole("intermediate_size"), bias=config.flag("mlp_bias", default=False)
    )
    build.norms(build.all, hidden, "attn_norm", "ffn_norm")
    return Shape(
        build=build,
        hidden_size=hidden,
        vocab_size=vocab,
        context=config.whole("max_position_embeddings", default=2048),
        tied_embeddings=tied,
        gguf_architecture="llama",
    )
