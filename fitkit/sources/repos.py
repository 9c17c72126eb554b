"""A hub repository as names, sizes and readable files: on the hub itself, or what the hub's cache has of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Protocol

from fitkit.errors import BadInput, FetchError, printable, short
from fitkit.sources import hub
from fitkit.sources.catalog import unknown_model
from fitkit.sources.gguf_header import Bytes, FileBytes
from fitkit.sources.json_text import strict_json
from fitkit.sources.places import own
from fitkit.sources.wire import RemoteBytes, Wire

_MOST_NAMES, _MOST_LISTING, _MOST_PAGES = 25_000, 8 * 2**20, 50
_ALIKE = 0.7  # of the letters, where a name may be meant
_COMMIT = re.compile(r"[\w-]{1,64}")


class Repo(Protocol):
    """Files of one repository at one revision; `partial` where some may be missing here that the repository has."""

    id: str
    revision: str
    files: Mapping[str, int | None]
    partial: bool

    def json(self, name: str, most: int, **how: Any) -> Any:
        """What a JSON file of at most `most` bytes says; `how` as strict_json takes it."""

    def open(self, name: str, first: int, grow: int = 2**22) -> Bytes:
        """A file to be read by range, its first `first` bytes at once."""


def open_repo(repo: str, revision: str, wire: Wire, online: bool | None) -> Repo:
    """The repository on the hub; from the cache where `online` is False, offline mode is on, or the hub gives no answer.

    Raises FetchError: the hub refuses or is out of reach and the cache has nothing; UnknownName where the hub knows no such name.
    """
    off = online is False or (online is None and hub.offline())
    if not off:
        try:
            return HubRepo(repo, revision, wire)
        except FetchError as error:
            if error.status and error.status < 500:
                raise _refused(repo, error) from None
            folder = hub.snapshot(repo, revision)
            if folder is None:
                raise _refused(repo, error) from None
            return CachedRepo(repo, folder)
    folder = hub.snapshot(repo, revision)
    if folder is None:
        why = "online=False was asked" if online is False else "offline mode is on (HF_HUB_OFFLINE)"
        at = f" at {short(revision)}" if revision else ""
        raise _refused(
            repo, FetchError(f"{repo}{at} is not in the hub's cache, and {why}: load it once with the network.")
        )
    return CachedRepo(repo, folder)


def _refused(repo: str, error: FetchError) -> FetchError:
    """The error with the catalog's nearest names, where the repository may be mistyped."""
    near = unknown_model(repo).nearest if error.status in (0, 401, 404) else ()
    near = tuple(name for name in near if SequenceMatcher(None, name.casefold(), repo.casefold()).ratio() > _ALIKE)
    hint = f" The catalog, which needs no network, has {' and '.join(near)}." if near else ""
    return FetchError(f"{error}{hint}", address=error.address, status=error.status)


class HubRepo:
    """A repository on the hub, its revision resolved to a commit. Small files go through the hub's cache."""

    partial = False

    def __init__(self, repo: str, revision: str, wire: Wire) -> None:
        self.id, self._asked, self._wire = repo, revision, wire
        url = hub.repo_url(repo, revision)
        told = strict_json(wire.get(url + "?blobs=true", _MOST_LISTING, what=repo).body, hub.shown(url))
        commit = told.get("sha") if isinstance(told, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise BadInput(f"{hub.shown(url)} tells no commit of {repo}.")
        self.revision = commit
        self.files: Mapping[str, int | None] = _listing(told.get("siblings"), "rfilename", repo)
        if any(self.files[name] is None for name in self.files if name.endswith((".gguf", ".safetensors"))):
            self.files = {**self.files, **self._tree()}

    def _tree(self) -> dict[str, int | None]:
        """Every file with its size, page by page."""
        url, found = hub.repo_url(self.id, self.revision, "tree") + "?recursive=true", dict[str, int | None]()
        for _ in range(_MOST_PAGES):
            answer = self._wire.get(url, _MOST_LISTING, what=self.id)
            page = strict_json(answer.body, hub.shown(url))
            found |= _listing(
                [one for one in page if not isinstance(one, dict) or one.get("type") != "directory"], "path", self.id
            )
            after = re.search(r'<([^<>]+)>;\s*rel="?next"?', answer.headers.get("link", ""))
            if not after:
                return found
            if hub.origin(after[1]) != hub.origin(url) or after[1] == url:
                raise BadInput(f"{hub.shown(url)} goes on at {hub.shown(after[1])}, which is no next page of it.")
            url = after[1]
        raise BadInput(f"{self.id} has more pages of files than {_MOST_PAGES}.")

    def json(self, name: str, most: int, **how: Any) -> Any:
        """A JSON file, from the cache where it has this commit's; kept there once it could be read."""
        if (folder := hub.snapshot(self.id, self.revision)) and (folder / name).is_file():
            return CachedRepo(self.id, folder).json(name, most, **how)
        place = f"{self.id}/{name}"
        body = self._wire.get(hub.file_url(self.id, self.revision, name), most, what=place).body
        told = strict_json(body, place, **how)
        hub.keep(self.id, self._asked, self.revision, name, body)
        return told

    def open(self, name: str, first: int, grow: int = 2**22) -> Bytes:
        """A file by byte ranges."""
        place = f"{self.id}/{printable(name, 120)}"
        return RemoteBytes(self._wire, hub.file_url(self.id, self.revision, name), place, first=first, grow=grow)


class CachedRepo:
    """What the hub's cache has of a repository at one commit."""

    partial = True

    def __init__(self, repo: str, folder: Path) -> None:
        self.id, self.revision, self._folder = repo, folder.name, folder
        self.files: Mapping[str, int | None] = {}
        names = [Path(at, name) for at, _, inside in os.walk(folder) for name in inside]
        if len(names) > _MOST_NAMES:
            raise BadInput(f"{repo} has {len(names):,} files, more than any model's repository.")
        self.files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in names if path.is_file()}

    def json(self, name: str, most: int, **how: Any) -> Any:
        """A JSON file."""
        path = own(self._folder / name, self._folder)
        if path.stat().st_size > most:
            raise BadInput(f"{self.id}/{name} has {path.stat().st_size:,} bytes, where at most {most:,} make sense.")
        return strict_json(path.read_bytes(), f"{self.id}/{name}", **how)

    def open(self, name: str, first: int, grow: int = 2**22) -> Bytes:
        """A local file."""
        return FileBytes(own(self._folder / name, self._folder))


def _listing(entries: Any, key: str, repo: str) -> dict[str, int | None]:
    """Names and sizes that the hub lists. Raises BadInput for what can be no file of a repository."""
    if not isinstance(entries, list) or len(entries) > _MOST_NAMES:
        raise BadInput(f"{repo}: the hub lists no files, or more than {_MOST_NAMES:,}.")
    found: dict[str, int | None] = {}
    for entry in entries:
        name, size = (entry.get(key), entry.get("size")) if isinstance(entry, dict) else (None, None)
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= 1024
            or "\\" in name
            or not {"", ".", ".."}.isdisjoint(name.split("/"))
        ):
            raise BadInput(f"{repo}: the hub lists {short(name)}, which is no file of a repository.")
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**53):
            raise BadInput(f"{repo}: the hub lists {short(name)} with {short(size)} bytes.")
        found[name] = size
    return found
