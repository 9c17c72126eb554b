"""Models that read pictures or sound with a tower of their vendor's own."""

from __future__ import annotations

from fitkit.errors import BadInput, UnsupportedModel
from fitkit.sources.config import Shape, family
from fitkit.sources.config.audio import gemma3n_audio, gemma4_audio
from fitkit.sources.config.multimodal import projector, text_part, vision_part
from fitkit.sources.config.towers import siglip
from fitkit.sources.config.view import Config
from fitkit.sources.config.vision import Tower, pixels, read_tower


@family("qwen2_vl", architectures=("Qwen2VLForConditionalGeneration",))
def qwen2_vl(config: Config) -> Shape:
    """Qwen2-VL: Qwen2 and a tower with its merger."""
    shape = text_part(config, "text_config", default="qwen2")
    vision_part(config, shape, "visual.", default="qwen2_vl")
    shape.gguf_architecture = "qwen2vl"
    return shape


@family("qwen2_5_vl", architectures=("Qwen2_5_VLForConditionalGeneration",))
def qwen2_5_vl(config: Config) -> Shape:
    """Qwen2.5-VL: Qwen2 and a tower with its merger."""
    shape = text_part(config, "text_config", default="qwen2")
    vision_part(config, shape, "visual.", default="qwen2_5_vl")
    shape.gguf_architecture = "qwen2vl"
    return shape


@family("qwen3_vl", architectures=("Qwen3VLForConditionalGeneration",))
@family("qwen3_vl_moe", architectures=("Qwen3VLMoeForConditionalGeneration",))
@family("qwen3_5", architectures=("Qwen3_5ForConditionalGeneration",))
@family("qwen3_5_moe", architectures=("Qwen3_5MoeForConditionalGeneration",))
def qwen3_vl(config: Config) -> Shape:
    """Qwen3-VL and Qwen3.5, dense or with experts."""
    own = config.text("model_type", default="qwen3_vl")
    shape = text_part(config, "text_config", default=f"{own}_text")
    vision_part(config, shape, "model.visual.", default=own)
    if own in ("qwen3_vl", "qwen3_vl_moe"):
        shape.gguf_architecture = "qwen3vlmoe" if own.endswith("moe") else "qwen3vl"
        vision = config.view("vision_config")
        deep = vision.entries("deepstack_visual_indexes", default=(8, 16, 24)) if vision else ()
        shape.extra = {**(shape.extra or {}), "deepstack_layers": len(deep)}
    return shape


@family("glm5_next", architectures=("Glm5NextForConditionalGeneration",))
def glm5_next(config: Config) -> Shape:
    """GLM-5.3-Flash: its text model and a tower with its merger."""
    shape = text_part(config, "text_config", default="glm5_next_text")
    vision_part(config, shape, "model.visual.", default="glm5_next_vision")
    return shape


@family("glm4v", architectures=("Glm4vForConditionalGeneration",))
@family("glm4v_moe", architectures=("Glm4vMoeForConditionalGeneration",))
def glm4v(config: Config) -> Shape:
    """GLM-4V: GLM-4 (0414) or GLM-4.5 and a tower with its merger."""
    moe = config.text("model_type", default="glm4v") == "glm4v_moe"
    shape = text_part(config, "text_config", default="glm4v_moe_text" if moe else "glm4")
    vision_part(config, shape, "model.visual.", default="glm4v")
    return shape


@family("gemma3", architectures=("Gemma3ForConditionalGeneration",))
def gemma3(config: Config) -> Shape:
    """Gemma 3: SigLIP, pooled, a norm and one projection."""
    shape = text_part(config, "text_config", default="gemma3_text")
    hidden = vision_part(config, shape, "vision_tower.vision_model.", default="siglip_vision_model")
    joint = projector(shape.build, "multi_modal_projector.")
    joint.norm("soft_emb_norm", hidden, "mm_soft_emb_norm", bias=False)
    joint.add("input_projection", (hidden, shape.hidden_size), "mm_input_projection_weight")
    return shape


@family("gemma4", architectures=("Gemma4ForConditionalGeneration",))
def gemma4(config: Config) -> Shape:
    """Gemma 4: its own tower, and for the E models one for sound."""
    shape = text_part(config, "text_config", default="gemma4_text")
    hidden = vision_part(config, shape, "model.vision_tower.", default="gemma4_vision")
    projector(shape.build, "model.embed_vision.").add(
        "input_projection", (hidden, shape.hidden_size), "embedding_projection"
    )
    audio = config.view("audio_config")
    if audio is not None:
        width = gemma4_audio(shape.build, audio)
        projector(shape.build, "model.embed_audio.").add(
            "a.input_projection", (width, shape.hidden_size), "embedding_projection"
        )
    return shape


@family("gemma3n", architectures=("Gemma3nForConditionalGeneration",))
def gemma3n(config: Config) -> Shape:
    """Gemma 3n: a MobileNet for pictures, a conformer for sound, and for each a small table, two norms and a projection."""
    shape = text_part(config, "text_config", default="gemma3n_text")
    audio = config.view("audio_config") or Config({}, f"{config.place}: audio_config")
    vision = config.view("vision_config") or Config({}, f"{config.place}: vision_config")
    width = read_tower(shape.build, vision, "model.vision_tower.", "gemma3n_vision")
    for view, name, letter, n_in in (
        (vision, "vision", "", width),
        (audio, "audio", "a.", gemma3n_audio(shape.build, audio)),
    ):
        joint = projector(shape.build, f"model.embed_{name}.")
        joint.add(f"{letter}embd", (n_in, view.whole("vocab_size", default=128)), "embedding")
        for norm in ("hard_embedding_norm", "soft_embedding_norm"):
            joint.norm(f"{letter}{norm}", n_in, norm, bias=False)
        joint.add(f"{letter}input_projection", (n_in, shape.hidden_size), "embedding_projection")
    return shape


@family("muse_glimmer", architectures=("MuseGlimmerForConditionalGeneration",))
def muse_glimmer(config: Config) -> Shape:
    """Muse Glimmer: a ViT with learned positions, patches joined by four, two layers and a projection without biases."""
    shape = text_part(config, "text_config", default="muse_glimmer_text")
    hidden = vision_part(config, shape, "model.vision_tower.", default="muse_glimmer_vision")
    vision = config.view("vision_config")
    joined = hidden * (vision.whole("merge_size", default=2) if vision else 2) ** 2
    inner = config.whole("projector_hidden_size", default=4096)
    joint = projector(shape.build, "model.multi_modal_projector.")
    for role, n_in, n_out in (("0", joined, inner), ("1", inner, inner), ("2", inner, shape.hidden_size)):
        joint.linear(role, n_in, n_out, role, bias=False)
    return shape


@family("llama4", architectures=("Llama4ForConditionalGeneration",))
def llama4(config: Config) -> Shape:
    """Llama 4: the tower and one projection; without a vision_config the tower is the one of Llama4VisionConfig's defaults, which vLLM builds too."""
    shape = text_part(config, "text_config", default="llama4_text", prefix="language_model.model.")
    vision = config.view("vision_config") or Config({}, f"{config.place}: vision_config")
    hidden = read_tower(shape.build, vision, "vision_model.", "llama4_vision_model")
    joint = projector(shape.build, "multi_modal_projector.")
    joint.linear("linear_1", hidden, shape.hidden_size, "linear_1", bias=False, shard="column")
    return shape


@family("kimi_k25", architectures=("KimiK25ForConditionalGeneration",))
@family("kimi_k3", architectures=("KimiK3ForConditionalGeneration",))
def kimi(config: Config) -> Shape:
    """Kimi-K2.5 and K3: MoonViT and a patch merger."""
    shape = text_part(config, "text_config", prefix="language_model.model.")
    shape.build.modules = ["language_model.lm_head" if name == "lm_head" else name for name in shape.build.modules]
    hidden = vision_part(config, shape, "vision_tower.", default="moonvit")
    vision = config.view("vision_config")
    assert vision is not None
    kernel = vision.wholes("merge_kernel_size", count=2, default=(2, 2), low=1, high=64)
    wide = hidden * kernel[0] * kernel[1]
    joint = projector(shape.build, "mm_projector.")
    rms = vision.text("mm_projector_type", default="patchmerger") == "patchmergerv2"
    if not rms:
        joint.norm("pre_norm", hidden)
    joint.linear("0", wide, wide, "proj.0", bias=not rms)
    joint.linear("2", wide, shape.hidden_size, "proj.2", bias=not rms)
    if rms:
        joint.norm("post_norm", shape.hidden_size, bias=False)
    heads = vision.whole("vt_num_attention_heads", "num_attention_heads", default=16)
    shape.extra = {
        **(shape.extra or {}),
        "encoder_heads": heads,
    }  # ranks that do not divide them each hold the whole tower
    return shape


@family("minimax_m3_vl", architectures=("MiniMaxM3SparseForConditionalGeneration",))
def minimax_m3_vl(config: Config) -> Shape:
    """MiniMax-M3: a tower of CLIP's build with patches of two frames and rotary positions, two layers, patches merged by two more.

    Its published files name the tower clip_vision_model, which it is not. Source: the released configuration and modules;
    the text model and these parts add up to the published 427,040,140,160 parameters.
    """
    shape = text_part(config, "text_config", default="minimax_m3_vl_text")
    vision = config.view("vision_config")
    if vision is None:
        return shape
    hidden = vision.whole("hidden_size", default=1280)
    blocks = vision.whole("num_hidden_layers", default=32, high=4096)
    t = Tower(build=shape.build, module="vision_tower.vision_model.", blocks=blocks)
    joins = vision.view("img_token_compression_config") or vision
    frames = vision.whole("temporal_patch_size", default=joins.whole("temporal_patch_size", default=2))
    t.linear("patch_embd", frames * pixels(vision, 14), hidden, "embeddings.patch_embedding", bias=False)
    t.norm("pre_ln", hidden, "pre_layrnorm")
    t.module += "encoder.layers.0."
    t.layers(hidden, vision.whole("intermediate_size", default=5120))
    inner, out = config.whole("projector_hidden_size", default=shape.hidden_size), shape.hidden_size
    merged = out * vision.whole("spatial_merge_size", default=joins.whole("spatial_merge_size", default=2)) ** 2
    bias = config.flag("multimodal_projector_bias", default=True)
    for module, n_in in (("multi_modal_projector.", hidden), ("patch_merge_mlp.", merged)):
        joint = projector(shape.build, module)
        joint.linear("linear_1", n_in, inner, "linear_1", bias=bias, shard="column")
        joint.linear("linear_2", inner, out, "linear_2", bias=bias, shard="row")
    return shape


@family("minicpmv4_6", architectures=("MiniCPMV4_6ForConditionalGeneration",))
def minicpmv4_6(config: Config) -> Shape:
    """MiniCPM-V 4.6: SigLIP with patches joined once inside (attention over a window, two layers) and once after it."""
    shape = text_part(config, "text_config", default="qwen3_5_text")
    vision = config.view("vision_config", vision_use_head=False)
    if vision is None:
        raise BadInput(f"{config.place} has no vision_config, which this model's family needs.")
    base = Tower(build=shape.build, module="model.vision_tower.", blocks=vision.whole("num_hidden_layers", high=4096))
    same = vision.but(vision_use_head=False)
    width = siglip(base, same)
    window = vision.wholes("window_kernel_size", count=2, default=(2, 2), low=1, high=64)
    kernel = config.wholes("merge_kernel_size", count=2, default=(2, 2), low=1, high=64)
    inner, outer = width * window[0] * window[1], width * kernel[0] * kernel[1]
    ffn = vision.whole("intermediate_size") * window[0] * window[1]
    t = Tower(build=shape.build, module="model.vision_tower.vit_merger.", prefix="v.merger.")
    t.norm("ln1", width)
    t.linear("attn_qkv", width, 3 * width, "self_attn.qkv_proj")
    t.linear("attn_out", width, width, "self_attn.out_proj")
    t.norm("ln2", inner)
    t.linear("ffn_up", inner, ffn, "linear_1")
    t.linear("ffn_down", ffn, width, "linear_2")
    joint = projector(shape.build, "model.merger.")
    for _ in range(config.whole("merger_times", default=1, high=16)):
        joint.norm("ln", outer)
        joint.linear("linear_1", outer, outer, "linear_1")
        joint.linear("linear_2", outer, shape.hidden_size, "linear_2")
    return shape


@family("minicpmv", architectures=("MiniCPMV",))
def minicpmv(config: Config) -> Shape:
    """MiniCPM-V: SigLIP and a resampler of `query_num` learned queries; the text model by version (MiniCPM-V 2.6: Qwen2, 2.5: Llama, 4: MiniCPM)."""
    version = config.number("version", default=2.6)
    default = {2.5: "llama", 2.6: "qwen2", 4.0: "llama", 4.5: "qwen3"}.get(float(version))
    if default is None:
        raise UnsupportedModel(f"{config.place}: MiniCPM-V {version} is not modelled; 2.5, 2.6, 4.0 and 4.5 are.")
    shape = text_part(config, default=default, prefix="llm.model.")
    width = vision_part(config, shape, "vpm.", default="siglip")
    hidden = shape.hidden_size
    joint = projector(shape.build, "resampler.")
    joint.add("query_token", (hidden, config.whole("query_num", default=64)), "query")
    joint.linear("kv_proj", width, hidden, "kv_proj", bias=False)
    joint.linear("attn_qkv", hidden, 3 * hidden, "attn.in_proj")
    joint.linear("attn_out", hidden, hidden, "attn.out_proj")
    for role in ("ln_q", "ln_kv", "ln_post"):
        joint.norm(role, hidden)
    joint.add("proj", (hidden, hidden))
    return shape
