"""A config mapping read key by key: every value is checked, and what was read is remembered (the catalog is made from that)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fitkit.errors import BadInput, short

_MISSING: Any = object()
T = TypeVar("T")

# The widest any key may say; far above every published model, low enough that no product of two overflows memory or time.
MOST_LAYERS, MOST = 4096, 2**31
_MOST_NUMBER = 1e18  # of what need not be whole: rope bases, factors, limits that stand for none


class Config:
    """A checked view of one mapping.

    `read` maps each key asked for and present to its value, in the order asked; sub-views record under their own name.
    """

    def __init__(self, mapping: Mapping[str, Any], place: str = "config.json", *, nested: bool = False) -> None:
        self.mapping = mapping
        self.place = place
        self.nested = nested  # a mapping inside another, which leaves out whatever equals its class's defaults
        self.read: dict[str, Any] = {}
        self._views: dict[str, Config] = {}

    def __contains__(self, key: str) -> bool:
        return self.mapping.get(key) is not None

    def raw(self, *keys: str, default: Any = None) -> Any:
        """The first of `keys` that is there and not null."""
        for key in keys:
            value = self.mapping.get(key)
            if value is not None:
                self.read[key] = value
                return value
        return default

    def whole(self, *keys: str, default: int = _MISSING, low: int = 1, high: int = MOST) -> int:
        """A whole number between `low` and `high` under the first of `keys` that is there."""
        value = self.raw(*keys, default=_MISSING)
        if value is _MISSING:
            return self._default(keys, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._bad(keys, value, f"a whole number from {low} to {high}")
        return value

    def nullable(self, key: str, default: int) -> int:
        """A whole number under `key`, 0 where the file says null, `default` where it is silent; a null is remembered as 0."""
        if key in self.mapping and self.mapping[key] is None:
            self.read[key] = 0
            return 0
        return self.whole(key, default=default, low=0)

    def number(self, *keys: str, default: float = _MISSING) -> float:
        """A finite number."""
        value = self.raw(*keys, default=_MISSING)
        if value is _MISSING:
            return self._default(keys, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST_NUMBER:
            raise self._bad(keys, value, "a finite number")
        return value

    def flag(self, *keys: str, default: bool = _MISSING) -> bool:
        """True or false."""
        value = self.raw(*keys, default=_MISSING)
        if value is _MISSING:
            return self._default(keys, default)
        if not isinstance(value, bool):
            raise self._bad(keys, value, "true or false")
        return value

    def text(self, *keys: str, default: str = _MISSING) -> str:
        """A short text."""
        value = self.raw(*keys, default=_MISSING)
        if value is _MISSING:
            return self._default(keys, default)
        if not isinstance(value, str) or len(value) > 500:
            raise self._bad(keys, value, "a short text")
        return value

    def entries(self, *keys: str, default: Sequence[Any] = _MISSING, length: int | None = None) -> Sequence[Any]:
        """A list, of `length` entries where that is given."""
        value = self.raw(*keys, default=_MISSING)
        if value is _MISSING:
            return self._default(keys, default)
        if not isinstance(value, list | tuple) or len(value) > MOST_LAYERS * 4:
            raise self._bad(keys, value, "a list")
        if length is not None and len(value) != length:
            raise BadInput(f"{self.place}: {keys[0]} has {len(value)} entries where {length} were expected.")
        return value

    def wholes(
        self, *keys: str, count: int, default: int | Sequence[int] = _MISSING, low: int = 0, high: int = MOST
    ) -> tuple[int, ...]:
        """`count` whole numbers: a list of them, or one number that holds for all."""
        value = self.raw(*keys, default=_MISSING)
        if value is _MISSING:
            value = self._default(keys, default)
        values = list(value) if isinstance(value, list | tuple) else [value] * count
        if len(values) != count:
            raise BadInput(f"{self.place}: {keys[0]} has {len(values)} entries where {count} were expected.")
        for entry in values:
            if isinstance(entry, bool) or not isinstance(entry, int) or not low <= entry <= high:
                raise self._bad(keys, entry, f"whole numbers from {low} to {high}")
        return tuple(values)

    def view(self, key: str, **also: Any) -> Config | None:
        """The mapping under `key` as a view of its own, or None where there is none; `also` are keys it takes from elsewhere."""
        value = self.mapping.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._bad((key,), value, "a mapping")
        if key not in self._views:
            self._views[key] = Config({**value, **also} if also else value, f"{self.place}: {key}", nested=True)
        return self._views[key]

    def but(self, **entries: Any) -> Config:
        """The same view with some entries replaced; what is read of it is remembered here as well, as it was given."""
        out = Config({**self.mapping, **entries}, self.place, nested=self.nested)
        out.read, out._views = self.read, {key: view for key, view in self._views.items() if key not in entries}
        return out

    def unread(self) -> dict[str, Any]:
        """What is there, says something and was not asked for: not null, false, zero or empty."""
        return {
            key: value
            for key, value in self.mapping.items()
            if isinstance(key, str) and key not in self.read and key not in self._views and (value or value != value)
        }

    def parts(self, *keys: str) -> tuple[Config, ...]:
        """The views taken so far of those of `keys` that were."""
        return tuple(view for key, view in self._views.items() if key in keys)

    def recorded(self) -> dict[str, Any]:
        """What was read, sub-views included: enough to build the same model again."""
        out = dict(self.read)
        for key, view in self._views.items():
            inner = view.recorded()
            if inner:
                out[key] = inner
        return out

    def _default(self, keys: Sequence[str], default: T) -> T:
        if default is _MISSING:
            names = " or ".join(keys)
            raise BadInput(f"{self.place} has no {names}, which this model's family needs.")
        return default

    def _bad(self, keys: Sequence[str], value: object, expected: str) -> BadInput:
        key = next((key for key in keys if key in self.mapping), keys[0])
        return BadInput(f"{self.place}: {key} is {short(value)}, where {expected} was expected.")
