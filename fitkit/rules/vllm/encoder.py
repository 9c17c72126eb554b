"""What an encoder (vision tower) takes in vLLM's profiling run: its own forward pass over the largest items a batch may hold."""

from __future__ import annotations

from fitkit.model import Model
from fitkit.rules.vllm.families import encoder_is_whole, encoder_left_out
from fitkit.rules.vllm.settings import VLLMSettings

# The largest item of a family's processor: (tokens the language model gets, patches the encoder takes).
# Source: the processors' own defaults (Qwen: 16,384 tokens of four patches; Gemma 3: 896 x 896 pixels in patches of 14;
# Pixtral: 1540 x 1540; Kimi: 4,096 patches, since K2.5 16,384; Gemma 4: 280 tokens of nine).
QWEN = (16384, 65536)
LARGEST_ITEM: dict[str, tuple[int, int]] = {
    "qwen2_vl": QWEN,
    "qwen2_5_vl": QWEN,
    "qwen3_vl": QWEN,
    "qwen3_vl_moe": QWEN,
    "qwen3_5": QWEN,
    "qwen3_5_moe": QWEN,
    "gemma3": (256, 4096),
    "gemma4": (280, 2520),
    "mistral3": (3025, 12100),
    "kimi_vl": (1024, 4096),
    "kimi_k25": (4096, 16384),
}


def loads_encoder(settings: VLLMSettings, model: Model) -> bool:
    """Whether an encoder is loaded: the model has one and no limit of 0 leaves it out."""
    return not encoder_left_out(settings) and any(tensor.part in ("vision", "audio") for tensor in model.tensors)


def budget_tokens(model: Model, tokens: int) -> int:
    """Tokens the encoder's cache is sized for: a batch of `tokens`, or one item where it is larger."""
    return max(tokens, LARGEST_ITEM.get(model.family, (0, 0))[0])


def encoder_pass(settings: VLLMSettings, model: Model, tokens: int, sequences: int, dtype: int) -> int:
    """Bytes of the encoder's forward pass over as many largest items as a batch of `tokens` holds; 0 where unknown.

    patches x (2 ffn + 6 hidden) x dtype, 3 ffn where it is gated: gemma-3-12b on 0.19.0 within 0.05 GiB, Qwen3-VL-30B on
    0.20.2 within 0.3.
    """
    item = LARGEST_ITEM.get(model.family)
    if item is None or not loads_encoder(settings, model):
        return 0
    limit = max(dict(settings.limit_mm_per_prompt or {}).values(), default=999)
    count = min(max(1, tokens // item[0]), sequences * limit)
    sizes = {tensor.role: tensor.shape for tensor in model.tensors if tensor.part == "vision" and len(tensor.shape) > 1}
    if "v.ffn_up" not in sizes:
        return 0
    hidden, ffn = sizes["v.ffn_up"]
    cut = any(tensor.role == "v.ffn_up" and tensor.shard for tensor in model.tensors)
    ranks = settings.tensor_parallel_size if cut and not encoder_is_whole(model, settings.tensor_parallel_size) else 1
    return count * item[1] * ((3 if "v.ffn_gate" in sizes else 2) * ffn // ranks + 6 * hidden) * dtype
