"""What the page is asked: one frozen value that the controls, the address and a saved plan all read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlencode

from fitkit import facts
from fitkit.errors import BadInput, UnknownName, short
from fitkit.plans import Plan
from fitkit.rules import ENGINES
from fitkit.units import GIB, parse_count

RULES = ("engine", "library", "budget", "shard")
MOST_MACHINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The whole question. `lead` is the machine of the big line; `gpus` "auto" takes the fewest that do."""

    model: str = "llama-3.1-8b"
    quant: str = "Q4_K_M"
    engine: str = "llama.cpp"
    rules: str = "engine"
    context: int = 8192
    parallel: int = 4
    kv: str = "f16"
    util: float = 0.92
    machines: tuple[str, ...] = ("1x RTX 4090", "2x RTX 3090", "1x H100 80GB")
    lead: str = "1x RTX 4090"
    gpus: str = "auto"
    taken: float = 0.0

    @property
    def taken_bytes(self) -> int:
        """Memory others hold of each GPU [bytes]."""
        return round(self.taken * GIB)

    def read(self, given: Mapping[str, Any]) -> tuple[State, dict[str, str]]:
        """The state with what `given` changes, and a sentence for each value that cannot be taken over."""
        changes: dict[str, Any] = {}
        errors: dict[str, str] = {}
        for name, reader in _READERS.items():
            if name not in given:
                continue
            try:
                changes[name] = reader(given[name])
            except BadInput as error:
                errors[name] = str(error)
        if "machines" in errors:  # the line that could not be read was to be the leading one
            changes.pop("lead", None)
            errors.pop("lead", None)
        out = replace(self, **changes)
        if out.lead not in out.machines:
            out = replace(out, lead=out.machines[0] if out.machines else "")
        return out, errors

    def query(self) -> str:
        """The part of an address that brings this question back; what is as at the start is left out."""
        start = asdict(State())
        values = {key: value for key, value in asdict(self).items() if value != start[key]}
        if "model" in values:
            values["quant"] = self.quant  # another model opens with its own
        return urlencode({_SHORT.get(key, key): value for key, value in values.items()}, doseq=True)

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "machines": list(self.machines)}


def from_query(query: str) -> dict[str, Any]:
    """What an address asks for, by the state's names; unknown keys are left out."""
    long = {_SHORT.get(key, key): key for key in asdict(State())}
    try:
        found = parse_qs(query[:4000], max_num_fields=64)
    except ValueError:
        return {}
    return {
        long[key]: values if long[key] == "machines" else values[-1] for key, values in found.items() if key in long
    }


_SHORT = {"context": "ctx", "parallel": "requests", "machines": "machine"}


def _name(what: str, known: Callable[[], Any]) -> Callable[[object], str]:
    """A reader for one of a closed list of names, forgiving in case."""

    def read(value: object) -> str:
        names = {str(name).casefold(): str(name) for name in known()}
        found = names.get(str(value)[:100].casefold())
        if found is None:
            raise UnknownName.among(what, value, names.values())
        return found

    return read


def _row(table: str, what: str) -> Callable[[object], str]:
    return lambda value: facts.get(table, str(value)[:100], what)["name"]


def _text(value: object) -> str:
    text = str(value).strip()
    if not text or len(text) > 200:
        raise BadInput(f"A name was expected, not {short(value)}.")
    return text


def _number(what: str, low: float, high: float) -> Callable[[object], float]:
    """A reader for a number as people type it: 8192, "8,192", "32k" (of 1024)."""

    def read(value: object) -> float:
        number = parse_count(str(value))
        if number is None or not low <= number <= high:
            raise BadInput(f"{what} from {low:,g} to {high:,.10g} was expected, not {short(value)}.")
        return number

    return read


def _whole(what: str, low: int, high: int) -> Callable[[object], int]:
    read = _number(what, low, high)

    def whole(value: object) -> int:
        number = read(value)
        if number != int(number):
            raise BadInput(f"{what} is a whole number, not {short(value)}.")
        return int(number)

    return whole


def _machines(value: object) -> tuple[str, ...]:
    from fitkit.hardware import machine

    given = value if isinstance(value, list | tuple) else [value]
    names = tuple(dict.fromkeys(machine(str(text)).name for text in given))
    if len(names) > MOST_MACHINES:
        raise BadInput(f"At most {MOST_MACHINES} machines are shown side by side, {len(names)} were given.")
    return names


def _lead(value: object) -> str:
    from fitkit.hardware import machine

    return machine(str(value)).name if value else ""


_READERS: dict[str, Callable[[Any], Any]] = {
    "model": _text,
    "quant": _row("quants", "quantization"),
    "engine": _name("engine", lambda: ENGINES),
    "rules": _name("rules", lambda: RULES),
    "context": _whole("A number of tokens", 1, 2**30),
    "parallel": _whole("A number of requests", 1, 65536),
    "kv": _row("kv_dtypes", "KV cache type"),
    "util": _number("A share of GPU memory", 0.05, 1),
    "machines": _machines,
    "lead": _lead,
    "gpus": _name("number of GPUs", lambda: ("auto", *range(1, 1025))),
    "taken": _number("Memory already taken [GiB]", 0, 1024),
}


def from_plan(text: str, now: State) -> dict[str, Any]:
    """The question of a saved plan, its machine added to the chosen ones. Raises BadInput where the text is no plan."""
    plan = Plan.from_json(text)
    given: dict[str, Any] = {
        name: getattr(plan, name) for name in ("model", "quant", "engine", "rules", "context", "parallel")
    }
    given["kv"] = plan.kv_dtype.split("/")[0]
    if plan.machine:
        others = [name for name in now.machines if name != plan.machine][: MOST_MACHINES - 1]
        taken = plan.machine_facts.get("taken_bytes") or 0
        given |= {"machines": [plan.machine, *others], "lead": plan.machine, "gpus": plan.gpus, "taken": taken / GIB}
    for settings in plan.settings.values():
        if settings and "gpu_memory_utilization" in settings:
            given["util"] = settings["gpu_memory_utilization"]
    return given
