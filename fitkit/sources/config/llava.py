"""Models of LLaVA's build: a known tower, a small projector, a text model that stands by itself."""

from __future__ import annotations

from collections.abc import Mapping

from fitkit.errors import BadInput, UnsupportedModel, short
from fitkit.sources.config import Shape, family
from fitkit.sources.config.multimodal import projector, text_part, vision_part
from fitkit.sources.config.towers import siglip
from fitkit.sources.config.view import Config
from fitkit.sources.config.vision import Tower, read_tower


def two_layers(config: Config, shape: Shape, n_in: int, *, bias: bool = True, shard: bool = False) -> None:
    """LLaVA's projector: two linear layers to the text model's width."""
    joint, hidden = projector(shape.build, "multi_modal_projector."), shape.hidden_size
    joint.linear("linear_1", n_in, hidden, "linear_1", bias=bias, shard="column" if shard else "replicated")
    joint.linear("linear_2", hidden, hidden, "linear_2", bias=bias, shard="row" if shard else "replicated")


# LlamaConfig's own values, for text parts that leave them out. Source: transformers, models/llama/configuration_llama.py.
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}


@family("llava", architectures=("LlavaForConditionalGeneration",))
def llava(config: Config) -> Shape:
    """LLaVA 1.5 and Pixtral: a tower and two layers; LlavaConfig's text model is Llama-2-7B where the file is silent."""
    if "vision_config" not in config:
        raise UnsupportedModel(
            f"{config.place}: LLaVA's first layout, without a vision_config, is not modelled; its -hf conversion is."
        )
    shape = text_part(config, "text_config", default="llama", prefix="language_model.model.", silent=_LLAMA)
    hidden = vision_part(config, shape, "vision_tower.vision_model.", default="clip_vision_model")
    two_layers(config, shape, hidden, bias=config.flag("multimodal_projector_bias", default=True), shard=True)
    return shape


@family("mistral3", architectures=("Mistral3ForConditionalGeneration",))
def mistral3(config: Config) -> Shape:
    """Mistral 3: Pixtral's tower, a norm, patches merged, two layers."""
    shape = text_part(config, "text_config", default="mistral", prefix="model.language_model.")
    hidden = vision_part(config, shape, "model.vision_tower.", default="pixtral")
    joint = projector(shape.build, "model.multi_modal_projector.")
    joint.norm("norm", hidden, bias=False)
    wide = hidden * config.whole("spatial_merge_size", default=2) ** 2
    joint.linear("patch_merger", wide, hidden, "patch_merger.merging_layer", bias=False)
    two_layers(config, shape, hidden, bias=config.flag("multimodal_projector_bias", default=False), shard=True)
    if shape.gguf_architecture == "llama":
        shape.gguf_architecture = "mistral3"  # llama.cpp's converter goes by the outer class
    return shape


@family("internvl_chat", architectures=("InternVLChatModel",))
def internvl_chat(config: Config) -> Shape:
    """InternVL: InternViT, pixels shuffled, a norm and two layers."""
    shape = text_part(config, "llm_config", "text_config", prefix="language_model.model.")
    hidden = vision_part(config, shape, "vision_model.", default="intern_vit_6b")
    wide = int(hidden * round(1 / config.number("downsample_ratio", default=0.5)) ** 2)
    joint = projector(shape.build, "mlp1.")
    joint.norm("0", wide)
    joint.linear("1", wide, shape.hidden_size, "1", shard="column")
    joint.linear("3", shape.hidden_size, shape.hidden_size, "3", shard="row")
    return shape


@family("lfm2_vl", architectures=("Lfm2VlForConditionalGeneration",))
def lfm2_vl(config: Config) -> Shape:
    """LFM2-VL: SigLIP 2, pixels unshuffled, an optional norm and two layers."""
    shape = text_part(config, "text_config", default="lfm2")
    hidden = vision_part(config, shape, "model.vision_tower.vision_model.", default="siglip2_vision_model")
    wide = hidden * config.whole("downsample_factor", default=2) ** 2
    inner = config.whole("projector_hidden_size", default=2560)
    bias = config.flag("projector_bias", default=True)
    joint = projector(shape.build, "model.multi_modal_projector.")
    if config.flag("projector_use_layernorm", default=True):
        joint.norm("layer_norm", wide)
    joint.linear("linear_1", wide, inner, "linear_1", bias=bias)
    joint.linear("linear_2", inner, shape.hidden_size, "linear_2", bias=bias)
    return shape


@family("phi3_v", architectures=("Phi3VForCausalLM",))
def phi3_v(config: Config) -> Shape:
    """Phi-3-vision: CLIP ViT-L/14 at 336, its patches joined by four, two layers and two learned separators."""
    shape = text_part(config, default="phi3", prefix="model.")
    images = config.view("img_processor")
    width = images.whole("image_dim_out", default=1024) if images else 1024
    large = Config(
        {"model_type": "clip_vision_model", "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": 24, "patch_size": 14, "image_size": 336},
        config.place,
    )  # fmt: skip
    read_tower(shape.build, large, "model.vision_embed_tokens.img_processor.vision_model.")
    joint = projector(shape.build, "model.vision_embed_tokens.")
    joint.linear("0", 4 * width, shape.hidden_size, "img_projection.0")
    joint.linear("2", shape.hidden_size, shape.hidden_size, "img_projection.2")
    joint.add("glb_token", (4 * width,), "glb_GN")
    joint.add("sub_token", (4 * width,), "sub_GN")
    return shape


@family("deepseek_vl_v2", architectures=("DeepseekVLV2ForCausalLM",))
def deepseek_vl_v2(config: Config) -> Shape:
    """DeepSeek-VL2: SigLIP with its pooling head, patches joined by four, two layers, two learned separators."""
    said = config.mapping.get("language_config")
    plain = isinstance(said, Mapping) and said.get("use_mla") is False  # the small ones have ordinary attention
    shape = text_part(
        config,
        "language_config",
        default="deepseek_v2",
        prefix="language.model.",
        instead={"model_type": "deepseek"} if plain else {},
    )
    vision, joint_config = config.view("vision_config"), config.view("projector_config")
    if vision is None:
        raise BadInput(f"{config.place} has no vision_config, which this model's family needs.")
    width = vision.whole("width", default=1152)
    t = Tower(build=shape.build, module="vision.", blocks=vision.whole("layers", default=27, high=4096))
    same = Config({"hidden_size": width, "intermediate_size": int(width * vision.number("mlp_ratio", default=3.7362)), "patch_size": vision.whole("patch_size", default=14), "image_size": vision.whole("image_size", default=384), "vision_use_head": True}, vision.place)  # fmt: skip
    siglip(t, same)
    kind = joint_config.text("projector_type", default="downsample_mlp_gelu") if joint_config else "downsample_mlp_gelu"
    if kind != "downsample_mlp_gelu":
        raise UnsupportedModel(f"{config.place}: the projector {short(kind)} is not modelled; downsample_mlp_gelu is.")
    hidden = shape.hidden_size
    joint = projector(shape.build, "projector.")
    joint.linear("0", width * 4, hidden, "layers.0")
    joint.linear("2", hidden, hidden, "layers.2")
    for name in ("image_newline", "view_seperator"):
        shape.build.add(f"mm.{name}_token", (hidden,), module=name, part="projector", shard="replicated")
    return shape


def newline(shape: Shape) -> None:
    """The learned mark at the end of a row of patches."""
    shape.build.add(
        "mm.newline_token", (shape.hidden_size,), module="image_newline", part="projector", shard="replicated"
    )


@family("llava_next", architectures=("LlavaNextForConditionalGeneration",))
@family("llava_onevision", architectures=("LlavaOnevisionForConditionalGeneration",))
def llava_next(config: Config) -> Shape:
    """LLaVA-NeXT and OneVision: as LLaVA, with a mark at the end of a row."""
    shape = text_part(config, "text_config", default="llama", prefix="language_model.model.", silent=_LLAMA)
    hidden = vision_part(config, shape, "vision_tower.vision_model.", default="clip_vision_model")
    layers = config.raw("vision_feature_layer")
    levels = len(layers) if isinstance(layers, list | tuple) and layers else 1
    two_layers(config, shape, hidden * levels, bias=config.flag("multimodal_projector_bias", default=True), shard=True)
    newline(shape)
    return shape


@family("idefics3", "smolvlm", architectures=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"))
def idefics3(config: Config) -> Shape:
    """Idefics 3 and SmolVLM: SigLIP without its head, patches shuffled, one projection."""
    shape = text_part(config, "text_config", default="llama", prefix="model.text_model.", silent=_LLAMA)
    hidden = vision_part(config, shape, "model.vision_model.", default="idefics3_vision")
    joined = hidden * config.whole("scale_factor", default=2, high=64) ** 2
    joint = projector(shape.build, "model.connector.modality_projection.")
    joint.linear("fc", joined, shape.hidden_size, "proj", bias=False)
    return shape


@family("paligemma", architectures=("PaliGemmaForConditionalGeneration",))
def paligemma(config: Config) -> Shape:
    """PaliGemma 1 and 2: SigLIP without its head and one projection."""
    shape = text_part(config, "text_config", default="gemma", prefix="language_model.model.")
    vision = config.view("vision_config", vision_use_head=False)
    if vision is None:
        raise BadInput(f"{config.place} has no vision_config, which this model's family needs.")
    hidden = read_tower(shape.build, vision, "vision_tower.vision_model.", "siglip_vision_model")
    projector(shape.build, "multi_modal_projector.").linear("input_projection", hidden, shape.hidden_size, "linear")
    return shape


@family("internvl", architectures=("InternVLForConditionalGeneration",))
def internvl(config: Config) -> Shape:
    """InternVL in transformers' own layout."""
    shape = text_part(config, "text_config", default="qwen2", prefix="model.language_model.")
    hidden = vision_part(config, shape, "model.vision_tower.", default="internvl_vision")
    joined = int(hidden * round(1 / config.number("downsample_ratio", default=0.5)) ** 2)
    projector(shape.build, "model.multi_modal_projector.").norm("layer_norm", joined)
    joint = projector(shape.build, "model.multi_modal_projector.")
    joint.linear("linear_1", joined, shape.hidden_size, "linear_1", shard="column")
    joint.linear("linear_2", shape.hidden_size, shape.hidden_size, "linear_2", shard="row")
    return shape


@family("kimi_vl", architectures=("KimiVLForConditionalGeneration",))
def kimi_vl(config: Config) -> Shape:
    """Kimi-VL: MoonViT, patches merged, a norm and two layers."""
    shape = text_part(config, "text_config", default="deepseek_v3", prefix="language_model.model.")
    hidden = vision_part(config, shape, "vision_tower.", default="moonvit")
    vision = config.view("vision_config")
    kernel = vision.wholes("merge_kernel_size", count=2, default=(2, 2), low=1, high=64) if vision else (2, 2)
    joined = hidden * kernel[0] * kernel[1]
    joint = projector(shape.build, "multi_modal_projector.")
    joint.norm("pre_norm", hidden)
    joint.linear("linear_1", joined, joined, "linear_1")
    joint.linear("linear_2", joined, shape.hidden_size, "linear_2")
    return shape


@family(architectures=("Step3p7ForConditionalGeneration",))
def step3p7(config: Config) -> Shape:
    """Step 3.7: a ViT with layer scales, two convolutions that join patches, one projection."""
    shape = text_part(config, "text_config", default="step3p7")
    hidden = vision_part(config, shape, "model.vision_model.", default="step3p5_vision")
    bias = config.flag("projector_bias", default=False)
    joint = projector(shape.build, "model.vit_large_projector.")
    joint.linear("fc", hidden, shape.hidden_size, "proj", bias=bias)
    return shape
