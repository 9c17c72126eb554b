"""Dense decoders: Llama, Mistral, Qwen, Phi and what they share."""

from __future__ import annotations

from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, layer_kinds
from fitkit.sources.config.view import Config


def llama_like(
    config: Config, *, bias: bool = False, out_bias: bool = False, mlp_bias: bool = False, **how: object
) -> Decoder:
    """Embeddings, attention, gated feed-forward, two norms a layer; a window where the file says one."""
    d = Decoder.read(config)
    d.embeddings()
    d.attention(bias=bias, out_bias=out_bias, qk_norm=(d.head_dim, d.head_dim) if how.get("qk_norm") else ())
    d.cache(*windows(d))
    d.feed_forward(bias=mlp_bias, gated=not how.get("plain_mlp"))
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d


def windows(d: Decoder, default: int = 0) -> tuple[tuple[str, ...], int]:
    """A window in every layer, unless layer_types says which; `default` where the file is silent (a null is no window)."""
    config, n = d.config, d.build.n
    window = config.nullable("sliding_window", default)
    if not config.flag("use_sliding_window", default=True):
        window = 0
    return layer_kinds(config, n, ["sliding" if window else "full"] * n, ("full", "sliding")), window


@family("llama", architectures=("LlamaForCausalLM",))
def llama(config: Config) -> Shape:
    """Llama 1 to 3 and the many files that say they are one."""
    bias = config.flag("attention_bias", "qkv_bias", default=False)
    return llama_like(config, bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", default=False)).shape("llama")


@family("mistral", architectures=("MistralForCausalLM",))
def mistral(config: Config) -> Shape:
    """As Llama; a window of 4096 tokens unless the file says another or null."""
    d = Decoder.read(config)
    d.embeddings()
    d.attention()
    d.cache(*windows(d, 4096))
    d.feed_forward()
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("llama")


@family("ministral3", "ministral", architectures=("Ministral3ForCausalLM", "MinistralForCausalLM"))
def ministral3(config: Config) -> Shape:
    """Mistral's third generation: same layers, its own name in llama.cpp."""
    return llama_like(config).shape("mistral3")


def windows_behind(d: Decoder) -> tuple[tuple[str, ...], int]:
    """Qwen2's windows: only where use_sliding_window says so, on the layers from max_window_layers on."""
    config, n = d.config, d.build.n
    used = config.flag("use_sliding_window", default=False)
    window = config.nullable("sliding_window", 4096)
    first = config.whole("max_window_layers", default=28, low=0)
    default = ["sliding" if used and window and i >= first else "full" for i in range(n)]
    return layer_kinds(config, n, default, ("full", "sliding")), window if used else 0


def qwen(config: Config, gguf: str, *, bias: bool, norms: bool) -> Shape:
    """Qwen2 and Qwen3: biases on q, k and v in the one, per-head norms of q and k in the other."""
    d = Decoder.read(config)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias and norms, qk_norm=(d.head_dim, d.head_dim) if norms else ())
    d.cache(*windows_behind(d))
    d.feed_forward()
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape(gguf)


@family("qwen2", architectures=("Qwen2ForCausalLM",))
def qwen2(config: Config) -> Shape:
    """Biases on q, k and v."""
    return qwen(config, "qwen2", bias=True, norms=False)


@family("qwen2_vl_text", "qwen2_5_vl_text")
def qwen2_vl_text(config: Config) -> Shape:
    """Qwen2 with positions in three directions."""
    return qwen(config, "qwen2vl", bias=True, norms=False)


@family("qwen3", architectures=("Qwen3ForCausalLM",))
def qwen3(config: Config) -> Shape:
    """Norms on q and k."""
    return qwen(config, "qwen3", bias=config.flag("attention_bias", default=False), norms=True)


@family("qwen3_vl_text")
def qwen3_vl_text(config: Config) -> Shape:
    """Qwen3 with positions in three directions."""
    return qwen(config, "qwen3vl", bias=config.flag("attention_bias", default=False), norms=True)


@family("mimo", architectures=("MiMoForCausalLM",))
def mimo(config: Config) -> Shape:
    """Qwen2's layers; MTP blocks that project (embedding, hidden) through one matrix between three norms."""
    d = Decoder.read(config)
    bias = config.flag("attention_bias", default=True)

    def block(one: Decoder, layers: range) -> None:
        one.attention(layers, bias=bias)
        one.feed_forward(layers)
        one.norms("attn_norm", "ffn_norm", layers=layers)

    d.embeddings()
    block(d, d.all)
    d.cache(*windows_behind(d))
    d.rope()
    d.mtp(config.whole("num_nextn_predict_layers", default=0, low=0), block)
    return d.shape("qwen2")


@family("phi3", architectures=("Phi3ForCausalLM",))
def phi3(config: Config) -> Shape:
    """As Llama; the checkpoint keeps q, k, v and gate, up in one tensor each."""
    d = Decoder.read(config)
    d.embeddings()
    ffn = d.ffn_dim
    for role, name, n_in, n_out in (
        ("attn_qkv", "self_attn.qkv_proj", d.hidden, (d.heads + 2 * d.kv_heads) * d.head_dim),
        ("attn_output", "self_attn.o_proj", d.heads * d.head_dim, d.hidden),
        ("ffn_up", "mlp.gate_up_proj", d.hidden, 2 * ffn),
        ("ffn_down", "mlp.down_proj", ffn, d.hidden),
    ):
        d.build.add(role, (n_in, n_out), d.all, module=f"model.layers.{{}}.{name}")
    d.build.wide(d.all, heads=d.heads, ffn_dim=ffn)
    d.cache(*windows(d))
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("phi3")


@family("minicpm", architectures=("MiniCPMForCausalLM",))
def minicpm(config: Config) -> Shape:
    """As Llama, with scaled residuals."""
    return llama_like(config, bias=(bias := config.flag("attention_bias", default=False)), out_bias=bias).shape(
        "minicpm"
    )


@family("smollm3", architectures=("SmolLM3ForCausalLM",))
def smollm3(config: Config) -> Shape:
    """As Llama; some layers without rotary positions."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(config, bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", default=False)).shape(
        "smollm3"
    )


@family("granite", architectures=("GraniteForCausalLM",))
def granite(config: Config) -> Shape:
    """As Llama, with scaled embeddings and residuals."""
    bias = config.flag("attention_bias", default=False)
    return llama_like(config, bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", default=False)).shape(
        "granite"
    )


@family("seed_oss", architectures=("SeedOssForCausalLM",))
def seed_oss(config: Config) -> Shape:
    """As Llama, with a bias on q, k and v and another switch for the output's."""
    return llama_like(
        config, bias=config.flag("attention_bias", default=True), out_bias=config.flag("attention_out_bias", default=False),
        mlp_bias=config.flag("mlp_bias", default=False),
    ).shape("seed_oss")  # fmt: skip
