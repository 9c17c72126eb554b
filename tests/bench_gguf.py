"""How fast a GGUF header of 150,000 tokens becomes a model, in a process of its own (run by hand: pytest -m bench)."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from gguf_files import write_gguf

import fitkit as fk

pytestmark = pytest.mark.bench


def test_a_header_of_150000_tokens_takes_under_three_tenths_of_a_second(tmp_path: Path) -> None:
    keys = {"block_count": 1, "context_length": 64, "embedding_length": 256, "attention.head_count": 8}
    path = write_gguf(
        tmp_path / "long.gguf", "llama", keys, {"token_embd.weight": ((256, 150_000), "Q4_K")}, vocab=150_000
    )
    times = []
    for _ in range(5):
        started = time.perf_counter()
        fk.load(path)
        times.append(time.perf_counter() - started)
    print(
        f"first {times[0]:.3f} s, median {statistics.median(times):.3f} s, {path.stat().st_size / 1e6:.1f} MB of header and hole"
    )
    assert statistics.median(times) < 0.3
