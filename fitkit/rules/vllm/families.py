"""What vLLM does for one family and no other. Everything here is keyed on config.json's model_type.

A family without a row has none of these habits.
"""

from __future__ import annotations

from fitkit.errors import UnsupportedModel
from fitkit.model import Model
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.settings import VLLMSettings

# Images attend both ways, so a kernel must take prefixes. Source: vLLM 0.33.0 model_arch_config_convertor.py; Gemma 4
# says it in its config (use_bidirectional_attention), which its family function keeps as extra "image_prefix".
IMAGE_PREFIX = frozenset({"bagel", "gemma3", "molmo2", "moondream3", "paligemma"})

# The model types vLLM treats as MLA, and the multimodal ones around them. Source: vLLM 0.33.0 is_deepseek_mla.
MLA = frozenset(
    [
        "axk1",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots3_note",
        "glm_moe_dsa",
        "glm4_moe_lite",
        "kimi_k2",
        "kimi_linear",
        "longcat_flash",
        "pangu_ultra_moe",
        "bailing_hybrid",
        "hy_v4",
        "kimi_k25",
        "kimi_k3",
        "kimi_vl",
        "deepseek_vl_v2",
    ]
)

# Ordinary heads with an indexer beside them in the model's dtype. Source: vLLM 0.33.0 models/minimax_m3.
INDEXED_HEADS = frozenset({"minimax_m3", "minimax_m3_text", "minimax_m3_vl", "minimax_m3_vl_text"})

# Delta-attention layers whose prefill kernel stores a checkpoint in the middle of a prefill: token alignment of it.
# Source: vLLM 0.33.0 models/kimi_k3/nvidia/kda.py (FlashKDA); Kimi-Linear's own layer has none.
KDA_CHECKPOINT = {"kimi_k3": 16}
GDN_CHECKPOINT = 64  # FlashInfer's gated-delta-net prefill
GDN_IN_TRITON = frozenset({"olmo_hybrid"})  # a layer of its own that never takes FlashInfer's


def image_prefix(settings: VLLMSettings, model: Model) -> bool:
    """Whether kernels must handle image prefixes."""
    limits = settings.limit_mm_per_prompt
    if limits is not None and limits and not any(limits.values()):
        return False
    prefix = bool(model.get("image_prefix")) or model.family in IMAGE_PREFIX
    return prefix and any(tensor.part == "vision" for tensor in model.tensors)


def has_sinks(model: Model) -> bool:
    """Whether attention has learned sinks."""
    return any(tensor.role.startswith("attn_sinks") for tensor in model.tensors)


def checkpoint(settings: VLLMSettings, model: Model, variant: str, head_dim: int, device: Device) -> int:
    """Token alignment of a mid-prefill checkpoint of a state layer, 0 where its kernel makes none.

    Mamba-2's mixer can stop at any token; gated delta net with FlashInfer's kernel (SM90, SM100 and SM120 with key heads
    of 128) at 64; the others cannot.
    """
    if not settings.has("prefill_checkpoint_block"):
        return 0
    if variant == "mamba2":
        return 1
    if variant == "gdn" and model.family not in GDN_IN_TRITON:
        flashinfer = device.family == 9 or (device.family in (10, 12) and head_dim == 128)
        return GDN_CHECKPOINT if flashinfer else 0
    if variant == "kda" and device.family in (9, 10, 12):
        return KDA_CHECKPOINT.get(model.family, 0)
    return 0


def prefix_caching(settings: VLLMSettings, model: Model) -> bool:
    """Whether states are kept for prefix caching: where asked for, else wherever the model has attention.

    Hybrids have it on by default since 0.26; before, asking for it kept every block's state of Mamba layers (not
    modelled), two states of the others, and in 0.12 nothing.
    """
    kinds = {cache.kind for cache in model.caches()}
    asked = settings.enable_prefix_caching
    if "state" not in kinds or settings.has("hybrid_prefix_caching"):
        return asked if asked is not None else bool(kinds - {"state"})
    if not asked:
        return False
    if any(cache.variant.startswith("mamba") for cache in model.caches()):
        raise UnsupportedModel(
            f"{model.name}: how many states vLLM {settings.version} keeps with prefix caching asked for is not modelled; it is off "
            "by default there."
        )
    return settings.has("hybrid_prefix_caching_on_request")


# ---- weights -----------------------------------------------------------------------------------------------------------

# Families whose model class builds the token table, the head or the final norm on every pipeline stage; the others build
# the table on the first and head and norm on the last. Source: vLLM 0.33.0's model classes; Gemma 3, Qwen3-Next, Llama and
# Kimi-Linear by the parameter bytes of their stages.
ON_EVERY_STAGE: dict[str, frozenset[str]] = {
    role: frozenset(names.split())
    for role, names in (
        (
            "token_embd",
            """
            alice_ai bloom chatglm cohere cohere2 cohere2_moe dbrx falcon gemma gemma2 gemma3 gemma3_text gemma3n
            gemma3n_text gemma4 gemma4_text gpt2 gptj gpt_oss granitemoe granitemoehybrid granitemoeshared hy_v3
            iquestloopcoder jamba lfm2 lfm2_moe lfm2_vl mamba mamba2 minicpm mixtral muse_glimmer nemotron_h olmo_hybrid
            olmoe opt orion phimoe plamo3 qwen2_moe qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text qwen3_moe qwen3_next
            qwen3_vl_moe stablelm
            """,
        ),
        (
            "output",
            """
            alice_ai bloom dbrx falcon gemma gemma3 gemma3_text gemma4 gemma4_text gpt2 gptj gpt_oss granitemoe
            granitemoehybrid granitemoeshared hy_v3 iquestloopcoder jamba mamba mamba2 minicpm mixtral muse_glimmer
            nemotron_h olmo_hybrid olmoe opt orion phimoe plamo3 qwen2_moe qwen3_moe qwen3_next qwen3_vl_moe stablelm
            """,
        ),
        (
            "output_norm",
            """
            alice_ai bloom chatglm cohere cohere2 cohere2_moe dbrx falcon gemma gemma2 gemma3 gemma3_text gemma3n
            gemma3n_text gemma4 gemma4_text gpt2 gptj gpt_oss granitemoe granitemoehybrid granitemoeshared hy_v3 internlm2
            iquestloopcoder jamba mamba mamba2 minicpm mixtral muse_glimmer nemotron_h olmo_hybrid olmoe opt orion phimoe
            plamo3 qwen2_moe qwen3_moe qwen3_vl_moe stablelm
            """,
        ),
    )
}
BESIDE_TABLE = ("position_embd", "per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm")

# Encoders that vLLM builds without the checkpoint's quantization.
# Source: parameter bytes by part of vLLM 0.33.0's modules.
PLAIN_ENCODERS = frozenset({"kimi_k25", "kimi_k3"})

# Layers that read another layer's cache have no K and V projections of their own (elsewhere vLLM builds them).
NO_KV_WHERE_SHARED = frozenset({"gemma3n", "gemma3n_text", "gemma4", "gemma4_text"})
# Norms of q and k over all heads that are cut with them; elsewhere each rank has them whole.
# Source: vLLM 0.33.0 models/minimax_m2.py, commandr.py.
CUT_QK_NORMS = frozenset({"cohere", "cohere2", "minimax_m2"})
# Routers vLLM keeps in 16 bits though the file has 32. Source: vLLM 0.33.0 models/exaone_moe.py.
ROUTER_IN_16_BITS = frozenset({"exaone_moe"})
PADDED_KDA = frozenset({"kimi_k3"})

# gpt-oss' MXFP4 experts are padded for their kernel: (width of a rank's expert, hidden size) to multiples of, by
# compute capability. Source: parameter bytes of its modules on stand-ins of H100, A100 and B200.
MXFP4_PAD = {9: (64, 64)}
MXFP4_PAD_ELSEWHERE = (128, 256)

# A rank's part of an expert is never narrower, by padding. Source: vLLM 0.33.0 models/kimi_k3/nvidia/model.py.
LEAST_EXPERT_WIDTH = {"kimi_linear": 256, "kimi_k3": 256}


def stages_with(model: Model, role: str, count: int) -> frozenset[int]:
    """The pipeline stages that hold a tensor of the whole model: the table first (a tied one last too), norm and head last."""
    role = role.removesuffix(".bias")
    like = "token_embd" if role in BESIDE_TABLE else role
    if model.family in ON_EVERY_STAGE.get(like, ()):
        return frozenset(range(count))
    if like != "token_embd":
        return frozenset((count - 1,))
    return frozenset((0, count - 1)) if role == "token_embd" and model.tied_embeddings else frozenset((0,))


def encoder_left_out(settings: VLLMSettings) -> bool:
    """Whether all modalities are limited to nothing, so that vLLM builds no encoder."""
    limits = settings.limit_mm_per_prompt
    return bool(limits) and not any((limits or {}).values())


def encoder_on_stage(model: Model, stage: int) -> bool:
    """Whether a stage builds the encoder: the first does."""
    return stage == 0


def encoder_is_whole(model: Model, tensor_parallel: int) -> bool:
    """Whether each rank holds the whole encoder: where the tower falls back because its heads cannot be cut (Kimi's MoonViT)."""
    heads = model.get("encoder_heads", 0)
    return bool(heads) and heads % tensor_parallel > 0


def router_in_32_bits(model: Model) -> bool:
    """Whether the routers' weights are float32."""
    return model.get("router_dtype") == "F32" and model.family not in ROUTER_IN_16_BITS


def expert_padding(model: Model, device: Device) -> tuple[int, int] | None:
    """Multiples (rank's expert width, hidden) that routed experts are padded to, None where they are not."""
    if model.family != "gpt_oss" or model.quant != "MXFP4":
        return None
    return MXFP4_PAD.get(device.family, MXFP4_PAD_ELSEWHERE)
