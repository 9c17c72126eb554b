"""From a key on the context slider to the changed chart, in a real browser: `python tests/bench_page.py [moves [query ...]]`.

Prints median and worst in milliseconds, for the first answer (verdict and memory chart). Goal: a median under 50 ms on a quiet machine.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

from playwright.sync_api import sync_playwright

WATCH = """() => {
  const slider = document.querySelector(".fk-range"), chart = document.querySelector(".fk-chart-memory svg").parentElement;
  window.moved = [];
  let began = null;
  slider.addEventListener("keydown", () => { began = performance.now(); }, true);
  new MutationObserver(() => { if (began !== null) { window.moved.push(performance.now() - began); began = null; } })
    .observe(chart, { subtree: true, childList: true, attributes: true, characterData: true });
}"""


def main(moves: int, queries: list[str]) -> None:
    """Serve the page, move the slider, print the times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fitkit", "--no-browser", f"--port={port}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    try:
        for query in queries:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                open_page(page, f"http://127.0.0.1:{port}/?{query}")
                page.evaluate(WATCH)
                page.locator(".fk-range").first.focus()
                for move in range(moves):
                    page.keyboard.press("ArrowLeft" if move % 6 < 3 else "ArrowRight")
                    page.wait_for_timeout(700)
                times = page.evaluate("window.moved")
                browser.close()
            shown = (
                f"median {statistics.median(times):.0f} ms, worst {max(times):.0f} ms" if times else "no chart changed"
            )
            print(f"{query or 'start':28} {len(times)} moves: {shown}; load {os.getloadavg()[0]:.1f}")
    finally:
        server.terminate()
        server.wait(20)


def open_page(page: object, url: str) -> None:
    """Wait for the server and for the whole page."""
    for _ in range(300):
        try:
            page.goto(url)  # type: ignore[attr-defined]
            break
        except Exception:
            time.sleep(0.2)
    page.locator(".fk-matrix table").wait_for(timeout=60_000)  # type: ignore[attr-defined]
    page.wait_for_timeout(1000)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(int([*sys.argv, "18"][1]), sys.argv[2:] or ["", "rules=library", "engine=vllm&quant=BF16"])
