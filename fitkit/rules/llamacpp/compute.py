"""Compute buffers over a grid: the graph laid out once for each neighbourhood of sizes, its peaks read off as linear forms."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fitkit.model import Model
from fitkit.rules.base import IntArray
from fitkit.rules.llamacpp.cache import stores, window_cells
from fitkit.rules.llamacpp.context import sizes
from fitkit.rules.llamacpp.flash import heads_at_once, is_asked
from fitkit.rules.llamacpp.graph.reserve import attention_stays, peaks, written
from fitkit.rules.llamacpp.graph.schedule import OFFLOAD_BATCH
from fitkit.rules.llamacpp.loaded import Loaded, without_types
from fitkit.rules.llamacpp.rows import is_quantized
from fitkit.rules.llamacpp.settings import MOST_SEQUENCES, LlamaCppSettings
from fitkit.rules.llamacpp.split import Split

CONTEXT_STEP, SLOT_STEP = 4, 4  # neighbourhoods of the context and of the slots are a factor of these apart
SHORTEST = 512  # the first of 512, 2048, 8192, 32768, ...: contexts people ask for lie in the middle of one
_MOST_SLOTS = 1024  # more than there can be
Floats = npt.NDArray[np.float64]


def compute_bytes(
    what: Loaded, settings: LlamaCppSettings, placed: Split, n_ctx: IntArray, n_seq_max: IntArray
) -> dict[str, IntArray]:
    """Bytes of the compute buffer on each device, by its name in the log."""
    if is_settled(settings, placed):
        return _laid_out(what, settings, placed, resolve(what, settings, placed, 1), n_ctx, n_seq_max)
    slots, which = np.unique(np.minimum(n_seq_max, OFFLOAD_BATCH), return_inverse=True)
    flash = np.array([resolve(what, settings, placed, count) for count in slots.tolist()])[which]
    out: dict[str, IntArray] = {}
    for choice in np.unique(flash).tolist():
        rows = np.flatnonzero(flash == choice)
        for name, column in _laid_out(what, settings, placed, choice, n_ctx[rows], n_seq_max[rows]).items():
            out.setdefault(name, np.zeros(len(flash), np.int64))[rows] = column
    return out


def _laid_out(
    what: Loaded, settings: LlamaCppSettings, placed: Split, flash: bool, n_ctx: IntArray, n_seq_max: IntArray
) -> dict[str, IntArray]:
    """The same for one kind of attention.

    Within a neighbourhood the allocator's choices are taken to be those at its middle; the highest end of any tensor is then
    a maximum of linear forms of tokens, cells, outputs and slots.
    """
    model = what.model
    moved = placed.devices and not (placed.whole and not settings.cpu_moe and not settings.n_cpu_moe)
    if not moved and not any(layer.shared_dim for layer in model.layers):
        what = without_types(model)
    asked = np.where(n_ctx == 0, model.context, n_ctx)
    middle_ctx, middle_slots = _middles(asked, SHORTEST, CONTEXT_STEP), _middle_slots(what.model, settings, n_seq_max)
    found, which = np.unique(middle_ctx * _MOST_SLOTS + middle_slots, return_inverse=True)
    units = _units(model, settings, n_ctx, n_seq_max)
    out: dict[str, IntArray] = {}
    for number, key in enumerate(found.tolist()):
        ctx, seq = divmod(key, _MOST_SLOTS)
        rows = np.flatnonzero(which == number)
        here = units[:, rows]
        for name, ends in _ends(what, settings, placed, flash, ctx, seq).items():
            column = out.setdefault(name, np.zeros(len(asked), np.int64))
            column[rows] = (ends @ here).max(axis=0).astype(np.int64)
    return out


@lru_cache(maxsize=1024)
def resolve(what: Loaded, settings: LlamaCppSettings, placed: Split, sequences: int) -> bool:
    """Whether attention is computed as flash attention; "auto" needs each block's on the block's own device.

    The engine tries with one token for each of `sequences`; more rows of a host weight's operation draw it to a GPU.
    """
    if not is_asked(what.model, settings, placed):
        return False
    if is_settled(settings, placed) or not placed.used:
        return True
    return attention_stays(what, settings, placed, sequences)


def is_settled(settings: LlamaCppSettings, placed: Split) -> bool:
    """Whether the choice of attention is the same for any number of slots."""
    decided = settings.flash_attn == "on" or is_quantized(settings.type_v) or not placed.devices
    return decided or (placed.whole and settings.offload_kqv and placed.devices == 1)


def _middles(values: IntArray, least: int, step: int) -> IntArray:
    """The power of `step` (times `least`) nearest to each value, in ratio."""
    power = np.rint(np.log(np.maximum(values, least) / least) / np.log(step))
    middle: IntArray = np.rint(least * float(step) ** power).astype(np.int64)
    return middle


def _middle_slots(model: Model, settings: LlamaCppSettings, n_seq_max: IntArray) -> IntArray:
    """Slots to lay the graph out for: they matter where each has a state or a stream of its own."""
    if settings.kv_unified and not any(cache.kind == "state" for cache in model.caches()):
        return np.ones_like(n_seq_max)
    middles = np.where(n_seq_max <= 2, n_seq_max, _middles(n_seq_max, 1, SLOT_STEP))
    return np.minimum(middles, MOST_SEQUENCES)  # what is refused needs no graph of its own


def _units(model: Model, settings: LlamaCppSettings, n_ctx: IntArray, n_seq_max: IntArray) -> Floats:
    """Values of graph.tensor.BASIS, one column a row of the grid."""
    at = sizes(settings, model.context, n_ctx, n_seq_max)
    window = max((store.window for store in stores(model)), default=0)
    sliding = window_cells(window, settings, at) if window else np.zeros_like(at.n_ctx_seq)
    tokens, full = at.n_tokens, at.n_ctx_seq
    if heads_at_once(model) is not None:
        full = tokens  # an encoder's tokens see the batch alone
    return np.stack([
        np.ones_like(tokens), tokens, tokens * full, tokens * sliding, full * at.n_stream, sliding * at.n_stream,
        at.n_outputs, at.n_seq_max,
    ]).astype(np.float64)  # fmt: skip


@lru_cache(maxsize=4096)
def _ends(
    what: Loaded, settings: LlamaCppSettings, placed: Split, flash: bool, n_ctx: int, n_seq: int
) -> dict[str, Floats]:
    """The ends in each device's buffer, laid out at these sizes."""
    units = tuple(_units(what.model, settings, np.array([n_ctx]), np.array([n_seq]))[:, 0].tolist())
    buffers = peaks(what, settings, placed, flash, units, in_pipeline(settings, placed))
    out = {}
    for number, buffer in enumerate(buffers):
        name = f"GPU{number}" if number < placed.devices else ("GPU_Host" if placed.devices else "CPU")
        if buffer.ends:
            out[name] = _upper(np.array(sorted(buffer.ends)), np.array(units))
    return out


def _upper(ends: Floats, units: Floats) -> Floats:
    """The forms that no other exceeds everywhere, the highest at the middle first, few of them."""
    ends = ends[np.argsort(-(ends @ units), kind="stable")]
    below = (ends[:, None] <= ends[None]).all(axis=2)
    return ends[~np.tril(below, -1).any(axis=1)][:12]


def in_pipeline(settings: LlamaCppSettings, placed: Split) -> bool:
    """Whether the GPUs work on several micro-batches at once, with copies of every input.

    Source: llama.cpp b11434, llama-context.cpp: several GPUs, all layers and the cache on them, no tensor overrides.
    """
    if settings.pipeline is not None and not settings.pipeline:
        return False
    plain = not settings.cpu_moe and not settings.n_cpu_moe
    return placed.devices > 1 and placed.whole and settings.offload_kqv and plain


# Sizes of the scheduler's hash table; ggml.c, ggml_hash_size.
_TABLE_SIZES = (1031, 2053, 4099, 8209, 16411, 32771, 65537)


@lru_cache(maxsize=1024)
def too_many_nodes(what: Loaded, settings: LlamaCppSettings, placed: Split, several: bool) -> str:
    """Why the graph does not fit the scheduler's table, which aborts the engine; empty where it does.

    The table holds max(1024, 8 x tensors) rounded up to a prime; a quantized cache in split streams makes the most nodes.
    Said of plain attention only, where our nodes are the engine's.

    Source: llama.cpp b11434, llama-context.cpp (graph_max_nodes); ggml-backend.cpp (ggml_backend_sched_new).
    """
    layers = what.model.layers
    plain = all(cache.kind in ("full", "sliding", "chunked") for layer in layers for cache in layer.caches)
    if not several or settings.kv_unified or not is_quantized(settings.type_k) or not plain:
        return ""
    tensors = sum(tensor.copies for tensor in what.tensors if not tensor.part)
    room = next((size for size in _TABLE_SIZES if size >= max(1024, 8 * tensors)), 0)
    graph = written(what, settings, placed, resolve(what, settings, placed, 1), True).graph
    owners = sum(bool(layer.caches) for layer in layers)
    nodes = len(graph.nodes) + 4 * owners + tensors + 2 * owners + len(graph.leafs)
    if not room or nodes <= room:
        return ""
    return (
        f"llama.cpp aborts: the graph has about {nodes} nodes and tensors, and its table holds {room}; use kv_unified."
    )
