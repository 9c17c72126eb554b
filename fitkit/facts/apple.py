"""What macOS lets the GPU of a Mac use of the memory it shares with the CPU."""

from __future__ import annotations

import re

from fitkit import facts
from fitkit.errors import BadInput, short
from fitkit.units import GIB


def working_set(memory_bytes: int, macos: str) -> tuple[int, int]:
    """What macOS lets the GPU of a Mac use (Metal's recommendedMaxWorkingSetSize) [bytes]: lowest and highest over its versions.

    Two thirds of the memory up to 32 GB and three quarters above, on every version seen; macOS 26 gives more, by the table's
    figure for that size, and some releases of macOS 15 already did.
    """
    table = [row for row in facts.rows("apple_limits") if round(float(row["memory_gib"]) * GIB) == memory_bytes]
    limits = {row["macos"]: round(float(row["limit_gib"]) * GIB) for row in table}
    low = limits.get("any", round(memory_bytes * (2 / 3 if memory_bytes <= 32 * GIB else 0.75)))
    high = limits.get("26", low)
    if not macos:
        return low, high
    match = re.fullmatch(r"(?:macos\s*)?(\d+)(\.\d+)*", macos.strip(), re.IGNORECASE)
    if match is None:
        raise BadInput(f"A macOS version such as '15' was expected, not {short(macos)}.")
    version = int(match[1])
    return (high if version >= 26 else low, high if version >= 15 else low)
