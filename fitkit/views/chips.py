"""What else to try: changes that `fk.suggest` and the rows themselves name, each as words and the change of the question."""

from __future__ import annotations

from typing import Any

from fitkit.views.asking import Asker
from fitkit.views.state import State

Chip = tuple[str, dict[str, Any]]


def chips(asker: Asker, state: State, row: Any) -> list[Chip]:
    """A handful of changes, best first."""
    return []
