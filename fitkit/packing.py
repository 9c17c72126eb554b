"""How a packed matrix lies in memory: a format's row of numbers, and the one formula that turns it and a shape into bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A row of facts/formats.csv: weights of `bits` with one scale for each `group` inputs x `rows` outputs.

    `group` 0 means all inputs, `rows` 0 all outputs: (0, 0) is one scale a matrix, (0, 1) one an output channel,
    (128, 1) one for 128 inputs of a channel, (128, 128) a block. The last block of a side may be short, its scale is whole.
    """

    name: str
    quant: str  # what people call the checkpoint: FP8, AWQ, GPTQ, ...; empty for plain types
    bits: int
    group: int = 0
    rows: int = 0
    scale_bytes: int = 0
    zero_bits: int = 0  # of a zero point, one beside each scale
    index_bytes: int = 0  # in the file, for each input (GPTQ's g_idx)
    tensor_bytes: int = 0  # other scalars of one matrix (a second scale, the scale of its input)
    module_bytes: int = 0  # other scalars of one module as an engine fuses it (q, k and v are one)
    moe_bytes: int = 0  # in place of the two above: of one routed expert as vLLM fuses it (gate and up are one)
    attention_bytes: int = 0  # what vLLM's quantization method adds to each attention layer (scales of q, k, v)


def scales(n_in: int, n_out: int, form: Format) -> int:
    """How many scales one (in, out) matrix has: ceil(in / group) * ceil(out / rows)."""
    across = -(-n_in // form.group) if form.group else 1
    return across * (-(-n_out // form.rows) if form.rows else 1)


def matrix_bytes(n_in: int, n_out: int, form: Format) -> int:
    """Weights, scales and zero points of one (in, out) matrix [bytes], without the few scalars beside them.

    out * ceil(in * bits / 8) + scales * scale_bytes + ceil(scales * zero_bits / 8).

    >>> matrix_bytes(4096, 14336, Format(name="nvfp4", quant="NVFP4", bits=4, group=16, rows=1, scale_bytes=1))
    33030144
    """
    count = scales(n_in, n_out, form)
    return n_out * -(-n_in * form.bits // 8) + count * form.scale_bytes + -(-count * form.zero_bits // 8)


def packed_bytes(shape: Sequence[int], form: Format) -> int:
    """Bytes of one stored tensor of `shape` (input first: in, out, then how many are stacked) as its file holds it.

    matrix_bytes + in * index_bytes + tensor_bytes + module_bytes, for each matrix of a stack.
    """
    n_in, n_out, *stacked = *shape, *(1,) * (2 - len(shape))
    copies = 1
    for size in stacked:
        copies *= size
    beside = n_in * form.index_bytes + form.tensor_bytes + form.module_bytes
    return copies * (matrix_bytes(n_in, n_out, form) + beside)


# Second and third of the matrices that vLLM fuses into one module: what a module has once is counted with the first.
_FOLLOWERS = frozenset(("attn_k", "attn_v", "ffn_up", "ffn_up_shexp"))


def loaded_bytes(role: str, shape: Sequence[int], form: Format) -> int:
    """Bytes of one tensor of `shape` (of one rank: already cut) as vLLM's modules hold it before they repack.

    Differs from packed_bytes in the few scalars: a fused module has its own once, a routed expert `moe_bytes` in all
    (counted with its down projection), GPTQ keeps no g_idx without desc_act, and its experts have biases.
    What a method adds to every attention layer, packed or not, is `attention_bytes`: the caller's.

    Source: vLLM 0.33.0, parameter bytes of its modules.
    """
    n_in, n_out, *stacked = *shape, *(1,) * (2 - len(shape))
    one = matrix_bytes(n_in, n_out, form)
    if "_exps" in role:
        if role.startswith("ffn_down"):
            one += form.moe_bytes
        if form.name.startswith("gptq"):
            one += 2 * n_out
    else:
        one += form.tensor_bytes + (0 if role in _FOLLOWERS else form.module_bytes)
    for size in stacked:
        one *= size
    return one
