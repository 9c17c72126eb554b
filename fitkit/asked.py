"""What a frame was asked with, carried along in its `attrs`, so that a single row can be asked again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fitkit.axes import Ask, asks, models_of
from fitkit.errors import BadInput, short
from fitkit.hardware import Machine, machine
from fitkit.model import Model
from fitkit.verdict import holds_at

ATTR = "fitkit"
_NEEDED = ("model", "engine", "rules", "quant", "kv_dtype", "context")


@dataclass(eq=False)
class Asked:
    """Models, machines and settings of one question by their names."""

    models: dict[str, Model]
    machines: dict[str, Machine]
    settings: dict[tuple[str, str], Any] = field(default_factory=dict)  # by (rules, engine)
    profile: Any = None

    @classmethod
    def of(cls, found: list[Ask], machines: list[Machine]) -> Asked:
        """What `found` and `machines` were made from."""
        return cls(
            models={ask.model.name: ask.model for ask in found},
            machines={one.name: one for one in machines},
            settings={(ask.rules, ask.engine): ask.settings for ask in found},
            profile=found[0].profile if found else None,
        )


class Token(str):
    """A text for everyone else (frames are copied, compared and written with their attrs), what was asked for us."""

    asked: Asked

    def __new__(cls, asked: Asked) -> Token:
        """A token that carries `asked`."""
        token = super().__new__(cls, "fitkit")
        token.asked = asked
        return token

    def __deepcopy__(self, memo: object) -> Token:
        return self

    def __copy__(self) -> Token:
        return self


_LATEST: deque[Asked] = deque(maxlen=32)


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
    asked = token.asked if isinstance(token, Token) else _find(values)
    rules, engine = str(values["rules"]), str(values["engine"])
    settings = asked.settings.get((rules, engine)) if asked else None
    return RowQuestion(
        model=_model(values, asked),
        machine=_machine(values, asked),
        quant=str(values["quant"]),
        kv_dtype=str(values["kv_dtype"]),
        context=int(values["context"]),
        parallel=whole(values.get("parallel")),
        gpus=whole(values.get("gpus")),
        engine=settings if rules == "engine" and settings is not None else engine,
        rules=settings if rules != "engine" and settings is not None else rules,
        profile=asked.profile if asked else None,
        row=values,
    )


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


def _find(values: Mapping[str, Any]) -> Asked | None:
    """The latest question with this row's names, for rows that lost their attrs (a dict, a named tuple)."""
    name = values.get("machine")
    return next(
        (one for one in _LATEST if values["model"] in one.models and (not name or name in one.machines)),
        None,
    )


def _model(values: Mapping[str, Any], asked: Asked | None) -> Model:
    name = str(values["model"])
    return asked.models[name] if asked and name in asked.models else models_of(name)[0]


def _machine(values: Mapping[str, Any], asked: Asked | None) -> Machine | None:
    name = values.get("machine")
    if not name or name is pd.NA:
        return None
    return asked.machines[name] if asked and name in asked.machines else machine(str(name))
