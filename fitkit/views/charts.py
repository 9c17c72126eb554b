"""The page's charts in Altair, drawn in `currentColor`, so that a theme costs nothing.

The page reads them from specs.json, since importing Altair takes longer than everything else it does; a test keeps the file
the same, and `python -m fitkit.views.charts` writes it anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt

from fitkit.views.colours import KV_COLOURS, KV_DASHES, TERMS, VERDICTS

_TOKENS = "datum.value >= 1048576 ? datum.value/1048576 + 'M' : datum.value >= 1024 ? round(datum.value/1024) + 'k' : datum.value"
AnyChart = alt.LayerChart | alt.FacetChart
_INK = {"labelColor": "currentColor", "titleColor": "currentColor"}
THEME: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "padding": {"left": 0, "right": 0, "top": 4, "bottom": 6},
    "axis": {**_INK, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelOpacity": 0.75, "titleOpacity": 0.75,
             "ticks": False, "domain": False, "labelPadding": 6, "titlePadding": 8, "gridColor": "currentColor", "gridOpacity": 0.12},
    "view": {"stroke": None},
    "text": {"fill": "currentColor", "fontSize": 13},
}  # fmt: skip


def _named(name: str, **kwargs: Any) -> alt.Chart:
    """A chart over rows that arrive later under `name`."""
    return alt.Chart(alt.NamedData(name=name), **kwargs)


def memory() -> AnyChart:
    """One bar a machine, by term, against the usable line and all there is [GiB on the fullest card]."""
    band = alt.Y("machine:N", sort=None, axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    at = alt.X(
        "gib:Q",
        title="GiB on the fullest card",
        scale=alt.Scale(zero=True, nice=False),
        axis=alt.Axis(tickCount=8, grid=False, ticks=True, tickSize=4, tickColor="currentColor", tickOpacity=0.4),
    )
    limits = _named("limits").encode(y=band)
    room = limits.mark_bar(height=18, yOffset=10, fill="currentColor", fillOpacity=0.07).encode(
        x=alt.X("total:Q", title="")
    )
    bars = (
        _named("memory")
        .mark_bar(height=18, yOffset=10)
        .encode(
            x=at,
            y=band,
            order=alt.Order("order:Q"),
            color=alt.Color(
                "term:N",
                legend=None,
                scale=alt.Scale(domain=list(TERMS), range=[colour for _, colour in TERMS.values()]),
            ),
            tooltip=[
                alt.Tooltip("label:N", title="Term"),
                alt.Tooltip("shown:N", title="On the fullest card"),
                alt.Tooltip("range:N", title="Range"),
                alt.Tooltip("evidence:N", title="Evidence"),
            ],
        )
    )
    usable = limits.mark_tick(thickness=2, size=26, yOffset=10, color="currentColor", opacity=1).encode(
        x="usable:Q", tooltip=alt.Tooltip("usable_shown:N", title="Usable")
    )
    whisker = limits.mark_rule(yOffset=10, color="currentColor", strokeWidth=1.5).encode(
        x="low:Q", x2="high:Q", tooltip=alt.Tooltip("range:N", title="Range of the sum")
    )
    name = limits.mark_text(align="left", baseline="middle", yOffset=-12).encode(
        x=alt.value(0), text="name:N", opacity=alt.value(1)
    )
    said = limits.mark_text(align="right", baseline="middle", yOffset=-12).encode(
        x=alt.value(alt.expr("width")), text="said:N", opacity=alt.value(0.75)
    )
    return alt.layer(room, bars, usable, whisker, name, said).properties(width="container", height=alt.Step(56))


def heat() -> AnyChart:
    """Which contexts and numbers of requests fit one machine, with the asked point outlined."""
    x = alt.X(
        "context:O",
        sort="ascending",
        scale=alt.Scale(paddingInner=0.04, paddingOuter=0),
        title="tokens per request",
        axis=alt.Axis(labelAngle=0, labelExpr=_TOKENS, grid=False, labelOverlap=True, labelSeparation=4),
    )
    y = alt.Y(
        "parallel:O",
        sort="descending",
        scale=alt.Scale(paddingInner=0.06, paddingOuter=0),
        title="requests at once",
        axis=alt.Axis(grid=False),
    )
    base = _named("heat").encode(x=x, y=y)
    cells = base.mark_rect(stroke=None).encode(
        fill=alt.Fill("verdict:N", legend=None, scale=alt.Scale(domain=list(VERDICTS), range=list(VERDICTS.values()))),
        fillOpacity=alt.FillOpacity("strength:Q", legend=None, scale=None),
        tooltip=[
            alt.Tooltip("context:Q", title="Tokens", format=","),
            alt.Tooltip("parallel:Q", title="Requests", format=","),
            alt.Tooltip("room:N", title="At this context"),
            alt.Tooltip("said:N", title="Verdict"),
        ],
    )
    marks = base.mark_text(fontSize=11, opacity=0.8).encode(text="mark:N")
    here = _named("here").mark_rect(fill=None, stroke="currentColor", strokeWidth=2).encode(x=x, y=y)
    return alt.layer(cells, marks, here).properties(width="container", height=272)


def lines() -> AnyChart:
    """How many requests fit at each context, a line for each KV cache type."""
    x = alt.X(
        "context:Q",
        scale=alt.Scale(type="log", base=2, nice=False),
        title="tokens per request",
        axis=alt.Axis(labelExpr=_TOKENS, labelOverlap=True, labelSeparation=8, grid=False),
    )
    y = alt.Y(
        "max_parallel:Q",
        scale=alt.Scale(type="log", base=2, nice=True, domainMin=1),
        title="requests at once",
        axis=alt.Axis(format=",", tickCount=6, labelOverlap=True),
    )
    colour = alt.Color("slot:N", legend=None, scale=alt.Scale(domain=list("01234"), range=list(KV_COLOURS)))
    base = _named("lines").encode(x=x, y=y)
    drawn = base.mark_line(strokeWidth=2).encode(
        color=colour,
        detail="kv_dtype:N",
        strokeDash=alt.StrokeDash(
            "slot:N", legend=None, scale=alt.Scale(domain=list("01234"), range=[list(dash) for dash in KV_DASHES])
        ),
    )
    points = base.mark_point(filled=True, size=28, opacity=1).encode(
        color=colour,
        tooltip=[
            alt.Tooltip("kv_dtype:N", title="KV cache"),
            alt.Tooltip("context:Q", title="Tokens", format=","),
            alt.Tooltip("max_parallel:Q", title="Requests", format=","),
        ],
    )
    here = (
        _named("point")
        .mark_point(shape="circle", size=150, filled=False, stroke="currentColor", strokeWidth=2, opacity=1)
        .encode(x=x, y="parallel:Q")
    )
    return alt.layer(drawn, points, here).properties(width="container", height=272)


def specs() -> dict[str, dict[str, Any]]:
    """The three charts as Vega-Lite, with the names of the datasets they wait for."""
    out = {}
    for name, chart, datasets in (
        ("memory", memory(), ("memory", "limits")),
        ("heat", heat(), ("heat", "here")),
        ("lines", lines(), ("lines", "point")),
    ):
        spec = chart.to_dict()
        spec.pop("$schema", None)
        out[name] = {**spec, "config": THEME, "datasets": {dataset: [] for dataset in datasets}}
    return out


if __name__ == "__main__":
    Path(__file__).with_name("specs.json").write_text(json.dumps(specs(), indent=1) + "\n", encoding="utf-8")
