"""Which device holds which block: the layer split over GPUs and what stays on the host."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

from fitkit.rules.llamacpp.settings import LlamaCppSettings

HOST = -1


@dataclass(frozen=True, slots=True)
class Split:
    """Device of each block and of the output layer: HOST or the GPU's number."""

    blocks: tuple[int, ...]
    output: int
    devices: int

    @property
    def whole(self) -> bool:
        """Whether every block and the output are on GPUs."""
        return self.devices > 0 and HOST not in self.blocks and self.output != HOST

    @property
    def used(self) -> tuple[int, ...]:
        """The GPUs that hold blocks, in order."""
        return tuple(sorted(set(self.blocks) - {HOST}))


@lru_cache(maxsize=1024)
def split(settings: LlamaCppSettings, blocks: int) -> Split:
    """Assign `blocks` (prediction blocks included) and the output layer.

    The last n_gpu_layers of blocks + 1 go to the GPUs; layer i of them to the first GPU whose share of the whole,
    summed, exceeds i / n. Without tensor_split the shares are the GPUs' free memory, equal for equal GPUs.

    Source: llama.cpp b11434, llama-model.cpp, load_tensors; shares and quotients are 32-bit floats there.
    """
    devices = settings.devices
    if devices == 0:
        return Split((HOST,) * blocks, HOST, 0)
    shares = settings.tensor_split if settings.tensor_split and len(settings.tensor_split) >= devices else None
    parts = [np.float32(share) for share in (shares or (1.0,) * devices)[:devices]]
    sums = list(accumulate(parts))
    points = [float(np.float32(value / sums[-1])) for value in sums]
    start = max(blocks + 1 - settings.n_gpu_layers, 0)
    offloaded = min(settings.n_gpu_layers, blocks + 1)

    def device(layer: int) -> int:
        if layer < start or layer - start >= offloaded:
            return HOST
        quotient = float(np.float32(layer - start) / np.float32(offloaded))
        return min(bisect_right(points, quotient), devices - 1)

    return Split(tuple(device(layer) for layer in range(blocks)), device(blocks), devices)
