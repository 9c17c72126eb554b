"""Examples run: those of the public names' docstrings and those of the README."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import fitkit as fk

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("name", fk.__all__)
def test_examples_of_public_names(name: str) -> None:
    thing = getattr(fk, name)
    around = vars(inspect.getmodule(thing))
    for test in doctest.DocTestFinder().find(thing, name, globs=dict(around)):
        runner = doctest.DocTestRunner()
        runner.run(test)
        assert not runner.failures, f"{test.name}: {runner.failures} of {runner.tries} examples fail"


def test_the_tables_have_examples() -> None:
    for name in ("demand", "fit", "load", "machine", "plan"):
        assert ">>>" in (inspect.getdoc(getattr(fk, name)) or "")


def test_readme_runs() -> None:
    blocks = [part.split("```", 1)[0] for part in README.read_text(encoding="utf-8").split("```python\n")[1:]]
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
