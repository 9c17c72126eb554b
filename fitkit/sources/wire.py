"""Bounded reads over HTTP: what one load may cost, whatever servers say.

MOST_MOVED_BYTES in all; no answer longer than was asked for; no silence longer than `timeout`, no answer that takes LONGEST_ANSWER
times that; three tries with pauses of at most LONGEST_PAUSE seconds; five redirects. A token goes to the hub's own origin
only. Compressed answers are refused unread, so nothing expands.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urljoin, urlsplit

from fitkit.errors import BadInput, FetchError, printable, short
from fitkit.sources.hub import Passing, endpoint, origin, pieces, refused, request, shown

Progress: TypeAlias = Callable[[str, int], object]  # (what is being read, bytes moved so far in this load)

MOST_MOVED_BYTES, MOST_FILE_BYTES = 96 * 2**20, 2**50
TRIES, LONGEST_PAUSE, LONGEST_ANSWER, MOST_REDIRECTS = 3, 10.0, 3, 5
_MOVED = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server gave: `headers` by lower-case name, the hub's own first where a redirect led elsewhere; `url` the last address."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


@dataclass(kw_only=True)
class Wire:
    """The connection of one load: counts what it moved, tells progress, keeps to the bounds. Threads may share it."""

    timeout: float = 10.0
    progress: Progress | None = None
    moved: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not 0 < self.timeout <= 3600:
            raise BadInput(f"timeout is {short(self.timeout)}, where seconds above 0 were expected.")
        if self.progress is not None and not callable(self.progress):
            raise BadInput(
                f"progress is {short(self.progress)}, where a function of a place and the bytes moved was expected."
            )

    def get(self, url: str, most: int, *, what: str = "", span: tuple[int, int] | None = None) -> Answer:
        """The body at `url`, at most `most` bytes; of `span` (offset, length) only that range.

        Raises FetchError: no answer, a refusal, more or something else than was asked for.
        """
        pause = 0.25
        for left in reversed(range(TRIES)):
            try:
                return self._once(url, most, what, span)
            except Passing as passing:
                if not left or passing.pause > LONGEST_PAUSE:
                    raise passing.error from None
                time.sleep(max(pause, passing.pause))
                pause *= 2
        raise AssertionError

    def _once(self, url: str, most: int, what: str, span: tuple[int, int] | None) -> Answer:
        hub_says: dict[str, str] = {}
        ends = time.monotonic() + LONGEST_ANSWER * self.timeout
        for _ in range(MOST_REDIRECTS + 1):
            with request(url, span, self.timeout) as response:
                status, headers = response.status_code, {k.lower(): v for k, v in response.headers.items()}
                if origin(url) == origin(endpoint()):
                    hub_says |= {name: value for name, value in headers.items() if name.startswith("x-")}
                if status in _MOVED:
                    url = _next(url, headers)
                    continue
                if status == 416 and span:
                    return Answer(status, headers, b"", url)
                _check(url, status, headers, most, span)
                return Answer(status, headers | hub_says, self._body(response, most, url, what, ends), url)
        raise refused(url, f"redirects more than {MOST_REDIRECTS} times")

    def _body(self, response: Any, most: int, url: str, what: str, ends: float) -> bytes:
        body = bytearray()
        for piece in pieces(response):
            body += piece
            with self._lock:
                self.moved += len(piece)
                moved = self.moved
            if len(body) > most:
                raise refused(url, f"sends more than the {most:,} bytes that were asked for")
            if moved > MOST_MOVED_BYTES:
                raise refused(url, f"brings this load past {MOST_MOVED_BYTES:,} bytes, more than any model's headers")
            if time.monotonic() > ends:
                raise refused(
                    url, f"did not end within {LONGEST_ANSWER * self.timeout:g} s; try again with a longer timeout="
                )
            if self.progress:
                self.progress(what or shown(url), moved)
        if (said := response.headers.get("content-length", "")).isdecimal() and int(said) != len(body):
            raise Passing(refused(url, f"said {int(said):,} bytes and sent {len(body):,}"), 0)
        return bytes(body)


class RemoteBytes:
    """A file at an address, as Bytes: only the ranges asked for travel, each at most `grow` beyond what is needed.

    Its first `first` bytes are read at once, which tells the size. Where the file becomes another one between two ranges, a
    FetchError says so.
    """

    def __init__(self, wire: Wire, url: str, place: str, *, first: int = 2**19, grow: int = 2**22) -> None:
        self.place, self.size = place, 0
        self._wire, self._url, self._at, self._etag = wire, url, url, ""
        self._step, self._grow = min(first, grow), grow
        self._start, self._window = 0, b""
        answer = wire.get(url, first, what=place, span=(0, first))
        self._at, self._etag = answer.url, answer.headers.get("etag", "")
        self.commit = answer.headers.get("x-repo-commit", "")
        self._window, self.size = _ranged(answer, 0, first)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer only at the end."""
        length = max(0, min(length, self.size - offset))
        if not self._start <= offset <= self._start + len(self._window):
            self._start, self._window = offset, b""
        have = self._window[offset - self._start :]
        if len(have) < length:
            self._step = min(2 * self._step, self._grow)
            at = offset + len(have)
            wanted = min(max(length - len(have), self._step), self.size - at)
            self._start, self._window = offset, have + self._fetch(at, wanted)
            have = self._window
        return have[:length]

    def _fetch(self, offset: int, length: int) -> bytes:
        try:
            answer = self._wire.get(self._at, length, what=self.place, span=(offset, length))
        except FetchError as error:
            if self._at == self._url or error.status not in (401, 403, 404, 410):
                raise
            # a signed address runs out: the hub gives a new one
            answer = self._wire.get(self._url, length, what=self.place, span=(offset, length))
            self._at = answer.url
        body, size = _ranged(answer, offset, length)
        etag = answer.headers.get("etag", "")
        if size != self.size or (etag and self._etag and etag != self._etag):
            raise refused(self._url, "changed while it was read; load it again")
        return body


def _next(url: str, headers: Mapping[str, str]) -> str:
    """Where a redirect leads."""
    try:
        found = urljoin(url, headers.get("location", ""))
        parts = urlsplit(found)
    except ValueError:
        raise refused(url, "redirects to what is no address") from None
    if parts.scheme not in ("http", "https") or found == url:
        raise refused(url, f"redirects to {printable(shown(found) or 'nothing', 80)}")
    if parts.scheme == "http" and urlsplit(url).scheme == "https":
        raise refused(url, "redirects from https to http")
    return found


def _check(url: str, status: int, headers: Mapping[str, str], most: int, span: tuple[int, int] | None) -> None:
    """Refuse what is no usable answer before its body is read."""
    if status in _PASSING:
        wait = headers.get("retry-after", "")
        pause = float(wait) if wait.isdecimal() and len(wait) < 9 else 0.0
        soon = f"; try again in {pause:g} s" if pause else "; try again later"
        raise Passing(
            refused(url, ("asks for fewer requests" if status == 429 else "has trouble of its own") + soon, status),
            pause,
        )
    if status != 200 and not (status == 206 and span):
        raise refused(url, _refusal(url, status, headers), status)
    if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise refused(
            url, f"sends {printable(headers['content-encoding'], 20)}, where plain bytes were asked for", status
        )
    said = headers.get("content-length", "")
    if said and (not said.isdecimal() or len(said) > 18):
        raise refused(url, f"says a length of {printable(said, 30)}", status)
    if span and status == 200 and (span[0] or not said or int(said) > most):
        raise refused(url, "sends whole files where a range was asked for; download the file and give its path", status)
    if said and int(said) > most:
        raise refused(url, f"would send {int(said):,} bytes, where at most {most:,} make sense", status)


def _refusal(url: str, status: int, headers: Mapping[str, str]) -> str:
    """What a status means and what to try."""
    code = headers.get("x-error-code", "")
    if code == "GatedRepo" or (status == 403 and origin(url) == origin(endpoint())):
        page = re.sub(r"/(resolve|revision|tree)/.*|/api/models", "", shown(url))
        return f"is gated: accept its licence at {page} and set a token of that account (HF_TOKEN, or `hf auth login`)"
    if status == 401:
        return "asks for a token: the repository is private, gated or not there; check its name, set HF_TOKEN or `hf auth login`"
    if code == "RevisionNotFound":
        return "has no such revision; check the branch, tag or commit"
    if status in (404, 410):
        return "is not there; check the name"
    return "refuses"


def _ranged(answer: Answer, offset: int, length: int) -> tuple[bytes, int]:
    """The bytes of a range and the whole file's size, checked against what was asked."""
    said = answer.headers.get("content-range", "")
    if answer.status == 416:
        match = re.fullmatch(r"bytes \*/(\d{1,18})", said)
        if match and int(match[1]) <= offset:
            return b"", int(match[1])
        raise refused(answer.url, "refuses the range that was asked for", 416)
    if answer.status == 200:
        return answer.body, len(answer.body)
    match = _RANGE.fullmatch(said)
    if not match:
        raise refused(answer.url, f"says the range {printable(said, 60)!r}, which is none", 206)
    first, last, size = (int(one) for one in match.groups())
    if size > MOST_FILE_BYTES:
        raise refused(answer.url, f"says a file of {size:,} bytes, more than any model's", 206)
    expected = min(offset + length, size) - 1
    if first != offset or last != expected or len(answer.body) != last - first + 1:
        raise refused(
            answer.url,
            f"gave {len(answer.body):,} bytes as {printable(said, 60)!r}, where {offset}-{expected} was asked for",
            206,
        )
    return answer.body, size
