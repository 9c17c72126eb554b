"""A model's shape as one short text: `hidden_size=4096 num_hidden_layers=32 layer_types=[(sliding_attention*5,full_attention)*8]`.

Only what a family function reads of a config stands there, so that a catalog row holds numbers and not a file. Pairs are apart by a space;
a mapping inside is {…}, a list […] with `*n` for what repeats and (…) for a group of several that repeats; words need no quotes unless they
could be read as something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fitkit.errors import BadInput, short

_WORD = re.compile(r"[A-Za-z_/:][\w./:+-]*")
_NOT_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_TOKEN = re.compile(r'\s+|"(?:[^"\\]|\\.)*"|[{}()\[\],=*]|[^\s"{}()\[\],=*]+')
_DEEPEST, _MOST = 12, 100_000


def encode(mapping: Mapping[str, Any]) -> str:
    """The text of a mapping of texts, numbers, truths, lists and mappings; decode() gives the same back."""
    return " ".join(f"{_word(key)}={_encode(value)}" for key, value in mapping.items())


def decode(text: str) -> dict[str, Any]:
    """The mapping a shape's text stands for. Raises BadInput where the text is none.

    >>> decode("layers=[full*2,(a,b)*2] rope={theta=1e6}")
    {'layers': ['full', 'full', 'a', 'b', 'a', 'b'], 'rope': {'theta': 1000000.0}}
    """
    tokens = _TOKEN.findall(text)
    if sum(map(len, tokens)) != len(text):
        raise BadInput(f"A shape has a quote that never ends: {short(text)}.")
    reader = _Reader([token for token in tokens if not token.isspace()])
    out = reader.pairs("")
    if reader.left():
        raise BadInput(f"A shape ends too early at {short(reader.left())}.")
    return out


def runs(items: list[str]) -> str:
    """`items` with what repeats written once: a*3,(b,c)*2."""
    out: list[str] = []
    i = 0
    while i < len(items):
        best, times = 1, 1
        for period in range(1, min(64, (len(items) - i) // 2) + 1):
            n = 1
            while items[i + n * period : i + (n + 1) * period] == items[i : i + period]:
                n += 1
            if n > 1 and n * period > best * times:
                best, times = period, n
        part = runs(items[i : i + best]) if best > 1 else items[i]
        out.append(part if times == 1 else f"({part})*{times}" if best > 1 else f"{part}*{times}")
        i += best * times
    return ",".join(out)


def _encode(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + encode(value) + "}"
    if isinstance(value, list | tuple):
        return "[" + runs([_encode(item) for item in value]) + "]"
    if isinstance(value, str):
        return _word(value)
    return json.dumps(value)


def _word(text: str) -> str:
    plain = _WORD.fullmatch(text) and text not in _NOT_WORDS
    return text if plain else json.dumps(text)


class _Reader:
    """Reads tokens into values."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def left(self) -> str:
        """The next token, empty at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        """The next token, one of `expected` where that is given."""
        token = self.left()
        if not token or (expected and token not in expected):
            raise BadInput(f"A shape has {short(token)} where {' or '.join(expected) or 'a value'} was expected.")
        self.at += 1
        return token

    def pairs(self, end: str) -> dict[str, Any]:
        """key=value until `end`."""
        out: dict[str, Any] = {}
        while self.left() != end:
            key = self.scalar(self.take())
            self.take("=")
            out[str(key)] = self.value()
        return out

    def value(self) -> Any:
        """A number, a truth, a text, a list or a mapping."""
        token = self.take()
        if token == "{":
            self.deeper()
            out = self.pairs("}")
            self.take("}")
            self.depth -= 1
            return out
        return self.items("]") if token == "[" else self.scalar(token)

    def items(self, end: str) -> list[Any]:
        """What stands in a list or group, repeats written out."""
        self.deeper()
        out: list[Any] = []
        while self.left() != end:
            if self.left() == "(":
                self.take()
                part = self.items(")")
            else:
                part = [self.value()]
            times = 1
            if self.left() == "*":
                self.take()
                times = self.scalar(self.take())
            if not isinstance(times, int) or len(part) * times + len(out) > _MOST:
                raise BadInput("A shape's list is too long.")
            out += part * times
            if self.left() != end:
                self.take(",")
        self.take(end)
        self.depth -= 1
        return out

    def scalar(self, token: str) -> Any:
        """A token by itself."""
        if _WORD.fullmatch(token) and token not in _NOT_WORDS:
            return token
        try:
            return json.loads(token)
        except ValueError:
            raise BadInput(f"A shape has {short(token)} where a value was expected.") from None

    def deeper(self) -> None:
        """One level down."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise BadInput("A shape is nested too deep.")
