"""Who may import whom, what `import fitkit` loads, and the public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fitkit as fk

ROOT = Path(fk.__file__).parent
# A room may import itself and the rooms named; a room is a top-level file or folder of the package.
MAY: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "keywords": {"errors"},
    "model": {"errors", "units"},
    "packing": {"errors", "units", "model"},
    "gguf_layers": {"errors", "units", "model"},
    "facts": {"errors", "units", "packing"},
    "gpu_names": {"errors", "units", "facts"},
    "hardware": {"errors", "units", "keywords", "facts", "gpu_names"},
    "sources": {"errors", "units", "keywords", "facts", "model", "packing", "gguf_layers"},
    "rules": {"errors", "units", "keywords", "model", "packing", "gguf_layers", "hardware"},
}
LOW = set(MAY)
TABLES = {"tables", "catalog"}
ANSWERS = {
    "answers",
    "plans",
    "commands",
    "launch",
    "remedies",
    "plan_json",
    "logs",
    "predict",
    "calibrate",
    "compare",
    "buffers",
}
SCRIPTS = ("_build.py", "make_models.py", "__main__.py")  # run by hand or at build, imported by nobody
HEAVY = ("torch", "transformers", "altair", "ipywidgets", "anywidget", "huggingface_hub", "gguf")
PUBLIC = (
    "BadInput Budget Cache FetchError FitError Gpu Launch Layer Library Machine Model Plan Shard Tensor UnknownName "
    "UnsupportedModel VLLM LlamaCpp badges best_quant command dashboard demand explain fit gpus kv_dtypes load machine machines "
    "max_context max_parallel min_gpus min_utilization models plan quants read_command suggest"
)


def files() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if path.name not in SCRIPTS)


def room(path: Path) -> str:
    """The room a file stands in."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path, *, top_only: bool = False) -> list[str]:
    """Every module a file imports, in full."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[str] = []
    checking = {id(sub) for node in ast.walk(tree) if _type_checking(node) for sub in ast.walk(node)}
    for node in tree.body if top_only else ast.walk(tree):
        if id(node) in checking:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def rooms_imported(path: Path) -> set[str]:
    """Other rooms of the package that a file imports."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("fitkit.")}
    known = {one.stem for one in ROOT.glob("*.py")} | {one.name for one in ROOT.iterdir() if one.is_dir()}
    return (names & known) - {room(path)}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    here, used = room(path), rooms_imported(path)
    if here in MAY:
        assert used <= MAY[here], f"{here} imports {sorted(used - MAY[here])}"
    elif here in TABLES:
        assert used <= LOW | TABLES
    elif here in ANSWERS:
        assert used <= LOW | TABLES | ANSWERS
    elif here not in ("views", "__init__"):
        pytest.fail(f"{here} is no room that this test knows: say which it is")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_modules_stay_where_they_belong(path: Path) -> None:
    here, used = room(path), {name.split(".")[0] for name in imports(path)}
    if here != "views":
        assert not used & {"altair", "ipywidgets", "anywidget", "IPython"}
    if here in LOW:
        assert "pandas" not in used
    if path.relative_to(ROOT).as_posix() != "sources/hub.py":
        assert "huggingface_hub" not in used
    assert "huggingface_hub" not in {name.split(".")[0] for name in imports(path, top_only=True)}
    assert not used & {"torch", "transformers", "requests"}


def test_rules_read_no_files_and_no_facts() -> None:
    for path in (ROOT / "rules").rglob("*.py"):
        names = set(imports(path))
        assert not {name for name in names if name.split(".")[0] in ("csv", "json", "pathlib", "os", "io", "urllib")}, (
            path
        )
        assert not {name for name in names if name.startswith("fitkit.facts")}, path


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, fitkit; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_pinned() -> None:
    assert fk.__all__ == sorted(fk.__all__)
    missing = sorted(set(PUBLIC.split()) - set(fk.__all__))
    assert not missing
    for name in fk.__all__:
        assert getattr(fk, name) is not None


def test_public_names_have_docstrings() -> None:
    for name in fk.__all__:
        doc = getattr(fk, name).__doc__
        assert doc, name
        assert not doc.startswith(f"{name}("), name
