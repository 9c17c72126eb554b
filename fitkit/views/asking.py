"""The page's questions to the tables. What does not depend on the change is remembered, so that a slider stays quick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pandas as pd

from fitkit import answers, commands, facts, plans, remedies, tables
from fitkit.errors import BadInput, FitError, UnknownName
from fitkit.hardware import Machine, machine
from fitkit.model import Model
from fitkit.predict import VLLM
from fitkit.rules.published.budget import Budget
from fitkit.sources import load
from fitkit.views import controls
from fitkit.views.html import records
from fitkit.views.state import State

T = TypeVar("T")
_REMEMBERED = 512


@dataclass
class Asker:
    """Holds the models of this page and the answers it gave. `free` lets any source `fk.load` knows be named."""

    own: dict[str, Model] = field(default_factory=dict)
    free: bool = False
    _kept: dict[Any, Any] = field(default_factory=dict)

    def model(self, name: str) -> Model:
        """The model of this name. A served page offers its catalog only: it opens no file and no address for a visitor."""
        if name in self.own:
            return self.own[name]
        if not self.free and facts.find("models", name) is None:
            raise UnknownName.among("model", name, [*self.own, *facts.every_name("models")])
        return self._keep(("model", name), lambda: load(name))

    def machines(self, state: State) -> list[Machine]:
        """The chosen machines, with what is taken of each GPU."""
        found = [machine(name) for name in state.machines]
        return [machine(one, taken_gib=min(state.taken, one.gpu_nominal_gib)) if one.gpu else one for one in found]

    def lead(self, state: State) -> list[Machine]:
        """The machine of the big line."""
        return [one for one in self.machines(state) if one.name == state.lead]

    def fit(self, state: State, machines: Sequence[Machine], **axes: Any) -> pd.DataFrame:
        """`fk.fit` for this question; `axes` widen it (contexts, parallel, kv_dtypes, quants)."""
        return tables.fit(**{**self._arguments(state, machines), **axes})

    def plan(self, state: State) -> plans.Plan:
        """`fk.plan` on the leading machine."""
        question = self._arguments(state, self.lead(state))
        return plans.plan(question.pop("models"), question.pop("machines"), **question)

    def _arguments(self, state: State, machines: Sequence[Machine]) -> dict[str, Any]:
        if not machines:
            raise BadInput("No machine is chosen yet.")
        return {
            "models": self.model(state.model),
            "machines": list(machines),
            "quants": state.quant,
            "contexts": state.context,
            "parallel": state.parallel,
            "kv_dtypes": state.kv,
            "engine": engine(state),
            "rules": rules(state),
            "gpus": None if state.gpus == "auto" else int(state.gpus),
        }

    # --- the parts of the page

    def rows(self, state: State) -> pd.DataFrame:
        """One row a chosen machine."""
        return self._keep(("rows", state), lambda: self.fit(state, self.machines(state)))

    def line(self, state: State, kv_dtype: str) -> pd.DataFrame:
        """All contexts with one KV cache type on all GPUs of the leading machine: how many requests fit at each."""
        still = replace(state, context=1, parallel=1, machines=(state.lead,), kv=kv_dtype)
        lead = self.lead(state)
        count = lead[0].count if lead and state.gpus == "auto" and lead[0].gpu else None
        contexts = controls.contexts(self.model(state.model).context)

        def ask() -> pd.DataFrame:
            found = self.fit(still, lead, contexts=contexts, **({"gpus": count} if count else {}))
            split = count is None or not (found["limited_by"] == "engine").all()
            return found if split else self.fit(still, lead, contexts=contexts)  # so many GPUs cannot share this model

        return self._keep(("line", still), ask)

    def matrix(self, state: State, quant: str) -> pd.DataFrame:
        """One row of the matrix: a quantization on the chosen machines."""
        asked = replace(state, lead="", quant=quant)
        return self._keep(("matrix", asked), lambda: self.fit(asked, self.machines(state)))

    def others(self, state: State) -> list[tuple[State, dict[str, Any] | str]]:
        """The same question under each engine and rule set: its row on the leading machine, or why there is none."""
        out: list[tuple[State, dict[str, Any] | str]] = []
        model = self.model(state.model)
        for rules_name, engine_name in controls.WAYS:
            other = controls.settle(replace(state, rules=rules_name, engine=engine_name), model, state)
            try:
                out.append((other, self._lead_row(other)))
            except FitError as error:
                out.append((other, str(error)))
        return out

    def _lead_row(self, state: State) -> dict[str, Any]:
        return self._keep(("way", state), lambda: records(self.fit(state, self.lead(state)))[0])

    def terms(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Each machine's terms, where it has any: an engine that does not start allocates nothing."""
        return {row["machine"]: answers.explain(row) for _, row in frame.iterrows() if pd.notna(row["total_bytes"])}

    def suggested(self, state: State, row: pd.Series[Any]) -> pd.DataFrame:
        """What would make it fit, or what more there is room for."""
        return self._keep(("suggest", state), lambda: remedies.suggest(row))

    def card_bytes(self, state: State) -> dict[str, int]:
        """What there is of each machine's cards: as engines see it, or nominal where a published rule set counts [bytes]."""
        nominal = state.rules != "engine"
        return {
            one.name: one.gpu.nominal_bytes if nominal else one.gpu.seen_bytes
            for one in self.machines(state)
            if one.gpu is not None
        }

    def explained(self, row: pd.Series[Any]) -> pd.DataFrame:
        """One row, term by term."""
        return answers.explain(row)

    def command(self, row: pd.Series[Any]) -> str:
        """The line that starts it."""
        return commands.command(row)

    def _keep(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._kept:
            if len(self._kept) >= _REMEMBERED:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = make()
        kept: T = self._kept[key]
        return kept


def engine(state: State) -> Any:
    """The engine, with the utilization where it has one."""
    if state.engine == "vllm" and state.rules == "engine":
        return VLLM(gpu_memory_utilization=state.util)
    return state.engine


def rules(state: State) -> Any:
    """The rule set, with the utilization where it has one."""
    return Budget(gpu_memory_utilization=state.util) if state.rules == "budget" else state.rules
