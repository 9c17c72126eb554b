"""Voilà on a free loopback port, and one Chromium that may talk to loopback only: every other request is refused and noted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
MUST = os.environ.get("CI") or os.environ.get("FITKIT_REQUIRE_BROWSER")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


def missing(what: str) -> None:
    """Skip on a laptop without it, fail where a browser was promised."""
    (pytest.fail if MUST else pytest.skip)(f"{what} is not there, so the page was not opened")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests."""
    sync_api = pytest.importorskip("playwright.sync_api")
    path = (
        os.environ.get("CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if not path:
        missing("Chromium (named by CHROMIUM or on PATH)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page, served as the README says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("voila") / "voila.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "fitkit", "--no-browser", f"--port={port}"]
        server = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        try:
            for _ in range(600):
                if server.poll() is not None:
                    pytest.fail(log.read_text())
                try:
                    socket.create_connection(("127.0.0.1", port), 0.2).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.terminate()
            server.wait(20)


class Visit:
    """One tab: the page, what left loopback, what JavaScript complained about."""

    def __init__(self, browser: Any, url: str, query: str = "", **context: Any) -> None:
        self.context = browser.new_context(
            **{
                "viewport": {"width": 1280, "height": 900},
                "permissions": ["clipboard-read", "clipboard-write"],
                **context,
            }
        )
        self.page = self.context.new_page()
        self.left_loopback: list[str] = []
        self.complaints: list[str] = []
        self.page.route("**/*", self._gate)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(url + (f"?{query}" if query else ""), timeout=60_000)
        self.page.locator(".fk-matrix table").wait_for(timeout=90_000)
        self.page.locator(".fk-chart-heat svg").wait_for(timeout=30_000)

    def _gate(self, route: Any) -> None:
        if route.request.url.startswith(("http://127.0.0.1", "data:", "blob:")):
            route.continue_()
        else:
            self.left_loopback.append(route.request.url)
            route.abort()

    def close(self) -> None:
        """Close the tab."""
        self.context.close()


@pytest.fixture(scope="session")
def first(chromium: Any, served: str) -> Iterator[Visit]:
    """The first visit, shared by the tests that leave it as they found it or say what they need."""
    visit = Visit(chromium, served)
    yield visit
    visit.close()


@pytest.fixture
def visit(chromium: Any, served: str) -> Iterator[Any]:
    """A function that opens the page with an address of its own."""
    opened: list[Visit] = []

    def open_page(query: str = "", **context: Any) -> Visit:
        opened.append(Visit(chromium, served, query, **context))
        return opened[-1]

    yield open_page
    for one in opened:
        one.close()
