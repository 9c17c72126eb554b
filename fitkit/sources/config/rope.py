"""Rotary positions: the tables an engine builds for them, and the length it serves where a scaling changes that."""

from __future__ import annotations

import math

from fitkit.sources.config.view import Config


def served_context(config: Config, context: int) -> dict[str, int]:
    """`served_context` where vLLM serves another length unless told: longrope's original, or what a linear factor makes of it.

    Source: vLLM 0.33, config/model.py; Gemma 3's length is scaled already.
    """
    said = config.view("rope_parameters") or config.view("rope_scaling")
    if said is None:
        return {}
    kind = said.text("rope_type", "type", default="default")
    length = context
    if kind == "longrope":
        length = config.whole("original_max_position_embeddings", default=context)
    elif kind in ("linear", "dynamic") and not config.text("model_type", default="").startswith("gemma3"):
        length = int(context * said.number("factor", default=1.0))
    return {"served_context": length} if length != context else {}


def rope_tables(
    config: Config,
    width: int,
    context: int,
    *,
    partial: float = 1.0,
    local: bool = False,
    dtype: str = "",
    whole: bool = False,
) -> tuple[tuple[int, int, str], ...]:
    """The cos/sin tables vLLM builds, as (rows, rotary width, dtype): rows follow the scaling's kind.

    linear and dynamic: context x factor; yarn: original context x factor; longrope: context + original; else the
    context. `local`: layers with a window have an unscaled table of their own; `whole`: the width is the rotary one already. Nested rope_parameters give one a layer kind.
    Source: vLLM 0.33, model_executor/layers/rotary_embedding; checked against the `buffers` of its modules.
    """
    said = config.view("rope_parameters") or config.view("rope_scaling")
    views = [said.view(kind) for kind in ("full_attention", "sliding_attention")] if said else []
    nested = [view for view in views if view is not None]
    share = 1.0 if whole else config.number("partial_rotary_factor", "rotary_pct", "rope_pct", default=partial)
    tables = []
    choices: list[Config | None] = [*nested] or [said]
    for one in choices:
        part = one.number("partial_rotary_factor", default=share) if one and not whole else share
        tables.append((_rows(config, one, context), max(2, int(width * part)), dtype))
    if local and not nested:
        tables.append((context, max(2, int(width * share)), dtype))
    return tuple(tables)


def _rows(config: Config, scaling: Config | None, context: int) -> int:
    """Rows of one rotary table."""
    if scaling is None:
        return context
    kind = scaling.text("rope_type", "type", default="default")
    factor = scaling.number("factor", default=1.0)
    original = scaling.whole("original_max_position_embeddings", default=0, low=0)
    if kind in ("linear", "dynamic"):
        return math.ceil(context * factor)
    if kind in ("yarn", "deepseek_yarn"):
        return math.ceil((original or context) * factor)
    if kind in ("longrope", "su"):
        return context + (original or config.whole("original_max_position_embeddings", default=0, low=0))
    return context
