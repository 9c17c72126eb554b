"""Frames → HTML tables: the matrix, the ways to count side by side, the machines, the terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fitkit.units import GIB, show_gib
from fitkit.views.html import MARKS, Row, e, known, records, requests, setter, verdict_of
from fitkit.views.state import State


def matrix(found: Sequence[Row], state: State) -> str:
    """Quantizations x machines: mark, GPUs and need, requests in each cell; a click takes the cell over."""
    machines = list(dict.fromkeys(row["machine"] for row in found))
    by_quant: dict[str, dict[str, Row]] = {}
    for row in found:
        by_quant.setdefault(row["quant"], {})[row["machine"]] = row
    head = "".join(f"<th scope='col' class='fk-m'>{e(str(name).replace('x ', '× ', 1))}</th>" for name in machines)
    body = []
    for quant, cells in by_quant.items():
        size = next((show_gib(row["weights_bytes"]) for row in cells.values() if known(row["weights_bytes"])), "")
        tds = "".join(f"<td>{_cell(cells[name], state)}</td>" for name in machines)
        here = ' class="fk-here"' if quant == state.quant else ""
        body.append(f'<tr{here}><th scope="row">{e(quant)}</th><td class="fk-n fk-less">{e(size)}</td>{tds}</tr>')
    caption = f"{state.model} at {state.context:,} tokens × {requests(state.parallel)}: memory a card · requests that fit; click a cell to take it over"
    return (
        f'<div class="fk-wide" tabindex="0" role="region" aria-label="Quantization by machine"><table class="fk-matrix" style="--n:{len(machines)}"><caption>{e(caption)}</caption><thead><tr><th scope="col">Quantization</th>'
        f'<th scope="col" class="fk-n fk-less">Weights</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def refused(quant: str, machine: str, reason: str) -> Row:
    """The row of a quantization that cannot be asked for."""
    nothing = dict.fromkeys(
        ("weights_bytes", "need_per_gpu_bytes", "usable_per_gpu_bytes", "fit_gpus", "max_parallel"), pd.NA
    )
    return {"quant": quant, "machine": machine, "fits": False, "limited_by": "engine", "reason": reason, **nothing}


def _cell(row: Mapping[str, Any], state: State) -> str:
    css, mark, word = MARKS[verdict_of(row)]
    need = show_gib(row["need_per_gpu_bytes"]) if known(row["need_per_gpu_bytes"]) else ""
    if css == "no":
        text = "—" if row["limited_by"] == "engine" else "no"
        side = need
    else:
        text = f"{int(row['fit_gpus'])}×" if known(row["fit_gpus"]) and int(row["fit_gpus"]) else "CPU"
        many = f"{int(row['max_parallel']):,}" if known(row["max_parallel"]) else ""
        side = f'{need}<span class="fk-less"> · {many}</span>' if many else need
    at = " fk-at" if row["quant"] == state.quant and row["machine"] == state.lead else ""
    label = f"{row['quant']} on {row['machine']}: {word}; {row['reason']}"
    return (
        f'<button type="button" class="fk-cell fk-{css}{at}" {setter(quant=row["quant"], lead=row["machine"])} title="{e(row["reason"])}" '
        f'aria-label="{e(label)}"><span>{mark} {e(text)}</span><small>{side}</small></button>'
    )


_TABLE = (
    ("machine", "Machine", "", str),
    ("fit_gpus", "GPUs", "n fk-less", lambda n: f"{int(n)}"),
    ("weights_bytes", "Weights", "n fk-less", show_gib),
    ("kv_bytes", "KV cache", "n fk-less", show_gib),
    ("overhead_bytes", "Overhead", "n fk-less", show_gib),
    ("need_per_gpu_bytes", "Need a card", "n", show_gib),
    ("usable_per_gpu_bytes", "Usable a card", "n fk-less", show_gib),
    ("max_parallel", "Requests", "n", lambda n: f"{int(n):,}"),
    ("max_context", "Longest context", "n fk-less", lambda n: f"{int(n):,}"),
)


def table(found: Sequence[Row], state: State) -> str:
    """One row a machine; the CSV has every column."""
    heads = [f'<th scope="col" class="{_css(css)}">{e(title)}</th>' for _, title, css, _ in _TABLE]
    head = heads[0] + _VERDICT + "".join(heads[1:])
    body = []
    for row in found:
        cells = []
        for name, _, css, show in _TABLE:
            there = known(row[name]) and not (row["limited_by"] == "gpus" and name.startswith("max_"))
            text = e(show(row[name])) if there else '<span class="fk-quiet">–</span>'
            cells.append(f'<td class="{_css(css)}">{text}</td>')
        _, mark, word = MARKS[verdict_of(row)]
        here = ' class="fk-here"' if row["machine"] == state.lead else ""
        cells.insert(1, f'<td class="fk-verdict-cell">{mark} {e(row["badge"] or word)}</td>')
        body.append(f"<tr{here}>{''.join(cells)}</tr>")
    return f'<div class="fk-wide"><table><thead>{_over(3, 4)}<tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


_VERDICT = '<th scope="col">Verdict</th>'


def _over(before: int, after: int) -> str:
    """The line above a table's head: the three parts are of all cards and the RAM beside them, the need is of one card."""
    return (
        f'<tr class="fk-over fk-less"><td colspan="{before}"></td><th scope="colgroup" colspan="3" class="fk-n">all cards and RAM</th>'
        f'<td colspan="{after}"></td></tr>'
    )


def _css(css: str) -> str:
    return f"fk-{css}" if css else ""


def others(ways: Sequence[tuple[State, Any]]) -> str:
    """The same question under other rules and engines, side by side."""
    body = []
    for state, row in ways:
        if isinstance(row, str):
            rest = f'<td colspan="7" class="fk-quiet">{e(row)}</td>'
        else:
            _, mark, word = MARKS[verdict_of(row)]
            sizes = "".join(
                f'<td class="fk-n{less}">{e(show_gib(row[name])) if known(row[name]) else "–"}</td>'
                for name, less in (("weights_bytes", " fk-less"), ("kv_bytes", " fk-less"), ("overhead_bytes", " fk-less"), ("need_per_gpu_bytes", ""))
            )  # fmt: skip
            counted = known(row["max_parallel"]) and row["limited_by"] != "gpus"
            many = f"{int(row['max_parallel']):,}" if counted else "–"
            judged = f'<td class="fk-verdict-cell" title="{e(row["reason"])}">{mark} {word}</td>'
            rest = f'{judged}<td class="fk-less">{e(state.quant)}</td>{sizes}<td class="fk-n">{many}</td>'
        body.append(f'<tr><th scope="row">{_way(state)}</th>{rest}</tr>')
    return (
        f'<table><thead>{_over(3, 2)}<tr><th scope="col">Counted by</th>{_VERDICT}<th scope="col" class="fk-less">Weights as</th>'
        '<th scope="col" class="fk-n fk-less">Weights</th><th scope="col" class="fk-n fk-less">KV cache</th>'
        '<th scope="col" class="fk-n fk-less">Overhead</th><th scope="col" class="fk-n">Need a card</th>'
        f'<th scope="col" class="fk-n">Requests</th></tr></thead><tbody>{"".join(body)}</tbody></table>'
    )


_WAYS = {
    "engine": "{}, as it allocates",
    "library": "Library rule, {}",
    "budget": "Theory: budget for {}",
    "shard": "Shard plan, {}",
}
_ENGINES = {"llama.cpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}


def _way(state: State) -> str:
    """A way to count as a button that takes it over."""
    name = _WAYS[state.rules].format(_ENGINES[state.engine])
    return f'<button type="button" class="fk-link" {setter(rules=state.rules, engine=state.engine, quant=state.quant)}>{e(name)}</button>'


def explained(terms: pd.DataFrame) -> str:
    """Term by term, with where each figure comes from."""
    body = []
    for row in records(terms):
        low, high = row["per_gpu_low"], row["per_gpu_high"]
        spread = f"{low / GIB:,.2f}–{high / GIB:,.2f}" if low != high else ""
        body.append(
            f'<tr><th scope="row">{e(str(row["term"]).replace("_", " "))}</th><td class="fk-n">{e(show_gib(row["per_gpu_bytes"]))}</td>'
            f'<td class="fk-n fk-less">{e(spread)}</td><td class="fk-n fk-less">{e(show_gib(row["bytes"]))}</td>'
            f'<td>{e(row["evidence"])}</td><td class="fk-source">{e(row["source"])}</td></tr>'
        )
    return (
        '<table class="fk-known-table"><thead><tr><th scope="col">Term</th><th scope="col" class="fk-n">Fullest card</th>'
        '<th scope="col" class="fk-n fk-less">Range, GiB</th><th scope="col" class="fk-n fk-less">All cards and RAM</th>'
        f'<th scope="col">Evidence</th><th scope="col">Source</th></tr></thead><tbody>{"".join(body)}</tbody></table>'
    )
