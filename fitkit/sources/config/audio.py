"""Audio towers: what they hold. Conformers of Gemma's kind."""

from __future__ import annotations

from fitkit.sources.config.build import Build
from fitkit.sources.config.view import MOST_LAYERS, Config
from fitkit.sources.config.vision import Tower


def gemma4_audio(build: Build, config: Config) -> int:
    """Gemma 4 E's conformer; the width its projector sees. vLLM keeps it whole on every rank.

    Source: the modelling code; exact against the parameter bytes of vLLM 0.33.0's Gemma-4-E2B modules.
    """
    hidden = config.whole("hidden_size", default=1024)
    n = config.whole("num_hidden_layers", default=12, high=MOST_LAYERS)
    heads = config.whole("num_attention_heads", default=8)
    first, second = config.wholes("subsampling_conv_channels", count=2, default=(128, 32), low=1)
    t = Tower(build=build, part="audio", module="model.audio_tower.", prefix="a.", blocks=n, whole=True)
    for role, n_in, n_out in (("conv0_conv", 1, first), ("conv1_conv", first, second)):
        t.add(role, (9 * n_in, n_out), "subsample_conv_projection." + role)
        t.norm(f"{role}_norm", n_out, bias=False)
    # Two convolutions of stride 2 over 128 mel bins leave 32 of them, with `second` channels each.
    t.linear("input_proj", 32 * second, hidden, "subsample_conv_projection.input_proj_linear", bias=False)
    t.module += "layers.0."
    for role, n_in, n_out, count in (
        ("ffn_up", hidden, 4 * hidden, 2 * n),
        ("ffn_down", 4 * hidden, hidden, 2 * n),
        ("attn_qkv", hidden, 3 * hidden, n),
        ("attn_pos_proj", hidden, hidden, n),
        ("attn_out", hidden, hidden, n),
        ("glu_start", hidden, 2 * hidden, n),
        ("glu_end", hidden, hidden, n),
    ):
        t.linear(role, n_in, n_out, role, bias=False, count=count)
    t.add("depthwise_conv", (config.whole("conv_kernel_size", default=5), hidden), "lconv1d.depthwise_conv1d", count=n)
    t.add("per_dim_scale", (hidden // heads,), "self_attn.per_dim_scale", count=n)
    t.norm("ln", hidden, "norms", bias=False, count=9 * n)
    out = config.whole("output_proj_dims", default=1536)
    t.linear("output_proj", hidden, out, "output_proj")
    return out
