"""An allocation's terms as columns."""

from __future__ import annotations

import numpy as np

from fitkit.rules import Allocation, IntArray
from fitkit.tables.frames import PARTS


def term_columns(allocation: Allocation, gpus: int) -> dict[str, IntArray]:
    """The named columns of an allocation and its finer ones: column → array."""
    zero = np.zeros_like(allocation.terms[0].total)
    out = {f"{name}_bytes": zero for name in ("weights", "kv", "overhead", *PARTS)}
    low, high, total, per_gpu = zero, zero, zero, zero
    for term in allocation.terms:
        name = f"{term.column}_bytes"
        out[name] = out[name] + term.total
        if term.name in PARTS:
            out[f"{term.name}_bytes"] = out[f"{term.name}_bytes"] + term.total
        total, per_gpu = total + term.total, per_gpu + term.per_gpu
        low = low + (term.per_gpu if term.low is None else term.low)
        high = high + (term.per_gpu if term.high is None else term.high)
    out |= {"total_bytes": total, "per_gpu_bytes": per_gpu, "per_gpu_low_bytes": low, "per_gpu_high_bytes": high}
    out["total_low_bytes"] = np.maximum(total - (per_gpu - low) * gpus, 0)
    out["total_high_bytes"] = total + (high - per_gpu) * gpus
    if allocation.host_bytes is not None:
        out["host_bytes"] = allocation.host_bytes
    return out


def by_name(allocation: Allocation) -> dict[str, IntArray]:
    """What each kind of term takes on the fullest card."""
    out: dict[str, IntArray] = {}
    for term in allocation.terms:
        out[term.name] = out[term.name] + term.per_gpu if term.name in out else term.per_gpu
    return out
