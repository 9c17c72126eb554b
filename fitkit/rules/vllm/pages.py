"""What each layer's cache needs per block on one GPU: vLLM's per-layer cache specs.

A page is the bytes of one block in one layer. Attention pages grow with the block size, a state's page does not.

Source: vLLM 0.33.0, v1/kv_cache_interface.py and the get_kv_cache_spec of its layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fitkit.model import Cache

Kind = Literal["full", "sliding", "chunked", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One cache of one layer, on one rank.

    `token_bytes` is what a stored token takes (0 for a state), `ratio` how many tokens share one stored entry. Two
    layers are alike when everything but `layer` agrees.
    """

    kind: Kind
    latent: bool = False  # one vector without heads: never padded to another layer's page
    block: int
    token_bytes: int = 0
    ratio: int = 1
    align: int = 1  # a page is rounded up to a multiple of this many bytes
    state_bytes: int = 0
    padded: int = 0  # the page's size where it was padded up, else 0
    window: int = 0
    shape: tuple[int, ...] = ()  # heads and widths: pages of equal size may still differ in layout
    checkpoint: int = 0  # extra state blocks of a prefill's checkpoint
    align_mode: bool = False  # a state kept for prefix caching
    layer: int = 0

    @property
    def natural(self) -> int:
        """The page without padding to other layers [bytes]."""
        if self.kind == "state":
            return self.state_bytes
        page = self.block // self.ratio * self.token_bytes
        return -(-page // self.align) * self.align

    @property
    def page(self) -> int:
        """Bytes of one block."""
        return self.padded or self.natural

    @property
    def alike(self) -> Spec:
        """The spec without its place, to compare layers by."""
        return replace(self, layer=0)


def local_heads(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads of one rank: split, or replicated where there are more ranks than heads."""
    return max(1, kv_heads // tensor_parallel)


def state_shape(cache: Cache, tensor_parallel: int) -> tuple[int, int]:
    """Elements of the convolution and of the recurrent state on one rank.

    Channels and heads are split; Mamba-2 groups that do not divide are repeated until every rank has one.
    """
    channels, groups = cache.heads * cache.head_dim, cache.groups
    if cache.variant == "mamba2" and groups % tensor_parallel:
        groups = tensor_parallel
    conv = (channels + 2 * groups * cache.state_dim) // tensor_parallel * (cache.conv_kernel - 1)
    return conv, channels // tensor_parallel * cache.state_dim
