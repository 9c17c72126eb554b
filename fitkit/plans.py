"""One deployment as a value: made once, asked again later, kept as JSON."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import ceil
from pathlib import Path
from typing import Any

from fitkit.answers import explain
from fitkit.commands import command, split_over
from fitkit.errors import BadInput, short
from fitkit.keywords import told
from fitkit.plan_json import checked, machine_again, model_again, plain, recorded, settings_again
from fitkit.tables import fit
from fitkit.tables.asked import RowQuestion, question, whole
from fitkit.units import MB

FORMAT = 1
_MOST_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class StillFits:
    """Whether a plan still holds after a change, and why; true or false by itself."""

    fits: bool
    reason: str

    def __bool__(self) -> bool:
        return self.fits


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One deployment.

    `min_gpu_memory_gb` is what each GPU is asked for [GB = 10^9 bytes], `memory_basis` where it comes from (estimate, arch,
    catalog, weights). `terms` tell each part for one GPU and for all [bytes]. `waits`: no machine can take it now, and
    `reason` says why. Saved and loaded as JSON (`save`, `load`, `to_json`, `from_json`).
    """

    model: str
    quant: str
    engine: str
    rules: str
    context: int
    parallel: int
    kv_dtype: str
    machine: str
    gpus: int
    nodes: int
    gpus_per_node: int
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: bool
    min_gpu_memory_gb: float
    memory_basis: str
    terms: tuple[Mapping[str, Any], ...]
    command: str
    waits: bool
    reason: str
    max_context: int
    max_parallel: int
    data_parallel: int = 1  # tensor x pipeline x data parallel are all GPUs
    source: str = ""  # where the model came from
    machine_facts: Mapping[str, Any] = field(
        default_factory=dict
    )  # the machine in full, so that it can be judged again
    settings: Mapping[str, Any] = field(default_factory=dict)  # what was set of the engine and of the rules
    _asked: RowQuestion | None = field(default=None, repr=False, compare=False)

    @told
    def still_fits(self, context: int | None = None, parallel: int | None = None) -> StillFits:
        """Whether the plan holds for another context [tokens a request] or number of requests, and why.

        The same calculation on the same GPUs as planned. Raises BadInput for impossible numbers.
        """
        if self.machine == "":
            return StillFits(fits=False, reason=self.reason)
        asked = self._asked or self._question()
        try:
            row = fit(
                **asked.arguments(
                    contexts=self.context if context is None else context,
                    parallel=self.parallel if parallel is None else parallel,
                    gpus=self.gpus,
                )
            ).iloc[0]
        except BadInput as error:
            if context is not None and isinstance(context, int) and context > 0:
                return StillFits(fits=False, reason=str(error))
            raise
        return StillFits(fits=bool(row["fits"]), reason=str(row["reason"]))

    def to_json(self) -> str:
        """As JSON text."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("_")}
        values["terms"] = [dict(term) for term in self.terms]
        return json.dumps({"fitkit_plan": FORMAT, **values}, indent=2, ensure_ascii=False, default=plain) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """A plan from its JSON text. Raises BadInput where it is none."""
        if not isinstance(text, str) or len(text) > _MOST_BYTES:
            raise BadInput("A plan's JSON text was expected.")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"This is no JSON: {error}.") from None
        if not isinstance(values, dict) or values.get("fitkit_plan") != FORMAT:
            raise BadInput(f"This is no plan of fitkit (fitkit_plan {FORMAT} was expected).")
        return cls(**checked(cls, values))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, whole or not at all."""
        target = Path(path)
        try:
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(self.to_json())
                Path(name).replace(target)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise BadInput(f"The plan cannot be written to {short(str(target))}: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """The plan of a file."""
        try:
            target = Path(path)
            if target.stat().st_size > _MOST_BYTES:
                raise BadInput(f"{target.name} is too large for a plan.")
            text = target.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"The plan {short(str(path))} cannot be read: {error}.") from None
        return cls.from_json(text)

    def _question(self) -> RowQuestion:
        """What was planned, from the plan's own record."""
        return RowQuestion(
            model=model_again(self.model, self.source),
            machine=machine_again(self.machine_facts),
            quant=self.quant,
            kv_dtype=self.kv_dtype,
            context=self.context,
            parallel=self.parallel,
            gpus=self.gpus,
            engine=settings_again(self.settings.get("engine"), self.engine),
            rules=settings_again(self.settings.get("rules"), self.rules),
            profile=None,
            row={},
        )


def plan(model: Any, machines: Any = None, **arguments: Any) -> Plan:
    """One deployment: takes `fit`'s arguments.

    Without a GPU count it takes the fewest that hold the model on the machine with the largest GPUs that can take it. If none
    can, the plan is still made, at one GPU (at all that a settings object asks for), with `waits` and the reason.

    Raises BadInput and UnknownName as `fit` does.

    Examples
    --------
    >>> import fitkit as fk
    >>> fk.plan("llama-3.1-8b", "8x H100 80GB", quants="Q4_K_M", rules="library").min_gpu_memory_gb
    9.753
    """
    table = fit(model, machines, **arguments)
    row = _choose(table)
    if not row["fits"] and row["machine"] and question(row).gpus is None:
        reason = str(row["reason"])
        row = fit(**question(row).arguments(gpus=1)).iloc[0]
        return _plan(row, waits=True, reason=reason)
    return _plan(row, waits=not row["fits"], reason=str(row["reason"]))


def _choose(table: Any) -> Any:
    """The fitting row on the largest GPUs, else the first on the largest."""
    sizes = []
    for position, (_, row) in enumerate(table.iterrows()):
        machine = question(row).machine
        size = machine.gpu.nominal_bytes if machine and machine.gpu and machine.count else 0
        sizes.append((not row["fits"], -size, position))
    return table.iloc[min(sizes)[2]]


def _plan(row: Any, *, waits: bool, reason: str) -> Plan:
    asked = question(row)
    gpus, nodes = whole(row["fit_gpus"]) or 0, whole(row["fit_nodes"]) or 1
    need = whole(row["need_per_gpu_bytes"])
    tensor, pipeline, data = split_over(asked, gpus, nodes)
    return Plan(
        model=asked.model.name,
        quant=asked.quant,
        engine=str(asked.row["engine"]),
        rules=str(asked.row["rules"]),
        context=asked.context,
        parallel=whole(row["fit_parallel"]) or asked.parallel or 1,
        kv_dtype=asked.kv_dtype,
        machine=asked.machine.name if asked.machine else "",
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=gpus // nodes,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
        expert_parallel=_expert_parallel(asked, gpus),
        min_gpu_memory_gb=0.0 if need is None else ceil(need / MB) / 1000,
        memory_basis=str(row["basis"]),
        terms=_terms(row),
        command="" if need is None else command(row),
        waits=waits,
        reason=reason,
        max_context=whole(row["max_context"]) or 0,
        max_parallel=whole(row["max_parallel"]) or 0,
        source=asked.model.source,
        machine_facts=asdict(asked.machine) if asked.machine else {},
        settings={"engine": recorded(asked.engine), "rules": recorded(asked.rules)},
        _asked=asked,
    )


def _expert_parallel(asked: RowQuestion, gpus: int) -> bool:
    if not asked.model.experts or gpus < 2 or asked.row["engine"] == "llama.cpp":
        return False
    return asked.row["rules"] == "shard" or bool(getattr(asked.engine, "enable_expert_parallel", False))


def _terms(row: Any) -> tuple[Mapping[str, Any], ...]:
    try:
        table = explain(row)
    except BadInput:
        return ()
    names = ["term", "bytes", "per_gpu_bytes", "per_gpu_low", "per_gpu_high", "evidence", "source"]
    return tuple(
        {str(key): value if isinstance(value, str) else int(value) for key, value in one.items()}
        for one in table[names].to_dict("records")
    )
