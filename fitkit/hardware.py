"""Gpu and Machine: what there is to run on. Facts come from facts/gpus.csv and facts/machines.csv."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fitkit.units import GIB

Backend = Literal["cuda", "rocm", "metal", "vulkan", "xpu", "cpu", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator. Sizes [bytes]; a reported one is 0 where nobody reported it.

    `nominal_bytes` is the marketed size read as GiB (SPEC 1), `driver_bytes` what nvidia-smi and the like show,
    `torch_bytes` what PyTorch sees. Rules of engines use `seen_bytes`, the three published rule sets `nominal_bytes`.
    """

    name: str
    vendor: str
    nominal_bytes: int
    driver_bytes: int = 0
    torch_bytes: int = 0
    usable_bytes: int = 0  # set where the system itself limits the GPU (Apple: what macOS lets it use)
    backend: Backend = "cuda"
    compute_arch: str = ""  # sm_90, gfx1100, ...
    bandwidth_bytes_per_s: int = 0
    unified: bool = False  # memory shared with the CPU
    source: str = ""

    @property
    def seen_bytes(self) -> int:
        """The most specific figure known: torch's, else the driver's, else the nominal."""
        return self.torch_bytes or self.driver_bytes or self.nominal_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A computer: `count` equal GPUs (0: none), RAM and disk. RAM and disk 0 mean not known, -1 disk means no data location."""

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
