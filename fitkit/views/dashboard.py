"""The planner's page as one widget: the question in, the answer of the tables out. Layout and inputs are in page.js and style.css."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from fitkit.errors import BadInput, FitError, UnknownName
from fitkit.model import Model
from fitkit.sources import load
from fitkit.views import controls, grids, html, rows
from fitkit.views.asking import Asker
from fitkit.views.parts import Part, lead_at, parts
from fitkit.views.state import State, from_plan, from_query

_HERE = Path(__file__).parent
_log = logging.getLogger(__name__)


def in_voila() -> bool:
    """Whether this kernel serves a page of its own."""
    return os.environ.get("SERVER_SOFTWARE", "").startswith("voila/") or "VOILA_PREHEAT" in os.environ


class Dashboard(anywidget.AnyWidget):
    """The page. `state` is its question; everything else is what the browser shows.

    A move of a control is answered in two parts: `quick` (verdict, memory, launch line) at once, and the rest
    (heat map, lines, matrix, the other ways to count) when the browser asks for it, which it does when the control rests.
    """

    _esm = _HERE / "static" / "live.js"
    _css = _HERE / "style.css"

    own_page = traitlets.Bool(False).tag(sync=True)
    catalog = traitlets.Dict().tag(sync=True)
    specs = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    form = traitlets.Dict().tag(sync=True)
    errors = traitlets.Dict().tag(sync=True)
    stale = traitlets.Bool(False).tag(sync=True)
    summary = traitlets.Unicode("").tag(sync=True)
    mark = traitlets.Unicode("").tag(sync=True)
    fixed_slots = traitlets.Dict().tag(sync=True)
    slots = traitlets.Dict().tag(sync=True)
    rest_slots = traitlets.Dict().tag(sync=True)
    rows_memory = traitlets.Unicode("[]").tag(sync=True)
    rows_limits = traitlets.Unicode("[]").tag(sync=True)
    rows_heat = traitlets.Unicode("[]").tag(sync=True)
    rows_here = traitlets.Unicode("[]").tag(sync=True)
    rows_lines = traitlets.Unicode("[]").tag(sync=True)
    rows_point = traitlets.Unicode("[]").tag(sync=True)
    alts = traitlets.Dict().tag(sync=True)
    rest_alts = traitlets.Dict().tag(sync=True)
    command = traitlets.Unicode("").tag(sync=True)
    copied = traitlets.Unicode("Copied").tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)
    query = traitlets.Unicode("").tag(sync=True)

    def __init__(self, asker: Asker, question: State) -> None:
        self.asker = asker
        self.question = question
        self._rest: Iterator[Part] = iter(())
        lists = controls.catalog()
        own = [{"value": name, "label": name, "detail": "yours"} for name in asker.own]
        words = {"about": f"Catalog of {controls.catalog_date()}", "words": html.words()}
        super().__init__(
            own_page=in_voila(),
            specs=json.loads((_HERE / "specs.json").read_text(encoding="utf-8")),
            catalog={**lists, "models": [*own, *lists["models"]]},
            fixed_slots={**words, **dict.fromkeys(("heatnote", "linesnote", "matrix", "others"), html.COUNTING)},
        )
        self.answer(question, {})
        self.on_msg(self._hear)

    def _hear(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        """One message of the browser; whatever it holds, the page stays and is answered."""
        try:
            self._do(message)
        except FitError as error:
            self.send({"kind": "said", "text": str(error)})
        except Exception as error:  # a defect: told in one sentence, the traceback is for the log
            _log.exception("The page could not answer %.200r", message)
            self.send(
                {
                    "kind": "said",
                    "text": f"This question met a defect of the page ({type(error).__name__}); another one may work.",
                }
            )
        if message.get("kind") in ("set", "asked", "load"):
            self.send({"kind": "quick"})

    def _do(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "rest":
            more, done = self._answer_part()
            self.send({"kind": "part", "more": more, "done": done})
        elif kind == "save":
            self._save(str(message.get("what")))
        elif kind == "load":
            found = from_plan(str(message.get("text")), self.question)
            self.answer(*self.question.read(found), found)
        elif kind == "asked":
            found = from_query(str(message.get("query")))
            new, errors = self.question.read(found)
            if "lead" in errors:  # has no control of its own
                errors.setdefault("machines", errors.pop("lead"))
            self.answer(new, errors, found, link=True)
        else:
            found = dict(message.get("state") or {})
            self.answer(*self.question.read(found), found)

    def _save(self, what: str) -> None:
        """Hand the browser a file to save: the plan, or the table with every column."""
        state = self.question
        if what == "plan":
            name, mime, text = "plan", "application/json", self.asker.plan(state).to_json()
        else:
            name, mime, text = "fit", "text/csv", self.asker.rows(state).to_csv(index=False)
        end = {"application/json": "json", "text/csv": "csv"}[mime]
        self.send({"kind": "file", "name": f"{name}-{_plain(state.model)}.{end}", "type": mime, "text": text})

    def answer(self, new: State, errors: dict[str, str], given: Collection[str] = (), *, link: bool = False) -> None:
        """The quick part; `given` names what was chosen just now, by a link (`link`) or by hand.

        Where the tables refuse, the sentence stands beside what was changed and the last answer stays.
        """
        before = self.question
        model: Model | None = None
        try:
            model = self.asker.model(new.model)
        except FitError as error:
            errors = {**errors, "model": str(error)}
            new = replace(new, model=before.model)
            model = self._last_model(before)
        asked, new = new, controls.settle(new, model, before, given)
        if link:
            errors = controls.left_out(asked, new, errors, given)
        stale = bool(errors) and not link
        rest = parts(self.asker, new)
        try:
            answer = self._quick(new)
        except FitError as error:
            rest, stale = self._rest, True  # the last good answer stays as a whole
            answer = {} if self.rows_limits != "[]" else {"slots": {"verdict": html.broken(str(error))}}
            errors = {**errors, _blame(new, before): str(error)}
        self.question = new
        self._rest = rest
        chosen = controls.chosen_machines(new.machines)
        with self.hold_sync():
            self.set_trait("errors", errors)
            self.set_trait("stale", stale)
            self.set_trait("state", new.json())
            self.set_trait("form", controls.form(new, model, chosen))
            self.set_trait("summary", controls.summary(new))
            self.set_trait("query", new.query())
            for name, value in answer.items():
                self.set_trait(name, value)
            if errors:
                self.status = " ".join(errors.values())

    def _last_model(self, before: State) -> Model | None:
        try:
            return self.asker.model(before.model)
        except FitError:
            return None

    def _quick(self, state: State) -> dict[str, Any]:
        """Verdict, memory by machine, launch line, the table."""
        if not state.machines:
            return {
                "slots": {**self.slots, "verdict": html.nothing_chosen()},
                "mark": "",
                "status": "No machine chosen yet.",
            }
        frame = self.asker.rows(state)
        found = html.records(frame)
        at = lead_at(found, state)
        lead = found[at]
        terms = self.asker.terms(frame)
        bars, limits = rows.memory(found, terms, self.asker.card_bytes(state))
        contexts = controls.contexts(self.asker.model(state.model).context)
        command, warning = self.asker.command(frame.iloc[at]), html.warning(lead)
        return {
            "slots": {
                "verdict": html.verdict(lead, terms.get(lead["machine"])),
                "legend": html.legend([bar["term"] for bar in bars]),
                "command": html.command(command, warning),
                "table": grids.table(found, state),
            },
            "mark": html.MARKS[html.verdict_of(lead)][1],
            "status": f"{html.headline(lead)}. {html.reason(lead)}",
            "rows_memory": json.dumps(bars),
            "rows_limits": json.dumps(limits),
            "rows_here": json.dumps(rows.here(state, contexts, controls.requests())),
            "rows_point": json.dumps([{"context": state.context, "parallel": state.parallel}]),
            "alts": {"memory": rows.say_memory(found)},
            "command": command,
            "copied": f"Copied. {warning}" if warning else "Copied",
        }

    def answer_rest(self) -> None:
        """All that may come a moment later, at once."""
        while self._answer_part()[0]:
            pass

    def _answer_part(self) -> tuple[bool, list[str]]:
        """The next little of it: whether there may be more, and the slots that are of the present question now."""
        part = next(self._rest, None)
        if part is None:
            return False, []
        slots, rows_of, said = part
        with self.hold_sync():
            self.set_trait("rest_slots", {**self.rest_slots, **slots})
            self.set_trait("rest_alts", {**self.rest_alts, **said})
            for dataset, found in rows_of.items():
                self.set_trait(f"rows_{dataset}", json.dumps(found))
        return True, list(slots)


def _blame(new: State, before: State) -> str:
    """The control whose change brought the error."""
    for name in ("machines", "context", "parallel", "quant", "kv", "engine", "rules", "util", "gpus", "taken"):
        if getattr(new, name) != getattr(before, name):
            return name
    return "model"


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in name)[:80]


def dashboard(model: Any = None, **question: Any) -> Dashboard:
    """The planner's page, for JupyterLab or Voilà.

    Parameters
    ----------
    model
        Anything `fk.load` takes: a catalog name, a config.json, a GGUF, a Model; a list of them offers all, the first chosen.
    question
        What the page opens on: quant, engine, rules, context, parallel, kv, util, machines, lead, gpus, taken.

    Raises BadInput for a value or a name the page cannot take over.
    """
    own: dict[str, Model] = {}
    given = [] if model is None else list(model) if isinstance(model, list | tuple) else [model]
    for source in given:
        found = load(source)
        own[found.name] = found
    unknown = set(question) - set(State.__dataclass_fields__) - {"model"}
    if unknown:
        raise UnknownName.among("setting of the page", sorted(unknown)[0], State.__dataclass_fields__)
    start = {**({"model": next(iter(own))} if own else {}), **question}
    state, errors = State().read(start)
    if errors:
        raise BadInput(" ".join(errors.values()))
    asker = Asker(own=own, free=not in_voila())
    return Dashboard(asker, controls.settle(state, asker.model(state.model), State(), question))
