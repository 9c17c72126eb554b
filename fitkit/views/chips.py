"""What else to try: the changes `fk.suggest` names and has checked, as words and as changes of the page's question."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fitkit.views.state import MOST_MACHINES, State

Chip = tuple[str, dict[str, Any]]
_NAMES = {"contexts": "context", "parallel": "parallel", "kv_dtypes": "kv", "quants": "quant"}
_MOST = 5


def chips(state: State, suggested: pd.DataFrame) -> list[Chip]:
    """The first few changes that the page's controls can take over."""
    out: list[Chip] = []
    for text, changes in zip(suggested["change"], suggested["changes"], strict=True):
        wanted = _as_state(state, changes)
        if wanted:
            out.append((str(text)[:1].upper() + str(text)[1:], wanted))
    return out[:_MOST]


def _as_state(state: State, changes: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `fit` as the page's names; empty where a control is missing for one of them."""
    out: dict[str, Any] = {}
    for name, value in changes.items():
        if name in _NAMES:
            out[_NAMES[name]] = value
        elif name == "gpus":
            out["gpus"] = "auto" if value is None else str(value)
        elif name == "machines" and len(state.machines) < MOST_MACHINES:
            out |= {"machines": list(dict.fromkeys([*state.machines, value.name])), "lead": value.name}
        elif name in ("rules", "engine") and hasattr(value, "gpu_memory_utilization"):
            out["util"] = value.gpu_memory_utilization
        elif name not in ("rules", "engine"):
            return {}
    return out
