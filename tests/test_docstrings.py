"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import fitkit

ROOT = Path(fitkit.__file__).parent


def modules() -> list[str]:
    """Files that hold an example."""
    found = [path for path in ROOT.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
    return sorted(".".join(("fitkit", *path.relative_to(ROOT).with_suffix("").parts)) for path in found)


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert result.attempted
    assert not result.failed
