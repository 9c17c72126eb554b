"""JSON that somebody else wrote: read strictly, in bounded time and memory."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from fitkit.errors import BadInput, short

# A value takes at most some 250 bytes once read, so a text of these limits stays below 128 MiB and about a second. The largest
# published index has some 300,000.
MOST_VALUES, MOST_DEPTH = 2**19, 64


def strict_json(raw: bytes, place: str, *, most_values: int = MOST_VALUES, numbers_only: bool = True) -> Any:
    """The value of a JSON text in UTF-8.

    `numbers_only` refuses NaN and Infinity, which configs of some state-space models have and no header can have.
    Raises BadInput, naming `place`, for a text that is no JSON, repeats a key, nests deeper than 64 or holds more than
    `most_values` values.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise BadInput(f"{place}: the key {short(double)} is there twice.")
        return found

    def constant(name: str) -> NoReturn:
        raise BadInput(f"{place}: {name} is no size.")

    # every value but the first of a container follows a comma, and a container begins with a bracket
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > most_values:
        raise BadInput(f"{place} holds more than {most_values:,} values, more than any model's.")
    try:
        found = json.loads(
            raw.decode("utf-8-sig"), object_pairs_hook=unique, parse_constant=constant if numbers_only else None
        )
    except BadInput:
        raise
    except UnicodeDecodeError as error:
        raise BadInput(f"{place} is not UTF-8 at byte {error.start:,}.") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place} is no JSON: {short(str(error))}.") from None
    if _deeper(found, MOST_DEPTH):
        raise BadInput(f"{place} nests deeper than {MOST_DEPTH}.")
    return found


def _deeper(value: Any, most: int) -> bool:
    """Whether containers lie deeper in each other than `most`, looked at level by level."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most + 1):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
