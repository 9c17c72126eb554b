"""The network and huggingface_hub: requests through its client, its address, tokens, offline mode and cache. No other file reaches out.

Source: the hub's HTTP interface as huggingface_hub 0.34 to 2.4 use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from fitkit.errors import FetchError, printable

_PIECE = 2**16


class Passing(Exception):
    """A failure that may be gone in a while: the error to raise if not, and how long the server asks to wait [s]."""

    def __init__(self, error: FetchError, pause: float) -> None:
        super().__init__(str(error))
        self.error, self.pause = error, pause


@contextlib.contextmanager
def request(url: str, span: tuple[int, int] | None, timeout: float) -> Iterator[Any]:
    """One GET through huggingface_hub's own client (its proxies and certificates), no redirect followed, the body unread.

    The client is httpx's from version 1 on and requests' before; they differ in how they stream.
    """
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise FetchError(
            f"{shown(url)} is no address that can be asked: http:// or https:// was expected.", address=shown(url)
        )
    headers = {"Accept-Encoding": "identity", **_identity(url)}
    if span:
        headers["Range"] = f"bytes={span[0]}-{span[0] + span[1] - 1}"
    session = get_session()
    try:
        if callable(getattr(session, "stream", None)):
            with session.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=False) as response:
                yield response
        else:
            with _asked(session, url, headers, timeout) as response:
                yield response
    except _failures() as error:
        _unanswered(url, error, timeout)


def _asked(session: Any, url: str, headers: dict[str, str], timeout: float) -> Any:
    """One GET by requests, which looks at a redirect's address even where it is not to follow it."""
    try:
        return session.get(url, headers=headers, timeout=timeout, stream=True, allow_redirects=False)
    except _failures():
        raise
    except ValueError:
        raise refused(url, "redirects to what is no address") from None


def _identity(url: str) -> dict[str, str]:
    """The client's name, and the user's token where `url` is the hub itself."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    from fitkit import __version__

    token = None if origin(url) == origin(endpoint()) else False
    return {
        str(k): str(v)
        for k, v in build_hf_headers(token=token, library_name="fitkit", library_version=__version__).items()
    }


def pieces(response: Any) -> Iterator[bytes]:
    """The body as it arrives, not undone from any compression; a slow one in small pieces, so that its time can be told."""
    if raw := getattr(response, "iter_raw", None):
        yield from raw()
    elif arriving := getattr(response.raw, "read1", None):
        while piece := arriving(_PIECE, decode_content=False):
            yield piece
    else:
        yield from response.iter_content(_PIECE)


def _failures() -> tuple[type[BaseException], ...]:
    """What the client raises without an answer: the library's own root of errors, and the system's."""
    from huggingface_hub.errors import HfHubHTTPError

    own = [
        one for one in HfHubHTTPError.__mro__ if one.__module__.partition(".")[0] not in ("huggingface_hub", "builtins")
    ]
    beneath = sys.modules.get("urllib3")  # where requests is the client, its bodies are read through this
    return (*own, *([beneath.exceptions.HTTPError] if beneath else ()), OSError)


def _unanswered(url: str, error: BaseException, timeout: float) -> NoReturn:
    """The refusal for an answer that never came, or broke off."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OfflineModeIsEnabled" in names:
        raise FetchError(
            f"{shown(url)} was not asked: offline mode is on (HF_HUB_OFFLINE).", address=shown(url)
        ) from None
    if names & {"TimeoutException", "Timeout", "TimeoutError"} or "timed out" in str(error):
        raise refused(url, f"sent nothing for {timeout:g} s; try again, or with a longer timeout=") from None
    if names & {"ConnectError"} or "NewConnectionError" in repr(error) or "NameResolutionError" in repr(error):
        raise refused(
            url, f"could not be reached ({printable(str(error), 120)}); check the network and HF_ENDPOINT"
        ) from None
    raise Passing(
        refused(url, f"could not be read ({printable(str(error) or type(error).__name__, 120)}); check the network"), 0
    ) from None


def refused(url: str, why: str, status: int = 0) -> FetchError:
    said = f" (HTTP {status})" if status else ""
    return FetchError(f"{shown(url)}{said} {why}.", address=shown(url), status=status)


def shown(url: str) -> str:
    """An address for a message: without its query, which may be signed, and without a user's name."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return printable(url, 80)
    return printable(f"{parts.scheme}://{host}{port}{parts.path}", 200)


def origin(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme,
            (parts.hostname or "").lower(),
            parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0),
        )
    except ValueError:
        return "", "", 0


# ---- the hub ----


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT, or the public one."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def offline() -> bool:
    """Whether the user asked huggingface_hub to stay off the network (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def file_url(repo: str, revision: str, name: str) -> str:
    """Where the hub has a file of a repository."""
    return f"{endpoint()}/{repo}/resolve/{quote(revision, safe='')}/{quote(name)}"


def repo_url(repo: str, revision: str = "", rest: str = "") -> str:
    """Where the hub tells of a repository."""
    return f"{endpoint()}/api/models/{repo}" + (f"/{rest or 'revision'}/{quote(revision, safe='')}" if revision else "")


def file_of_url(url: str) -> tuple[str, str, str] | None:
    """Repository, revision and file that an address of the hub itself names."""
    if origin(url) != origin(endpoint()):
        return None
    match = re.fullmatch(r"/([\w.-]+/[\w.-]+)/(?:resolve|blob)/([\w.%-]+)/(.+)", urlsplit(url).path)
    return (match[1], match[2].replace("%2F", "/"), match[3]) if match else None


def snapshot(repo: str, revision: str) -> Path | None:
    """The cache's directory of a repository at a revision, None where the cache has none."""
    folder = _cache_folder(repo)
    ref = folder / "refs" / (revision or "main")
    try:
        commit = ref.read_text(encoding="ascii")[:64].strip() if ref.is_file() else revision
    except (OSError, ValueError):
        return None
    found = folder / "snapshots" / commit
    return found if re.fullmatch(r"[\w-]+", commit) and found.is_dir() else None


def keep(repo: str, revision: str, commit: str, name: str, body: bytes) -> None:
    """Put a small file into the hub's cache as huggingface_hub lays it out. Whole or not at all; a cache that cannot be written is no error."""
    folder = _cache_folder(repo)
    blob = folder / "blobs" / hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
    pointer = folder / "snapshots" / commit / name
    with contextlib.suppress(OSError):
        for place in (blob, pointer):
            place.parent.mkdir(parents=True, exist_ok=True)
        if not blob.is_file():
            _write_whole(blob, body)
        if not pointer.exists():
            try:
                pointer.symlink_to(os.path.relpath(blob, pointer.parent))
            except OSError:
                _write_whole(pointer, body)
        if revision != commit:
            ref = folder / "refs" / (revision or "main")
            ref.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(ref, commit.encode())


def _cache_folder(repo: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / str(repo_folder_name(repo_id=repo, repo_type="model"))


def _write_whole(path: Path, body: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.incomplete")
    try:
        part.write_bytes(body)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
