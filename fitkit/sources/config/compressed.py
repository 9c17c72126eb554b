"""DeepSeek-V4: a windowed latent in every layer, and beside it one state for many tokens (compressed), some with an indexer."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.errors import BadInput, UnsupportedModel, short
from fitkit.model import Cache
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder
from fitkit.sources.config.moe import shared_experts
from fitkit.sources.config.view import Config

RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


OVERLAP = {4: 2, 128: 1}  # windows the compressor looks at; the ratio with an indexer overlaps


def ratios(config: Config, n: int) -> tuple[int, ...]:
    """Each layer's ratio from compress_ratios (0: no compressed states) or from layer_types and compress_rates."""
    listed = config.entries("compress_ratios", default=())
    if listed:
        if len(listed) < n:
            raise BadInput(f"{config.place}: compress_ratios has {len(listed)} entries for {n} layers.")
        found = list(listed[:n])  # the rest are the MTP blocks'
    else:
        words = config.entries("layer_types", default=("heavily_compressed_attention",) * n, length=n)
        rates = config.view("compress_rates")
        known = {word: rates.whole(word, default=ratio, low=0) if rates else ratio for word, ratio in RATIOS.items()}
        found = [known.get(word, -1) if isinstance(word, str) else -1 for word in words]
    for ratio in found:
        if ratio not in (0, *OVERLAP):
            raise UnsupportedModel(
                f"{config.place}: compressed attention of ratio {short(ratio)} is not modelled; 0, 4 and 128 are. Add it in fitkit/sources/config/compressed.py."
            )
    return tuple(found)


@family("deepseek_v4", "deepseek_ref", architectures=("DeepseekV4ForCausalLM",))
def deepseek_v4(config: Config) -> Shape:
    """One joint K/V vector a token, grouped low-rank output, hyper-connections, first layers routed by a hash of the token."""
    d = Decoder.read(config)
    n, build = d.build.n, d.build
    ratio = ratios(config, n)
    window = config.whole("sliding_window", default=128)
    hashed = config.whole("num_hash_layers", default=3, low=0, high=n)
    d.embeddings()
    v4_block(d, d.all, hashed)
    for rate in (4, 128):
        layers = [i for i in range(n) if ratio[i] == rate]
        compressor(d, layers, rate, d.head_dim, "attn_compressor", "model.layers.{}.self_attn.compressor.")
    index_dim = config.whole("index_head_dim", default=128)
    indexed = [i for i in range(n) if ratio[i] == 4]
    index_heads = config.whole("index_n_heads", default=64)
    module = "model.layers.{}.self_attn.indexer."
    rank = config.whole("q_lora_rank", default=1024)
    build.add("indexer.attn_q_b", (rank, index_heads * index_dim), indexed, module=module + "wq_b")
    build.add("indexer.proj", (d.hidden, index_heads), indexed, module=module + "weights_proj")
    compressor(d, indexed, 4, index_dim, "indexer_compressor", module + "compressor.")
    build.keep(Cache(kind="sliding", k_dim=d.head_dim, window=window, variant="latent"), d.all)
    for i, rate in enumerate(ratio):
        if rate:
            build.keep(Cache(kind="compressed", k_dim=d.head_dim, ratio=rate), (i,))
        if rate == 4:
            build.keep(Cache(kind="indexer", k_dim=index_dim, ratio=rate), (i,))
    hyper_head(d)
    d.extra.update(
        index_heads=index_heads, index_head_dim=index_dim, index_topk=config.whole("index_topk", default=512),
        qk_rope_head_dim=config.whole("qk_rope_head_dim", default=64), q_lora_rank=rank, hash_layers=hashed,
        expert_dtype=config.text("expert_dtype", default=""),
    )  # fmt: skip
    rope = int(d.extra["qk_rope_head_dim"])
    d.extra["rope_tables"] = ((d.context, rope, "F32"), (d.context, rope, "F32"))  # one a base: windowed and compressed
    d.extra["rope_positions"], d.extra["rope_dim"] = d.context, rope

    def mtp(one: Decoder, layers: range) -> None:
        v4_block(one, layers, 0)
        for role in ("nextn.e_proj", "nextn.h_proj"):
            one.build.add(role, (one.hidden, one.hidden), layers, module="mtp.{}." + role.removeprefix("nextn."))
        one.norms("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", layers=layers)
        hyper_head(one, "nextn.hc_head", layers)

    d.mtp(config.whole("num_nextn_predict_layers", default=1, low=0), mtp, joint=False)
    return d.shape("deepseek4")


def v4_block(d: Decoder, layers: Sequence[int], hashed: int) -> None:
    """What every layer has: attention through low ranks, experts, two norms, the hyper-connections around both halves."""
    config, build, heads, width = d.config, d.build, d.heads, d.head_dim
    module = "model.layers.{}.self_attn."
    rank, o_rank = config.whole("q_lora_rank", default=1024), config.whole("o_lora_rank", default=1024)
    groups = config.whole("o_groups", default=8)
    for role, name, n_in, n_out in (
        ("attn_q_a", "wq_a", d.hidden, rank),
        ("attn_q_b", "wq_b", rank, heads * width),
        ("attn_kv", "wkv", d.hidden, width),
        ("attn_output_a", "wo_a", heads * width // groups, groups * o_rank),
        ("attn_output_b", "wo_b", groups * o_rank, d.hidden),
    ):
        build.add(role, (n_in, n_out), layers, module=module + name)
    build.add("attn_q_a_norm", (rank,), layers, module=module + "q_norm")
    build.add("attn_kv_a_norm", (width,), layers, module=module + "kv_norm")
    build.add("attn_sinks", (heads,), layers, module=module + "attn_sink", dtype="F32")
    mult = config.whole("hc_mult", default=4)
    mix = (2 + mult) * mult
    for half in ("attn", "ffn"):
        for part, shape in (("fn", (mult * d.hidden, mix)), ("base", (mix,)), ("scale", (3,))):
            build.add(f"hc_{half}_{part}", shape, layers, module=f"model.layers.{{}}.hc_{half}_{part}", dtype="F32")
    shared_experts(d, layers, correction=False)
    experts, used = config.whole("n_routed_experts"), config.whole("num_experts_per_tok")
    build.add(
        "exp_probs_b.bias",
        (experts,),
        [i for i in layers if i >= hashed],
        dtype="F32",
        module="model.layers.{}.mlp.gate.bias",
    )
    build.add(
        "ffn_gate_tid2eid",
        (used, d.vocab),
        [i for i in layers if i < hashed],
        dtype="I32",
        module="model.layers.{}.mlp.gate.tid2eid",
    )
    d.norms("attn_norm", "ffn_norm", layers=layers)
    build.wide([i for i in layers if i < len(build.widths)], heads=heads)


def compressor(d: Decoder, layers: Sequence[int], ratio: int, width: int, role: str, module: str) -> None:
    """Projections to the states and their gate, positions inside a window in 32 bits, a norm."""
    wide = OVERLAP[ratio] * width
    d.build.add(f"{role}_kv", (d.hidden, wide), layers, module=module + "wkv")
    d.build.add(f"{role}_gate", (d.hidden, wide), layers, module=module + "wgate")
    d.build.add(f"{role}_ape", (wide, ratio), layers, module=module + "ape", dtype="F32")
    d.build.add(f"{role}_norm", (width,), layers, module=module + "norm")


def hyper_head(d: Decoder, role: str = "output_hc", layers: Sequence[int] | None = None) -> None:
    """The hyper-connections' way out of the last layer."""
    mult = d.config.whole("hc_mult", default=4)
    for part, shape in (("fn", (mult * d.hidden, mult)), ("base", (mult,)), ("scale", (1,))):
        d.build.add(f"{role}_{part}", shape, layers, dtype="F32", module=f"model.hc_head_{part}")
