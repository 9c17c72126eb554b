"""Unknown keyword arguments of public calls in one plain sentence: the call, the keyword, the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from fitkit.errors import UnknownName, short

C = TypeVar("C", bound=Callable[..., Any])
K = TypeVar("K", bound=type)


class UnknownKeyword(UnknownName, TypeError):
    """A keyword argument that a call does not have: FitError as all of ours, TypeError as all of Python's."""


def told(call: C) -> C:
    """`call`, which answers an unknown keyword with UnknownKeyword."""
    known, name = _keywords(call), call.__name__

    @wraps(call)
    def checked(*values: Any, **keywords: Any) -> Any:
        for keyword in keywords:
            if keyword not in known:
                raise _unknown(name, keyword, known)
        return call(*values, **keywords)

    return checked  # type: ignore[return-value]


def told_class(kind: K) -> K:
    """`kind`, whose constructor answers an unknown keyword with UnknownKeyword."""
    make: Any = kind.__init__  # type: ignore[misc]
    known, name = _keywords(make), kind.__name__

    @wraps(make)
    def checked(self: Any, *values: Any, **keywords: Any) -> None:
        for keyword in keywords:
            if keyword not in known:
                raise _unknown(name, keyword, known)
        make(self, *values, **keywords)

    kind.__init__ = checked  # type: ignore[misc]
    return kind


def _keywords(call: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in signature(call).parameters if name != "self")


def _unknown(call: str, keyword: str, known: tuple[str, ...]) -> UnknownKeyword:
    """The nearest by letters, or by initials: tp for tensor_parallel_size."""
    nearest = difflib.get_close_matches(keyword[:100].casefold(), known, n=1, cutoff=0.5)
    nearest += [name for name in known if len(keyword) > 1 and _initials(name).startswith(keyword.casefold())]
    near = tuple(dict.fromkeys(nearest))
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}."
    return UnknownKeyword(f"{call} has no keyword {short(keyword)}; {hint}", near)


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split("_"))
