"""The metadata keys a GGUF of a model has, as far as memory depends on them, from the model's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fitkit.model import Cache, Layer, Model, Tensor

# Blocks without attention are told by the interval or by recurrent_layers; head_count_kv is one number.
_ONE_KV = frozenset(("qwen3next", "qwen35", "qwen35moe", "minimax-01"))
# The converters that write which blocks slide; elsewhere the engine's own period holds.
_PATTERN = frozenset(
    [
        "cohere2moe",
        "exaone4",
        "exaone-moe",
        "gemma3n",
        "gemma4",
        "granite_swa",
        "laguna",
        "maple",
        "mellum",
        "mimo2",
        "muse-glimmer",
        "olmo2",
        "plamo3",
        "spark2_5",
        "step35",
    ]
)
_ATTENTION = ("full", "sliding", "chunked")


def keys_of(model: Model, tensors: Sequence[Tensor], blocks: int) -> dict[str, Any]:
    """Keys without the architecture's name; a list has one entry for each of `blocks`, a number where all are equal."""
    layers = (*model.layers, *[Layer()] * (blocks - len(model.layers)))
    keys: dict[str, Any] = {
        "block_count": blocks,
        "context_length": model.context,
        "embedding_length": model.hidden_size,
        "vocab_size": model.vocab_size,
        "feed_forward_length": _feed_forward(model, blocks),
    }
    ahead = blocks - len(model.layers)
    if ahead:
        keys["nextn_predict_layers"] = ahead
    keys |= _attention(model, tensors, layers) | _experts(model, tensors) | _state(model, tensors, layers)
    if shared := model.get("shared_kv_layers"):
        keys["attention.shared_kv_layers"] = shared
    if deep := model.get("deepstack_layers"):
        keys["n_deepstack_layers"] = deep
    if index := model.get("index_head_dim"):
        keys["attention.indexer.key_length"] = index
        owners = [any(cache.kind == "indexer" for cache in layer.caches) for layer in model.layers]
        if model.gguf_architecture in ("glm-dsa", "hy_v4"):
            keys["attention.indexer.types"] = tuple(owners)
    return keys


def _feed_forward(model: Model, blocks: int) -> int | tuple[int, ...]:
    """Width of the dense feed-forward, of the experts where there is none; by block where that varies or blocks have none."""
    dense = [layer.ffn_dim for layer in model.layers if layer.ffn_dim] or [layer.expert_dim for layer in model.layers]
    if model.gguf_architecture == "qwen":
        return 2 * dense[0]  # counts gate and up
    if model.gguf_architecture.startswith("nemotron_h"):
        return _one([layer.ffn_dim or layer.expert_dim for layer in model.layers], blocks)
    return dense[0] if len(set(dense)) == 1 else _one([layer.ffn_dim for layer in model.layers], blocks)


def _one(values: Sequence[int], blocks: int = 0) -> int | tuple[int, ...]:
    """One number where all are equal, else the list, filled up to `blocks` with its last."""
    if len(set(values)) <= 1:
        return values[0] if values else 0
    return tuple(values) + (values[-1],) * (blocks - len(values))


def _attention(model: Model, tensors: Sequence[Tensor], layers: Sequence[Layer]) -> dict[str, Any]:
    """Heads, widths, windows and latents."""
    n = len(model.layers)
    heads = [layer.heads for layer in layers[:n]]
    most = max(heads, default=0)
    if model.gguf_architecture != "deci":  # whose blocks without attention say so by their heads
        heads = [one or most for one in heads]
    keys: dict[str, Any] = {"attention.head_count": _one(heads, len(layers))}
    own = [
        next((cache for cache in layer.caches if cache.kind in (*_ATTENTION, "latent")), None) for layer in layers[:n]
    ]
    kv_heads = [_kv_heads(cache) if cache else 0 for cache in own]
    filled = _without_cache(tensors, own, kv_heads, n)
    if model.gguf_architecture in _ONE_KV:
        keys["attention.head_count_kv"] = max(kv_heads, default=0)
    elif any(filled):
        keys["attention.head_count_kv"] = _one(filled, len(layers))
    full = next((cache for cache in own if cache and cache.kind == "full"), None) or next(
        (cache for cache in own if cache), None
    )
    if full is None:
        return keys
    if full.kind == "latent":
        return keys | _latent(model, full)
    keys |= {"attention.key_length": full.k_dim, "attention.value_length": full.v_dim}
    if model.gguf_architecture == "minicpm3":
        keys["attention.value_length"] = model.get("v_head_dim", full.v_dim)
    return keys | _windows(model, own, len(layers))


def _kv_heads(cache: Cache) -> int:
    return 1 if cache.kind == "latent" else cache.kv_heads


def _without_cache(
    tensors: Sequence[Tensor], own: Sequence[Cache | None], kv_heads: Sequence[int], n: int
) -> list[int]:
    """KV heads of each block; those that use another block's cache have as many as the kind they are of."""
    filled, most = list(kv_heads), max(kv_heads, default=0)
    with_state = {
        block for tensor in tensors if tensor.role.startswith(("ssm_", "shortconv")) for block in tensor.layers
    }
    for tensor in tensors:
        if tensor.role == "attn_q":
            for block in tensor.layers:
                if block < n and not filled[block] and block not in with_state:
                    filled[block] = most
    return filled


def _latent(model: Model, cache: Cache) -> dict[str, Any]:
    nope, rope, v_dim = (model.get(key, 0) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    return {
        "attention.key_length": cache.k_dim,
        "attention.value_length": model.get("kv_lora_rank", 0),
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": v_dim,
        "attention.kv_lora_rank": model.get("kv_lora_rank", 0),
        "attention.q_lora_rank": model.get("q_lora_rank", 0),
    }


def _windows(model: Model, own: Sequence[Cache | None], blocks: int) -> dict[str, Any]:
    slid = next((cache for cache in own if cache and cache.kind != "full"), None)
    if slid is None:
        return {}
    keys: dict[str, Any] = {"attention.sliding_window": slid.window}
    keys |= {"attention.key_length_swa": slid.k_dim, "attention.value_length_swa": slid.v_dim}
    if model.gguf_architecture in _PATTERN:
        slides = _slides(own)
        keys["attention.sliding_window_pattern"] = tuple(slides) + (False,) * (blocks - len(slides))
    return keys


def _slides(own: Sequence[Cache | None]) -> list[bool]:
    """Which blocks slide; those that use another's cache go on with the pattern of the ones that own theirs."""
    known = [cache.kind != "full" for cache in own if cache]
    full = [i for i, slid in enumerate(known) if not slid]
    period = full[-1] - full[-2] if len(full) > 1 else (full[0] + 1 if full else 0)
    return [cache.kind != "full" if cache else bool(period) and (i + 1) % period != 0 for i, cache in enumerate(own)]


def _experts(model: Model, tensors: Sequence[Tensor]) -> dict[str, Any]:
    if not model.experts:
        return {}
    widest = max(model.layers, key=lambda layer: layer.experts)
    keys: dict[str, Any] = {
        "expert_count": model.experts,
        "expert_used_count": model.experts_used,
        "expert_feed_forward_length": widest.expert_dim,
    }
    if widest.shared_dim:
        keys["expert_shared_feed_forward_length"] = widest.shared_dim
    first = min((block for tensor in tensors if tensor.role == "ffn_down_exps" for block in tensor.layers), default=0)
    if first:
        keys["leading_dense_block_count"] = first
    return keys


def _state(model: Model, tensors: Sequence[Tensor], layers: Sequence[Layer]) -> dict[str, Any]:
    """What says the size of a recurrent block's state, and which blocks are recurrent."""
    state = next((cache for cache in model.caches() if cache.kind == "state"), None)
    if state is None:
        return {}
    inner = state.heads * state.head_dim
    keys: dict[str, Any] = {"ssm.conv_kernel": state.conv_kernel}
    match state.variant:
        case "shortconv":
            keys = {"shortconv.l_cache": state.conv_kernel}
        case "kda":
            keys["kda.head_dim"] = state.head_dim
        case "rwkv7":
            keys = {"wkv.head_size": state.head_dim, "token_shift_count": state.conv_kernel - 1}
        case "mamba1":
            rank = next((tensor.shape[0] for tensor in tensors if tensor.role == "ssm_dt"), 0)
            keys |= {"ssm.inner_size": inner, "ssm.state_size": state.state_dim, "ssm.time_step_rank": rank}
        case "mamba2" | "gdn":
            keys |= {"ssm.inner_size": inner, "ssm.state_size": state.state_dim}
            keys |= {"ssm.time_step_rank": state.heads, "ssm.group_count": state.groups}
    if model.gguf_architecture in _ONE_KV:
        recurrent = [any(cache.kind == "state" for cache in layer.caches) for layer in layers]
        keys["attention.recurrent_layers"] = tuple(recurrent)
    return keys
