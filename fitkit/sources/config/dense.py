"""Dense decoders: Llama and what is built like it."""

from __future__ import annotations

from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, layer_kinds
from fitkit.sources.config.view import Config


def plain(
    config: Config, gguf: str, *, bias: bool = False, out_bias: bool = False, mlp_bias: bool = False, **read: object
) -> Shape:
    """Full attention with grouped heads, gated feed-forward, two norms a layer."""
    d = Decoder.read(config, **read)  # type: ignore[arg-type]
    return filled(d, bias=bias, out_bias=out_bias, mlp_bias=mlp_bias).shape(gguf)


def filled(
    d: Decoder, *, bias: bool = False, out_bias: bool = False, mlp_bias: bool = False, qk_norm: tuple[int, ...] = ()
) -> Decoder:
    """`d` with everything a Llama has; a window where the file says one."""
    d.embeddings()
    d.attention(bias=bias, out_bias=out_bias, qk_norm=qk_norm)
    window = d.config.whole("sliding_window", default=0, low=0)
    kinds = layer_kinds(d.config, d.build.n, ["sliding" if window else "full"] * d.build.n, ("full", "sliding"))
    d.cache(kinds, window)
    d.feed_forward(bias=mlp_bias)
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d


@family("llama", architectures=("LlamaForCausalLM",))
def llama(config: Config) -> Shape:
    """Llama 1 to 3 and the many files that say they are one."""
    bias = config.flag("attention_bias", "qkv_bias", default=False)
    return plain(config, "llama", bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", default=False))


@family("mistral", architectures=("MistralForCausalLM",))
def mistral(config: Config) -> Shape:
    """As Llama, with a window in the first releases."""
    return plain(config, "llama", context=4096 * 32, kv_heads=8)


@family("ministral3", "ministral", architectures=("Ministral3ForCausalLM", "MinistralForCausalLM"))
def ministral3(config: Config) -> Shape:
    """Mistral's third generation: same layers, its own name in llama.cpp."""
    return plain(config, "mistral3", context=262144, kv_heads=8)


def windows_behind(d: Decoder) -> tuple[list[str], int]:
    """Qwen2's windows: only where use_sliding_window says so, on the layers from max_window_layers on."""
    config, n = d.config, d.build.n
    used = config.flag("use_sliding_window", default=False)
    window = config.whole("sliding_window", default=0, low=0)
    first = config.whole("max_window_layers", default=n, low=0)
    default = ["sliding" if used and window and i >= first else "full" for i in range(n)]
    kinds = layer_kinds(config, n, default, ("full", "sliding"))
    return list(kinds), window if used else 0


def qwen(config: Config, gguf: str, *, bias: bool, norms: bool, head_dim: int | None = None) -> Shape:
    """Qwen2 and Qwen3: biases on q, k and v in the one, per-head norms of q and k in the other."""
    d = Decoder.read(config, context=32768, head_dim=head_dim)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias and norms, qk_norm=(d.head_dim, d.head_dim) if norms else ())
    d.cache(*windows_behind(d))
    d.feed_forward()
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape(gguf)


@family("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", architectures=("Qwen2ForCausalLM",))
def qwen2(config: Config) -> Shape:
    """Biases on q, k and v."""
    return qwen(config, "qwen2", bias=True, norms=False)


@family("qwen3", "qwen3_vl_text", architectures=("Qwen3ForCausalLM",))
def qwen3(config: Config) -> Shape:
    """Norms on q and k."""
    return qwen(config, "qwen3", bias=config.flag("attention_bias", default=False), norms=True, head_dim=128)


@family("phi3", architectures=("Phi3ForCausalLM",))
def phi3(config: Config) -> Shape:
    """As Llama; the checkpoint keeps q, k, v and gate, up in one tensor each."""
    d = Decoder.read(config, context=4096)
    window = config.whole("sliding_window", default=0, low=0)
    d.embeddings()
    qkv = (d.heads + 2 * d.kv_heads) * d.head_dim
    ffn = config.whole("intermediate_size")
    for role, name, n_in, n_out in (
        ("attn_qkv", "self_attn.qkv_proj", d.hidden, qkv),
        ("attn_output", "self_attn.o_proj", d.heads * d.head_dim, d.hidden),
        ("ffn_up", "mlp.gate_up_proj", d.hidden, 2 * ffn),
        ("ffn_down", "mlp.down_proj", ffn, d.hidden),
    ):
        d.build.add(role, (n_in, n_out), d.all, module=f"model.layers.{{}}.{name}")
    d.build.wide(d.all, heads=d.heads, ffn_dim=ffn)
    d.cache(["sliding"] * d.build.n, window)
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("phi3")


@family("minicpm3", architectures=("MiniCPM3ForCausalLM",))
def minicpm3(config: Config) -> Shape:
    """Latent projections, but both engines keep whole heads in the cache: K of nope + rope, V as wide in vLLM."""
    from fitkit.sources.config.latent import latent_attention, latent_sizes

    d = Decoder.read(config, tied=True, context=32768)
    sizes = latent_sizes(config)
    d.embeddings()
    latent_attention(d, d.all, sizes)
    d.head_dim = sizes.qk_dim
    d.cache()
    d.feed_forward()
    d.norms("attn_norm", "ffn_norm")
    d.rope(sizes.rope)
    return d.shape("minicpm3", v_head_dim=sizes.v_dim)
