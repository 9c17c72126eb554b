"""Nemotron-H: one thing a layer, in a written-out order."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.errors import BadInput, UnsupportedModel, short
from fitkit.sources.config import Shape, family
from fitkit.sources.config.decoder import Decoder, layer_kinds
from fitkit.sources.config.hybrid import Mamba, mamba2_layers
from fitkit.sources.config.view import MOST_LAYERS, Config

LETTERS = {"M": "mamba", "*": "full", "-": "mlp", "E": "moe"}


def nemotron_kinds(config: Config, pattern: str, words: str) -> tuple[str, ...]:
    """Layer kinds from a pattern of letters or from a list of words."""
    listed = config.entries(words, default=())
    if listed:
        return layer_kinds(config, len(listed), (), ("mamba", "full", "mlp", "moe"), words)
    text = config.text(pattern, default="")
    for letter in text:
        if letter not in LETTERS:
            raise UnsupportedModel(
                f"{config.place}: {pattern} has the letter {short(letter)}, a kind of layer not modelled here."
            )
    return tuple(LETTERS[letter] for letter in text)


@family("nemotron_h", architectures=("NemotronHForCausalLM",))
def nemotron_h(config: Config) -> Shape:
    """One thing a layer: Mamba 2, attention, a feed-forward or experts, in a written-out order; the state in 32 bits."""
    kinds = nemotron_kinds(config, "hybrid_override_pattern", "layers_block_type")
    if not 0 < len(kinds) <= MOST_LAYERS:
        raise BadInput(f"{config.place} has no hybrid_override_pattern and no layers_block_type that say its layers.")
    d = Decoder.read(config, layers=len(kinds))
    m = Mamba(
        heads=config.whole("mamba_num_heads", default=128), head_dim=config.whole("mamba_head_dim", default=64),
        state=config.whole("ssm_state_size", default=128), kernel=config.whole("conv_kernel", default=4),
        groups=config.whole("n_groups", "mamba_n_groups", default=8), conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", "mamba_proj_bias", default=False),
        dtype=config.text("mamba_ssm_cache_dtype", default="float32"),
    )  # fmt: skip

    def fill(one: Decoder, numbers: Sequence[int], kinds: Sequence[str]) -> None:
        layers = {kind: [i for i, k in zip(numbers, kinds, strict=True) if k == kind] for kind in set(kinds)}
        mixer = "backbone.layers.{}.mixer."
        if found := layers.get("mamba"):
            mamba2_layers(one.build, one.hidden, found, m, mixer)
        one.attention(layers.get("full", ()), bias=config.flag("attention_bias", default=False), module=mixer)
        if found := layers.get("mlp"):
            one.feed_forward(found, gated=False, bias=config.flag("mlp_bias", default=False), module=mixer)
        if found := layers.get("moe"):
            nemotron_experts(one, found, mixer)
        one.norms("attn_norm", layers=numbers)

    d.build.add("token_embd", (d.hidden, d.vocab), module="backbone.embeddings")
    d.build.add("output_norm", (d.hidden,), module="backbone.norm_f")
    if not d.tied:
        d.build.add("output", (d.hidden, d.vocab), module="lm_head")
    fill(d, d.all, kinds)
    d.cache(kinds)
    if blocks := config.whole("num_nextn_predict_layers", default=0, low=0):
        one_block = nemotron_kinds(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
        d.mtp(blocks * len(one_block), lambda one, layers: fill(one, layers, one_block * blocks), joint=False)
    return d.shape("nemotron_h_moe" if "moe" in kinds else "nemotron_h")


def nemotron_experts(d: Decoder, layers: Sequence[int], mixer: str) -> None:
    """Experts without a gate, on a latent of the hidden width where moe_latent_size says so; the shared one on the whole width."""
    config, build = d.config, d.build
    latent = config.whole("moe_latent_size", default=0, low=0)
    experts, dim = config.whole("n_routed_experts"), config.whole("moe_intermediate_size")
    width = latent or d.hidden
    build.add("ffn_gate_inp", (d.hidden, experts), layers, module=mixer + "gate")
    build.add("exp_probs_b.bias", (experts,), layers, dtype="F32", module=mixer + "gate.e_score_correction_bias")
    build.add("ffn_up_exps", (width, dim, experts), layers, module=mixer + "experts.*.up_proj")
    build.add("ffn_down_exps", (dim, width, experts), layers, module=mixer + "experts.*.down_proj")
    if latent:
        build.add("ffn_latent_down", (d.hidden, latent), layers, module=mixer + "fc1_latent_proj")
        build.add("ffn_latent_up", (latent, d.hidden), layers, module=mixer + "fc2_latent_proj")
    shared = config.whole("moe_shared_expert_intermediate_size", default=0, low=0) * config.whole(
        "n_shared_experts", default=1, low=0
    )
    if shared:
        build.add("ffn_up_shexp", (d.hidden, shared), layers, module=mixer + "shared_experts.up_proj")
        build.add("ffn_down_shexp", (shared, d.hidden), layers, module=mixer + "shared_experts.down_proj")
    build.wide(
        [i for i in layers if i < build.n], experts=experts, experts_used=config.whole("num_experts_per_tok"),
        expert_dim=dim, shared_dim=shared,
    )  # fmt: skip
