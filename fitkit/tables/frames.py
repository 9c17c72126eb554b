"""Tidy frames with fixed columns, built column by column from blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

NA = np.iinfo(np.int64).min  # stands for "not known" in a block's whole numbers

DEMAND = (
    "model", "engine", "rules", "quant", "context", "parallel", "kv_dtype", "gpus", "weights_bytes", "kv_bytes", "overhead_bytes",
    "total_bytes", "per_gpu_bytes", "basis",
)  # fmt: skip
VERDICT = (
    "machine", "gpu", "fits", "badge", "fit_gpus", "fit_parallel", "max_parallel", "max_context", "need_per_gpu_bytes",
    "usable_per_gpu_bytes", "free_per_gpu_bytes", "reserved_per_gpu_bytes", "limited_by", "reason",
)  # fmt: skip
# Parts of the three named terms, and the range of what is not exact.
PARTS = (
    "projector", "state", "compute", "output", "runtime", "graphs", "rope_tables", "tied_head", "draft", "lora", "split",
)  # fmt: skip
FINER = (*(f"{name}_bytes" for name in PARTS), "host_bytes", "per_gpu_low_bytes", "per_gpu_high_bytes", "total_low_bytes",
         "total_high_bytes", "note")  # fmt: skip
DEMAND_COLUMNS = (*DEMAND, *FINER)
FIT_COLUMNS = (*DEMAND, *VERDICT, *FINER, "download_bytes", "fit_nodes", "line")

_TEXT = frozenset(
    (
        "model",
        "engine",
        "rules",
        "quant",
        "kv_dtype",
        "basis",
        "machine",
        "gpu",
        "badge",
        "limited_by",
        "reason",
        "note",
        "line",
    )
)
_BOOL = frozenset(("fits",))

Block = Mapping[str, Any]


def dtype_of(column: str) -> str:
    """The dtype a column always has."""
    return "str" if column in _TEXT else "bool" if column in _BOOL else "Int64"


def frame(columns: Sequence[str], blocks: Sequence[tuple[int, Block]]) -> pd.DataFrame:
    """One frame of `columns` from blocks of (rows, column → one value for all of them, or an array); a missing one is NA."""
    lengths = np.array([length for length, _ in blocks], dtype=np.int64)
    data = {}
    for column in columns:
        values = [block.get(column) for _, block in blocks]
        if column in _TEXT:
            data[column] = _texts(values, lengths)
        elif column in _BOOL:
            data[column] = _joined(values, lengths, np.bool_, False)
        else:
            whole = _joined(values, lengths, np.int64, NA)
            data[column] = pd.arrays.IntegerArray(whole, whole == NA)
    return pd.DataFrame(data, copy=False)


def _joined(values: list[Any], lengths: np.ndarray, dtype: type, missing: Any) -> np.ndarray:
    out: np.ndarray = np.empty(int(lengths.sum()), dtype=dtype)
    start = 0
    for value, length in zip(values, lengths.tolist(), strict=True):
        out[start : start + length] = missing if value is None else value
        start += length
    return out


def _texts(values: list[Any], lengths: np.ndarray) -> Any:
    """A text a block is looked up once and repeated; texts a row are joined."""
    if not any(isinstance(value, list | np.ndarray) for value in values):
        seen: dict[str, int] = {}
        codes = [seen.setdefault(value or "", len(seen)) for value in values]
        return pd.array(list(seen) or [""], dtype="str").take(_joined(codes, lengths, np.intp, 0))
    flat: list[str] = []
    for value, length in zip(values, lengths.tolist(), strict=True):
        flat.extend([value or ""] * length if value is None or isinstance(value, str) else value)
    return pd.array(flat, dtype="str")
