"""What can go wrong, each told in one plain sentence: what was given, what was expected, the nearest known name.

FitError
├── BadInput          a value or a file that cannot mean anything
│   └── UnknownName   a name no table knows; carries the nearest ones
├── UnsupportedModel  a model whose memory the package does not model, refused by name
└── FetchError        a hub or a server that did not give what was asked
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FitError(ValueError):
    """The root of every error fitkit raises on purpose."""


class BadInput(FitError):
    """A value or a file that cannot mean anything; the message names the place."""


class UnknownName(BadInput):
    """A name no table knows.

    Attributes
    ----------
    nearest : tuple of str
        The known names closest to what was given, best first.
    """

    def __init__(self, message: str, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.nearest = nearest

    @classmethod
    def among(cls, what: str, given: object, known: Iterable[str]) -> UnknownName:
        """The error for `given` where one of `known` was expected; lists all of a short list, else the nearest."""
        names = list(dict.fromkeys(known))
        folded = {name.casefold(): name for name in names}
        close = difflib.get_close_matches(
            (given if isinstance(given, str) else short(given)).casefold()[:100], folded, n=3, cutoff=0.4
        )
        nearest = tuple(folded[name] for name in close)
        if nearest:
            hint = "did you mean " + " or ".join(nearest) + "?"
        elif len(names) <= 12:
            hint = "known are " + ", ".join(names) + "."
        else:
            hint = f"{len(names)} are known, none of them close."
        return cls(f"Unknown {what} {short(given)}; {hint}", nearest)


class UnsupportedModel(FitError):
    """A model whose memory the package does not model: says which key or architecture and what to do."""


class FetchError(FitError):
    """A hub or a server that did not give what was asked: the address, the status and what to try.

    Attributes
    ----------
    address : str
        What was asked, without its query; "" where nothing was.
    status : int
        The HTTP status, 0 where there was no answer.
    """

    def __init__(self, message: str, *, address: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.address = address
        self.status = status


def short(value: object, limit: int = 80) -> str:
    """`value` quoted for a message, cut to `limit` characters, control characters escaped."""
    try:
        text = repr(value)
    except Exception:  # an object of somebody else's, shown in an error of ours
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())  # of a frame or an array: one line
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str, limit: int = 200) -> str:
    """`text` for one line of a message: control characters escaped, cut to `limit` characters."""
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
