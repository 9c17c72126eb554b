"""The worked notebooks are kept with their outputs, and those outputs are checked cell by cell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("[0-9]*.ipynb"))
UNCHECKED = {"nbval-skip", "nbval-ignore-output", "nbval-test-listed-only"}


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def tags(cell: dict[str, Any]) -> set[str]:
    return set(cell["metadata"].get("tags", ()))


def test_nbval_compares_every_output(pytestconfig: pytest.Config) -> None:
    assert len(NOTEBOOKS) >= 7
    assert pytestconfig.getoption("nbval")
    assert not pytestconfig.getoption("nbval_lax")
    assert "notebooks" in pytestconfig.getini("testpaths")
    assert not [path.name for path in NOTEBOOKS for cell in code_cells(path) if tags(cell) & UNCHECKED]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_was_run(path: Path) -> None:
    counts = [cell["execution_count"] for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_error_is_shown_that_is_not_meant(path: Path) -> None:
    for cell in code_cells(path):
        errors = [output for output in cell["outputs"] if output["output_type"] == "error"]
        assert not errors or "raises-exception" in tags(cell)
        assert not [output for output in cell["outputs"] if output.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_depends_on_one_machine_or_the_network(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(home|tmp|root|Users|work)/", text)
    assert not re.search(r"<script|cdn\.|jsdelivr|unpkg", text)
