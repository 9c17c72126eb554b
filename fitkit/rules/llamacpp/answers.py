"""The best setting for given free memory: layers on the GPUs, experts on the host, the split over GPUs, the longest context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fitkit.errors import BadInput
from fitkit.model import Model
from fitkit.rules.llamacpp.engine import parts, why_not
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.split import split

CONTEXT_STEP = 256  # a slot's context is a multiple of it


def gpu_bytes(model: Model, quant: str | None, settings: LlamaCppSettings) -> tuple[int, ...]:
    """Bytes on each GPU, the driver's runtime included."""
    one = np.ones(1, dtype=np.int64)
    loads = [0] * settings.devices
    for part in parts(model, quant, settings, one * settings.n_ctx, one * settings.n_seq_max):
        if part.gpu >= 0:
            loads[part.gpu] += int(part.bytes[0])
    return tuple(loads)


def fits(model: Model, quant: str | None, settings: LlamaCppSettings, free_bytes: Sequence[int]) -> bool:
    """Whether llama.cpp starts, and no GPU takes more than is free on it (bytes, one figure a GPU)."""
    if len(free_bytes) != settings.devices:
        raise BadInput(f"free_bytes needs one figure for each of {settings.devices} GPUs, not {len(free_bytes)}.")
    if why_not(model, quant, settings, settings.n_ctx, settings.n_seq_max):
        return False
    return all(load <= free for load, free in zip(gpu_bytes(model, quant, settings), free_bytes, strict=True))


def most_gpu_layers(
    model: Model, quant: str | None, settings: LlamaCppSettings, free_bytes: Sequence[int]
) -> int | None:
    """The largest n_gpu_layers that fits, the output layer counted as one; None where not even 0 does."""

    def works(layers: int) -> bool:
        return fits(model, quant, replace(settings, n_gpu_layers=layers), free_bytes)

    return _largest(works, 0, len(model.layers) + 1)


def fewest_cpu_moe(
    model: Model, quant: str | None, settings: LlamaCppSettings, free_bytes: Sequence[int]
) -> int | None:
    """The smallest n_cpu_moe (first layers whose experts stay on the host) that fits; None where none does."""
    layers = len(model.layers)

    def works(on_gpu: int) -> bool:
        return fits(model, quant, replace(settings, n_cpu_moe=layers - on_gpu), free_bytes)

    kept = _largest(works, 0, layers)
    return None if kept is None else layers - kept


def best_tensor_split(
    model: Model, quant: str | None, settings: LlamaCppSettings, free_bytes: Sequence[int]
) -> tuple[float, ...] | None:
    """Layers a GPU, as tensor_split, that leave the fullest GPU the largest share free; None where no split fits.

    Starts from the free memory, as the engine does, and moves single layers while that helps.
    """
    if any(free <= 0 for free in free_bytes) or len(free_bytes) != settings.devices or not free_bytes:
        raise BadInput(f"free_bytes needs one figure above 0 for each of {settings.devices} GPUs.")
    start = replace(settings, tensor_split=tuple(float(free) for free in free_bytes))
    placed = split(start, len(model.layers))
    counts = [(*placed.blocks, placed.output).count(number) for number in range(settings.devices)]

    def shares(counted: Sequence[int]) -> list[float]:
        trial = replace(settings, tensor_split=tuple(float(count) for count in counted))
        return [
            load / free for load, free in zip(gpu_bytes(model, quant, trial), free_bytes, strict=True)
        ]  # above 1: it does not fit

    now = shares(counts)
    while True:
        fullest = int(np.argmax(now))
        moves = []
        for other in range(len(counts)):
            if other != fullest and counts[fullest] > 1:
                moved = list(counts)
                moved[fullest] -= 1
                moved[other] += 1
                moves.append((shares(moved), moved))
        best = min(moves, key=lambda move: max(move[0]), default=None)
        if best is None or max(best[0]) >= max(now):
            break
        now, counts = best
    found = tuple(float(count) for count in counts)
    return found if fits(model, quant, replace(settings, tensor_split=found), free_bytes) else None


def longest_context(
    model: Model, quant: str | None, settings: LlamaCppSettings, free_bytes: Sequence[int], slots: int
) -> int | None:
    """The longest context of each of `slots` requests at once, up to the model's own; None where none fits."""

    def works(steps: int) -> bool:
        n_ctx = steps * CONTEXT_STEP * slots
        return fits(model, quant, replace(settings, n_ctx=n_ctx, n_seq_max=slots), free_bytes)

    steps = _largest(works, 1, max(1, model.context // CONTEXT_STEP))
    return None if steps is None else steps * CONTEXT_STEP


def _largest(works: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest whole number that works, where less always works when more does."""
    if works(most):
        return most
    if not works(least):
        return None
    while most - least > 1:
        middle = (least + most) // 2
        if works(middle):
            least = middle
        else:
            most = middle
    return least
