"""The towers themselves, one small function each (see vision.py). Registered by the model_type of their vision_config."""

from __future__ import annotations

from fitkit.errors import UnsupportedModel, short
from fitkit.sources.config.build import Build
from fitkit.sources.config.view import Config
from fitkit.sources.config.vision import Tower, grid, pixels, tower


@tower("clip_vision_model")
def clip(t: Tower, config: Config) -> int:
    """CLIP: a class token, learned positions, norms before and after."""
    hidden = config.whole("hidden_size", default=768)
    t.add("class_embd", (hidden,), "embeddings.class_embedding")
    t.linear("patch_embd", pixels(config, 32), hidden, "embeddings.patch_embedding", bias=False)
    t.add("position_embd", (hidden, grid(config, 224, 32) + 1), "embeddings.position_embedding")
    t.norm("pre_ln", hidden, "pre_layrnorm")
    t.module += "encoder.layers.0."
    t.layers(hidden, config.whole("intermediate_size", default=3072))
    t.norm("post_ln", hidden, "post_layernorm")
    return hidden


@tower("siglip_vision_model", "siglip", "siglip2_vision_model", "idefics3", "idefics3_vision", "smolvlm_vision")
def siglip(t: Tower, config: Config) -> int:
    """SigLIP: learned positions, a norm after, and an attention-pooling head unless `vision_use_head` is false; Idefics' has none."""
    kind = config.text("model_type", default="siglip_vision_model")
    hidden = config.whole("hidden_size", default=768)
    ffn = config.whole("intermediate_size", default=3072)
    base = t.module
    positions = config.whole("num_patches", default=0, low=0) or grid(config, 224, 16)
    t.linear("patch_embd", pixels(config, 16), hidden, "embeddings.patch_embedding")
    t.add("position_embd", (hidden, positions), "embeddings.position_embedding")
    t.module = base + "encoder.layers.0."
    t.layers(hidden, ffn)
    t.module = base
    t.norm("post_ln", hidden, "post_layernorm")
    if config.flag("vision_use_head", default="siglip" in kind and kind != "siglip"):
        pooling_head(t, hidden, ffn)
    return hidden


def pooling_head(t: Tower, hidden: int, ffn: int) -> None:
    """SigLIP's attention-pooling head: a probe, attention, a norm, a feed-forward."""
    t.add("head.probe_token", (hidden,), "head.probe")
    t.linear("head.attn_qkv", hidden, 3 * hidden, "head.attention.in_proj")
    t.linear("head.attn_out", hidden, hidden, "head.attention.out_proj")
    t.norm("head.ln", hidden, "head.layernorm")
    t.linear("head.ffn_up", hidden, ffn, "head.mlp.fc1")
    t.linear("head.ffn_down", ffn, hidden, "head.mlp.fc2")


@tower("pixtral")
def pixtral(t: Tower, config: Config) -> int:
    """Pixtral: no biases, rotary positions, a gated feed-forward."""
    hidden = config.whole("hidden_size", default=1024)
    t.linear("patch_embd", pixels(config, 16), hidden, "patch_conv", bias=False)
    t.norm("pre_ln", hidden, "ln_pre", bias=False)
    t.module += "transformer.layers.0."
    t.layers(
        hidden,
        config.whole("intermediate_size", default=4096),
        attention=("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
        mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
        norms=("attention_norm", "ffn_norm"),
        bias=False,
        mlp_bias=False,
        norm_bias=False,
    )
    return hidden


@tower("llama4_vision_model")
def llama4(t: Tower, config: Config) -> int:
    """Llama 4: rotary positions besides learned ones, pixel shuffle, an adapter without biases."""
    hidden = config.whole("hidden_size", default=768)
    ffn = config.whole("intermediate_size", default=5632)
    wide = config.whole("projector_input_dim", default=4096)
    out = config.whole("projector_output_dim", default=4096)
    base = t.module
    t.linear("patch_embd", pixels(config, 14), hidden, "patch_embedding.linear", bias=False, shard="column")
    t.add("class_embd", (hidden,), "class_embedding")
    t.add("position_embd", (hidden, grid(config, 448, 14) + 1), "positional_embedding_vlm")
    for role, name in (("pre_ln", "layernorm_pre"), ("post_ln", "layernorm_post")):
        t.norm(role, hidden, name)
    t.linear("adapter_up", ffn, wide, "vision_adapter.mlp.fc1", bias=False, shard="column")
    t.linear("adapter_down", wide, out, "vision_adapter.mlp.fc2", bias=False, shard="row")
    t.module = base + "model.layers.0."
    t.layers(
        hidden,
        ffn,
        attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        norms=("input_layernorm", "post_attention_layernorm"),
    )
    return config.whole("vision_output_dim", default=7680)


@tower("intern_vit_6b", "internvl_vision")
def intern_vit(t: Tower, config: Config) -> int:
    """InternViT: a class token, learned positions, a scale after each half of a block."""
    hidden = config.whole("hidden_size", default=3200)
    base, n = t.module, t.blocks
    layer_norm = config.text("norm_type", default="rms_norm") == "layer_norm"
    t.add("class_embd", (hidden,), "embeddings.class_embedding")
    t.linear("patch_embd", pixels(config, 14), hidden, "embeddings.patch_embedding")
    t.add("position_embd", (hidden, grid(config, 224, 14) + 1), "embeddings.position_embedding")
    t.module = base + "encoder.layers.0."
    t.layers(hidden, config.whole("intermediate_size", default=12800), attention=("attn.qkv", "attn.proj"), norms=("norm1", "norm2"), norm_bias=layer_norm, bias=True)  # fmt: skip
    if not config.flag("qkv_bias", "attention_bias", default=False):
        _without(t.build, "v.attn_qkv.bias")
    for role in ("ls1", "ls2"):
        t.add(f"{role}.scale", (hidden,), role, count=n)
    if config.flag("qk_normalization", "use_qk_norm", default=True):
        for role in ("attn_q_norm", "attn_k_norm"):
            t.norm(role, hidden, role, bias=False, count=n)
    return hidden


def _without(build: Build, role: str) -> None:
    """Take back the last tensor of `role`."""
    for place in range(len(build.tensors) - 1, -1, -1):
        if build.tensors[place].role == role:
            del build.tensors[place], build.modules[place]
            return


@tower("moonvit", "kimi_k25_vision")
def moonvit(t: Tower, config: Config) -> int:
    """MoonViT of Kimi-K2.5 and K3: learned positions of a grid, norms and biases as the config says (K3: RMS, none)."""
    hidden = config.whole("vt_hidden_size", "hidden_size", default=1152)
    ffn = config.whole("vt_intermediate_size", "intermediate_size", default=4304)
    rms = config.text("norm_type", default="layernorm") == "rmsnorm"
    base = t.module
    t.linear(
        "patch_embd",
        pixels(config, 14),
        hidden,
        "patch_embed.proj",
        bias=config.flag("patch_embed_proj_bias", default=True),
    )
    height, width = (config.whole(f"init_pos_emb_{side}", default=64) for side in ("height", "width"))
    t.add("position_embd", (hidden, height * width), "patch_embed.pos_emb")
    t.norm("post_ln", hidden, "encoder.final_layernorm", bias=not rms)
    t.module = base + "encoder.blocks.0."
    t.layers(
        hidden,
        ffn,
        attention=("wqkv", "wo"),
        mlp=("mlp.fc0", "mlp.fc1"),
        norms=("norm0", "norm1"),
        inner=config.whole("qkv_hidden_size", default=hidden),
        bias=config.flag("attn_bias", default=True),
        mlp_bias=config.flag("linear_bias", default=True),
        norm_bias=not rms,
    )
    return hidden


@tower("gemma4_vision")
def gemma4(t: Tower, config: Config) -> int:
    """Gemma 4: two tables of positions, four norms and norms of q and k; vLLM keeps it whole on every rank."""
    t.whole = True
    hidden, heads = config.whole("hidden_size", default=768), config.whole("num_attention_heads", default=12)
    width = config.whole("head_dim", default=hidden // heads)
    kv = config.whole("num_key_value_heads", default=heads) * width
    base, n = t.module, t.blocks
    bias = config.flag("attention_bias", default=False)
    t.linear("patch_embd", pixels(config, 16), hidden, "patch_embedder.input_proj", bias=False)
    t.add(
        "position_embd",
        (hidden, config.whole("position_embedding_size", default=10240), 2),
        "patch_embedder.position_embedding_table",
    )
    t.module = base + "encoder.layers.0."
    for role, name, n_in, n_out in (
        ("attn_q", "q_proj", hidden, heads * width),
        ("attn_k", "k_proj", hidden, kv),
        ("attn_v", "v_proj", hidden, kv),
        ("attn_out", "o_proj", heads * width, hidden),
    ):
        t.linear(role, n_in, n_out, f"self_attn.{name}", bias=bias, count=n)
    for role in ("attn_q_norm", "attn_k_norm"):
        t.norm(role, width, f"self_attn.{role[5:]}", bias=False, count=n)
    ffn = config.whole("intermediate_size", default=3072)
    for role, name, n_in, n_out in (
        ("ffn_gate", "gate_proj", hidden, ffn),
        ("ffn_up", "up_proj", hidden, ffn),
        ("ffn_down", "down_proj", ffn, hidden),
    ):
        t.linear(role, n_in, n_out, f"mlp.{name}", bias=False, count=n)
    t.norm("ln", hidden, "norms", bias=False, count=4 * n)
    return hidden


# Parameters of timm's encoders that a config only names. Source: published totals of Gemma 3n E2B and E4B less all their
# other parts; both leave the same number.
_TIMM = {"mobilenetv5_300m_enc": 294_126_912}


@tower("gemma3n_vision")
def gemma3n(t: Tower, config: Config) -> int:
    """Gemma 3n: a MobileNet that its config only names; counted as one tensor, kept whole on every rank."""
    name = config.text("architecture", default="mobilenetv5_300m_enc")
    if name not in _TIMM:
        raise UnsupportedModel(
            f"{config.place}: the encoder {short(name)} is not modelled; known are {', '.join(_TIMM)}."
        )
    t.add("encoder_conv", (_TIMM[name], 1), "timm_model")
    return config.whole("hidden_size", default=2048)
