"""How long `import fitkit`, the first name and the next ones take: python -m pytest -m bench tests/bench_import.py -s."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.bench


def seconds(code: str, times: int = 5) -> float:
    def once() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    return min(once() for _ in range(times))


def test_import() -> None:
    bare = seconds("pass")
    imported = seconds("import fitkit") - bare
    named = seconds("import fitkit; fitkit.load('llama-3.1-8b'); fitkit.machine('8x h100')") - bare
    print(f"\nimport fitkit {imported * 1e3:.0f} ms; with one model and one machine by name {named * 1e3:.0f} ms")
    assert imported < 0.5
    assert named < 1.0


def test_a_name_takes_milliseconds() -> None:
    import fitkit
    from fitkit.sources import catalog

    fitkit.load("llama-3.1-8b")
    some = catalog.names()[1:101]
    start = time.perf_counter()
    for name in some:
        fitkit.load(name)
    each = (time.perf_counter() - start) / len(some)
    print(f"\na model by name {each * 1e3:.2f} ms")
    assert each < 0.02
