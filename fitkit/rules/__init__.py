"""Rules: bytes a setting needs. Pure functions of (model, settings, grid); the registry finds the ones for a question."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TypeVar

from fitkit.errors import UnknownName, UnsupportedModel
from fitkit.rules.base import Allocation, Evidence, IntArray, Job, LinearRules, Rules, Term

__all__ = [
    "ENGINES",
    "REGISTRY",
    "Allocation",
    "Evidence",
    "IntArray",
    "Job",
    "LinearRules",
    "Rules",
    "Term",
    "register",
    "rules_for",
]

# Which file fills in what: read on first use, so that nothing is imported before it is asked for.
_ROOMS = {
    ("library", "llama.cpp"): "fitkit.rules.published.library",
    ("library", "vllm"): "fitkit.rules.published.library",
    ("budget", "vllm"): "fitkit.rules.published.budget",
    ("shard", "llama.cpp"): "fitkit.rules.published.shard",
    ("shard", "vllm"): "fitkit.rules.published.shard",
    ("shard", "sglang"): "fitkit.rules.published.shard",
    ("engine", "llama.cpp"): "fitkit.rules.llamacpp.adapter",
    ("engine", "vllm"): "fitkit.rules.vllm.adapter",
}
ENGINES = ("llama.cpp", "vllm", "sglang")
REGISTRY: dict[tuple[str, str], Rules] = {}
R = TypeVar("R", bound=Callable[[], Rules])


def register(rules: str, *engines: str) -> Callable[[R], R]:
    """Put one instance of the decorated class under (rules, engine) for each of `engines`."""

    def fill(make: R) -> R:
        instance = make()
        for engine in engines:
            REGISTRY[rules, engine] = instance
        return make

    return fill


def rules_for(rules: str, engine: str) -> Rules | None:
    """The rules registered for this pair, None where that rule set does not speak of that engine.

    Raises UnknownName for a rule set or an engine nobody knows.
    """
    if engine not in ENGINES:
        raise UnknownName.among("engine", engine, ENGINES)
    if rules not in {known for known, _ in _ROOMS}:
        raise UnknownName.among("rules", rules, dict.fromkeys(known for known, _ in _ROOMS))
    if (rules, engine) not in _ROOMS:
        return None
    if (rules, engine) not in REGISTRY:
        if find_spec(_ROOMS[rules, engine]) is None:
            raise UnsupportedModel(f"The {rules} rules for {engine} are not written yet; ask for the library's.")
        import_module(_ROOMS[rules, engine])
    return REGISTRY[rules, engine]
