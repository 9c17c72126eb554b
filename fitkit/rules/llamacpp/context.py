"""Sizes of a context: cells, streams, micro-batch and outputs, as llama.cpp rounds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fitkit.rules.base import IntArray
from fitkit.rules.llamacpp.rows import padded
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.versions import has

CELLS = 256  # n_ctx comes in multiples of this; llama-context.cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """One entry a row of the grid.

    `n_ctx` are the cells of all sequences together, `n_ctx_seq` those of one stream; `n_tokens` the most tokens one
    graph works on, `n_outputs` for how many of them it makes logits.
    """

    n_ctx: IntArray
    n_ctx_seq: IntArray
    n_seq_max: IntArray
    n_stream: IntArray
    n_batch: IntArray
    n_ubatch: IntArray
    n_tokens: IntArray
    n_outputs: IntArray


def sizes(settings: LlamaCppSettings, trained: int, n_ctx: IntArray, n_seq_max: IntArray) -> Sizes:
    """The sizes llama.cpp makes of the context and slots asked for.

    n_batch = min(n_ctx, n_batch) and n_ubatch = min(n_batch, n_ubatch) use the n_ctx asked for; then n_ctx is rounded up
    to 256. Unified: one pool of n_ctx cells. Split: n_ctx_seq = round_up(n_ctx / n_seq_max, 256) for each sequence, and
    n_ctx becomes n_ctx_seq * n_seq_max. The reserved graph takes min(n_ctx, n_ubatch) tokens, rounded up to whole
    tokens a sequence.

    Source: llama.cpp b11434, llama-context.cpp (constructor, sched_reserve, graph_reserve).
    """
    asked = np.where(n_ctx == 0, trained, n_ctx).astype(np.int64)
    n_batch = np.minimum(asked, settings.n_batch)
    n_ubatch = np.minimum(n_batch, settings.n_ubatch or settings.n_batch)
    rounded = padded(asked, CELLS)
    if settings.kv_unified:
        n_ctx_seq, n_stream = rounded, np.ones_like(rounded)
    else:
        n_ctx_seq, n_stream = padded(rounded // n_seq_max, CELLS), n_seq_max.astype(np.int64)
        rounded = n_ctx_seq * n_seq_max
    tokens = np.minimum(rounded, n_ubatch)
    most = _outputs_asked(settings, n_batch, n_seq_max)
    return Sizes(
        n_ctx=rounded,
        n_ctx_seq=n_ctx_seq,
        n_seq_max=n_seq_max.astype(np.int64),
        n_stream=n_stream,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_tokens=(tokens + n_seq_max - 1) // n_seq_max * n_seq_max,
        n_outputs=np.minimum(tokens, most),
    )


def _outputs_asked(settings: LlamaCppSettings, n_batch: IntArray, n_seq_max: IntArray) -> IntArray:
    """Tokens whose logits the caller may ask of one graph."""
    if settings.n_outputs_max is not None:
        return np.full_like(n_batch, settings.n_outputs_max) if settings.n_outputs_max else n_batch
    limited = settings.caller == "server" and has(settings.build, "server_limits_outputs")
    return n_seq_max.astype(np.int64) if limited else n_batch
