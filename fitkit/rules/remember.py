"""Remembering what is worked out once a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from fitkit.model import Model

T = TypeVar("T")
_MOST = 8192


def once_a_model(function: Callable[..., T]) -> Callable[..., T]:
    """Cache by the model's identity and the other (hashable) arguments.

    A Model hashes all its tensors each time, which costs more than most of what is asked of it. The entry holds the
    model, so its id stays its own.
    """
    kept: dict[tuple[Any, ...], tuple[Model, T]] = {}

    @wraps(function)
    def wrapper(model: Model, *rest: Any) -> T:
        key = (id(model), *rest)
        found = kept.get(key)
        if found is None:
            if len(kept) >= _MOST:
                kept.clear()
            found = kept[key] = (model, function(model, *rest))
        return found[1]

    return wrapper
