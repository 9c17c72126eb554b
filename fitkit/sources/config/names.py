"""Lists of module names as quantization configs write them: exact names, globs, "re:" expressions, single words; matched fast and bounded."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Iterable

from fitkit.errors import BadInput, short

# Wrappers that one file puts before a module and another leaves out.
_WRAPPERS = frozenset(("model", "language_model", "text_model", "llm", "thinker", "backbone", "transformer"))
_MOST_NAMES, _MOST_LENGTH, _MOST_REPEATS, _MOST_SECONDS = 1_000_000, 300, 4, 0.8
_REPEAT = re.compile(r"(?<!\\)[*+]|\{\d*,\d*\}")
_REPEATED_GROUP = re.compile(r"(?<!\\)\)(?:[*+]|\{\d)")
_NO_WILDCARDS = str.maketrans("", "", "*?[")
_LIST_OF_EXPERTS = re.compile(r"\.experts\.\d+\.")


class Names:
    """A set of module names that says which modules it names.

    A plain name stands for the module and all below it; one without a wrapper in front ("gate", "self_attn") may stand
    anywhere in a path; globs and "re:" expressions match from the start, as the engines match them.
    """

    def __init__(self, patterns: Iterable[object], place: str = "config.json") -> None:
        self._rooted: set[str] = set()
        self._anywhere: set[str] = set()
        self._starts: set[str] = set()
        globs: list[str] = []
        regexes: list[str] = []
        for number, pattern in enumerate(patterns):
            if not isinstance(pattern, str) or number >= _MOST_NAMES:
                raise BadInput(f"{place}: {short(pattern)} is no module name.")
            if pattern.startswith("re:"):
                regexes.append(_checked(pattern[3:], place))
            elif pattern[:-1].translate(_NO_WILDCARDS) == pattern[:-1] and pattern.endswith("*"):
                self._starts.add(_bare(pattern[:-1]))
            elif "*" in pattern or "?" in pattern:
                plain = _bare(pattern)
                globs += [fnmatch.translate(plain), fnmatch.translate(f"{plain}.*")]
            else:
                self._add(pattern)
        self._globs = re.compile("|".join(dict.fromkeys(globs))) if globs else None
        self._regexes = [re.compile(text) for text in dict.fromkeys(regexes)]
        self._lengths = sorted({len(start) for start in self._starts})
        self._words = sorted({name.count(".") + 1 for name in self._anywhere})
        self._deadline = 0.0
        self._place = place

    def __bool__(self) -> bool:
        return bool(self._rooted or self._anywhere or self._starts or self._globs or self._regexes)

    def _add(self, pattern: str) -> None:
        name = _LIST_OF_EXPERTS.sub(".experts.0.", pattern.strip("."))  # one expert speaks for all
        bare = _bare(name)
        (self._rooted if bare != name else self._anywhere).add(bare)

    def __contains__(self, name: str) -> bool:
        """Whether `name` (a full module path with numbers) is named."""
        bare = _bare(name)
        if self._rooted:
            end = bare.find(".")
            while end >= 0:
                if bare[:end] in self._rooted:
                    return True
                end = bare.find(".", end + 1)
            if bare in self._rooted:
                return True
        if any(bare[:length] in self._starts for length in self._lengths):
            return True
        if self._anywhere and self._is_within(bare):
            return True
        if self._globs and self._globs.match(bare):
            return True
        return any(self._search(regex, name) for regex in self._regexes)

    def _is_within(self, bare: str) -> bool:
        """Whether a run of the path's words is one of the names that may stand anywhere."""
        parts = bare.split(".")
        return any(
            ".".join(parts[start : start + words]) in self._anywhere
            for words in self._words
            for start in range(len(parts) - words + 1)
        )

    def _search(self, regex: re.Pattern[str], name: str) -> bool:
        now = time.monotonic()
        self._deadline = self._deadline or now + _MOST_SECONDS
        if now > self._deadline:
            raise BadInput(f"{self._place}: the expression {short(regex.pattern)} takes too long to match.")
        return regex.match(name) is not None


def _bare(name: str) -> str:
    """`name` without the wrappers in front."""
    while (end := name.find(".")) > 0 and name[:end] in _WRAPPERS:
        name = name[end + 1 :]
    return name


def _checked(text: str, place: str) -> str:
    """An expression that can be matched in bounded time, or BadInput."""
    if len(text) > _MOST_LENGTH or len(_REPEAT.findall(text)) > _MOST_REPEATS or _REPEATED_GROUP.search(text):
        raise BadInput(f"{place}: the expression {short(text)} repeats too much to be matched safely.")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(f"{place}: {short(text)} is no regular expression: {error}.") from None
    return text
