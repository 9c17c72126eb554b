"""Frames → HTML for the page's slots. Every text that comes from outside passes `e`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from fitkit.units import GIB, show_gb, show_gib
from fitkit.views.colours import KV_COLOURS, STRENGTH, TERMS, VERDICTS
from fitkit.views.state import State

Row = Mapping[str, Any]  # one row of a `fit` frame
COUNTING = '<span class="fk-quiet">Counting…</span>'
MARKS = {"fits": ("yes", "✓", "fits"), "close": ("close", "≈", "close"), "no": ("no", "✗", "does not fit")}


def e(text: object) -> str:
    """Escaped for HTML, in text and in attributes."""
    return escape(str(text), quote=True)


def setter(**changes: Any) -> str:
    """The attribute that makes a click change the question."""
    return f'data-set="{e(json.dumps(changes))}"'


def known(value: Any) -> bool:
    """Whether a cell of a frame holds anything."""
    return not pd.isna(value)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as plain mappings (by columns: much quicker than `to_dict` for wide frames of few rows)."""
    columns = [frame[name].tolist() for name in frame.columns]
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def beside_memory(row: Row) -> bool:
    """Whether the no has another cause than the memory of the cards, so that no range of it can make a maybe."""
    cause = row["limited_by"]
    return cause in ("engine", "gpus", "disk") or bool(
        cause == "host_memory" and known(row["fit_gpus"]) and row["fit_gpus"]
    )


def verdict_of(row: Row) -> str:
    """fits, close (the range straddles the limit) or no."""
    low: Any = row.get("per_gpu_low_bytes", pd.NA)
    high: Any = row.get("per_gpu_high_bytes", pd.NA)
    usable = row["usable_per_gpu_bytes"]
    if not beside_memory(row) and known(low) and known(high) and known(usable) and low <= usable < high:
        return "close"
    return "fits" if row["fits"] else "no"


def place(row: Row) -> str:
    """Machine as the verdict uses it: '2× H100 80GB'."""
    count = row["fit_gpus"] if known(row["fit_gpus"]) else 0
    return f"{int(count)}× {row['gpu']}" if count and known(row["gpu"]) and row["gpu"] else str(row["machine"])


def requests(n: Any) -> str:
    """'1 request' or '8 requests'."""
    return f"{int(n):,} request{'' if int(n) == 1 else 's'}"


def headline(row: Row) -> str:
    """The one loud line."""
    verdict = verdict_of(row)
    if verdict == "no":
        return f"Does not fit on {str(row['machine']).replace('x ', '× ', 1)}"
    many = int(row["fit_parallel"]) if known(row["fit_parallel"]) else 1
    start = "Close: may fit on" if verdict == "close" else "Fits on"
    return f"{start} {place(row)} · {requests(many)} at a time"


def verdict(row: Row, terms: pd.DataFrame | None = None) -> str:
    """The verdict, its reason and the figures behind it; `terms` are the row's, as `fk.explain` gives them."""
    css, mark, _ = MARKS[verdict_of(row)]
    figures = [
        (
            "longest context",
            pd.NA if row["limited_by"] == "gpus" else row["max_context"],
            lambda n: f"{int(n):,} tokens" if n else "none",
        ),
        ("download", row["download_bytes"], show_gb),
        ("reserved a card", _or_none(row["reserved_per_gpu_bytes"]), show_gib),
    ]
    facts = "".join(f"<span>{e(n)} <b>{e(show(v))}</b></span>" for n, v, show in figures if known(v))
    return (
        f'<div class="fk-answer-line fk-{css}" tabindex="-1"><span class="fk-mark" aria-hidden="true">{mark}</span>'
        f'<strong>{e(headline(row))}</strong><p>{e(reason(row))}</p>{_need(row, terms)}<div class="fk-facts">{facts}</div></div>'
    )


def _need(row: Row, terms: pd.DataFrame | None) -> str:
    """What the fullest card holds, part by part, and what lies in RAM beside it."""
    if terms is None or not known(row["need_per_gpu_bytes"]) or row["limited_by"] == "gpus":
        return ""
    found = records(terms)
    sizes = {name: sum(int(t["per_gpu_bytes"]) for t in found if t["column"] == name) for name in _COLUMNS}
    used = {_COLUMNS[name]: size for name, size in sizes.items() if size}
    count = int(row["fit_gpus"]) if known(row["fit_gpus"]) else 1
    where = "in RAM" if count == 0 else "on the card" if count == 1 else f"on the fullest of {count} cards"
    shown = gib_parts(list(used.values()))
    parts = " + ".join(f"{e(name)} <b>{e(size)}</b>" for name, size in zip(used, shown, strict=True))
    beside = row.get("host_bytes", pd.NA)
    ram = f"<span>+ <b>{e(show_gib(beside))}</b> in RAM</span>" if count and known(beside) and beside else ""
    total = e(show_gib(sum(used.values())))
    return f'<div class="fk-facts fk-sum"><span>{where}:</span><span>{parts} = <b>{total}</b></span>{ram}</div>'


_COLUMNS = {"weights": "weights", "kv": "cache", "overhead": "overhead"}


def gib_parts(sizes: Sequence[int]) -> list[str]:
    """Sizes in GiB whose shown hundredths sum to the sum as shown: what rounding leaves over goes to the nearest ones."""
    if sum(sizes) >= 100 * GIB:  # shown with one decimal: nobody adds those up
        return [show_gib(size) for size in sizes]
    hundredths = [size * 100 / GIB for size in sizes]
    whole = [int(one) for one in hundredths]
    left = round(sum(sizes) / GIB * 100) - sum(whole)
    nearest = sorted(range(len(sizes)), key=lambda at: whole[at] - hundredths[at])
    for at in nearest[:left]:
        whole[at] += 1
    return [f"{one / 100:,.2f} GiB" for one in whole]


def _or_none(size: Any) -> Any:
    return size if known(size) and size else pd.NA


def reason(row: Row) -> str:
    """The row's sentence without what the headline has just said."""
    text = re.sub(r"^.*?(fits|does not fit) on [^:]{1,80}: ", "", str(row["reason"]), count=1, flags=re.IGNORECASE)
    return text[:1].upper() + text[1:]


def nothing_chosen() -> str:
    """Instead of a verdict where no machine is chosen: three common ones."""
    chips = [chip(name, machines=[name], lead=name) for name in ("1x RTX 4090", "1x H100 80GB", "M4 Max 64GB")]
    return (
        '<div class="fk-answer-line" tabindex="-1"><span></span><strong>No machine chosen yet</strong>'
        f'<p>Add one on the left, or start with one of these.</p></div><div class="fk-chips">{"".join(chips)}</div>'
    )


def broken(message: str) -> str:
    """Instead of a verdict where the very first question has no answer."""
    return f'<div class="fk-answer-line fk-no" tabindex="-1"><span class="fk-mark" aria-hidden="true">✗</span><strong>No answer yet</strong><p>{e(message)}</p></div>'


def chip(text: str, **changes: Any) -> str:
    """A button that applies a change."""
    return f'<button type="button" class="fk-chip" {setter(**changes)}>{e(text)}</button>'


def chips(pairs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """What else to try, one click each."""
    if not pairs:
        return '<span class="fk-quiet">Nothing else to try from here.</span>'
    return '<span class="fk-quiet">Try</span>' + "".join(chip(text, **changes) for text, changes in pairs)


def legend(kinds: Sequence[str]) -> str:
    """The colours of the memory chart that are in use."""
    keys = [f'<span class="fk-key" style="--c:{TERMS[k][1]}">{TERMS[k][0]}</span>' for k in TERMS if k in kinds]
    keys.append('<span class="fk-key fk-line">usable</span>')
    keys.append(
        '<span class="fk-key" style="--c:color-mix(in srgb, currentColor 14%, transparent)">the whole card</span>'
    )
    return "".join(keys)


def heat_legend(lead: str) -> str:
    """What the colours and marks of the heat map mean, and for which machine."""
    keys = "".join(
        f'<span class="fk-key" style="--c:{VERDICTS[name]};--o:{STRENGTH[name]}">{MARKS[name][1]} {MARKS[name][2]}</span>'
        for name in ("fits", "no")
    )
    return f"<span>on {e(lead.replace('x ', '× ', 1))}</span>{keys}"


def line_legend(kinds: Sequence[str], state: State, any_fits: bool) -> str:
    """The lines by KV cache type, and for which machine."""
    if not any_fits:
        where = e(state.lead.replace("x ", "× ", 1))
        return f'<span class="fk-none">Not one request fits on {where}, at any context and with any of these caches.</span>'
    keys = "".join(
        f'<span class="fk-key fk-stroke" style="--c:{colour}">{e(name)}</span>'
        for name, colour in zip(kinds, KV_COLOURS, strict=False)
    )
    return f"<span>on {e(state.lead.replace('x ', '× ', 1))}</span>{keys}"


def command(lines: str, warning: str = "") -> str:
    """The launch line, and in front of it what is wrong with it."""
    said = f'<p class="fk-warn">{e(warning)}</p>' if warning else ""
    css = ' class="fk-fails"' if warning else ""
    return f'{said}<pre{css} tabindex="0" aria-label="Launch command">{e(lines)}</pre>'


def warning(row: Row) -> str:
    """What a launch line of this row would meet; empty where it fits."""
    found = verdict_of(row)
    if found == "fits":
        return ""
    if found == "close":
        return "≈ This is close: the line may run out of memory."
    if row["rules"] == "engine":
        return "✗ This does not fit: the line would fail."
    return "✗ This does not fit by the rules chosen: the line may fail."


_WORDS = (
    ("GB, GiB", "GB is 10⁹ bytes, GiB is 2³⁰. Memory, weights too, is in GiB; downloads are in GB."),
    ("Weights", "The model's parameters as they lie in memory."),
    ("KV cache", "What attention keeps of every token of every request; it grows with context and requests."),
    ("State", "What recurrent layers keep of a request, however long it is."),
    ("Compute", "Working memory of one step: activations and buffers."),
    ("Runtime", "What the driver and the engine take before any model is loaded."),
    ("Need, usable", "Need is what the work takes on the fullest card; usable is what the card can give to it."),
    ("Utilization", "The share of a card that vLLM reserves at its start, whatever the work."),
    ("Requests at once", "Requests in flight, each with a context of full length."),
    ("exact", "Evidence: read from a header, or a rule of the engine checked byte for byte."),
    ("engine", "Evidence: the engine's own rule, for the version named."),
    ("fitted", "Evidence: from measured start-up logs, with their spread."),
    ("assumed", "Evidence: a published or customary figure that nobody measured here."),
)


def words() -> str:
    """The glossary."""
    return f"<dl>{''.join(f'<dt>{e(term)}</dt><dd>{e(text)}</dd>' for term, text in _WORDS)}</dl>"
