"""A verdict as columns of `fit`: what limits, in numbers and in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from fitkit.hardware import Machine
from fitkit.tables import words
from fitkit.tables.disk import free_disk_bytes
from fitkit.tables.frames import NA
from fitkit.tables.verdict import Verdict

# The order in which terms fill a card: the first that no longer fits is what limits.
_FIRST, _LAST = ("weights", "projector", "runtime", "compute", "output"), ("split", "state", "kv_cache")


def limited_by(verdict: Verdict) -> list[str]:
    """The binding term of each row that does not fit; empty for a yes."""
    out = np.full(len(verdict.context), "", dtype=object)
    if "usable_per_gpu_bytes" in verdict.at:
        usable = verdict.at["usable_per_gpu_bytes"]
        filled = np.zeros_like(usable)
        others = [name for name in verdict.per_gpu if name not in _FIRST and name not in _LAST]
        for name in (*_FIRST, *others, *_LAST):
            if name in verdict.per_gpu:
                filled = filled + verdict.per_gpu[name]
                out[(out == "") & (filled > usable)] = name
        out[verdict.beyond] = "gpus"
        out[(verdict.at["fit_gpus"] == 0) & (usable == 0)] = "host_memory"  # nobody said how much RAM there is
    for place, one in enumerate(verdict.machines):
        if free_disk_bytes(verdict.ask, one) is not None:
            out[(out == "") & ~verdict.fits & (verdict.machine == place)] = "disk"
    out[(out == "") & ~verdict.fits] = "host_memory"
    out[verdict.fits] = ""
    out[np.array([bool(sentence) for sentence in verdict.refused])] = "engine"
    return list(out)


def columns(verdict: Verdict) -> dict[str, Any]:
    """The verdict as columns of `fit`."""
    ask, machines = verdict.ask, verdict.machines
    limits = limited_by(verdict)
    at = dict(verdict.at)
    if "need_per_gpu_bytes" in at:
        need, usable = at["need_per_gpu_bytes"], at["usable_per_gpu_bytes"]
        at["free_per_gpu_bytes"] = np.where(need == NA, NA, usable - need)
    return {
        "model": ask.model.name,
        "engine": ask.engine,
        "rules": ask.rules,
        "quant": ask.quant,
        "kv_dtype": ask.kv_dtype,
        "basis": ask.basis,
        "context": verdict.context,
        "parallel": np.where(verdict.parallel > 0, verdict.parallel, NA),
        "gpus": NA if verdict.gpus is None else verdict.gpus,
        "machine": [machines[place].name for place in verdict.machine.tolist()],
        "gpu": [_gpu_name(machines[place]) for place in verdict.machine.tolist()],
        "fits": verdict.fits,
        "limited_by": limits,
        "note": list(verdict.notes),
        **words.tell(verdict, limits),
        **at,
    }


def _gpu_name(machine: Machine) -> str:
    return machine.gpu.name if machine.gpu else ""
