"""The block size: what every kernel reads, and in hybrids large enough that an attention page holds a whole state.

Source: vLLM 0.33.0, platforms/interface.py update_block_size_for_backend.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from fitkit.errors import UnsupportedModel
from fitkit.rules.vllm.backends import Kernel

DEFAULT_BLOCK = 16


def preferred(kernels: Sequence[Kernel], asked: int | None) -> int:
    """The block before alignment: the user's, else 16 where every kernel reads it, else the smallest all read [tokens]."""
    if asked is not None:
        return asked
    if not kernels or all(kernel.takes(DEFAULT_BLOCK) for kernel in kernels):
        return DEFAULT_BLOCK
    commons = sorted({math.lcm(*sizes) for sizes in itertools.product(*(kernel.sizes for kernel in kernels))})
    for block in commons:
        if all(kernel.takes(block) for kernel in kernels):
            return block
    names = ", ".join(kernel.name for kernel in kernels)
    raise UnsupportedModel(f"vLLM's attention backends {names} share no KV block size for this model.")


def aligned(
    kernels: Sequence[Kernel], block: int, *, state_bytes: int, token_bytes: int, unit: int, checkpoint: int
) -> tuple[int, int]:
    """The block [tokens] of a hybrid whose attention page holds `state_bytes`, and the page [bytes] states are padded to.

    `token_bytes` is one attention layer's, `unit` the least multiple beside the kernel's own, `checkpoint` the alignment of mid-prefill checkpoints (1: none). A page that
    fits the state exactly pads nothing: then the second is 0.
    """
    unit = math.lcm(max(kernels[0].smallest, block, unit), checkpoint)
    least = math.lcm(*(kernel.smallest for kernel in kernels))
    wanted = unit * -(-state_bytes // (unit * token_bytes))
    wanted = least * -(-wanted // least)
    block = max(block, wanted)
    page = block * token_bytes
    return block, page if page != state_bytes else 0


def covering_unquantized(block: int, packed_token_bytes: int, plain_token_bytes: int, smallest: int) -> int:
    """The block of a packed cache whose page covers one smallest block of layers that stay unquantized."""
    unit = max(smallest, block)
    return max(block, unit * -(-plain_token_bytes * smallest // (unit * packed_token_bytes)))
