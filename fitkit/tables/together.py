"""Many machines judged together: those the rules cannot tell apart share one verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fitkit.errors import BadInput, FitError
from fitkit.hardware import Machine
from fitkit.rules import IntArray
from fitkit.tables.axes import Ask
from fitkit.tables.columns import columns
from fitkit.tables.frames import Block
from fitkit.tables.verdict import Verdict, decide


def judge(
    ask: Ask, machines: Sequence[Machine], context: IntArray, parallel: IntArray, gpus: int | None
) -> tuple[list[Block], FitError | None]:
    """One block of `fit`'s columns a machine, and the error that says why nothing can run at all (else None)."""
    blocks: list[Block] = [{}] * len(machines)
    impossible: list[FitError | None] = []
    for places in _alike(ask, machines):
        verdict = Verdict(ask, [machines[place] for place in places], context, parallel, gpus)
        try:
            decide(verdict)
        except FitError as error:  # a model the rules do not know: a refusal, told once a row
            verdict = Verdict(ask, [machines[place] for place in places], context, parallel, gpus)
            verdict.refused = [str(error)] * len(verdict.context)
            impossible.append(error)
        else:
            impossible.append(BadInput(verdict.impossible) if verdict.impossible else None)
        whole = columns(verdict)
        for number, place in enumerate(places):
            part = slice(number * len(context), (number + 1) * len(context))
            blocks[place] = {name: values[part] if _per_row(values) else values for name, values in whole.items()}
    return blocks, impossible[0] if all(impossible) else None


def _per_row(values: Any) -> bool:
    return isinstance(values, list | np.ndarray)


def _alike(ask: Ask, machines: Sequence[Machine]) -> list[list[int]]:
    """Places of machines between which the rules see no difference but in size and number."""
    kinds: dict[Any, list[int]] = {}
    depends = getattr(ask.counted, "depends_on", lambda gpu: gpu)
    for place, one in enumerate(machines):
        key = (one.count > 0 and one.gpu is not None, depends(one.gpu) if one.gpu and one.count else None)
        kinds.setdefault(key, []).append(place)
    return list(kinds.values())
