"""Audio towers: what they hold. Conformers of Gemma's kind."""

from __future__ import annotations

from fitkit.sources.config.build import Build
from fitkit.sources.config.view import MOST_LAYERS, Config
from fitkit.sources.config.vision import Tower


def gemma4_audio(build: Build, config: Config) -> int:
    """Gemma 4 E's conformer; the width its projector sees.

    Source: the modelling code; exact against the parameter bytes of vLLM 0.33.0's Gemma-4-E2B modules.
    """
    hidden = config.whole("hidden_size", default=1024)
    channels = config.wholes("subsampling_conv_channels", count=2, default=(128, 32), low=1)
    kernel = config.whole("conv_kernel_size", default=5)
    t = conformer(build, hidden, config.whole("num_attention_heads", default=8), _blocks(config), channels, kernel, 128)
    out = config.whole("output_proj_dims", default=1536)
    t.linear("output_proj", hidden, out, "output_proj")
    return out


def gemma3n_audio(build: Build, config: Config) -> int:
    """Gemma 3n's conformer; the width its projector sees."""
    hidden = config.whole("hidden_size", default=1536)
    channels = config.wholes("sscp_conv_channel_size", count=2, default=(128, 32), low=1)
    kernel = config.whole("conf_conv_kernel_size", default=5)
    heads = config.whole("conf_num_attention_heads", default=8)
    conformer(build, hidden, heads, _blocks(config), channels, kernel, config.whole("input_feat_size", default=128))
    return hidden


def _blocks(config: Config) -> int:
    return config.whole("num_hidden_layers", "conf_num_hidden_layers", default=12, high=MOST_LAYERS)


def conformer(
    build: Build, hidden: int, heads: int, blocks: int, channels: tuple[int, ...], kernel: int, mel_bins: int
) -> Tower:
    """Two convolutions over time and pitch, then blocks of two feed-forwards, attention and a gated convolution. vLLM keeps it whole on every rank."""
    first, second = channels
    t = Tower(build=build, part="audio", module="model.audio_tower.", prefix="a.", blocks=blocks, whole=True)
    for role, n_in, n_out in (("conv0_conv", 1, first), ("conv1_conv", first, second)):
        t.add(role, (9 * n_in, n_out), "subsample_conv_projection." + role)
        t.norm(f"{role}_norm", n_out, bias=False)
    # Two convolutions of stride 2 leave a quarter of the mel bins, with `second` channels each.
    t.linear("input_proj", mel_bins // 4 * second, hidden, "subsample_conv_projection.input_proj_linear", bias=False)
    base, t.module = t.module, t.module + "layers.0."
    for role, n_in, n_out, count in (
        ("ffn_up", hidden, 4 * hidden, 2 * blocks),
        ("ffn_down", 4 * hidden, hidden, 2 * blocks),
        ("attn_qkv", hidden, 3 * hidden, blocks),
        ("attn_pos_proj", hidden, hidden, blocks),
        ("attn_out", hidden, hidden, blocks),
        ("glu_start", hidden, 2 * hidden, blocks),
        ("glu_end", hidden, hidden, blocks),
    ):
        t.linear(role, n_in, n_out, role, bias=False, count=count)
    t.add("depthwise_conv", (kernel, hidden), "lconv1d.depthwise_conv1d", count=blocks)
    t.add("per_dim_scale", (hidden // heads,), "self_attn.per_dim_scale", count=blocks)
    t.norm("ln", hidden, "norms", bias=False, count=9 * blocks)
    t.module = base
    return t
