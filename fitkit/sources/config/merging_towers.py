"""Towers that join their own patches before the text model sees them: Qwen's, GLM's, Step's. Registered by the model_type of their vision_config."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.sources.config.view import Config
from fitkit.sources.config.vision import Tower, grid, pixels, tower


def merger(
    t: Tower, n_in: int, out: int, norm: int, names: Sequence[str], *, norm_bias: bool = True, count: int = 1
) -> None:
    """Qwen's merger: a norm of `norm`, then n_in → n_in → out."""
    t.norm("merger_ln", norm, names[0], bias=norm_bias, count=count)
    t.linear("merger_up", n_in, n_in, names[1], shard="column", count=count)
    t.linear("merger_down", n_in, out, names[2], shard="row", count=count)


def around(t: Tower, config: Config, width: int, out: int, *, norm_bias: bool = True) -> None:
    """Qwen2's patches of two frames, and its merger of `spatial_merge_size` squared patches; the blocks' modules come next."""
    t.linear(
        "patch_embd",
        config.whole("temporal_patch_size", default=2) * pixels(config, 14),
        width,
        "patch_embed.proj",
        bias=False,
    )
    wide = width * config.whole("spatial_merge_size", default=2) ** 2
    merger(t, wide, out, width, ("merger.ln_q", "merger.mlp.0", "merger.mlp.2"), norm_bias=norm_bias)
    t.module += "blocks.0."


@tower("qwen2_vl", "qwen2_vl_vision")
def qwen2_vl(t: Tower, config: Config) -> int:
    """Qwen2-VL: patches of two frames, layer norms, a merger of `spatial_merge_size` squared patches."""
    width = config.whole("embed_dim", default=1280)
    out = config.whole("hidden_size", default=3584)
    around(t, config, width, out)
    ffn = int(width * config.number("mlp_ratio", default=4))
    t.layers(width, ffn, attention=("attn.qkv", "attn.proj"), norms=("norm1", "norm2"))
    return out


@tower("qwen2_5_vl", "qwen2_5_vl_vision")
def qwen2_5_vl(t: Tower, config: Config) -> int:
    """Qwen2.5-VL: RMS norms and a gated feed-forward."""
    width = config.whole("hidden_size", default=1280)
    out = config.whole("out_hidden_size", default=3584)
    around(t, config, width, out, norm_bias=False)
    t.layers(
        width,
        config.whole("intermediate_size", default=3420),
        attention=("attn.qkv", "attn.proj"),
        mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        norms=("norm1", "norm2"),
        norm_bias=False,
    )
    return out


@tower(
    "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe",
    "qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen3_5_vision", "qwen3_5_moe_vision",
)  # fmt: skip
def qwen3_vl(t: Tower, config: Config) -> int:
    """Qwen3-VL and 3.5: learned positions, and a merger more for each level of `deepstack_visual_indexes`."""
    width = config.whole("hidden_size", default=1152)
    out = config.whole("out_hidden_size", default=3584)
    t.linear(
        "patch_embd", config.whole("temporal_patch_size", default=2) * pixels(config, 16), width, "patch_embed.proj"
    )
    t.add("position_embd", (width, config.whole("num_position_embeddings", default=2304)), "pos_embed")
    wide = width * config.whole("spatial_merge_size", default=2) ** 2
    merger(t, wide, out, width, ("merger.norm", "merger.linear_fc1", "merger.linear_fc2"))
    levels = len(config.entries("deepstack_visual_indexes", default=()))
    names = [f"deepstack_merger_list.0.{name}" for name in ("norm", "linear_fc1", "linear_fc2")]
    merger(t, wide, out, wide, names, count=levels)
    t.module += "blocks.0."
    t.layers(
        width,
        config.whole("intermediate_size", default=4304),
        attention=("attn.qkv", "attn.proj"),
        mlp=("mlp.linear_fc1", "mlp.linear_fc2"),
        norms=("norm1", "norm2"),
    )
    return out


def gated_merger(t: Tower, out: int, ffn: int) -> None:
    """GLM's merger: a projection, a norm, a gated feed-forward, without biases."""
    t.linear("merger_proj", out, out, "merger.proj", bias=False)
    t.norm("merger_ln", out, "merger.post_projection_norm")
    for role, name in (("merger_gate", "merger.gate_proj"), ("merger_up", "merger.up_proj")):
        t.linear(role, out, ffn, name, bias=False, shard="column")
    t.linear("merger_down", ffn, out, "merger.down_proj", bias=False, shard="row")


@tower("glm4v", "glm4v_vision", "glm4v_moe_vision", "glm4v_moe")
def glm4v(t: Tower, config: Config) -> int:
    """GLM-4V: RMS norms, a convolution that joins patches, a gated merger."""
    width = config.whole("hidden_size", default=1536)
    out = config.whole("out_hidden_size", default=4096)
    joined = config.whole("spatial_merge_size", default=2) ** 2
    bias = config.flag("attention_bias", default=False)
    t.linear(
        "patch_embd", config.whole("temporal_patch_size", default=2) * pixels(config, 14), width, "patch_embed.proj"
    )
    t.add("position_embd", (width, grid(config, 336, 14)), "embeddings.position_embedding")
    for role, name in (("post_conv_ln", "post_conv_layernorm"), ("post_ln", "post_layernorm")):
        t.norm(role, width, name, bias=False)
    t.linear("downsample_conv", width * joined, out, "downsample")
    gated_merger(t, out, config.whole("intermediate_size", default=13696))
    t.module += "blocks.0."
    t.layers(
        width,
        out,
        attention=("attn.qkv", "attn.proj"),
        mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        norms=("norm1", "norm2"),
        bias=bias,
        mlp_bias=False,
        norm_bias=False,
    )
    return out


@tower("muse_glimmer_vision")
def muse_glimmer(t: Tower, config: Config) -> int:
    """Muse Glimmer: patches of two frames, learned positions of a grid, norms before and after."""
    hidden = config.whole("hidden_size", default=1536)
    frames = config.whole("patch_temporal", default=2)
    t.linear("patch_embd", frames * pixels(config, 14), hidden, "patch_embedder.patch_embedding", bias=False)
    height, width = (config.whole(f"pos_emb_{side}", default=32) for side in ("height", "width"))
    t.add("position_embd", (hidden, height * width), "patch_embedder.position_embedding_table")
    for role, name in (("pre_ln", "ln_pre"), ("post_ln", "ln_post")):
        t.norm(role, hidden, name)
    t.module += "layers.0."
    t.layers(hidden, config.whole("intermediate_size", default=8960))
    return hidden


@tower("step3p5_vision", "perception_encoder")
def step3(t: Tower, config: Config) -> int:
    """Step 3.7: learned positions, a scale after each half of a block, convolutions that join four times four patches."""
    hidden = config.whole("width", "hidden_size", default=1536)
    ffn = int(hidden * config.number("mlp_ratio", default=8960 / 1536))
    base, n = t.module, config.whole("layers", "num_hidden_layers", default=47, high=4096)
    t.blocks = n
    t.linear("patch_embd", pixels(config, 14), hidden, "embeddings.patch_embedding", bias=False)
    t.add("position_embd", (hidden, grid(config, 728, 14)), "embeddings.position_embedding")
    t.norm("pre_ln", hidden, "pre_layernorm")
    t.linear("downsample0_conv", 9 * hidden, 2 * hidden, "downsampler.0")
    t.linear("downsample1_conv", 9 * 2 * hidden, 4 * hidden, "downsampler.1")
    t.module = base + "encoder.layers.0."
    t.layers(hidden, ffn)
    for role in ("ls1", "ls2"):
        t.add(f"{role}.scale", (hidden,), role, count=n)
    return 4 * hidden


@tower("glm5_next_vision")
def glm5_next(t: Tower, config: Config) -> int:
    """GLM-5.3-Flash: rotary positions only, norms of q and k, a convolution that joins patches, a gated merger. Source: vLLM, models/glm5next."""
    width, heads = config.whole("hidden_size", default=1024), config.whole("num_heads", default=16)
    out = config.whole("out_hidden_size", default=1536)
    base, n = t.module, t.blocks
    frames = config.whole("temporal_patch_size", default=2)
    t.linear("patch_embd", frames * pixels(config, 14), width, "patch_embed.proj")
    t.norm("post_ln", width, "post_layernorm", bias=False)
    t.linear("downsample_conv", width * config.whole("spatial_merge_size", default=2) ** 2, out, "downsample")
    gated_merger(t, out, config.whole("projection_intermediate_size", default=10240))
    t.module = base + "blocks.0."
    bias = config.flag("attention_bias", default=True)
    t.layers(
        width,
        config.whole("intermediate_size", default=4096),
        attention=("attn.qkv", "attn.proj"),
        mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        norms=("norm1", "norm2"),
        bias=bias,
        mlp_bias=bias,
        norm_bias=False,
    )
    for role in ("attn_q_norm", "attn_k_norm"):
        t.norm(role, width // heads, f"attn.{role[5:]}", bias=False, count=n)
    return out
