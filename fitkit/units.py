"""Bytes are integers; GB is 10^9, GiB is 2^30, and a label never means both."""

from __future__ import annotations

import re

from fitkit.errors import BadInput, short

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_UNITS = {
    "b": 1, "kb": KB, "mb": MB, "gb": GB, "tb": TB, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:[.,]\d+)?)\s*([kmgt]?i?b)\s*", re.IGNORECASE)
_COUNT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([km]?)", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes [bytes] of a size with its unit.

    Raises BadInput where the text is not a number followed by B, kB, MB, GB, TB, KiB, MiB, GiB or TiB.

    >>> parse_bytes("24 GiB"), parse_bytes("1.5GB")
    (25769803776, 1500000000)
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise BadInput(f"A size such as '24 GiB' or '80 GB' was expected, not {short(text)}.")
    return round(float(match[1].replace(",", ".")) * _UNITS[match[2].lower()])


def parse_count(text: str) -> float | None:
    """A number as people type it, k and M of 1024; None where it is none.

    >>> parse_count("8,192"), parse_count("32k"), parse_count("many")
    (8192.0, 32768.0, None)
    """
    match = _COUNT.fullmatch(re.sub(r"[,_\s]", "", text[:40]))
    return float(match[1]) * {"": 1, "k": KIB, "m": MIB}[match[2].lower()] if match else None


def gib(size_bytes: float) -> float:
    """`size_bytes` in GiB (2^30)."""
    return size_bytes / GIB


def gb(size_bytes: float) -> float:
    """`size_bytes` in GB (10^9)."""
    return size_bytes / GB


def show_gib(size_bytes: float) -> str:
    """For people: two decimals under 100 GiB, one above.

    >>> show_gib(15_064_891_392)
    '14.03 GiB'
    """
    value = gib(size_bytes)
    return f"{value:,.2f} GiB" if abs(value) < 100 else f"{value:,.1f} GiB"


def show_gb(size_bytes: float) -> str:
    """For people: one decimal, as downloads and needs are shown.

    >>> show_gb(4_920_739_232)
    '4.9 GB'
    """
    return f"{gb(size_bytes):,.1f} GB"
