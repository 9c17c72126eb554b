"""The README's examples run, and the tables' docstrings have some (test_docstrings runs those)."""

from __future__ import annotations

import inspect
from pathlib import Path

import fitkit as fk

README = Path(__file__).parent.parent / "README.md"


def test_the_tables_have_examples() -> None:
    for name in ("demand", "fit", "load", "machine", "plan"):
        assert ">>>" in (inspect.getdoc(getattr(fk, name)) or "")


def test_readme_runs() -> None:
    blocks = [part.split("```", 1)[0] for part in README.read_text(encoding="utf-8").split("```python\n")[1:]]
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
