"""What a frame was asked with, carried along in its `attrs`, so that a single row can be asked again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from fitkit.errors import BadInput, FitError, short
from fitkit.hardware import Machine, machine
from fitkit.model import Model
from fitkit.tables.axes import Ask, Layout
from fitkit.tables.combine import asks
from fitkit.tables.resolve import models_of
from fitkit.tables.verdict import holds_at

ATTR = "fitkit"
K = TypeVar("K")
V = TypeVar("V")
_NEEDED = ("model", "engine", "rules", "quant", "kv_dtype", "context")


@dataclass(eq=False)
class Asked:
    """What one question was asked with, by name; a name may stand for several (the same card with and without a desktop)."""

    models: dict[str, list[Model]]
    machines: dict[str, list[Machine]]
    settings: dict[tuple[str, str], list[Any]]  # by (rules, engine)
    profile: Any = None

    @classmethod
    def of(cls, found: list[Ask], machines: list[Machine]) -> Asked:
        """What `found` and `machines` were made from."""
        return cls(
            models=_by_name((ask.model.name, ask.model) for ask in found),
            machines=_by_name((one.name, one) for one in machines),
            settings=_by_name(((ask.rules, ask.engine), ask.settings) for ask in found),
            profile=found[0].profile if found else None,
        )


def _by_name(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    out: dict[K, list[V]] = {}
    for name, value in pairs:
        known = out.setdefault(name, [])
        if not any(value is other for other in known):
            known.append(value)
    return out


class Token(str):
    """A text for everyone else (frames are copied and written with their attrs), what was asked for us.

    Equal to itself alone, so that frames of different questions lose it when they are joined.
    """

    asked: Asked

    def __new__(cls, asked: Asked) -> Token:
        """A token that carries `asked`."""
        token = super().__new__(cls, "fitkit")
        token.asked = asked
        return token

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __deepcopy__(self, memo: object) -> Token:
        return self

    def __copy__(self) -> Token:
        return self


_LATEST: deque[Asked] = deque(maxlen=32)
_MOST_CANDIDATES = 64


def mark(table: pd.DataFrame, found: list[Ask], machines: list[Machine]) -> pd.DataFrame:
    """`table` with what it was asked with."""
    asked = Asked.of(found, machines)
    _LATEST.appendleft(asked)
    table.attrs[ATTR] = Token(asked)
    return table


@dataclass(frozen=True, kw_only=True)
class RowQuestion:
    """One row as the question it answers."""

    model: Model
    machine: Machine | None
    quant: str
    kv_dtype: str
    context: int
    parallel: int | None
    gpus: int | None
    engine: Any  # a name or a settings object
    rules: Any
    profile: Any
    row: Mapping[str, Any]

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """As arguments of `fit`, some of them changed."""
        return {
            "models": self.model,
            "machines": self.machine,
            "quants": self.quant,
            "contexts": self.context,
            "parallel": self.parallel,
            "kv_dtypes": None if "/" in self.kv_dtype else self.kv_dtype,
            "engine": self.engine,
            "rules": self.rules,
            "gpus": self.gpus,
            "profile": self.profile,
        } | changes

    def ask(self, **changes: Any) -> Ask:
        """As the tables see it, with some of `fit`'s arguments changed."""
        with_changes = self.arguments(**changes)
        names = ("quants", "kv_dtypes", "engine", "rules", "profile")
        return asks([self.model], *(with_changes[name] for name in names))[0]

    def holds(self, **changes: Any) -> bool:
        """Whether it fits with some of `fit`'s arguments changed: the same calculation as `fit`, told as yes or no."""
        arguments = self.arguments(**changes)
        if arguments["machines"] is None:
            return False
        context, parallel = int(arguments["contexts"]), arguments["parallel"] or 0
        ask = self.ask(**changes)
        gpus = arguments["gpus"] if arguments["gpus"] is not None else ask.own_gpus
        return holds_at(ask, arguments["machines"], context, parallel, gpus)


def question(row: Any) -> RowQuestion:
    """The question that one row of `demand` or `fit` answers.

    Raises BadInput where it is no such row.
    """
    values = _mapping(row)
    missing = [name for name in _NEEDED if name not in values]
    if missing:
        raise BadInput(f"A row of fk.fit or fk.demand was expected; this one has no {', '.join(missing)}.")
    token = getattr(row, "attrs", {}).get(ATTR)
    recent = [token.asked] if isinstance(token, Token) else list(_LATEST)
    found = list(islice(_candidates(values, recent), _MOST_CANDIDATES))
    if len(found) > 1:
        return next((one for one in found if _reproduces(one)), found[0])
    return (
        found[0]
        if found
        else _candidate(values, models_of(str(values["model"]))[0], _named_machine(values), None, None)
    )


def _candidates(values: Mapping[str, Any], recent: Iterable[Asked]) -> Iterator[RowQuestion]:
    """Every question asked lately that a row with these names can belong to."""
    rules, engine = str(values["rules"]), str(values["engine"])
    name = values.get("machine")
    for asked in recent:
        machines: list[Machine | None] = [None] if _nothing(name) else [*asked.machines.get(str(name), ())]
        of_model, settings = asked.models.get(str(values["model"]), []), asked.settings.get((rules, engine), [])
        for model, one, setting in product(of_model, machines, settings):
            yield _candidate(values, model, one, setting, asked.profile)


def _candidate(
    values: Mapping[str, Any], model: Model, one: Machine | None, settings: Any, profile: Any
) -> RowQuestion:
    rules, engine = str(values["rules"]), str(values["engine"])
    return RowQuestion(
        model=model,
        machine=one,
        quant=str(values["quant"]),
        kv_dtype=str(values["kv_dtype"]),
        context=int(values["context"]),
        parallel=whole(values.get("parallel")),
        gpus=whole(values.get("gpus")),
        engine=settings if rules == "engine" and settings is not None else engine,
        rules=settings if rules != "engine" and settings is not None else rules,
        profile=profile,
        row=values,
    )


def _reproduces(asked: RowQuestion) -> bool:
    """Whether this question gives the row's numbers."""
    total, gpus = whole(asked.row.get("total_bytes")), whole(asked.row.get("fit_gpus", asked.row.get("gpus")))
    if total is None or gpus is None:
        return True
    way = Layout(gpus, whole(asked.row.get("fit_nodes")) or 1)
    requests = whole(asked.row.get("fit_parallel", asked.row.get("parallel"))) or 1
    try:
        ask = asked.ask()
        assert ask.counted is not None
        job = ask.job(gpus, asked.machine.gpu if asked.machine and gpus else None, way.nodes)
        allocation = ask.counted.allocate(job, np.array([asked.context]), np.array([requests]))
        usable = ask.usable(asked.machine, way) if asked.machine else None
    except FitError:
        return False
    return int(allocation.total[0]) == total and usable == whole(asked.row.get("usable_per_gpu_bytes"))


def whole(value: Any) -> int | None:
    """A row's whole number, None for NA."""
    return None if value is None or value is pd.NA or value != value else int(value)


def _mapping(row: Any) -> Mapping[str, Any]:
    if isinstance(row, pd.DataFrame):
        if len(row) != 1:
            raise BadInput(f"One row was expected, not a frame of {len(row)}: take frame.iloc[0].")
        row = row.iloc[0]
    if isinstance(row, pd.Series):
        return dict(zip(map(str, row.index), row.tolist(), strict=True))
    if isinstance(row, Mapping):
        return row
    if hasattr(row, "_asdict"):
        return dict(row._asdict())
    raise BadInput(f"A row of fk.fit or fk.demand was expected, not {short(row)}.")


def _named_machine(values: Mapping[str, Any]) -> Machine | None:
    name = values.get("machine")
    return None if _nothing(name) else machine(str(name))


def _nothing(name: Any) -> bool:
    return name is None or name is pd.NA or name != name or name == ""
