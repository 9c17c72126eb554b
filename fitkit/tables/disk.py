"""Whether the download fits the place where a machine keeps models."""

from __future__ import annotations

from fitkit.errors import FitError
from fitkit.hardware import Machine
from fitkit.rules.sizes import checkpoint_bytes, gguf_bytes
from fitkit.tables.axes import Ask
from fitkit.units import GB


def download_bytes(ask: Ask) -> int | None:
    """Bytes of the files, None where the file type does not belong to the engine or the model has no such file."""
    if ask.refusal or ask.rules == "budget":
        return None
    size_of = gguf_bytes if ask.engine == "llama.cpp" else checkpoint_bytes
    try:
        size: int = size_of(ask.model, ask.quant)[0]
    except (KeyError, FitError):
        return None
    return size + (ask.model.projector_bytes if ask.engine == "llama.cpp" else 0)


def free_disk_bytes(ask: Ask, machine: Machine) -> int | None:
    """What a download may take there, -1 without a data location, None where nobody knows."""
    if machine.disk_free_bytes is None or machine.name in getattr(ask.settings, "copies", ()):
        return None
    limit: float | None = getattr(ask.settings, "copies_limit_gb", None)
    if limit is None or machine.disk_free_bytes < 0:
        return machine.disk_free_bytes
    return min(machine.disk_free_bytes, round(limit * GB))
