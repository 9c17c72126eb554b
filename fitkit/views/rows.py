"""Frames → the rows of the charts: columns renamed, bytes shown as GiB, each with the words of its tooltip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fitkit.units import GIB, show_gib
from fitkit.views.colours import STRENGTH, TERMS
from fitkit.views.html import MARKS, Row, known, records, verdict_of
from fitkit.views.state import State

Rows = list[dict[str, Any]]
_KINDS = {"weights": "weights", "projector": "weights", "kv": "kv", "state": "state", "compute": "compute",
          "activation": "compute", "output": "compute", "graph": "runtime", "runtime": "runtime"}  # fmt: skip


def kind(term: str) -> str:
    """Which colour a term has: weights, kv, state, compute or runtime."""
    return next((value for key, value in _KINDS.items() if key in term), "runtime")


def memory(found: Sequence[Row], terms: Mapping[str, pd.DataFrame], card_bytes: Mapping[str, int]) -> tuple[Rows, Rows]:
    """Bars and their limits, one bar a machine; `terms` holds each machine's per-card terms, `card_bytes` the size of its cards."""
    bars: Rows = []
    limits: Rows = []
    for row in found:
        name = row["machine"]
        parts = None if row["limited_by"] == "gpus" else terms.get(name)  # no bar of cards that are not there
        if parts is not None:
            for term in records(parts):
                colour = kind(term["term"])
                bars.append({
                    "machine": name, "term": colour, "order": list(TERMS).index(colour), "gib": term["per_gpu_bytes"] / GIB,
                    "label": str(term["term"]).replace("_", " "), "shown": show_gib(term["per_gpu_bytes"]),
                    "range": spread(term["per_gpu_low"], term["per_gpu_high"]), "evidence": term["evidence"],
                })  # fmt: skip
        limits.append(_limit(row, card_bytes.get(name, 0)))
    return bars, limits


def _limit(row: Mapping[str, Any], card_bytes: int = 0) -> dict[str, Any]:
    usable, need = row["usable_per_gpu_bytes"], row["need_per_gpu_bytes"]
    low: Any = row.get("per_gpu_low_bytes")
    high: Any = row.get("per_gpu_high_bytes")
    ranged = known(low) and known(high) and low != high
    said = f"{show_gib(need)} of {show_gib(usable)} usable" if known(need) and known(usable) else "does not run here"
    if row["limited_by"] == "gpus":
        said, ranged = str(row["line"]).replace("needs", "asked for", 1), False
    return {
        "machine": row["machine"],
        "name": f"{MARKS[verdict_of(row)][1]} {str(row['machine']).replace('x ', '× ', 1)}",
        "said": said,
        "usable": usable / GIB if known(usable) else None,
        "usable_shown": show_gib(usable) if known(usable) else "",
        "total": card_bytes / GIB,
        "low": low / GIB if ranged else None,
        "high": high / GIB if ranged else None,
        "range": spread(low, high),
    }


def spread(low: Any, high: Any) -> str:
    """'14.03–14.60 GiB', or a dash where a size is exact."""
    if low is None or high is None or not known(low) or not known(high) or low == high:
        return "–"
    return f"{low / GIB:,.2f}–{high / GIB:,.2f} GiB"


def _most(row: Row) -> int:
    """The most requests of a row asked for one; none where even that does not fit, for whatever reason."""
    return int(row["max_parallel"]) if row["fits"] and known(row["max_parallel"]) else 0


def heat(found: Sequence[Row], requests: Sequence[int]) -> Rows:
    """A cell a combination of context and requests, from the most requests that fit at each context."""
    out: Rows = []
    for row in found:
        most = _most(row)
        room = f"room for {most:,}" if most else "not one request fits"
        for parallel in requests:
            verdict = "fits" if parallel <= most else "no"
            out.append({
                "context": int(row["context"]), "parallel": parallel, "verdict": verdict, "strength": STRENGTH[verdict],
                "mark": "" if verdict == "fits" else MARKS[verdict][1], "room": room, "said": MARKS[verdict][2],
            })  # fmt: skip
    return out


def here(state: State, contexts: Sequence[int], requests: Sequence[int]) -> Rows:
    """The cell of the asked point: the next stop up, so that the cell never promises more than was asked."""
    context = next((stop for stop in contexts if stop >= state.context), None)
    parallel = next((stop for stop in requests if stop >= state.parallel), None)
    return [{"context": context, "parallel": parallel}] if context and parallel else []


def lines(found: Sequence[Row], kinds: Sequence[str]) -> Rows:
    """A point a context and KV cache type; none where not one request fits, since the axis is logarithmic."""
    out: Rows = []
    for row in found:
        many = _most(row)
        if many >= 1:
            slot = str(kinds.index(row["kv_dtype"]) % 5) if row["kv_dtype"] in kinds else "4"
            out.append(
                {"context": int(row["context"]), "kv_dtype": row["kv_dtype"], "slot": slot, "max_parallel": many}
            )
    return out


def say_memory(found: Sequence[Row]) -> str:
    """What the memory chart shows, in words."""
    parts = [f"{limit['machine']}: {limit['said']}" for limit in (_limit(row) for row in found)]
    return "Memory on the fullest card. " + "; ".join(parts) + "."


def say_heat(cells: Rows, lead: str) -> str:
    """What the heat map shows, in words: the most requests that fit at each context."""
    best: dict[int, int] = {}
    for cell in cells:
        if cell["verdict"] == "fits":
            best[cell["context"]] = max(best.get(cell["context"], 0), cell["parallel"])
    parts = [f"{context:,} tokens up to {many}" for context, many in sorted(best.items())]
    return f"Contexts and requests that fit {lead}: " + ("; ".join(parts) if parts else "none") + "."


def say_lines(points: Rows, lead: str) -> str:
    """What the lines show, in words."""
    kinds: dict[str, list[str]] = {}
    for point in points:
        kinds.setdefault(point["kv_dtype"], []).append(f"{point['context']:,}: {point['max_parallel']:,}")
    parts = [f"{name} {', '.join(values)}" for name, values in kinds.items()]
    return (
        f"Requests at once against tokens per request on {lead}. " + ("; ".join(parts) if parts else "None fit") + "."
    )
