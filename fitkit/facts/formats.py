"""Rows of formats.csv as packing.Format. A name may carry its own group: `awq@64`, `fp8_block@32x32` (inputs x outputs)."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

from fitkit import facts
from fitkit.errors import BadInput, UnknownName, short
from fitkit.packing import Format

_TEXTS = ("name", "quant")


@cache
def formats() -> dict[str, Format]:
    """Every row by its name."""
    names = [field.name for field in fields(Format) if field.name not in _TEXTS]
    return {
        row["name"]: Format(name=row["name"], quant=row["quant"], **{name: int(row[name]) for name in names})
        for row in facts.rows("formats")
    }


@cache
def format_named(name: str) -> Format:
    """The format a tensor's dtype names.

    >>> format_named("awq@64").group, format_named("fp8_block@32x32").rows
    (64, 32)
    """
    base, _, own = name.partition("@")
    form = formats().get(base)
    if form is None:
        raise UnknownName.among("packed format", base, formats())
    if not own:
        return form
    group, _, rows = own.partition("x")
    if not group.isdigit() or (rows and not rows.isdigit()):
        raise BadInput(f"A packed format such as awq@64 or fp8_block@32x32 was expected, not {short(name)}.")
    return replace(form, name=name, group=int(group), rows=int(rows) if rows else form.rows)
