"""Dense decoders: Llama and what is built like it."""

from __future__ import annotations

from fitkit.errors import BadInput, UnsupportedModel
from fitkit.model import Cache
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


@family("llama", "llama_text", "mllama_self_attention", architectures=("LlamaForCausalLM",))
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


@family("phi3", "phi4", architectures=("Phi3ForCausalLM",))
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


@family("hunyuan_v1_dense", architectures=("HunYuanDenseV1ForCausalLM",))
def hunyuan_dense(config: Config) -> Shape:
    """As Llama, with norms on q and k."""
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
