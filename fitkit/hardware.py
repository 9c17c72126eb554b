"""Gpu and Machine: what there is to run on. Facts come from facts/gpus.csv, facts/machines.csv and facts/apple_limits.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, cast

from fitkit import facts
from fitkit.errors import BadInput, UnknownName, short
from fitkit.facts.apple import working_set
from fitkit.gpu_names import counted, gpu_row, size_gib, whole_bytes, whole_count, with_memory
from fitkit.keywords import told
from fitkit.units import GB, GIB, MIB

Backend = Literal["cuda", "rocm", "metal", "vulkan", "xpu", "cpu", "other"]
_BACKENDS = ("cuda", "rocm", "metal", "vulkan", "xpu", "cpu", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator as an engine sees it. Sizes [bytes]; a reported one is 0 where nobody reported it.

    `nominal_bytes` is the marketed size read as GiB (SPEC 1), `driver_bytes` what nvidia-smi and the like show,
    `torch_bytes` what PyTorch sees. Rules of engines use `seen_bytes`, the three published rule sets `nominal_bytes`.
    """

    name: str
    vendor: str
    nominal_bytes: int
    driver_bytes: int = 0
    torch_bytes: int = 0
    usable_bytes: int = 0  # where the system itself limits the GPU: what every macOS lets it use, an AMD chip's share
    usable_high_bytes: int = 0  # what the newest macOS lets it use, where versions differ
    backend: Backend = "cuda"
    compute_arch: str = ""  # sm_90, gfx1100, ...
    bandwidth_bytes_per_s: int = 0
    unified: bool = False  # memory shared with the CPU
    devices: int = 1  # such devices on one card as it is sold (MI250X: 2)
    source: str = ""

    @property
    def seen_bytes(self) -> int:
        """The most specific figure known: torch's, else the driver's, else the nominal."""
        return self.torch_bytes or self.driver_bytes or self.nominal_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A computer: `count` equal GPUs (0: none), RAM and disk. RAM 0 means not known; disk None not known, -1 no data location."""

    name: str
    gpu: Gpu | None
    count: int
    ram_bytes: int = 0
    disk_free_bytes: int | None = None
    taken_bytes: int = 0  # of each GPU, already used by others
    nodes: int = 1  # equal machines linked together
    source: str = ""

    @property
    def gpu_nominal_gib(self) -> float:
        """Nominal memory of one GPU [GiB]."""
        return self.gpu.nominal_bytes / GIB if self.gpu else 0.0


def gpu(name: str, *, macos: str = "") -> Gpu:
    """The GPU of this name, forgiving in case and punctuation.

    Short names mean the common variant ("h100" and "a100" are the SXM cards of 80 GB). A size alone ("24 GiB", "24GB":
    a card's GB is read as GiB) is a GPU not listed. Apple chips are named with their memory ("M4 Max 128GB"); `macos`
    ("14", "15", "26") chooses the limit of that version, else the lower one holds.

    Raises UnknownName with the nearest names.

    >>> gpu("rtx-4090").driver_bytes // 2**20
    24564
    """
    if not isinstance(name, str):
        raise BadInput(f"A GPU's name such as 'RTX 4090' was expected, not {short(name)}.")
    size = size_gib(name)
    if size is not None:
        return Gpu(
            name=f"{size:g} GiB GPU", vendor="", nominal_bytes=whole_bytes("GPU memory", size, GIB), source="as given"
        )
    return _gpu(gpu_row(name)["name"], macos)


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every GPU of the catalog, in its order."""
    return tuple(_gpu(row["name"], "") for row in facts.rows("gpus"))


@told
def machine(
    text: str | Machine,
    *,
    ram_gb: float | None = None,
    disk_free_gb: float | None = None,
    data_location: bool = True,
    taken_gib: float | None = None,
    nodes: int | None = None,
    backend: str | None = None,
    macos: str = "",
    gpu_limit_gib: float | None = None,
) -> Machine:
    """A machine in one line: a catalog name ("DGX H100", "AWS p5"), GPUs ("8x H100 80GB", "RTX 4090", "2x 24 GiB") or "CPU".

    Parameters
    ----------
    text
        Counts may be written 8x, 8 x, 8× or 8X. A count before a catalog machine of several GPUs means that many nodes.
        Apple: "M4 Max 128GB", "Mac Studio M3 Ultra 512GB", or "M4 Max" with ``ram_gb=128``.
    ram_gb, disk_free_gb
        RAM of one machine and free space where models are kept [GB = 10^9 bytes].
    data_location
        False: the machine has no place for models yet.
    taken_gib
        What others already hold of each GPU [GiB].
    nodes
        How many such machines work together.
    backend
        Of a GPU not listed: cuda (unless said), rocm, metal, vulkan, xpu, cpu, other.
    macos, gpu_limit_gib
        The macOS version whose limit holds, or the limit set by hand (`sysctl iogpu.wired_limit_mb`) [GiB].

    Raises BadInput for impossible values, UnknownName for names no table knows.

    >>> machine("8 × h100").name
    '8x H100 80GB'
    """
    found = text if isinstance(text, Machine) else _read(text, ram_gb, macos)
    chip = found.gpu
    if chip is not None and backend is not None:
        if backend not in _BACKENDS:
            raise UnknownName.among("backend", backend, _BACKENDS)
        chip = replace(chip, backend=cast(Backend, backend))
    if gpu_limit_gib is not None:
        if chip is None:
            raise BadInput("gpu_limit_gib was given for a machine without a GPU.")
        limit = whole_bytes("gpu_limit_gib", gpu_limit_gib, GIB, high=chip.nominal_bytes)
        chip = replace(chip, usable_bytes=limit, usable_high_bytes=limit)
    if taken_gib is not None and chip is None:
        raise BadInput("taken_gib was given for a machine without a GPU.")
    changes: dict[str, object] = {"gpu": chip}
    if ram_gb is not None and not (chip and chip.vendor == "apple"):
        changes["ram_bytes"] = whole_bytes("ram_gb", ram_gb, GB)
    if disk_free_gb is not None:
        changes["disk_free_bytes"] = whole_bytes("disk_free_gb", disk_free_gb, GB, low=0)
    if not data_location:
        changes["disk_free_bytes"] = -1
    if taken_gib is not None and chip is not None:
        changes["taken_bytes"] = whole_bytes("taken_gib", taken_gib, GIB, low=0, high=chip.nominal_bytes)
    if nodes is not None:
        changes["nodes"] = whole_count(nodes, "nodes") * (found.nodes if isinstance(text, str) else 1)
    return replace(found, **changes)  # type: ignore[arg-type]


@cache
def all_machines() -> tuple[Machine, ...]:
    """Every machine of the catalog, in its order."""
    return tuple(_machine(row) for row in facts.rows("machines"))


# ---- reading a line -----------------------------------------------------------------------------------------------------


def _read(text: object, ram_gb: float | None, macos: str) -> Machine:
    """The machine a line names."""
    if not isinstance(text, str) or not text.strip() or len(text) > 200:
        raise BadInput(f"A machine such as '8x H100 80GB', 'RTX 4090' or 'CPU' was expected, not {short(text)}.")
    if facts.fold(text) in ("cpu", "cpuonly", "none", "nogpu"):
        return Machine(name="CPU", gpu=None, count=0, source="as given")
    row = facts.find("machines", text)
    if row is not None:
        return _machine(row, macos)
    count, rest = counted(text)
    row = facts.find("machines", rest)
    if row is not None:
        one = _machine(row, macos)
        if one.count == 1 and one.gpu is not None and not one.gpu.unified:
            return replace(one, name=f"{count}x {one.name}", count=count)
        return replace(one, name=f"{count}x {one.name}", nodes=count)
    chip = gpu(with_memory(rest, ram_gb), macos=macos)
    name = chip.name.removesuffix(" GPU") if not chip.vendor else chip.name
    return Machine(
        name=f"{count}x {name}",
        gpu=chip,
        count=count * chip.devices,
        ram_bytes=chip.nominal_bytes if chip.unified else 0,
        source=chip.source,
    )


# ---- rows to values -----------------------------------------------------------------------------------------------------


@cache
def _gpu(name: str, macos: str) -> Gpu:
    row = facts.get("gpus", name, "GPU")
    nominal = _scaled(row["nominal_gib"], GIB)
    if row["vendor"] == "apple":
        low, high = working_set(nominal, macos)
    else:  # an AMD chip's share of its memory is set in the firmware
        low = high = _scaled(row["torch_gib"], GIB) if row["unified"] == "yes" and row["vendor"] == "amd" else 0
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        nominal_bytes=nominal,
        driver_bytes=_scaled(row["driver_mib"], MIB),
        torch_bytes=_scaled(row["torch_gib"], GIB),
        usable_bytes=low,
        usable_high_bytes=high,
        backend=cast(Backend, row["backend"]),
        compute_arch=row["compute_arch"],
        bandwidth_bytes_per_s=_scaled(row["bandwidth_gb_s"], GB),
        unified=row["unified"] == "yes",
        devices=int(row["devices"]),
        source=row["source"],
    )


def _machine(row: Mapping[str, str], macos: str = "") -> Machine:
    chip = _gpu(facts.get("gpus", row["gpu"], "GPU")["name"], macos)
    return Machine(
        name=row["name"],
        gpu=chip,
        count=int(row["count"]) * chip.devices,
        ram_bytes=_scaled(row["ram_gib"], GIB),
        source=row["source"],
    )


def _scaled(text: str, unit: int) -> int:
    return round(float(text) * unit) if text else 0
