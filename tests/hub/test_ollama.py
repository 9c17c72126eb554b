"""Ollama's store: manifests that name blobs, read without Ollama; nothing is followed out of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from test_remote_gguf import gguf_file, llama, projector

import fitkit as fk
from fitkit.sources.ollama import names

MODEL, PROJECTOR = "application/vnd.ollama.image.model", "application/vnd.ollama.image.projector"


def blob(root: Path, body: bytes) -> str:
    digest = hashlib.sha256(body).hexdigest()
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    (root / "blobs" / f"sha256-{digest}").write_bytes(body)
    return f"sha256:{digest}"


def manifest(root: Path, name: str, layers: Any) -> Path:
    path = root / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "config": {"digest": "sha256:" + 64 * "0"}, "layers": layers}))
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one model under three names."""
    root = tmp_path / "models"
    file = gguf_file(llama())
    layer = {"mediaType": MODEL, "size": file.size, "digest": blob(root, file.piece(0, file.size))}
    extra = {"mediaType": "application/vnd.ollama.image.template", "size": 3, "digest": "sha256:" + 64 * "1"}
    for name in (
        "registry.ollama.ai/library/llama3.1/8b",
        "registry.ollama.ai/somebody/small/latest",
        "hf.co/org/repo/Q4_K_M",
    ):
        manifest(root, name, [layer, extra])
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    return root


@pytest.mark.parametrize("name", ["llama3.1:8b", "library/llama3.1:8b", "somebody/small", "hf.co/org/repo:Q4_K_M"])
def test_a_model_is_read_from_its_blob(store: Path, name: str) -> None:
    model = fk.load(f"ollama:{name}")
    assert (model.file_bytes, len(model.layers), model.source) == (gguf_file(llama()).size, 2, f"ollama:{name}")


def test_names_are_listed_and_a_miss_tells_the_nearest(store: Path) -> None:
    assert sorted(names(store)) == ["hf.co/org/repo:Q4_K_M", "llama3.1:8b", "somebody/small:latest"]
    with pytest.raises(fk.UnknownName, match=r"llama3\.1:8b"):
        fk.load("ollama:llama3.1:70b")


def test_a_projector_comes_with_it(store: Path) -> None:
    model, beside = gguf_file(llama()), projector()
    layers = [
        {"mediaType": kind, "digest": blob(store, file.piece(0, file.size))}
        for kind, file in ((MODEL, model), (PROJECTOR, beside))
    ]
    manifest(store, "registry.ollama.ai/library/seeing/latest", layers)
    assert fk.load("ollama:seeing").projector_bytes == 2 * 2 * 64 * 64


def test_without_a_store_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    with pytest.raises(fk.BadInput, match="OLLAMA_MODELS"):
        fk.load("ollama:llama3.1:8b")


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "a/../b:c", "", "a:b:c", "/etc/passwd", "a/b/c/d/e", "x:..", "x\n:y"]
)
def test_names_that_lead_elsewhere_are_none(store: Path, name: str) -> None:
    with pytest.raises(fk.BadInput):
        fk.load(f"ollama:{name}")


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([], "names no GGUF"),
        (None, "names no GGUF"),
        ([7], "names no blob"),
        ([{"mediaType": MODEL, "digest": "sha256:../../secret"}], "names no blob"),
        ([{"mediaType": MODEL, "digest": "sha256:" + 64 * "a"}], "is missing: pull"),
        ([{"mediaType": ["x"], "digest": "sha256:" + 64 * "a"}], "names no blob"),
    ],
)
def test_broken_manifests_are_refused(store: Path, layers: Any, said: str) -> None:
    manifest(store, "registry.ollama.ai/library/broken/latest", layers)
    with pytest.raises(fk.BadInput, match=said):
        fk.load("ollama:broken")


def test_links_out_of_the_store_are_refused(store: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    good = next((store / "blobs").iterdir())
    outside.write_bytes(good.read_bytes())
    good.unlink()
    good.symlink_to(outside)
    with pytest.raises(fk.BadInput, match="leads out of"):
        fk.load("ollama:llama3.1:8b")
    path = store / "manifests/registry.ollama.ai/library/llama3.1/8b"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(fk.BadInput, match="leads out of"):
        fk.load("ollama:llama3.1:8b")
    path.unlink()
    path.symlink_to(path)  # a circle
    with pytest.raises(fk.FitError):
        fk.load("ollama:llama3.1:8b")
