"""What a plan's JSON holds: settings, machines and models as plain values, and those again from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from fitkit.errors import BadInput, FitError, short
from fitkit.hardware import Gpu, Machine
from fitkit.model import Model
from fitkit.tables.resolve import models_of

_SETTINGS = {
    "Library": "fitkit.rules.published.library",
    "Budget": "fitkit.rules.published.budget",
    "Shard": "fitkit.rules.published.shard",
    "LlamaCpp": "fitkit",
    "VLLM": "fitkit",
}
_NEWER = ("data_parallel",)  # entries that plans of before do not have


def recorded(settings: Any) -> Mapping[str, Any]:
    """A settings object as its class and what was set, {} for a plain name."""
    if isinstance(settings, str):
        return {}
    kind = next(name for name in (base.__name__ for base in type(settings).__mro__) if name in _SETTINGS)
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    kept = {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if _simple(value)
    }
    return {"kind": kind, **kept}


def _simple(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_simple, value))
    if isinstance(value, Mapping):
        return all(map(_simple, value.values()))
    return value is None or isinstance(value, str | int | float | bool)


def settings_again(record: Any, name: str) -> Any:
    if not record:
        return name
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items() if key != "kind"}
    kind = record.get("kind")
    if kind not in _SETTINGS:
        raise BadInput(f"The plan's settings are of an unknown kind {short(kind)}.")
    try:
        return getattr(import_module(_SETTINGS[kind]), kind)(**values)
    except TypeError as error:
        raise BadInput(f"The plan's settings of {kind} are not understood: {error}.") from None


def machine_again(record: Mapping[str, Any]) -> Machine:
    values = dict(record)
    try:
        gpu = values.pop("gpu", None)
        return Machine(gpu=Gpu(**gpu) if gpu else None, **values)
    except TypeError as error:
        raise BadInput(f"The plan's machine is not understood: {error}.") from None


def model_again(name: str, source: str) -> Model:
    """The model again, by its name in the catalog or by where it came from."""
    try:
        return models_of(name)[0]
    except FitError:
        if not source or source == "config.json":
            raise
        return models_of(source)[0]


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def checked(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a plan with the right kinds of values; BadInput names the first that is not."""
    known = {one.name: one for one in fields(kind) if not one.name.startswith("_")}
    given = {name: value for name, value in values.items() if name != "fitkit_plan"}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise BadInput(f"The plan has an unknown entry {short(unknown[0])}.")
    expected = {"str": str, "int": int, "bool": bool, "float": (int, float)}
    for name, one in known.items():
        if name not in given and name in _NEWER:
            continue
        if name not in given:
            raise BadInput(f"The plan has no {name}.")
        wanted: Any = expected.get(str(one.type), (dict, list))
        if not isinstance(given[name], wanted) or (wanted is int and isinstance(given[name], bool)):
            raise BadInput(f"The plan's {name} is {short(given[name])}, which it cannot be.")
    if not all(isinstance(term, dict) for term in given["terms"]):
        raise BadInput("The plan's terms are not understood.")
    given["terms"] = tuple(given["terms"])
    return given
