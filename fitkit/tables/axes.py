"""One question without its numbers: a model under a quantization, cache type, engine and rule set; and one way to lay it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fitkit.hardware import Gpu, Machine
from fitkit.model import Model
from fitkit.rules import Job, Rules
from fitkit.tables.resolve import own_quant

_AS_PUBLISHED = ("MXFP4_MOE", "BF16", "F16", "F32")  # file types that leave experts of an MXFP4 checkpoint as they are


@dataclass(frozen=True, slots=True)
class Layout:
    """So many GPUs over so many equal machines; `beyond` where the machine asked about has fewer."""

    gpus: int
    nodes: int = 1
    beyond: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One model under one quantization, cache type, engine and rule set; what is left are context, requests, GPUs, machine."""

    model: Model
    quant: str
    kv_dtype: str
    engine: str
    rules: str
    bits: float
    counted: Rules | None
    settings: Any = None
    profile: Any = None
    refusal: str = ""  # why it cannot run at all
    own_gpus: int | None = None  # what the settings object says, None where it leaves that to the fit
    pools: dict[tuple[int, int, str, int], int] = field(default_factory=dict, compare=False, repr=False)

    def job(self, gpus: int, gpu: Gpu | None = None, nodes: int = 1) -> Job:
        """The rules' view of it on so many GPUs."""
        return Job(
            model=self.model,
            quant=self.quant,
            kv_dtype=self.kv_dtype,
            gpus=gpus,
            nodes=nodes,
            gpu=gpu,
            engine=self.engine,
            settings=self.settings,
            profile=self.profile,
            bits=self.bits,
        )

    def usable(self, machine: Machine, way: Layout) -> int:
        """What of one card (of RAM, without a GPU) the work may take, less what others hold of it [bytes]."""
        assert self.counted is not None
        if way.gpus == 0:
            return int(machine.ram_bytes * getattr(self.counted, "ram_share", 0.9))
        usable = self.counted.usable_bytes(self.job(way.gpus, machine.gpu, way.nodes))
        return max(0, usable - machine.taken_bytes) if self.takes_used_memory else usable

    @property
    def takes_used_memory(self) -> bool:
        """Whether what others hold is missing to the work; vLLM's share is of the whole card, and they have to fit in the rest."""
        return self.rules != "engine" or self.engine == "llama.cpp"

    def reserved(self, machine: Machine, way: Layout) -> int:
        """What the engine grabs of one card whatever the work [bytes]."""
        assert self.counted is not None
        return self.counted.reserved_bytes(self.job(way.gpus, machine.gpu, way.nodes)) if way.gpus else 0

    def pool(self, machine: Machine, way: Layout) -> int:
        """The most tokens that fit (-1: not even none) under rules that know it without a search; remembered over machines."""
        usable = self.usable(machine, way)
        gpu = machine.gpu if way.gpus else None
        key = (way.gpus, way.nodes, gpu.backend if gpu else "", usable)
        if key not in self.pools:
            most: Any = self.counted
            self.pools[key] = most.max_tokens(self.job(way.gpus, gpu, way.nodes), usable)
        return self.pools[key]

    @property
    def basis(self) -> str:
        """Where the bytes come from: a header's own file type, else the shape."""
        if self.model.basis == "estimate" and self.quant != own_quant(self.model):
            return "arch"
        return self.model.basis

    def note(self, said: str) -> str:
        """What is said with each row: what the rules say, and where the model's files contradict its config."""
        contradiction = self.model.get("mismatch", "") if self.basis == "estimate" else ""
        return " ".join(filter(None, (contradiction, said, self.requantized)))

    @property
    def requantized(self) -> str:
        """What is said of a file type that llama-quantize makes of experts published in 4 bits; empty for all others."""
        if self.engine != "llama.cpp" or self.model.quant != "MXFP4" or self.quant in _AS_PUBLISHED:
            return ""
        return (
            f"{self.quant} is counted as llama-quantize makes it of every tensor; published files of {self.model.name} keep the "
            "experts in MXFP4: ask for MXFP4_MOE."
        )

    @property
    def tries(self) -> tuple[int, ...]:
        """The numbers of requests tried where none is asked."""
        return (4, 2, 1) if self.engine == "llama.cpp" else (1,)
