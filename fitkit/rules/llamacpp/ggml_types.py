"""Which ggml type each tensor gets under a file type: llama.cpp b11434's mixes, with what it leaves alone and what rows force.

Source: llama.cpp b11434, src/llama-quant.cpp (categories, mixes, fallbacks) and src/models/*.cpp (what it calls a 70B); the types
of every tensor of 61 models under 30 file types were measured with its own quantizer, and are met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fitkit.errors import UnknownName, UnsupportedModel
from fitkit.model import Model, Tensor

# Elements in a block, bytes of a block. Source: ggml b11434, ggml-common.h; the tests compare them with the gguf package.
BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "F64": (1, 8), "I8": (1, 1), "I16": (1, 2), "I32": (1, 4), "I64": (1, 8),
    "Q1_0": (128, 18), "Q2_0": (64, 18), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),  "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "Q8_K": (256, 292), "IQ1_S": (256, 50), "IQ1_M": (256, 56), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98), "IQ3_S": (256, 110), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "TQ1_0": (256, 54), "TQ2_0": (256, 66),
    "MXFP4": (32, 17), "NVFP4": (64, 36),
}  # fmt: skip

# File type → the type of a tensor that no rule singles out.
FILE_TYPES: dict[str, str] = {
    "F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "Q8_0", "Q6_K": "Q6_K", "Q5_K_M": "Q5_K", "Q5_K_S": "Q5_K", "Q5_0": "Q5_0",
    "Q5_1": "Q5_1", "Q4_K_M": "Q4_K", "Q4_K_S": "Q4_K", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "IQ4_XS": "IQ4_XS", "IQ4_NL": "IQ4_NL",
    "Q3_K_L": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_S": "Q3_K", "IQ3_M": "IQ3_S", "IQ3_S": "IQ3_S", "IQ3_XS": "IQ3_S",
    "IQ3_XXS": "IQ3_XXS", "Q2_K": "Q2_K", "Q2_K_S": "Q2_K", "IQ2_M": "IQ2_S", "IQ2_S": "IQ2_XS", "IQ2_XS": "IQ2_XS",
    "IQ2_XXS": "IQ2_XXS", "IQ1_M": "IQ1_M", "IQ1_S": "IQ1_S", "MXFP4_MOE": "MXFP4", "TQ1_0": "TQ1_0", "TQ2_0": "TQ2_0",
    "NVFP4": "NVFP4", "Q1_0": "Q1_0", "Q2_0": "Q2_0",
}  # fmt: skip
IMATRIX = "+imatrix"  # behind a file type: quantized with an importance matrix, which moves a few tensors of some types

_LOWEST = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_PLAIN = ("F32", "F16", "BF16")
# What rows that a block does not divide are stored as instead; where that does not divide them either, F16.
_FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
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
_BARE = ("ssm_a", "ssm_d")  # written without .weight, and so left alone
_SUFFIXES = ("bias", "scale", "input_scale")
# Architecture → the block count that the quantizer knows as a 70B (Llama only where heads share keys).
_70B = {"llama": 80, "llama-embed": 80, "deci": 80, "qwen2": 80, "olmo": 80, "jais2": 68}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What the rules ask of a model and of a wish."""

    file_type: str
    arch: str
    blocks: int  # all of the file, NextN ones included
    experts: int  # routed, by the metadata
    shared_heads: int  # query heads to a key head in the first block, 0 where it has none
    is_70b: bool
    tied: bool
    imatrix: bool
    v_like: int  # how many attn_v, attn_qkv and attn_kv_b there are


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
    seen: dict[str, int] = {}
    chosen: list[dict[str, list[int]]] = [{} for _ in model.tensors]
    for block, name, i in slots:
        tensor = model.tensors[i]
        if FILE_TYPES[file_type] in _PLAIN:
            kind = _converted(name, tensor, mix)
        else:
            kind = tensor.dtype if is_kept(name, tensor, mix.arch) else _type_for(name, block, tensor, mix, seen)
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
        v_like=sum(tensor.copies for tensor in model.tensors if category(name_of(tensor.role)) in _V_LIKE),
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


# ---- the mixes --------------------------------------------------------------------------------------------------------------

# In this order: the first part a name contains.
_CATEGORIES = (
    ("attn_qkv.weight", "qkv"), ("attn_kv_b.weight", "kv_b"), ("attn_v.weight", "v"), ("attn_k.weight", "k"), ("attn_q.weight", "q"),
    ("attn_output.weight", "attn_output"), ("ffn_up", "ffn_up"), ("ffn_gate", "ffn_gate"), ("ffn_down", "ffn_down"),
)  # fmt: skip
_V_LIKE = ("qkv", "kv_b", "v")
Rule = Callable[[Mix, str, int], str]


def category(name: str) -> str:
    """Which rule looks after a tensor."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    return next((kind for part, kind in _CATEGORIES if part in name), "other")


def _type_for(name: str, block: int, tensor: Tensor, mix: Mix, seen: dict[str, int]) -> str:
    """The type of one tensor; `seen` counts those of each category so far, in the file's order."""
    kind, what = FILE_TYPES[mix.file_type], category(name)
    counted = "v" if what in _V_LIKE else what
    nth = seen.get(counted, 0)
    seen[counted] = nth + 1
    if mix.arch == "glm5-next" and any(part in name for part in ("attn_q_a", "attn_q_b", "nextn.eh_proj")):
        kind = "Q8_0"
    elif what == "output" or (mix.tied and what == "token_embd"):
        kind = _head(mix, kind, tensor.shape[0])
    elif mix.file_type == "MXFP4_MOE":
        kind = _mxfp4(mix, what, tensor)
    else:
        layered = (
            what in ("ffn_down", "ffn_gate", "ffn_up")
            and mix.experts > 1
            and not (what == "ffn_down" and mix.file_type in _LOWEST)
        )
        kind = _RULES[counted](mix, kind, block if layered else nth) if counted in _RULES else kind
    return _that_fits(kind, name, tensor)


def _converted(name: str, tensor: Tensor, mix: Mix) -> str:
    """The type in a file that no quantizer touched but the converter wrote: 16-bit or as wide as asked, MXFP4 as it came."""
    if tensor.dtype == "MXFP4" or (tensor.dtype == "F32" and is_kept(name, tensor, mix.arch)):
        return tensor.dtype
    return FILE_TYPES[mix.file_type]


def _that_fits(kind: str, name: str, tensor: Tensor) -> str:
    """`kind`, or what rows that its blocks do not divide are stored as."""
    row = tensor.shape[0]
    if row % BLOCKS[kind][0] == 0:
        return kind
    if kind not in _FALLBACK:
        raise UnsupportedModel(
            f"llama.cpp cannot store {name} as {kind}: its rows of {row} are no multiple of {BLOCKS[kind][0]}."
        )
    other = _FALLBACK[kind]
    return other if row % BLOCKS[other][0] == 0 else "F16"


def _head(mix: Mix, kind: str, row: int) -> str:
    """The output matrix, or the token table that doubles as one."""
    if mix.file_type == "MXFP4_MOE" or mix.arch == "falcon" or row % BLOCKS[kind][0]:
        return "Q8_0"
    if mix.file_type in (*_LOWEST, "IQ3_XXS"):
        return "Q5_K"
    return kind if kind == "Q8_0" else "Q6_K"


def _mxfp4(mix: Mix, what: str, tensor: Tensor) -> str:
    """Stacks (experts; MLA's too, except in bailingmoe3) as MXFP4, all else as Q8_0."""
    stacked = len(tensor.shape) > 2 and tensor.shape[2] > 1
    if mix.arch == "bailingmoe3":
        stacked = stacked and what in ("ffn_up", "ffn_gate", "ffn_down")
    return "MXFP4" if stacked else "Q8_0"


def _token_table(mix: Mix, kind: str, nth: int) -> str:
    if mix.file_type in ("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"):
        return "Q2_K"
    if mix.file_type in ("IQ2_S", "IQ2_M", "IQ3_XXS"):
        return "IQ3_S"
    return "Q4_K" if mix.file_type in ("TQ1_0", "TQ2_0", "Q2_0") else kind


def _v(mix: Mix, kind: str, nth: int) -> str:
    """attn_v and what holds it: small beside q, and worth more bits."""
    wide = mix.shared_heads >= 4
    if mix.file_type in _LOWEST:
        if wide or mix.experts >= 4:
            return "Q4_K"
        return "IQ3_S" if mix.file_type in ("IQ2_S", "IQ2_M") else "Q2_K"
    kind = _v_by_file_type(mix, kind, nth, wide)
    if mix.is_70b and kind in ("Q3_K", "Q4_K"):
        kind = "Q5_K"
    return "Q8_0" if mix.experts == 8 else kind


def _v_by_file_type(mix: Mix, kind: str, nth: int, wide: bool) -> str:
    match mix.file_type:
        case "Q2_K":
            return "Q4_K" if wide else "Q3_K"
        case "Q2_K_S" | "IQ3_XS" | "IQ3_S":
            return "Q4_K" if wide else kind
        case "IQ3_XXS":
            return "Q4_K" if wide else "IQ3_XXS" if mix.imatrix else "IQ3_S"
        case "IQ3_M":
            return "Q4_K"
        case "Q3_K_M":
            return "Q5_K" if nth < 2 else "Q4_K"
        case "Q3_K_L":
            return "Q5_K"
        case "IQ4_NL" | "IQ4_XS":
            return "Q5_K" if wide else kind
        case "Q4_K_M" | "Q5_K_M":
            return "Q6_K" if _more_bits(nth, mix.v_like) else kind
        case "Q4_K_S":
            return "Q5_K" if nth < 4 else kind
    return kind


def _k(mix: Mix, kind: str, nth: int) -> str:
    if mix.experts == 8:
        return "Q4_K" if mix.file_type in _LOWEST else "Q8_0"
    return _q(mix, kind, nth)


def _q(mix: Mix, kind: str, nth: int) -> str:
    return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(mix.file_type, kind)


def _attn_output(mix: Mix, kind: str, nth: int) -> str:
    name = mix.file_type
    if name in _LOWEST:
        if mix.experts == 8:
            return "Q5_K"
        return "IQ2_XXS" if name in ("IQ1_S", "IQ1_M") else "IQ3_S" if name in ("IQ2_S", "IQ2_M") else kind
    if mix.arch == "falcon":
        return "Q4_K" if name == "Q3_K_L" else kind
    if mix.experts == 8:
        low = (
            "Q2_K",
            "IQ3_XS",
            "IQ3_XXS",
            "Q3_K_S",
            "Q3_K_M",
            "IQ4_NL",
            "Q4_K_S",
            "Q4_K_M",
            "IQ3_S",
            "IQ3_M",
            "IQ4_XS",
        )
        return "Q5_K" if name in low else kind
    return {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}.get(name, kind)


def _ffn_down(mix: Mix, kind: str, layer: int) -> str:
    """The down projection, where errors are felt most: more bits in the first blocks and in some later ones."""
    name, early = mix.file_type, layer < mix.blocks // 8
    if name in _LOWEST:
        return kind if not early else "IQ3_S" if name in ("IQ2_S", "IQ2_M") else "Q2_K"
    if mix.arch == "falcon" and name in ("Q3_K_M", "Q3_K_L", "Q4_K_M", "Q4_K_S"):
        return _falcon_down(mix, kind, layer)
    more = _more_bits(layer, mix.blocks)
    match name:
        case "Q2_K":
            return "Q3_K"
        case "Q2_K_S":
            return "Q4_K" if early else kind
        case "IQ3_XXS" if not mix.imatrix:
            return "Q4_K" if early else "Q3_K"
        case "Q3_K_M":
            return "Q5_K" if layer < mix.blocks // 16 else "Q4_K"
        case "IQ3_M":
            return "Q4_K" if early or (mix.experts == 8 and more) else kind
        case "Q3_K_L":
            return "Q5_K"
        case "Q4_K_M" | "Q5_K_M":
            return "Q6_K" if more else kind
        case "IQ4_NL" | "IQ4_XS" if not mix.imatrix:
            return "Q5_K" if early else kind
        case "Q4_K_S":
            return "Q5_K" if early else kind
        case "Q4_0" | "Q5_0" if mix.imatrix:
            return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}[name] if early else kind
    return kind


def _falcon_down(mix: Mix, kind: str, layer: int) -> str:
    very_early, more = layer < mix.blocks // 16, _more_bits(layer, mix.blocks)
    match mix.file_type:
        case "Q3_K_M":
            return "Q5_K" if very_early else "Q4_K" if more else "Q3_K"
        case "Q3_K_L":
            return "Q4_K"
        case "Q4_K_M":
            return "Q6_K" if very_early else "Q5_K" if more else "Q4_K"
    return kind


def _ffn_in(mix: Mix, kind: str, layer: int) -> str:
    middle = mix.blocks // 8 <= layer < 7 * mix.blocks // 8
    return "IQ3_XXS" if mix.file_type == "IQ3_XS" and middle else kind


def _more_bits(layer: int, blocks: int) -> bool:
    eighth = blocks // 8
    return layer < eighth or layer >= 7 * blocks // 8 or (layer - eighth) % 3 == 2


_RULES: dict[str, Rule] = {
    "token_embd": _token_table, "v": _v, "k": _k, "q": _q, "attn_output": _attn_output, "ffn_down": _ffn_down, "ffn_gate": _ffn_in,
    "ffn_up": _ffn_in,
}  # fmt: skip


# ---- bytes --------------------------------------------------------------------------------------------------------------------


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
