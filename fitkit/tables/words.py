"""The verdict in words: the badge, the library's line for a machine, and one plain sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fitkit.hardware import Machine
from fitkit.tables.axes import Ask
from fitkit.tables.frames import NA
from fitkit.units import GIB, show_gb, show_gib

if TYPE_CHECKING:
    from fitkit.tables.verdict import Verdict

DEFAULT_REQUESTS = 4  # of llama.cpp; fewer are told in the badge
SLOW_ABOVE_PARAMS = 8  # billions: above, decoding from RAM is slow
NO_MACHINES = "no machines to judge"
CHOOSE_DATA = "no data location yet — choose"
_BACKENDS = {"rocm": "ROCm", "metal": "Metal", "vulkan": "Vulkan", "xpu": "XPU"}
_TERMS = {
    "weights": "the weights", "kv_cache": "the cache", "state": "the recurrent state", "compute": "the compute buffers",
    "runtime": "the runtime's own memory", "graphs": "the CUDA graphs", "output": "the output buffer", "projector": "the vision projector",
    "split": "the margin for several GPUs", "host_memory": "the memory beside the GPUs",
}  # fmt: skip


_WORTH_TELLING = 2 * GIB  # of RAM beside the GPUs
_SEVERAL = ("weights", "compute", "graphs", "rope_tables")


def tell(verdict: Verdict, limits: list[str]) -> dict[str, list[str]]:
    """Badge, line and reason of every row."""
    n = len(limits)
    columns = {
        name: verdict.at[name].tolist() if name in verdict.at else [NA] * n
        for name in (
            "fit_gpus",
            "fit_parallel",
            "need_per_gpu_bytes",
            "usable_per_gpu_bytes",
            "total_bytes",
            "max_parallel",
            "max_context",
            "download_bytes",
            "per_gpu_low_bytes",
            "per_gpu_high_bytes",
            "host_bytes",
        )
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    extra = zip(
        verdict.fits.tolist(),
        limits,
        verdict.context.tolist(),
        verdict.parallel.tolist(),
        verdict.needs.tolist(),
        verdict.needs_nodes.tolist(),
        verdict.refused,
        strict=True,
    )
    names = ("fits", "limit", "context", "asked", "needs", "needs_nodes", "refused")
    machines = [verdict.machines[place] for place in verdict.machine.tolist()]
    told = [
        _row(verdict.ask, machine, row | dict(zip(names, values, strict=True)))
        for machine, row, values in zip(machines, rows, extra, strict=True)
    ]
    return {name: [one[i] for one in told] for i, name in enumerate(("badge", "line", "reason"))}


def _row(ask: Ask, machine: Machine, row: dict[str, Any]) -> tuple[str, str, str]:
    badge, line = badge_of(ask, machine, row), line_of(ask, machine, row)
    if row["refused"]:
        return badge, line, row["refused"]
    sentence = _yes(ask, machine, row) if row["fits"] else _no(ask, machine, row)
    sentence = f"{sentence} {ask.requantized}".rstrip()
    return badge, line, f"{line}: {sentence}" if ask.rules == "library" else sentence[0].upper() + sentence[1:]


def badge_of(ask: Ask, machine: Machine, row: dict[str, Any]) -> str:
    """The library's badge, for this machine alone."""
    if not row["fits"]:
        return (
            "choose where to keep data" if row["limit"] == "disk" and machine.disk_free_bytes == -1 else "doesn't fit"
        )
    if row["fit_gpus"] == 0:
        return "CPU only · slow" if is_slow(ask) else "CPU only"
    badge = "fits on a GPU" if row["fit_gpus"] == 1 else f"needs {row['fit_gpus']} GPUs"
    if ask.engine == "llama.cpp" and not row["asked"] and row["fit_parallel"] < DEFAULT_REQUESTS:
        badge += f" · {row['fit_parallel']} at a time"
    return badge


def is_slow(ask: Ask) -> bool:
    """Above 8B parameters, by the number a model is sold under: decoding is bound by memory bandwidth."""
    return round(ask.model.params / 1e9) > SLOW_ABOVE_PARAMS


def line_of(ask: Ask, machine: Machine, row: dict[str, Any]) -> str:
    """The library's one line a machine."""
    if row["refused"]:
        return str(row["refused"])
    if row["fits"]:
        if row["fit_gpus"] == 0:
            return "CPU only · slow" if is_slow(ask) else "CPU only"
        backend = _BACKENDS.get(machine.gpu.backend if machine.gpu else "", "")
        return f"{row['fit_gpus']}× {gpu_name(machine)} ✓{' · ' + backend if backend else ''}"
    if row["limit"] == "disk":
        if machine.disk_free_bytes == -1:
            return CHOOSE_DATA
        return f"needs {show_gb(row['download_bytes'])} of disk, has {show_gb(machine.disk_free_bytes or 0)}"
    if row["limit"] == "gpus":
        return f"needs {row['fit_gpus']} GPUs, has {machine.count}"
    if row["needs"]:
        return f"needs {row['needs']} GPUs, has {machine.count * max(1, machine.nodes)}"
    need = f"needs {row['total_bytes'] / 1e9:,.0f} GB of GPU memory"
    if machine.gpu is None or not machine.count:
        return f"{need}; it has no GPU"
    return f"{need}; its GPUs have {machine.gpu.nominal_bytes / GIB:,.0f} GB"


def gpu_name(machine: Machine) -> str:
    """The GPU's name as it stands in a line."""
    return machine.gpu.name if machine.gpu else machine.name


def _yes(ask: Ask, machine: Machine, row: dict[str, Any]) -> str:
    need, usable = row["need_per_gpu_bytes"], row["usable_per_gpu_bytes"]
    if row["fit_gpus"] == 0:
        return f"runs from RAM: {show_gib(need)} of {show_gib(usable)} usable, {_at_once(row)}."
    where = "" if row["fit_gpus"] == 1 else " on each"
    text = (
        f"fits on {row['fit_gpus']}× {gpu_name(machine)}: {show_gib(need)} of {show_gib(usable)} usable{where}, "
        f"{show_gib(usable - need)} free; {_at_once(row)}"
    )
    if row["max_parallel"] > row["fit_parallel"]:
        text += f", room for {row['max_parallel']:,}"
    if row["host_bytes"] > _WORTH_TELLING:
        text += f"; {show_gib(row['host_bytes'])} of RAM beside"
    return text + "." + _straddles(row, usable)


def _no(ask: Ask, machine: Machine, row: dict[str, Any]) -> str:
    need, usable = row["need_per_gpu_bytes"], row["usable_per_gpu_bytes"]
    if row["limit"] == "disk":
        if machine.disk_free_bytes == -1:
            return "it would fit the memory, but the machine has no place for models yet."
        return f"the download of {show_gb(row['download_bytes'])} is more than the {show_gb(machine.disk_free_bytes or 0)} free where models are kept."
    if row["limit"] == "gpus":
        return f"{row['fit_gpus']} GPUs were asked of {machine.name}, which has {machine.count}."
    if not machine.count:
        if not machine.ram_bytes:
            return f"{machine.name} has no GPU and nobody said how much RAM: give ram_gb."
        return (
            f"does not fit in RAM: {show_gib(need)} needed, {show_gib(usable)} usable of {show_gib(machine.ram_bytes)}."
        )
    if row["limit"] == "host_memory":
        return f"does not fit on {machine.name}: its RAM of {show_gib(machine.ram_bytes)} does not hold what llama.cpp keeps beside the GPU."
    each = "" if row["fit_gpus"] == 1 else " each"
    text = (
        f"does not fit on {row['fit_gpus']}× {gpu_name(machine)}: {_TERMS.get(row['limit'], 'the ' + row['limit'].replace('_', ' '))} "
        f"{'go' if row['limit'] in _SEVERAL else 'goes'} over; {show_gib(need)} needed{each}, {show_gib(usable)} usable, "
        f"{show_gib(need - usable)} short with {_requests(row)}"
    )
    if row["needs_nodes"] > 1:
        text += f"; {row['needs']} of these GPUs over {row['needs_nodes']} machines would hold it"
    elif row["needs"]:
        text += f"; {row['needs']} of these GPUs would hold it"
    return text + "." + _straddles(row, usable)


def _requests(row: dict[str, Any]) -> str:
    many = row["fit_parallel"]
    return f"{many:,} request{'s' if many != 1 else ''} of {row['context']:,} tokens"


def _at_once(row: dict[str, Any]) -> str:
    return _requests(row) + " at once"


def _straddles(row: dict[str, Any], usable: int) -> str:
    low, high = row["per_gpu_low_bytes"], row["per_gpu_high_bytes"]
    if low <= usable < high and low < high:
        return f" It is close: between {show_gib(low)} and {show_gib(high)} may be needed."
    return ""
