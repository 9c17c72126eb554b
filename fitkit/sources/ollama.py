"""Ollama's local store → Model: a manifest names the blobs, one of which is the GGUF.

Source: Ollama's store layout (docs/faq.md for where it lies; manifests are image manifests, version 2, with Ollama's own media types).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from fitkit.errors import BadInput, UnknownName, printable, short
from fitkit.model import Model
from fitkit.sources.gguf import model_from_bytes
from fitkit.sources.gguf_header import FileBytes
from fitkit.sources.json_text import strict_json
from fitkit.sources.places import own

PREFIX = "ollama:"
_MODEL, _PROJECTOR = "application/vnd.ollama.image.model", "application/vnd.ollama.image.projector"
_WORD = re.compile(r"[\w][\w.-]*")
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MOST_MANIFEST, _MOST_NAMES = 2**20, 10_000


def store() -> Path | None:
    """Where Ollama keeps its models: OLLAMA_MODELS, else its usual places; None where none is there."""
    asked = os.environ.get("OLLAMA_MODELS")
    places = (
        [Path(asked)]
        if asked
        else [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama")]
    )
    return next((place for place in places if (place / "manifests").is_dir()), None)


def ollama_model(name: str) -> Model:
    """The model that Ollama calls `name`: `llama3.1:8b`, `user/model:tag`, `hf.co/org/repo:Q4_K_M`; the tag is latest where none is given.

    Raises BadInput where there is no store or a manifest or blob is broken or leads out of it, UnknownName with the nearest names.
    """
    root = store()
    if root is None:
        raise BadInput("Ollama's store was not found; OLLAMA_MODELS may say where it is.")
    manifest = root / "manifests" / _path(name)
    if not manifest.is_file():
        raise UnknownName.among("model of Ollama's store", name, names(root))
    layers = _layers(own(manifest, root), name)
    blobs = {kind: [_blob(root, digest, name) for digest in layers.get(kind, ())] for kind in (_MODEL, _PROJECTOR)}
    if not blobs[_MODEL]:
        raise BadInput(f"Ollama's manifest of {short(name)} names no GGUF of a model.")
    model = _read(blobs[_MODEL], f"{PREFIX}{name}")
    beside = sum(_read([blob], "").projector_bytes for blob in blobs[_PROJECTOR])
    return model.with_(source=f"{PREFIX}{name}", projector_bytes=beside or model.projector_bytes)


def names(root: Path) -> list[str]:
    """What the store has, as Ollama lists it."""
    found = []
    for at, folders, files in os.walk(root / "manifests"):
        folders.sort()
        for file in sorted(files):
            host, *path = (Path(at) / file).relative_to(root / "manifests").parts
            if len(path) == 3:
                owner = "" if (host, path[0]) == ("registry.ollama.ai", "library") else f"{path[0]}/"
                found.append(f"{'' if host == 'registry.ollama.ai' else host + '/'}{owner}{path[1]}:{path[2]}")
        if len(found) > _MOST_NAMES:
            break
    return found


def _path(name: str) -> Path:
    """Where the manifest of a name lies: host, owner, model, tag."""
    rest, _, tag = name.partition(":")
    words = [*rest.split("/"), tag or "latest"]
    if not 2 <= len(words) <= 4 or not all(_WORD.fullmatch(word) and len(word) < 100 for word in words):
        raise BadInput(f"{short(name)} is no name of Ollama's: one such as 'llama3.1:8b' was expected.")
    usual = ["registry.ollama.ai", "library"]
    return Path(*usual[: 4 - len(words)], *words)


def _layers(manifest: Path, name: str) -> dict[str, list[str]]:
    """Digests by media type."""
    if manifest.stat().st_size > _MOST_MANIFEST:
        raise BadInput(f"Ollama's manifest of {short(name)} has {manifest.stat().st_size:,} bytes, more than any.")
    told: Any = strict_json(manifest.read_bytes(), f"Ollama's manifest of {short(name)}", most_values=2**14)
    layers = told.get("layers") if isinstance(told, dict) else None
    found: dict[str, list[str]] = {}
    for layer in layers if isinstance(layers, list) else ():
        kind, digest = (layer.get("mediaType"), layer.get("digest")) if isinstance(layer, dict) else (None, None)
        match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if not isinstance(kind, str) or not match:
            raise BadInput(f"Ollama's manifest of {short(name)} has the layer {short(layer)}, which names no blob.")
        found.setdefault(kind, []).append(match[1])
    return found


def _blob(root: Path, digest: str, name: str) -> Path:
    blob = root / "blobs" / f"sha256-{digest}"
    if not blob.exists():
        raise BadInput(f"Ollama's blob {digest[:12]}… of {short(name)} is missing: pull the model again.")
    return own(blob, root)


def _read(blobs: list[Path], place: str) -> Model:
    opened = [FileBytes(blob) for blob in blobs]
    try:
        for one in opened:
            one.place = printable(place) or one.place
        return model_from_bytes(opened)
    finally:
        for one in opened:
            one.__exit__()
