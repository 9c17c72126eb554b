"""What the world says, one CSV table a subject, each row with its source; and the one reader that checks and looks up.

Tables: gpus, machines, apple_limits, quants, kv_dtypes, models, files, and whatever an engine's rules bring. Column names mean the same
in every table, and what a column holds is known by its name (`_gib` is a number, `_bytes` a whole one, `checked` a date).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from fitkit.errors import BadInput, UnknownName

Row = Mapping[str, str]

# Columns without which a table is of no use to its readers; every table has a source besides.
NEEDED: dict[str, tuple[str, ...]] = {
    "gpus": ("name", "aliases", "vendor", "nominal_gib", "driver_mib", "torch_gib", "backend", "bandwidth_gb_s", "devices", "checked"),
    "machines": ("name", "aliases", "gpu", "count", "ram_gib", "checked"),
    "apple_limits": ("memory_gib", "macos", "limit_gib", "checked"),
    "quants": ("name", "aliases", "kind", "engines", "block_size", "block_bytes", "bits", "bytes_per_param", "checked"),
    "kv_dtypes": ("name", "aliases", "engines", "block_size", "block_bytes", "head_bytes", "checked"),
    "models": ("name", "repo", "aliases", "family", "params", "layer_kinds", "shape", "downloads", "checked"),
    "files": ("model", "vocab", "repo", "quant", "bytes", "measure", "mix", "checked"),
}  # fmt: skip

_BETWEEN = re.compile(r"(?<!\d)\.|\.(?!\d)|[^\w.]|_")  # what a name is read without
_WHOLE = re.compile(r"(.*_)?(bytes|mib|params|layers|context|vocab|downloads|count|devices|agree|block_size|mixes)")
_NUMBER = re.compile(r"(.*_)?(gib|bits|per_param|gb_s|bpw|ppl|kld|ratio)(_.*)?")


@cache
def rows(table: str) -> tuple[Row, ...]:
    """All rows of a table, in the file's order, as read-only mappings of texts ("" where nothing is known).

    Raises BadInput where the file lacks a needed column, a row its source, or a value is not of its column's kind.
    """
    path = files(__name__) / f"{table}.csv"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UnknownName.among("table of facts", table, NEEDED) from None
    reader = csv.DictReader(text.splitlines(), strict=True)
    columns = tuple(reader.fieldnames or ())
    missing = [name for name in (*NEEDED.get(table, ()), "source") if name not in columns]
    if missing:
        raise BadInput(f"facts/{table}.csv has no column {', '.join(missing)}.")
    checks = [(name, kind) for name in columns if (kind := _kind(name))]
    out = []
    for number, row in enumerate(reader, 2):
        _check(table, number, row, checks)
        out.append(MappingProxyType(row))
    return tuple(out)


def fold(name: str) -> str:
    """`name` without case, spaces and punctuation; only a dot between two digits stays, so that 1.5B is not 15B.

    >>> fold("RTX-4090") == fold("rtx 4090"), fold("Qwen2.5-1.5B")
    (True, 'qwen2.51.5b')
    """
    return _BETWEEN.sub("", name.casefold().replace("×", "x"))


def aliases(row: Row) -> tuple[str, ...]:
    """Every name of a row, its own first."""
    return (row["name"], *(part for part in row.get("aliases", "").split("|") if part))


def find(table: str, name: str) -> Row | None:
    """The row whose name or alias is `name` (see fold), or None."""
    return _by_name(table).get(fold(name))


def get(table: str, name: str, what: str) -> Row:
    """As find, but a miss is an UnknownName: no such `what`, with the nearest names."""
    row = find(table, name)
    if row is None:
        raise UnknownName.among(what, name, every_name(table))
    return row


def every_name(table: str) -> Iterable[str]:
    """All names and aliases of a table."""
    return (name for row in rows(table) for name in aliases(row))


@cache
def _by_name(table: str) -> dict[str, Row]:
    """The first row with a name wins; a row's own name comes before any alias."""
    out: dict[str, Row] = {}
    for row in rows(table):
        out.setdefault(fold(row["name"]), row)
    for row in rows(table):
        for name in aliases(row):
            out.setdefault(fold(name), row)
    return out


def _kind(column: str) -> re.Pattern[str] | None:
    """What a value of this column looks like, where that can be said from its name."""
    if column == "checked":
        return re.compile(r"\d{4}-\d\d-\d\d")
    if _WHOLE.fullmatch(column):
        return re.compile(r"-?\d*")
    if _NUMBER.fullmatch(column):
        return re.compile(r"(-?\d+(\.\d+)?(e-?\d+)?)?")
    return None


def _check(table: str, number: int, row: dict[str, str], checks: list[tuple[str, re.Pattern[str]]]) -> None:
    if None in row or None in row.values():
        raise BadInput(f"facts/{table}.csv line {number} has too few or too many values.")
    if not row["source"]:
        raise BadInput(f"facts/{table}.csv line {number} names no source.")
    for name, kind in checks:
        if not kind.fullmatch(row[name]):
            raise BadInput(f"facts/{table}.csv line {number}: {name} is {row[name]!r}, which it cannot be.")
