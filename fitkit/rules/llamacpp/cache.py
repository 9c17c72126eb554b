"""Bytes of llama.cpp's caches: K and V tensors of each layer, and recurrent states."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fitkit.model import Layer, Model
from fitkit.rules.base import IntArray
from fitkit.rules.llamacpp.context import CELLS, Sizes
from fitkit.rules.llamacpp.rows import block_of, padded, row_bytes
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.split import HOST, Split
from fitkit.rules.remember import once_a_model

GPU_ALIGNMENT = 128  # ggml-cuda.cu; Metal's, Vulkan's and ROCm's buffers align at most to this
GPU_ROW = 512  # elements a quantized row is padded to at a tensor's end (MATRIX_ROW_PADDING)
HOST_ALIGNMENT = 32
# Blocks without KV heads are in their cache all the same, with rows of no width.
KEEPS_EMPTY = frozenset({"deci"})
STATE_BYTES = 4  # recurrent states are always f32


@dataclass(frozen=True, slots=True)
class Store:
    """What one layer keeps for attention: widths in elements a cell, window 0 for all cells."""

    layer: int
    k_width: int
    v_width: int
    window: int = 0
    kind: str = "full"


@once_a_model
def stores(model: Model) -> tuple[Store, ...]:
    """The K and V rows of every layer that owns a cache.

    MLA keeps one K row of latent + rope elements and no V; an indexer one K row of its own.
    """
    found = []
    for number, layer in enumerate(model.layers):
        for cache in layer.caches:
            if cache.kind == "state":
                continue
            heads = max(1, cache.kv_heads)
            window = cache.window if cache.kind in ("sliding", "chunked") else 0
            found.append(Store(number, heads * cache.k_dim, heads * cache.v_dim, window, cache.kind))
    return tuple(found)


def window_cells(window: int, settings: LlamaCppSettings, at: Sizes) -> IntArray:
    """Cells of a sliding-window cache: round_up(min(n_ctx_seq, window * (n_seq_max if unified) + n_ubatch), 256).

    Source: llama.cpp b11434, llama-kv-cache-iswa.cpp.
    """
    if settings.swa_full or not window:
        return at.n_ctx_seq
    reach = window * (at.n_seq_max if settings.kv_unified else 1) + at.n_ubatch
    return padded(np.minimum(at.n_ctx_seq, reach), CELLS)


def kv_bytes(model: Model, settings: LlamaCppSettings, placed: Split, at: Sizes) -> dict[int, IntArray]:
    """Bytes of all K and V tensors on each device (HOST: the CPU).

    A tensor is row_bytes(type, width) * cells * streams. With flash_attn "off" V is stored transposed and padded to the
    widest layer, in blocks without KV heads too ("auto" builds the cache before it resolves, so never); an indexer's cache
    is one of its own. On a GPU a quantized tensor whose row is no multiple of 512 elements gets one row's rest more and each
    tensor is aligned.

    Source: llama.cpp b11434, llama-kv-cache.cpp; ggml-cuda.cu, get_alloc_size.
    """
    kept = stores(model)
    widest_v = max((store.v_width for store in kept if store.kind != "indexer"), default=0)
    on_gpu, transposed_v = settings.offload_kqv, settings.flash_attn == "off"
    rows = [
        (store.layer, store.window, store.k_width, widest_v if transposed_v and store.v_width and store.kind != "indexer" else store.v_width)
        for store in kept
    ]  # fmt: skip
    if transposed_v and model.gguf_architecture in KEEPS_EMPTY:
        rows += [(number, 0, 0, widest_v) for number, layer in enumerate(model.layers) if not layer.caches]
    alike = Counter((placed.blocks[layer] if on_gpu else HOST, *widths) for layer, *widths in rows)
    total: dict[int, IntArray] = {}
    for (device, window, k_width, v_width), layers in alike.items():
        cells = window_cells(window, settings, at) * at.n_stream
        both = _tensor(settings.type_k, k_width, cells, device) + _tensor(settings.type_v, v_width, cells, device)
        total[device] = total[device] + both * layers if device in total else both * layers
    return total


def state_bytes(
    model: Model, settings: LlamaCppSettings, placed: Split, at: Sizes, rollback: int = 0
) -> dict[int, IntArray]:
    """Bytes of the recurrent states on each device: f32, one for each slot, whatever the context.

    Source: llama.cpp b11434, llama-memory-recurrent.cpp and llama-hparams.cpp (n_embd_r, n_embd_s).
    """
    total: dict[int, IntArray] = {}
    cells = at.n_seq_max * (1 + rollback)
    for number, layer in enumerate(model.layers):
        device = placed.blocks[number] if settings.offload_kqv else HOST
        for elements in _states(layer):
            size = padded(elements * STATE_BYTES * cells, HOST_ALIGNMENT if device == HOST else GPU_ALIGNMENT)
            total[device] = total[device] + size if device in total else size
    return total


def _states(layer: Layer) -> list[int]:
    return [
        elements
        for cache in layer.caches
        if cache.kind == "state"
        for elements in (cache.conv_elements, cache.ssm_elements)
        if elements
    ]


def _tensor(kind: str, width: int, cells: IntArray, device: int) -> IntArray:
    size = row_bytes(kind, width) * cells
    if device == HOST:
        return padded(size, HOST_ALIGNMENT)
    if block_of(kind) > 1 and width % GPU_ROW:
        size = size + row_bytes(kind, GPU_ROW - width % GPU_ROW)
    return padded(size, GPU_ALIGNMENT)
