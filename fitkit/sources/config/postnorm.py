"""Decoders that norm behind each half, and the windowed ones beside them: Olmo, Exaone, Cohere 2, Gemma 3n, Muse."""

from __future__ import annotations

from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, every, layer_kinds, of_kind
from fitkit.sources.config.view import Config
from fitkit.sources.config.window import per_layer_inputs


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


@family("exaone4", architectures=("Exaone4ForCausalLM",))
def exaone4(config: Config) -> Shape:
    """Norms behind both halves; the larger ones have windows in three layers of four, the last layer is full."""
    d = Decoder.read(config)
    n = d.build.n
    window = config.nullable("sliding_window", 4096)
    said = config.raw("sliding_window_pattern", default=4 if window else 0)
    default: tuple[str, ...] = ("full",) * n
    if isinstance(said, str):  # "LLLG": local and global layers in turn
        default = (
            tuple("full" if said[i % len(said)] == "G" or i == n - 1 else "sliding" for i in range(n))
            if said
            else default
        )
    elif window:
        default = (*every(n, config.whole("sliding_window_pattern", default=4, low=0), "sliding", "full")[:-1], "full")
    kinds = layer_kinds(config, n, default, ("full", "sliding"))
    d.embeddings()
    d.attention(qk_norm=(d.head_dim, d.head_dim))
    d.cache(kinds, window)
    d.feed_forward()
    d.norms("post_attention_norm", "post_ffw_norm")
    d.rope()
    return d.shape("exaone4")


@family("cohere2", architectures=("Cohere2ForCausalLM",))
def cohere2(config: Config) -> Shape:
    """Parallel halves behind one norm, tied; windows in three layers of four."""
    d = Decoder.read(config)
    n = d.build.n
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=4, low=0)
    kinds = layer_kinds(config, n, every(n, period, "sliding", "full"), ("full", "sliding"))
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.cache(kinds, config.nullable("sliding_window", 4096))
    d.feed_forward()
    d.norms("attn_norm")
    d.rope()
    return d.shape("cohere2")


@family("gemma3n_text", architectures=("Gemma3nForCausalLM",))
def gemma3n(config: Config) -> Shape:
    """Four parallel streams (AltUp), a low-rank shortcut (Laurel), per-layer inputs; the last layers reuse K and V."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    kinds = layer_kinds(config, n, every(n, 5, "sliding", "full"), ("full", "sliding"))
    shared = config.whole("num_kv_shared_layers", default=15, low=0, high=n)
    widths = config.wholes("intermediate_size", count=n, low=1, default=16384)
    d.embeddings()
    d.attention(qk_norm=(d.head_dim, d.head_dim))
    window = config.whole("sliding_window", default=512)
    for kind in ("full", "sliding"):
        cache = Cache(
            kind=kind,
            kv_heads=d.kv_heads,
            k_dim=d.head_dim,
            v_dim=d.head_dim,
            window=window if kind == "sliding" else 0,
        )
        build.keep(cache, [i for i in of_kind(kinds, kind) if i < n - shared])
    for width in sorted(set(widths)):
        d.feed_forward([i for i in range(n) if widths[i] == width], width)
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    altup, rank = config.whole("altup_num_inputs", default=4), config.whole("laurel_rank", default=64)
    module = "model.layers.{}."
    for role, shape, name in (
        ("altup_correct_coef", (altup, altup), "altup.correction_coefs"),
        ("altup_correct_scale", (d.hidden,), "altup.correct_output_scale"),
        ("altup_predict_coef", (altup, altup * altup), "altup.prediction_coefs"),
        ("altup_router", (d.hidden, altup), "altup.modality_router"),
        ("altup_router_norm", (d.hidden,), "altup.router_norm"),
        ("laurel_l", (d.hidden, rank), "laurel.linear_left"),
        ("laurel_r", (rank, d.hidden), "laurel.linear_right"),
        ("laurel_post_norm", (d.hidden,), "laurel.post_laurel_norm"),
    ):
        build.add(role, shape, d.all, module=module + name)
    for role, name in (("altup_proj", "altup_projections"), ("altup_unembd_proj", "altup_unembed_projections")):
        build.add(role, (d.hidden, d.hidden, altup - 1), module=f"model.{name}")
    per_layer = config.whole("hidden_size_per_layer_input", default=256, low=0)
    per_layer_inputs(d, per_layer, config.whole("vocab_size_per_layer_input", default=262144) if per_layer else 0)
    d.rope(local=True)
    return d.shape("gemma3n", shared_kv_layers=shared, altup_inputs=altup)


@family("muse_glimmer_text", architectures=("MuseGlimmerForCausalLM",))
def muse_glimmer(config: Config) -> Shape:
    """A gate as wide as q, four norms; every fourth layer counted from the last is full, the others have windows."""
    d = Decoder.read(config)
    n = d.build.n
    window = config.nullable("sliding_window", 2048)
    kinds = layer_kinds(config, n, ["sliding" if (n - 1 - i) % 4 else "full" for i in range(n)], ("full", "sliding"))
    bias = config.flag("attention_bias", default=False)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.build.add("attn_gate", (d.hidden, d.heads * d.head_dim), d.all, module="model.layers.{}.self_attn.gate_proj")
    d.cache(kinds, window)
    d.feed_forward()
    d.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    d.rope()
    return d.shape("muse-glimmer")
