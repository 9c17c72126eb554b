"""Which ggml type each tensor gets under a file type: llama.cpp b11434's mixes, with what it leaves alone and what rows force.

Source: llama.cpp b11434, src/llama-quant.cpp (categories, mixes, fallbacks) and src/models/*.cpp (what it calls a 70B); the types
of every tensor of 61 models under 30 file types were measured with its own quantizer, and are met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fitkit.errors import UnknownName
from fitkit.model import Model, Tensor
from fitkit.rules.llamacpp.mixes import FILE_TYPES, V_LIKE, Mix, category, type_for
from fitkit.rules.llamacpp.rows import BLOCKS

IMATRIX = "+imatrix"  # behind a file type: quantized with an importance matrix, which moves a few tensors of some types

_PLAIN = ("F32", "F16", "BF16")
# Weights with two dimensions or more that keep the type they came in, by any part of their name.
_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d",
    "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_lerp_fused.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.",
    "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
    *(f"time_mix_{part}.weight" for part in ("w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2")),
)  # fmt: skip
_KEPT_NAMES = ("position_embd.weight", "token_types.weight")
_KEPT_BY_ARCHITECTURE = {
    "glm5-next": (
        "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate", "indexer_compressor_ape",
        "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight",
        "attn_k_b.weight", "attn_v_b.weight",
    ),
}  # fmt: skip
_BARE = ("ssm_a", "ssm_d", "exp_probs_b")  # written without .weight, and so left alone
_SUFFIXES = ("bias", "scale", "input_scale")
# Architecture → the block count that the quantizer knows as a 70B (Llama only where heads share keys).
_70B = {"llama": 80, "llama-embed": 80, "deci": 80, "qwen2": 80, "olmo": 80, "jais2": 68}


def file_type_of(quant: str) -> tuple[str, bool]:
    """The file type's name and whether an importance matrix is used.

    Raises UnknownName for what is no file type of llama.cpp's quantizer.
    """
    name = quant.removesuffix(IMATRIX)
    if name not in FILE_TYPES:
        raise UnknownName.among("GGUF file type", quant, FILE_TYPES)
    return name, quant.endswith(IMATRIX)


def typed(model: Model, quant: str) -> tuple[Tensor, ...]:
    """`model`'s tensors (a GGUF's own, or tensors.as_gguf's) with the ggml type each has in a file of `quant`, groups split by type.

    What is not quantized keeps its `dtype`. Raises UnknownName for an unknown file type, UnsupportedModel for a tensor whose
    rows no type of the mix can hold.
    """
    file_type, imatrix = file_type_of(quant)
    mix = mix_of(model, file_type, imatrix)
    slots = sorted(
        (block, name_of(tensor.role), i) for i, tensor in enumerate(model.tensors) for block in tensor.layers or (-1,)
    )
    kept = [is_kept(name_of(tensor.role), tensor, mix.arch) for tensor in model.tensors]
    seen: dict[str, int] = {}
    chosen: list[dict[str, list[int]]] = [{} for _ in model.tensors]
    for block, name, i in slots:
        tensor = model.tensors[i]
        if FILE_TYPES[file_type] in _PLAIN:
            kind = _converted(name, tensor, mix)
        else:
            kind = tensor.dtype if kept[i] else type_for(name, block, tensor, mix, seen)
        chosen[i].setdefault(kind, []).append(block)
    return tuple(
        replace(tensor, dtype=kind, layers=tuple(blocks) if tensor.layers else ())
        for tensor, kinds in zip(model.tensors, chosen, strict=True)
        for kind, blocks in kinds.items()
    )


def mix_of(model: Model, file_type: str, imatrix: bool = False) -> Mix:
    """The few facts about `model` that the mixes depend on, from its GGUF keys."""
    heads = first(model.get("attention.head_count", 0))
    kv_heads = first(model.get("attention.head_count_kv", heads))
    blocks = model.get("block_count", len(model.layers))
    trunk = blocks - model.get("nextn_predict_layers", 0)
    arch, experts = model.gguf_architecture, model.get("expert_count", 0)
    large = _70B.get(arch) == trunk and not (arch.startswith("llama") and (heads == kv_heads or experts == 8))
    return Mix(
        file_type=file_type, arch=arch, blocks=blocks, experts=experts, shared_heads=heads // kv_heads if kv_heads else 0, is_70b=large,
        tied=not any(tensor.role == "output" for tensor in model.tensors), imatrix=imatrix,
        v_like=sum(tensor.copies for tensor in model.tensors if category(name_of(tensor.role)) in V_LIKE),
    )  # fmt: skip


def first(value: int | Sequence[int]) -> int:
    """A key that is one number or one a block: the first block's."""
    return value[0] if isinstance(value, Sequence) else value


def name_of(role: str) -> str:
    """A tensor's name without its block: what the quantizer's rules look at.

    >>> name_of("attn_v"), name_of("attn_v.bias"), name_of("ssm_a")
    ('attn_v.weight', 'attn_v.bias', 'ssm_a')
    """
    return role if role in _BARE or role.rpartition(".")[2] in _SUFFIXES else role + ".weight"


def is_kept(name: str, tensor: Tensor, arch: str) -> bool:
    """Whether the quantizer leaves this tensor in the type it came in."""
    if (
        len(tensor.shape) < 2
        or all(size == 1 for size in tensor.shape[1:])
        or not name.endswith("weight")
        or name in _KEPT_NAMES
    ):
        return True
    return any(part in name for part in (*_KEPT, *_KEPT_BY_ARCHITECTURE.get(arch, ())))


def _converted(name: str, tensor: Tensor, mix: Mix) -> str:
    """The type in a file that no quantizer touched but the converter wrote: 16-bit or as wide as asked, MXFP4 as it came."""
    if tensor.dtype == "MXFP4" or (tensor.dtype == "F32" and is_kept(name, tensor, mix.arch)):
        return tensor.dtype
    return FILE_TYPES[mix.file_type]


def row_bytes(kind: str, elements: int) -> int:
    """Bytes of `elements` in rows that `kind`'s blocks divide [bytes]."""
    block, size = BLOCKS[kind]
    return elements // block * size


def tensor_bytes(tensors: Sequence[Tensor], *, padded: int = 1) -> int:
    """All of `tensors` with their ggml types as dtype; each padded to `padded` bytes (a file pads to its alignment, 32)."""
    return sum(-(-row_bytes(one.dtype, one.elements) // padded) * padded * one.copies for one in tensors)


@lru_cache(maxsize=4096)
def file_types(model: Model, quant: str) -> tuple[Tensor, ...]:
    """The tensors a file of `quant` holds: a GGUF's own where it is that file, else llama.cpp's mix over its or the shape's tensors."""
    if model.basis == "estimate" and _is_gguf(model) and quant.removesuffix(IMATRIX) == model.quant:
        return model.tensors
    if not _is_gguf(model):
        from fitkit.rules.llamacpp.tensors import as_gguf

        model = as_gguf(model)
    return typed(model, quant)


def _is_gguf(model: Model) -> bool:
    """Whether the tensors are a GGUF's already: read from one, or written by as_gguf."""
    return bool(model.gguf_architecture) and model.get("block_count") is not None


def weights_bytes(model: Model, quant: str) -> int:
    """Tensor bytes of a file of `quant`, without padding, header and tokenizer [bytes].

    Llama-3.1-8B as Q4_K_M has 4,912,898,304.
    """
    return tensor_bytes(file_types(model, quant))


def file_type_bytes(model: Model, quant: str) -> tuple[int, int]:
    """Tensor bytes as they are, and each padded to 32 as a file lays them [bytes]."""
    tensors = file_types(model, quant)
    return tensor_bytes(tensors), tensor_bytes(tensors, padded=32)
