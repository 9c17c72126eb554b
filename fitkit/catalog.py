"""What the package knows, as frames to browse: models, GPUs, machines, quantizations, cache types."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fitkit import facts
from fitkit.errors import BadInput, short

_WHOLE = (
    "params", "active_params", "layers", "context", "vocab", "downloads", "count", "devices", "driver_mib", "published_params",
)  # fmt: skip
_NUMBER = (
    "nominal_gib", "torch_gib", "bandwidth_gb_s", "bf16_tflops", "ram_gib", "bits", "bytes_per_param", "measured_bpw", "ppl",
    "delta_ppl", "kld",
)  # fmt: skip


def models(task: str = "text") -> pd.DataFrame:
    """The catalog's models, the most downloaded first; `task` "text" (generating), "embedding", or "" for all."""
    table = _table("models", hide=("shape", "gguf_header_bytes", "header_basis", "agree"))
    if task and "task" in table:
        table = table[table["task"] == task]
    return table.sort_values("downloads", ascending=False, kind="stable", ignore_index=True)


def gpus() -> pd.DataFrame:
    """GPUs with nominal memory and, where reported, what the driver and torch see."""
    return _table("gpus")


def machines() -> pd.DataFrame:
    """Whole machines by name."""
    return _table("machines")


def quants() -> pd.DataFrame:
    """Quantizations: bits a weight, block sizes, measured quality where published, and what each is for."""
    return _table("quants")


def kv_dtypes() -> pd.DataFrame:
    """KV-cache types and what an element of each takes."""
    return _table("kv_dtypes")


def files(source: str, *, online: bool | None = None, timeout: float = 10.0) -> pd.DataFrame:
    """The GGUF files of a hub repository (`"org/repo"`, `"org/repo@revision"`): models by quantization, the largest first, then what goes beside them.

    `bytes` are all parts' [bytes], `file` the first part; `fk.load("org/repo:QUANT")` reads one's header. Nothing but the list travels.
    Raises FetchError where the hub refuses or is out of reach, BadInput for another text or a split file with a missing part.
    """
    from fitkit.sources.remote import named, repo_variants
    from fitkit.sources.wire import Wire

    wanted = named(source) if isinstance(source, str) else None
    if wanted is None:
        raise BadInput(f"A hub repository such as 'org/repo' was expected, not {short(source)}.")
    revision, found = repo_variants(wanted, Wire(timeout=timeout), online)
    rows = [(wanted.repo, revision, one.kind, one.quant, len(one.files), one.bytes, one.path) for one in found]
    table = pd.DataFrame(rows, columns=["repo", "revision", "kind", "quant", "parts", "bytes", "file"])
    return table.astype(
        {"parts": "int64", "bytes": "Int64", **dict.fromkeys(("repo", "revision", "kind", "quant", "file"), "str")}
    )


def _table(name: str, hide: Sequence[str] = ()) -> pd.DataFrame:
    """A table of facts with whole numbers, numbers and texts as such; NA where nothing is known."""
    table = pd.DataFrame([dict(row) for row in facts.rows(name)], dtype="str").drop(columns=list(hide), errors="ignore")
    for column in table.columns:
        if column in _WHOLE:
            table[column] = pd.to_numeric(table[column], errors="coerce").astype("Int64")
        elif column in _NUMBER:
            table[column] = pd.to_numeric(table[column], errors="coerce").astype("Float64")
    return table
