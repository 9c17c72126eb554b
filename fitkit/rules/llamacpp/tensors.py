"""What llama.cpp's converter makes of a model known only by its shape: tensors, keys and caches as its GGUF would have them.

Source: llama.cpp b11434, conversion/*.py (names, splits, joins, types) and convert_hf_to_gguf.py; compared with 61 headers whose
tensor tables are the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from fitkit.errors import UnsupportedModel
from fitkit.gguf_layers import Hparams, caches_of, refuse_unknown, widths_of
from fitkit.model import Layer, Model, Tensor
from fitkit.rules.llamacpp.ggml_types import name_of
from fitkit.rules.llamacpp.keys import keys_of

Rewrite = Callable[[Model, list[Tensor]], list[Tensor]]
REWRITES: dict[str, list[Rewrite]] = {}

# The converters that write the multi-token-prediction blocks behind the last one; the others leave them out. Files of Qwen3.5
# and its kin from before mid-2026 are without; loaded they are the same, for nobody loads these blocks by default.
KEEPS_MTP = frozenset(
    ("bailingmoe2", "bailingmoe3", "cohere2moe", "deepseek32", "exaone4", "exaone-moe", "glm-dsa", "glm4moe", "hy_v3", "mimo2",
     "nemotron_h_moe", "qwen3next", "qwen35", "qwen35moe", "step35")
)  # fmt: skip
# Matrices that stay in 32 bits, besides norms, vectors and whatever is not called .weight.
_F32 = (
    "ffn_gate_inp", "ffn_gate_inp_shexp", "position_embd", "token_types", "ssm_conv1d", "shortconv.conv", "time_mix_first",
    "time_mix_w1", "time_mix_w2", "time_mix_decay_w1", "time_mix_decay_w2", "time_mix_lerp_fused", "altup_correct_coef",
    "altup_predict_coef", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v", "indexer.proj",
)  # fmt: skip


def rewrite(*architectures: str) -> Callable[[Rewrite], Rewrite]:
    """Register a change the converter makes to the tensors of these architectures; several are made in the order registered."""

    def register(function: Rewrite) -> Rewrite:
        for name in architectures:
            REWRITES.setdefault(name, []).append(function)
        return function

    return register


@lru_cache(maxsize=1024)
def as_gguf(model: Model) -> Model:
    """`model` as its 16-bit GGUF would describe it; a model read from a GGUF comes back as it is.

    Tensors have GGUF's shapes and the types the converter stores what is never quantized in; `extra` gains the metadata keys
    (block_count, attention.head_count_kv, ...); the layers keep what llama.cpp keeps. Parts that go into another file (vision,
    sound, projectors) are gone. Raises UnsupportedModel where llama.cpp has no such architecture, or its caches are not modelled.
    """
    if model.get("block_count") is not None:
        return model
    arch = model.gguf_architecture
    if arch == "granitehybrid" and not any(cache.kind == "state" for cache in model.caches()):
        return as_gguf(
            model.with_(gguf_architecture="granitemoe" if model.experts else "granite")
        )  # nothing hybrid in it
    if arch == "clip":
        raise UnsupportedModel(
            f"{model.name} is a projector (mmproj): it is loaded beside its model, as LlamaCpp(mmproj=...)."
        )
    if not arch:
        raise UnsupportedModel(
            f"{model.name} ({model.family}): llama.cpp has no architecture for it, so it has no GGUF here."
        )
    refuse_unknown(arch, f"{model.name} ({model.family})")
    kept = ("", "mtp") if arch in KEEPS_MTP else ("",)
    tensors = [tensor for tensor in model.tensors if tensor.part in kept]
    for function in (*REWRITES.get("", ()), *REWRITES.get(arch, ())):
        tensors = function(model, tensors)
    tensors = [_typed(tensor, model) for tensor in tensors]
    blocks = max([len(model.layers), *(max(tensor.layers, default=-1) + 1 for tensor in tensors)])
    keys = keys_of(model, tensors, blocks)
    hparams = Hparams(arch=arch, place=model.name, values=keys)
    caches, widths = caches_of(hparams), widths_of(tensors, hparams)
    extra = {**dict(model.extra), **keys}
    return model.with_(
        tensors=tuple(tensors),
        layers=tuple(Layer(caches=tuple(own), **width) for own, width in zip(caches, widths, strict=True)),
        extra=tuple(sorted(extra.items())),
        quant="",
    )


def _typed(tensor: Tensor, model: Model) -> Tensor:
    """The tensor with the type the converter writes it in: F32 or 16 bits (MXFP4 experts as they come)."""
    name = name_of(tensor.role)
    flat = len(tensor.shape) < 2 or all(size == 1 for size in tensor.shape[1:])
    if flat or tensor.role in _F32 or name.endswith("_norm.weight") or not name.endswith(".weight"):
        kind = "F32"
    elif model.quant.upper().startswith("MXFP4") and "_exps" in tensor.role:
        kind = "MXFP4"
    else:
        kind = "BF16"
    return replace(tensor, dtype=kind, shard="")


def _renamed(tensors: Iterable[Tensor], names: dict[str, str]) -> list[Tensor]:
    """Roles changed, those of their biases with them."""
    full = {**names, **{f"{old}.bias": f"{new}.bias" for old, new in names.items()}}
    return [replace(tensor, role=full.get(tensor.role, tensor.role)) for tensor in tensors]


def _reshaped(tensors: Iterable[Tensor], role: str, shape: Callable[[Tensor], tuple[int, ...]]) -> list[Tensor]:
    """One role's shape changed."""
    return [replace(tensor, shape=shape(tensor)) if tensor.role == role else tensor for tensor in tensors]


def _joined(tensors: Sequence[Tensor], roles: Sequence[str], into: str) -> list[Tensor]:
    """Tensors of `roles` in the same blocks as one, their outputs one behind the other (biases likewise)."""
    for suffix in ("", ".bias"):
        parts = [[tensor for tensor in tensors if tensor.role == role + suffix] for role in roles]
        groups = {(tensor.layers, tensor.part) for tensor in parts[0]}
        for layers, part in groups:
            mine = [next((one for one in found if (one.layers, one.part) == (layers, part)), None) for found in parts]
            if any(one is None for one in mine):
                continue
            found = [one for one in mine if one is not None]
            axis = 0 if suffix else 1
            size = sum(one.shape[axis] for one in found)
            shape = (*found[0].shape[:axis], size, *found[0].shape[axis + 1 :])
            gone = set(map(id, found))
            tensors = [
                replace(found[0], role=into + suffix, shape=shape) if one is found[0] else one
                for one in tensors
                if one is found[0] or id(one) not in gone
            ]
    return list(tensors)


# ---- every architecture --------------------------------------------------------------------------------------------------------


@rewrite("")
def gates_flat(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The shared expert's gate is one vector."""
    return _reshaped(tensors, "ffn_gate_inp_shexp", lambda tensor: tensor.shape[:1])


@rewrite("")
def rope_tables(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The frequencies of scaled rotary positions, where a table says them: Llama 3's way, longrope's two, Gemma 4's own."""
    kind, width = model.get("rope_scaling", ""), model.get("rope_dim", 0) // 2
    if model.gguf_architecture == "gemma4":
        width = max((cache.k_dim for cache in model.caches() if cache.kind == "full"), default=0) // 2
        return [*tensors, Tensor(role="rope_freqs", shape=(width,))] if width else tensors
    if kind == "llama3":
        return [*tensors, Tensor(role="rope_freqs", shape=(width,))]
    if kind in ("longrope", "su") and model.gguf_architecture in ("phi3", "phimoe", "minicpm", "minicpm3"):
        return [*tensors, *(Tensor(role=f"rope_factors_{end}", shape=(width,)) for end in ("long", "short"))]
    return tensors


# ---- attention -------------------------------------------------------------------------------------------------------------------


@rewrite(
    "deepseek2", "deepseek32", "glm-dsa", "kimi-linear", "kimi-k3", "mistral4", "bailingmoe3", "hy_v4", "glm5-next"
)
def latent_split(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The latent's expansion as two stacks, one matrix a head: K's transposed, V's as it is."""
    out = []
    for tensor in tensors:
        if tensor.role != "attn_kv_b":
            out.append(tensor)
            continue
        rank, nope, v_dim = tensor.shape[0], model.get("qk_nope_head_dim"), model.get("v_head_dim")
        if not nope or not v_dim:
            raise UnsupportedModel(
                f"{model.name}: qk_nope_head_dim and v_head_dim are needed to split its latent attention."
            )
        heads = tensor.shape[1] // (nope + v_dim)
        out.append(replace(tensor, role="attn_k_b", shape=(nope, rank, heads)))
        out.append(replace(tensor, role="attn_v_b", shape=(rank, v_dim, heads)))
    return out


@rewrite(
    "bailingmoe2", "bloom", "codeshell", "dbrx", "falcon", "gpt2", "gptneox", "jais", "mpt", "phi3", "qwen", "starcoder"
)
def qkv_in_one(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """Q, K and V in one matrix."""
    return _joined(tensors, ("attn_q", "attn_k", "attn_v"), "attn_qkv")


@rewrite("internlm2", "baichuan", "ernie4_5", "ernie4_5-moe", "bailingmoe", "exaone")
def qkv_apart(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """Q, K and V each on its own where the checkpoint has one matrix."""
    out = []
    for tensor in tensors:
        role, dot, suffix = tensor.role.partition(".")
        if role != "attn_qkv":
            out.append(tensor)
            continue
        layer = model.layers[tensor.layers[0]]
        cache = layer.caches[0]
        for part, size in (
            ("attn_q", layer.heads * cache.k_dim),
            ("attn_k", cache.kv_heads * cache.k_dim),
            ("attn_v", cache.kv_heads * cache.v_dim),
        ):
            out.append(replace(tensor, role=part + dot + suffix, shape=(size,) if suffix else (tensor.shape[0], size)))
    return out


@rewrite("falcon")
def falcon_head(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """A head of its own: Falcon ties it to the token table, but its checkpoints hold both, and the converter writes what is there."""
    table = next(tensor for tensor in tensors if tensor.role == "token_embd")
    return tensors if any(tensor.role == "output" for tensor in tensors) else [*tensors, replace(table, role="output")]


@rewrite("muse-glimmer")
def scale_as_norms(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The factor on queries and keys is written as norms of a head."""
    blocks, width = tuple(range(len(model.layers))), max(cache.k_dim for cache in model.caches())
    return [*tensors, *(Tensor(role=f"attn_{side}_norm", shape=(width,), layers=blocks) for side in "qk")]


# ---- feed-forwards ---------------------------------------------------------------------------------------------------------------


@rewrite("glm4", "phi3")
def gate_in_up(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """Gate and up in one matrix, called up."""
    return _joined(tensors, ("ffn_gate", "ffn_up"), "ffn_up")


@rewrite("gemma4")
def experts_joined(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The experts' gate and up in one stack."""
    return _joined(tensors, ("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps")


# ---- states ----------------------------------------------------------------------------------------------------------------------


@rewrite(
    "mamba2",
    "falcon-h1",
    "granitehybrid",
    "nemotron_h",
    "nemotron_h_moe",
    "plamo2",
    "kimi-linear",
    "kimi-k3",
    "bailingmoe3",
)
def scan_columns(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """A and D as columns, the gated norm a row a group, convolutions of Kimi's kind with a middle dimension of one."""
    groups = max((cache.groups for cache in model.caches() if cache.variant == "mamba2"), default=1)
    if model.gguf_architecture != "kimi-k3":
        for role in ("ssm_a", "ssm_d"):
            tensors = _reshaped(tensors, role, lambda tensor: (1, tensor.shape[-1]))
    if groups > 1:
        tensors = _reshaped(tensors, "ssm_norm", lambda tensor: (tensor.shape[0] // groups, groups))
    for role in ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"):
        tensors = _reshaped(tensors, role, lambda tensor: (tensor.shape[0], 1, tensor.shape[-1]))
    return tensors


@rewrite("rwkv7", "arwkv7")
def value_mix_of_the_first(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The first block has no value mix; its learning rate's tensors are written a second time in their place."""
    again = [tensor for tensor in tensors if tensor.role in ("time_mix_a0", "time_mix_a1", "time_mix_a2")]
    return [*tensors, *(replace(tensor, role=tensor.role.replace("_a", "_v"), layers=(0,)) for tensor in again)]


@rewrite("kimi-k3")
def norms_folded(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The norms before the scores of earlier layers are multiplied into them."""
    return [tensor for tensor in tensors if not tensor.role.endswith("_res_norm")]


# ---- names -----------------------------------------------------------------------------------------------------------------------

# Architecture → what its GGUFs call differently from the rest.
NAMES = {
    "bailingmoe3": {"ssm_f": "ssm_f_a", "ssm_g": "ssm_g_a", "nextn.shared_head_norm": "layer_output_norm"},
    "bert": {"token_types_embd": "token_types"},
    "glm4moe": {"ffn_norm": "post_attention_norm"},
    "hy_v3": {"exp_probs_b.bias": "exp_probs_b"},
    "lfm2": {"output_norm": "token_embd_norm"},
    "lfm2moe": {"output_norm": "token_embd_norm"},
    "minimax-01": {"attn_output_norm": "attn_norm_2"},
    "nomic-bert": {"token_types_embd": "token_types"},
    "seed_oss": {"ffn_norm": "post_attention_norm"},
}


@rewrite(*NAMES)
def own_names(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The architecture's own words."""
    return _renamed(tensors, NAMES[model.gguf_architecture])


@rewrite("nemotron_h_moe")
def nemotron_ahead(model: Model, tensors: list[Tensor]) -> list[Tensor]:
    """The prediction head's attention and experts, blocks of their own in the checkpoint, are one block; its second norm is ffn_norm's kin."""
    n, out = len(model.layers), []
    for tensor in tensors:
        if tensor.part != "mtp":
            out.append(tensor)
        elif tensor.role == "attn_norm" and len(tensor.layers) > 1:
            out.append(replace(tensor, layers=(n,)))
            out.append(replace(tensor, role="post_attention_norm", layers=(n,)))
        else:
            out.append(replace(tensor, layers=(n,)))
    return out
