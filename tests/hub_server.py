"""A hub on loopback: repositories, revisions, trees with pages, resolve with its headers, a CDN of another origin, and faults.

It speaks what huggingface_hub's client asks for models: /api/models/…, /tree/…, /resolve/…, HEAD and Range. Large files are sparse:
a head of real bytes, zeroes after it, nothing on disk.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_theTokenOfThisTest"
_STEP = 2**18


@dataclass
class File:
    """A file of `size` bytes that begins with `head`; `lfs` ones are on the CDN."""

    head: bytes
    size: int = 0
    lfs: bool = False

    def __post_init__(self) -> None:
        self.size = self.size or len(self.head)
        self.etag = hashlib.sha1(self.head + str(self.size).encode(), usedforsecurity=False).hexdigest()

    def piece(self, start: int, end: int) -> bytes:
        have = self.head[start:end]
        return have + bytes(end - start - len(have))


@dataclass
class Repository:
    """Files at one commit, which `main` and the named revisions point to."""

    files: dict[str, File]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    gated: bool = False


@dataclass
class Asked:
    """One request as it came."""

    origin: str  # hub or cdn
    method: str
    path: str
    range: str
    authorization: str


@dataclass
class Hub:
    """The server's state: what it has, what goes wrong, what was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: dict[str, Callable[[Any], None]] = field(default_factory=dict)  # path → what answers instead
    failing: dict[str, list[tuple[int, dict[str, str]]]] = field(
        default_factory=dict
    )  # path → answers before the good one
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0  # bytes of bodies
    url: str = ""
    cdn: str = ""
    page: int = 1000  # files on one page of a tree
    sizes: bool = True  # whether the listing tells them

    def put(self, name: str, files: dict[str, File], **more: Any) -> Repository:
        self.repositories[name] = Repository(files, **more)
        return self.repositories[name]

    def paths(self) -> list[str]:
        return [one.path for one in self.asked]


class Handler(BaseHTTPRequestHandler):
    """Both origins: the hub, and the CDN it redirects large files to."""

    protocol_version = "HTTP/1.1"
    hub: Hub
    origin = "hub"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = Asked(
            self.origin, self.command, self.path, self.headers.get("Range", ""), self.headers.get("Authorization", "")
        )
        self.hub.asked.append(asked)
        with suppress(BrokenPipeError, ConnectionResetError):
            if waiting := self.hub.failing.get(parts.path):
                status, headers = waiting.pop(0)
                self.answer(status, b"", headers)
            elif fault := self.hub.faults.get(parts.path):
                self.close_connection = True
                fault(self)
            elif parts.path.startswith("/cdn/") and self.origin == "cdn":
                repo, _, name = parts.path.removeprefix("/cdn/").partition("//")
                self.file(self.hub.repositories[repo].files[unquote(name)], {})
            elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", parts.path):
                self.told(match[1], match[2] or "", unquote(match[3] or "main"), parse_qs(parts.query))
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", parts.path):
                self.resolve(match[1], unquote(match[2]), unquote(match[3]))
            else:
                self.answer(404, b"Not Found", {})

    # ---- answers -----------------------------------------------------------------------------------------------------------

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.write(body)

    def write(self, body: bytes) -> None:
        self.wfile.write(body)
        self.hub.sent += len(body)

    def refuse(self, status: int, code: str, message: str = "") -> None:
        self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": message or code})

    def repository(self, name: str, revision: str) -> Repository | None:
        """The repository, or None after a refusal."""
        found = self.hub.repositories.get(name)
        if found is None:
            self.refuse(
                404 if self.headers.get("Authorization") else 401, "RepoNotFound", "Invalid username or password."
            )
        elif revision not in (*found.revisions, found.commit):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return found
        return None

    def told(self, name: str, what: str, revision: str, query: dict[str, list[str]]) -> None:
        repo = self.repository(name, revision)
        if repo is None:
            return
        if what == "tree":
            self.tree(name, repo, revision, int(query.get("cursor", ["0"])[0]))
            return
        siblings: list[dict[str, Any]] = [{"rfilename": path} for path in repo.files]
        if self.hub.sizes and query.get("blobs"):
            siblings = [
                {"rfilename": path, "size": file.size, "blobId": file.etag} for path, file in repo.files.items()
            ]
        told = {"_id": "1", "id": name, "modelId": name, "sha": repo.commit, "private": False, "gated": repo.gated, "tags": [],
                "downloads": 1, "likes": 0, "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
                "siblings": siblings}  # fmt: skip
        self.answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def tree(self, name: str, repo: Repository, revision: str, start: int) -> None:
        entries = [
            {"type": "file", "oid": file.etag, "size": file.size, "path": path} for path, file in repo.files.items()
        ]
        end = start + self.hub.page
        headers = {"Content-Type": "application/json"}
        if end < len(entries):
            headers["Link"] = (
                f'<{self.hub.url}/api/models/{name}/tree/{revision}?recursive=true&cursor={end}>; rel="next"'
            )
        self.answer(200, json.dumps(entries[start:end]).encode(), headers)

    def resolve(self, name: str, revision: str, path: str) -> None:
        repo = self.repository(name, revision)
        if repo is None:
            return
        if repo.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(
                403 if self.headers.get("Authorization") else 401, "GatedRepo", f"Access to model {name} is restricted."
            )
        elif path not in repo.files:
            self.refuse(404, "EntryNotFound")
        else:
            file, headers = repo.files[path], {"X-Repo-Commit": repo.commit}
            if file.lfs:
                headers |= {"X-Linked-Size": str(file.size), "X-Linked-Etag": f'"{file.etag}"'}
                self.answer(302, b"", {**headers, "Location": f"{self.hub.cdn}/cdn/{name}//{path}?Signature=secret"})
            else:
                self.file(file, headers)

    def file(self, file: File, headers: dict[str, str]) -> None:
        """The file, or the range of it that was asked for."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(match[1]), min(int(match[2]) + 1, file.size)) if match else (0, file.size)
        headers = {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes", **headers}
        if match and start >= file.size:
            self.answer(416, b"", {**headers, "Content-Range": f"bytes */{file.size}"})
            return
        self.send_response(206 if match else 200)
        if match:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
        for name, value in {**headers, "Content-Length": str(end - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        while self.command != "HEAD" and start < end:
            self.write(file.piece(start, min(start + _STEP, end)))
            start += _STEP


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass  # a client that hangs up is what some tests are about


def serve() -> tuple[Hub, Callable[[], None]]:
    """A running hub with its CDN on two free ports of loopback, and what stops both."""
    hub = Hub()
    servers = [
        _Server(("127.0.0.1", 0), type(f"{origin}Handler", (Handler,), {"hub": hub, "origin": origin}))
        for origin in ("hub", "cdn")
    ]
    hub.url, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop() -> None:
        for server in servers:
            server.shutdown()
            server.server_close()

    return hub, stop
