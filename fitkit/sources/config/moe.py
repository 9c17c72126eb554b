"""Mixture-of-experts decoders: how files say which layers have experts, and the plainest families."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, layer_kinds, of_kind
from fitkit.sources.config.dense import windows, windows_behind
from fitkit.sources.config.view import Config

USED = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "experts_per_token",
    "moe_k",
    "top_k_experts",
)


EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


EXPERT_DIM = ("moe_intermediate_size", "expert_intermediate_size", "expert_dim")


def sparse_layers(config: Config, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of the dense and of the expert layers, by whichever key a file says it with."""
    said = config.raw("mlp_layer_types")
    if said is not None:
        kinds = layer_kinds(config, n, (), ("dense", "sparse"), "mlp_layer_types")
        return of_kind(kinds, "dense"), of_kind(kinds, "sparse")
    first = config.whole("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", default=0, low=0)
    frequency = config.wholes("moe_layer_freq", count=n, default=1)
    one = isinstance(config.raw("moe_layer_freq", default=1), int)
    sparse = tuple(i for i in range(n) if i >= first and (i % max(1, frequency[i]) == 0 if one else frequency[i]))
    return tuple(i for i in range(n) if i not in set(sparse)), sparse


def qwen_sparse(config: Config, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Qwen's way to say it: every decoder_sparse_step-th layer, except mlp_only_layers."""
    step = config.whole("decoder_sparse_step", default=1)
    listed = config.entries("mlp_only_layers", default=())
    only = set(Config({"mlp_only_layers": listed}, config.place).wholes("mlp_only_layers", count=len(listed)))
    sparse = tuple(i for i in range(n) if i not in only and (i + 1) % step == 0)
    return tuple(i for i in range(n) if i not in set(sparse)), sparse


@family("mixtral", architectures=("MixtralForCausalLM",))
def mixtral(config: Config) -> Shape:
    """Mistral with experts for its feed-forward."""
    d = Decoder.read(config)
    d.embeddings()
    d.attention()
    d.cache(["sliding"] * d.build.n, config.whole("sliding_window", default=0, low=0))
    d.experts(
        d.all,
        config.whole("num_local_experts", default=8),
        config.whole("num_experts_per_tok", default=2),
        config.whole("intermediate_size", default=14336),
        module="model.layers.{}.block_sparse_moe.",
    )
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("llama")


def qwen_moe_layers(d: Decoder, dense: Sequence[int], sparse: Sequence[int], *, shared: bool) -> None:
    """Qwen's feed-forwards: dense ones, and routed experts with (from Qwen2-MoE on, not Qwen3-MoE) one gated shared expert."""
    config = d.config
    if dense:
        d.feed_forward(dense)
    width = config.whole("shared_expert_intermediate_size", default=0, low=0) if shared else 0
    d.experts(
        sparse,
        config.whole("num_experts", "num_local_experts"),
        config.whole("num_experts_per_tok"),
        config.whole("moe_intermediate_size"),
        shared_dim=width,
        shared="shared_expert.",
    )
    if width:
        d.build.add("ffn_gate_inp_shexp", (d.hidden, 1), sparse, module="model.layers.{}.mlp.shared_expert_gate")


@family("qwen3_moe", "qwen3_vl_moe_text", architectures=("Qwen3MoeForCausalLM",))
def qwen3_moe(config: Config) -> Shape:
    """Qwen3's attention, routed experts only."""
    d = Decoder.read(config)
    d.embeddings()
    d.attention(bias=config.flag("attention_bias", default=False), qk_norm=(d.head_dim, d.head_dim))
    d.cache(*windows_behind(d))
    qwen_moe_layers(d, *qwen_sparse(config, d.build.n), shared=False)
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("qwen3moe")


@family("qwen2_moe", architectures=("Qwen2MoeForCausalLM",))
def qwen2_moe(config: Config) -> Shape:
    """Qwen2's attention, routed experts and a gated shared one."""
    d = Decoder.read(config)
    d.embeddings()
    d.attention(bias=config.flag("qkv_bias", default=True))
    d.cache(*windows_behind(d))
    qwen_moe_layers(d, *qwen_sparse(config, d.build.n), shared=True)
    d.norms("attn_norm", "ffn_norm")
    d.rope()
    return d.shape("qwen2moe")


def own_embeddings(d: Decoder, layers: range) -> None:
    """The copies of the token table and the head that an MTP block of the DeepSeek kind brings in its file."""
    d.build.add("nextn.embed_tokens", (d.hidden, d.vocab), layers, module="model.layers.{}.embed_tokens")
    d.build.add("nextn.shared_head_head", (d.hidden, d.vocab), layers, module="model.layers.{}.shared_head.head")


def shared_experts(d: Decoder, sparse: Sequence[int], *, correction: bool = True) -> None:
    """Routed experts and n_shared_experts of the same width, with the router's correction bias."""
    config = d.config
    width = config.whole(*EXPERT_DIM)
    d.experts(
        sparse,
        config.whole(*EXPERTS),
        config.whole(*USED),
        width,
        shared_dim=width * config.whole("n_shared_experts", "num_shared_experts", default=0, low=0),
        correction=correction,
    )


@family("gpt_oss", architectures=("GptOssForCausalLM",))
def gpt_oss(config: Config) -> Shape:
    """Alternating windows, attention sinks, biases everywhere, experts with biases."""
    d = Decoder.read(config)
    n = d.build.n
    kinds = layer_kinds(config, n, ["full" if i % 2 else "sliding" for i in range(n)], ("full", "sliding"))
    experts = config.whole("num_local_experts", "num_experts", default=128)
    dim = config.whole("intermediate_size", default=2880)
    bias = config.flag("attention_bias", default=True)
    d.embeddings()
    d.attention(bias=bias, out_bias=bias)
    d.build.add("attn_sinks", (d.heads,), d.all, module="model.layers.{}.self_attn.sinks")
    d.cache(kinds, config.whole("sliding_window", default=128, low=0))
    used = config.whole("num_experts_per_tok", "experts_per_token", default=4)
    d.experts(d.all, experts, used, dim, router="router")
    d.build.add("ffn_gate_inp.bias", (experts,), d.all, module="model.layers.{}.mlp.router")
    for role, width in (("ffn_gate", dim), ("ffn_up", dim), ("ffn_down", d.hidden)):
        d.build.add(
            f"{role}_exps.bias",
            (width, experts),
            d.all,
            module=f"model.layers.{{}}.mlp.experts.*.{role.removeprefix('ffn_')}_proj",
        )
    d.norms("attn_norm", "post_attention_norm")
    d.rope(dtype="F32")
    return d.shape("gpt-oss")


def sparse_decoder(
    d: Decoder, *, correction: bool, qk_norm: bool, bias: bool = False, out_bias: bool = False
) -> Decoder:
    """Full attention, dense layers first, then routed experts with shared ones, two norms a layer."""
    dense, sparse = sparse_layers(d.config, d.build.n)
    d.embeddings()
    d.attention(bias=bias, out_bias=out_bias, qk_norm=(d.head_dim, d.head_dim) if qk_norm else ())
    d.cache(*windows(d))
    if dense:
        d.feed_forward(dense)
    shared_experts(d, sparse, correction=correction)
    d.norms("attn_norm", "ffn_norm")
    d.extra["dense_layers"] = len(dense)
    return d


@family("deepseek", architectures=("DeepseekForCausalLM",))
def deepseek_moe(config: Config) -> Shape:
    """DeepSeek-MoE: ordinary attention."""
    bias = config.flag("attention_bias", default=False)
    d = sparse_decoder(Decoder.read(config), correction=False, qk_norm=False, bias=bias, out_bias=bias)
    d.rope()
    return d.shape("deepseek")


@family("dots1", architectures=("Dots1ForCausalLM",))
def dots1(config: Config) -> Shape:
    """Norms on q and k, a correction bias on the router."""
    bias = config.flag("attention_bias", default=False)
    config.raw("max_window_layers")  # only counts where sliding_window is said
    d = sparse_decoder(Decoder.read(config), correction=True, qk_norm=True, bias=bias, out_bias=bias)
    d.rope()
    return d.shape("dots1")
