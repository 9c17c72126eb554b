"""What may come a moment after the verdict, a little at a time, so that a move of a control never waits for all of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pandas as pd

from fitkit.errors import FitError
from fitkit.views import controls, grids, html, rows
from fitkit.views.asking import Asker
from fitkit.views.chips import chips
from fitkit.views.state import State

Part = tuple[dict[str, str], dict[str, rows.Rows], dict[str, str]]  # slots, rows by dataset, words by chart
_log = logging.getLogger(__name__)


def parts(asker: Asker, state: State) -> Iterator[Part]:
    """Try-chips and terms, both charts of limits, the matrix, the ways to count. Where there is no answer the verdict says why."""
    for part, empty in ((_chips, _NO_CHIPS), (_limits, _NO_LIMITS), (_matrix, _NO_MATRIX), (_others, _NO_OTHERS)):
        try:
            if state.machines:
                yield from part(asker, state)
                continue
        except FitError:
            pass
        except Exception:  # a defect in one part does not take the others with it
            _log.exception("The page has no %s", part.__name__)
        yield empty  # never the answer of the question before


_NONE = '<span class="fk-quiet">–</span>'
_NO_CHIPS: Part = {"chips": "", "known": _NONE}, {}, {}
_NO_LIMITS: Part = {"heatnote": _NONE, "linesnote": _NONE}, {"heat": [], "lines": []}, {"heat": "", "lines": ""}
_NO_MATRIX: Part = {"matrix": _NONE}, {}, {}
_NO_OTHERS: Part = {"others": _NONE}, {}, {}


def _chips(asker: Asker, state: State) -> Iterator[Part]:
    frame = asker.rows(state)
    lead = frame.iloc[lead_at(html.records(frame), state)]
    known = {"known": grids.explained(asker.explained(lead))} if pd.notna(lead["total_bytes"]) else {"known": _NONE}
    yield {"chips": html.chips(chips(state, asker.suggested(state, lead))), **known}, {}, {}


def _limits(asker: Asker, state: State) -> Iterator[Part]:
    kinds = controls.line_kv_dtypes(state)
    found: list[html.Row] = []
    for name in kinds:
        found += html.records(asker.line(state, name))
        yield {}, {}, {}
    cells = rows.heat([row for row in found if row["kv_dtype"] == state.kv], controls.requests())
    points = rows.lines(found, kinds)
    notes = {"heatnote": html.heat_legend(state.lead), "linesnote": html.line_legend(kinds, state, bool(points))}
    said = {"heat": rows.say_heat(cells, state.lead), "lines": rows.say_lines(points, state.lead)}
    yield notes, {"heat": cells, "lines": points}, said


def _matrix(asker: Asker, state: State) -> Iterator[Part]:
    found: list[html.Row] = []
    for quant in controls.matrix_quants(state):
        try:
            found += html.records(asker.matrix(state, quant))
        except FitError as error:
            found += [grids.refused(quant, name, str(error)) for name in state.machines]
        yield {}, {}, {}
    yield {"matrix": grids.matrix(found, state)}, {}, {}


def _others(asker: Asker, state: State) -> Iterator[Part]:
    yield {"others": grids.others(asker.others(state))}, {}, {}


def lead_at(found: list[dict[str, Any]], state: State) -> int:
    """Which row is the big line's."""
    return next((place for place, row in enumerate(found) if row["machine"] == state.lead), 0)
