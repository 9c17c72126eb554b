"""How people write GPUs and counts of them, read into rows of facts and numbers."""

from __future__ import annotations

import math
import re

from fitkit import facts
from fitkit.errors import BadInput, UnknownName, short

_COUNTED = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*[x×*]\s*(.+)|(.+?)\s+[x×*]\s*(\d+)\s*", re.IGNORECASE)
_SIZE = re.compile(r"\s*(-?\d+(?:[.,]\d+)?)\s*(?:g|gb|gib)\s*(?:gpu|card|vram)?\s*", re.IGNORECASE)
_SIZED = re.compile(r"(.+?)[\s-]*(\d+)\s*gi?b", re.IGNORECASE)
_APPLE = re.compile(r"m\d+(\s*-?\s*(pro|max|ultra))?", re.IGNORECASE)
_BESIDE = re.compile(
    r"\b(apple|mac ?studio|mac ?book( ?(pro|air))?|mac ?mini|mac ?pro|imac|nvidia|amd|intel|geforce|tesla|gpus?)\b",
    re.IGNORECASE,
)
_MOST = 100_000


def counted(text: str) -> tuple[int, str]:
    """A count and what is counted; one where no count is written.

    >>> counted("8 × H100"), counted("RTX 4090 x2"), counted("L4")
    ((8, 'H100'), (2, 'RTX 4090'), (1, 'L4'))
    """
    match = _COUNTED.fullmatch(text)
    if match is None or facts.find("gpus", plain(text)):
        return 1, text
    number, rest = (match[1], match[2]) if match[1] else (match[4], match[3])
    value = float(number)
    return whole_count(int(value) if value.is_integer() else value, "GPUs"), rest


def plain(name: str) -> str:
    """A name without the words that makers put beside it and without the box an Apple chip sits in."""
    return name if facts.find("gpus", name) else _BESIDE.sub(" ", name).strip()


def with_memory(name: str, ram_gb: float | None) -> str:
    """An Apple chip's name completed by its memory where that is given apart."""
    return f"{plain(name)} {ram_gb:g}GB" if isinstance(ram_gb, int | float) and _APPLE.fullmatch(plain(name)) else name


def size_gib(text: str) -> float | None:
    """The GiB of a name that is a size and nothing else."""
    match = _SIZE.fullmatch(text)
    return float(match[1].replace(",", ".")) if match else None


def gpu_row(name: str) -> facts.Row:
    """The row of the GPU of this name, with or without its memory behind it. Raises UnknownName, or BadInput for a size it is not sold with."""
    row = facts.find("gpus", plain(name))
    if row is not None:
        return row
    match = _SIZED.fullmatch(plain(name))
    row = facts.find("gpus", match[1]) if match else None
    if match is None or row is None:
        raise _no_gpu(name)
    sold = float(row["nominal_gib"]) * int(row["devices"])
    if sold != float(match[2]):
        raise BadInput(
            f"{short(name)}: {row['name']} is listed with {sold:g} GB; another card is given by its size alone, '{match[2]} GiB'."
        )
    return row


def _no_gpu(name: str) -> BadInput:
    """The error for a name that is no GPU: several at once, a chip of several sizes, else the nearest names."""
    kinds = [counted(part)[1] for part in name.split("+")]
    if len(kinds) > 1 and all(facts.find("gpus", plain(kind)) for kind in kinds):
        return BadInput(
            f"{short(name)}: GPUs of different kinds are judged each by themselves; give one machine for each."
        )
    folded = facts.fold(plain(name))
    names = [row["name"] for row in facts.rows("gpus")]
    sizes = tuple(one for one in names if folded and re.fullmatch(re.escape(folded) + r"\d+gb", facts.fold(one)))
    if sizes:
        return UnknownName(f"{short(name)} is sold with several sizes of memory; say which: {', '.join(sizes)}.", sizes)
    return UnknownName.among("GPU or machine", name, [*facts.every_name("gpus"), *facts.every_name("machines")])


def whole_count(value: object, what: str) -> int:
    """`value` where it is a whole number of things there can be."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise BadInput(f"A number of {what} from 1 to {_MOST:,} was expected, not {short(value)}.")
    return value


def whole_bytes(what: str, value: float, unit: int, *, low: float = 1e-6, high: int = 2**60) -> int:
    """`value` units in bytes; refused where it is no finite number between `low` units and `high` bytes."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{what} is {short(value)}, where a finite number was expected.")
    if value < low:
        raise BadInput(f"{what} is {short(value)}, where {'more than 0' if low else 'no less than 0'} was expected.")
    if value * unit > high:
        raise BadInput(f"{what} is {short(value)}, where at most {high / unit:,.0f} was expected.")
    return round(value * unit)
