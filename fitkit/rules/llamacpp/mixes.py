"""llama.cpp's mixes: the type a file type gives each tensor that it quantizes, by what the tensor is and where it lies.

Source: llama.cpp b11434, src/llama-quant.cpp (llama_tensor_get_type_impl and what calls it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fitkit.errors import UnsupportedModel
from fitkit.model import Tensor
from fitkit.rules.llamacpp.rows import BLOCKS

# File type → the type of a tensor that no rule singles out.
FILE_TYPES: dict[str, str] = {
    "F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "Q8_0", "Q6_K": "Q6_K", "Q5_K_M": "Q5_K", "Q5_K_S": "Q5_K", "Q5_0": "Q5_0",
    "Q5_1": "Q5_1", "Q4_K_M": "Q4_K", "Q4_K_S": "Q4_K", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "IQ4_XS": "IQ4_XS", "IQ4_NL": "IQ4_NL",
    "Q3_K_L": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_S": "Q3_K", "IQ3_M": "IQ3_S", "IQ3_S": "IQ3_S", "IQ3_XS": "IQ3_S",
    "IQ3_XXS": "IQ3_XXS", "Q2_K": "Q2_K", "Q2_K_S": "Q2_K", "IQ2_M": "IQ2_S", "IQ2_S": "IQ2_XS", "IQ2_XS": "IQ2_XS",
    "IQ2_XXS": "IQ2_XXS", "IQ1_M": "IQ1_M", "IQ1_S": "IQ1_S", "MXFP4_MOE": "MXFP4", "TQ1_0": "TQ1_0", "TQ2_0": "TQ2_0",
    "NVFP4": "NVFP4", "Q1_0": "Q1_0", "Q2_0": "Q2_0",
}  # fmt: skip
_LOWEST = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
# What rows that a block does not divide are stored as instead; where that does not divide them either, F16.
_FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip


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


# ---- the mixes --------------------------------------------------------------------------------------------------------------

# In this order: the first part a name contains.
_CATEGORIES = (
    ("attn_qkv.weight", "qkv"), ("attn_kv_b.weight", "kv_b"), ("attn_v.weight", "v"), ("attn_k.weight", "k"), ("attn_q.weight", "q"),
    ("attn_output.weight", "attn_output"), ("ffn_up", "ffn_up"), ("ffn_gate", "ffn_gate"), ("ffn_down", "ffn_down"),
)  # fmt: skip
V_LIKE = ("qkv", "kv_b", "v")
Rule = Callable[[Mix, str, int], str]


def category(name: str) -> str:
    """Which rule looks after a tensor."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    return next((kind for part, kind in _CATEGORIES if part in name), "other")


def type_for(name: str, block: int, tensor: Tensor, mix: Mix, seen: dict[str, int]) -> str:
    """The type of one tensor; `seen` counts those of each category so far, in the file's order."""
    kind, what = FILE_TYPES[mix.file_type], category(name)
    counted = "v" if what in V_LIKE else what
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
