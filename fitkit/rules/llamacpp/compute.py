"""Compute buffers over a grid: the graph laid out once for each neighbourhood of sizes, its peaks read off as linear forms."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fitkit.model import Model, Tensor
from fitkit.rules.base import IntArray
from fitkit.rules.llamacpp.cache import stores, window_cells
from fitkit.rules.llamacpp.context import CELLS, Sizes, sizes
from fitkit.rules.llamacpp.flash import is_asked
from fitkit.rules.llamacpp.graph.reserve import attention_stays, peaks
from fitkit.rules.llamacpp.rows import is_quantized
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.split import Split

_STEP = 2  # neighbourhoods of the context and of the slots are a factor of this apart
FEW = 8  # slots up to which each count has a neighbourhood of its own
Floats = npt.NDArray[np.float64]


def compute_bytes(
    model: Model, tensors: tuple[Tensor, ...], settings: LlamaCppSettings, placed: Split, flash: bool,
    n_ctx: IntArray, n_seq_max: IntArray,
) -> dict[str, IntArray]:  # fmt: skip
    """Bytes of the compute buffer on each device, by its name in the log.

    Within a neighbourhood the allocator's choices are taken to be those at its middle; the highest end of any tensor is then
    a maximum of linear forms of tokens, cells, outputs and slots.
    """
    asked = np.where(n_ctx == 0, model.context, n_ctx)
    middle_ctx, middle_seq = _middles(asked, CELLS), np.where(n_seq_max <= FEW, n_seq_max, _middles(n_seq_max, 1))
    keys = np.stack([middle_ctx, middle_seq])
    found, which = np.unique(keys, axis=1, return_inverse=True)
    at = sizes(settings, model.context, n_ctx, n_seq_max)
    units = units_of(model, settings, at)
    out: dict[str, IntArray] = {}
    for number, (ctx, seq) in enumerate(found.T.tolist()):
        rows = np.flatnonzero(which.ravel() == number)
        for name, ends in _ends(model, tensors, settings, placed, flash, ctx, seq).items():
            column = out.setdefault(name, np.zeros(len(asked), np.int64))
            column[rows] = (ends @ units[:, rows]).max(axis=0).astype(np.int64)
    return out


@lru_cache(maxsize=1024)
def resolve(model: Model, tensors: tuple[Tensor, ...], settings: LlamaCppSettings, placed: Split) -> bool:
    """Whether attention is computed as flash attention; "auto" needs each block's on the block's own device."""
    if not is_asked(model, settings, placed):
        return False
    decided = settings.flash_attn == "on" or is_quantized(settings.type_v) or not placed.devices
    simple = placed.whole and settings.offload_kqv and placed.devices == 1
    if decided or simple or not placed.used:
        return True
    return attention_stays(model, tensors, settings, placed, 1)


def _middles(values: IntArray, least: int) -> IntArray:
    """The power of _STEP nearest to each value, in ratio."""
    power = np.rint(np.log(np.maximum(values, least)) / np.log(_STEP))
    middle: IntArray = np.maximum(least, np.rint(float(_STEP) ** power)).astype(np.int64)
    return middle


def units_of(model: Model, settings: LlamaCppSettings, at: Sizes) -> Floats:
    """Values of graph.tensor.BASIS, one column a row of the grid."""
    window = max((store.window for store in stores(model)), default=0)
    sliding = window_cells(window, settings, at) if window else np.zeros_like(at.n_ctx_seq)
    tokens, full = at.n_tokens, at.n_ctx_seq
    return np.stack([
        np.ones_like(tokens), tokens, tokens * full, tokens * sliding, full * at.n_stream, sliding * at.n_stream,
        at.n_outputs, at.n_seq_max,
    ]).astype(np.float64)  # fmt: skip


@lru_cache(maxsize=4096)
def _ends(
    model: Model, tensors: tuple[Tensor, ...], settings: LlamaCppSettings, placed: Split, flash: bool, n_ctx: int, n_seq: int
) -> dict[str, Floats]:  # fmt: skip
    at = sizes(settings, model.context, np.array([n_ctx]), np.array([n_seq]))
    units = tuple(units_of(model, settings, at)[:, 0].tolist())
    buffers = peaks(model, tensors, settings, placed, flash, units, in_pipeline(settings, placed))
    out = {}
    for number, buffer in enumerate(buffers):
        name = f"GPU{number}" if number < placed.devices else ("GPU_Host" if placed.devices else "CPU")
        if buffer.ends:
            out[name] = _upper(np.array(sorted(buffer.ends)), np.array(units))
    return out


def _upper(ends: Floats, units: Floats) -> Floats:
    """The forms that no other exceeds everywhere, the highest at the middle first, few of them."""
    order = np.argsort(-(ends @ units), kind="stable")
    chosen: list[Floats] = []
    for end in ends[order]:
        if not any((end <= other).all() for other in chosen):
            chosen.append(end)
        if len(chosen) == 12:
            break
    return np.stack(chosen)


def in_pipeline(settings: LlamaCppSettings, placed: Split) -> bool:
    """Whether the GPUs work on several micro-batches at once, with copies of every input.

    Source: llama.cpp b11434, llama-context.cpp: several GPUs, all layers and the cache on them, no tensor overrides.
    """
    if settings.pipeline is not None and not settings.pipeline:
        return False
    plain = not settings.cpu_moe and not settings.n_cpu_moe
    return placed.devices > 1 and placed.whole and settings.offload_kqv and plain
