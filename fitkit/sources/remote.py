"""What lies in a hub repository or at an address → Model. Only configs, indexes and headers travel; memory stays below 512 MiB."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from fitkit.errors import BadInput, FetchError, UnknownName, printable
from fitkit.model import Model
from fitkit.sources import hub
from fitkit.sources.checkpoint import with_headers
from fitkit.sources.config import model_from_config
from fitkit.sources.gguf import model_from_bytes, part_names
from fitkit.sources.repos import Repo, open_repo
from fitkit.sources.shards import headers_of, shards_of
from fitkit.sources.variants import Variant, choose, projector, quant_in, variants
from fitkit.sources.wire import RemoteBytes, Wire

_NAME = re.compile(
    r"(?P<hf>hf://)?(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)"
    r"(?:@(?P<revision>refs/[\w.-]+/[\w.-]+|[\w-][\w.-]*(?:/[\w-][\w.-]*)*?))?"
    r"(?::(?P<quant>[\w.-]+)|/(?P<file>[^\0]+\.gguf))?"
)
_MOST_CONFIG, _MOST_CONFIG_VALUES = 16 * 2**20, 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a text names: a repository at a revision ("": its main one), in it a quantization or a file."""

    repo: str
    revision: str = ""
    quant: str = ""
    file: str = ""


def named(text: str) -> Named | None:
    """What `org/repo`, `org/repo@revision`, `org/repo:Q4_K_M` or `hf://org/repo/file.gguf` names; None for another text.

    >>> named("org/repo@v1:Q4_K_M")
    Named(repo='org/repo', revision='v1', quant='Q4_K_M', file='')
    """
    match = _NAME.fullmatch(text) if len(text) < 1000 else None
    if (
        not match
        or ".." in match["repo"]
        or ".." in (match["revision"] or "")
        or ".." in PurePosixPath(match["file"] or "").parts
    ):
        return None
    if match["file"] and not match["hf"]:
        return None
    return Named(
        repo=match["repo"], revision=match["revision"] or "", quant=match["quant"] or "", file=match["file"] or ""
    )


def is_address(text: str) -> bool:
    """Whether a text is an http or https address."""
    return text[:8].lower().startswith(("http://", "https://"))


def model_at(url: str, wire: Wire, online: bool | None = None) -> Model:
    """The model of a .gguf at an address, all its parts where it is split; one on the hub itself as its repository's.

    Raises FetchError, BadInput.
    """
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    if not name.endswith(".gguf"):
        raise BadInput(f"{hub.shown(url)} is no address of a .gguf file.")
    if found := hub.file_of_url(url):
        return repo_model(Named(repo=found[0], revision=unquote(found[1]), file=unquote(found[2])), wire, online)
    if online is False or hub.offline():
        why = "online=False was asked" if online is False else "offline mode is on (HF_HUB_OFFLINE)"
        raise FetchError(f"{hub.shown(url)} was not asked: {why}.", address=hub.shown(url))
    sources = [
        RemoteBytes(
            wire,
            urlunsplit(parts._replace(path=f"{folder}/{part}")),
            printable(unquote(part), 120),
            first=2**16 if i else 2**19,
        )
        for i, part in enumerate(part_names(name))
    ]
    return model_from_bytes(sources, source=url)


def repo_model(name: Named, wire: Wire, online: bool | None = None) -> Model:
    """The model of a hub repository.

    A file or quantization asked for is read from GGUF headers; else config.json with the safetensors headers; else the repository's
    only GGUF. `online` False reads the hub's cache alone.
    Raises FetchError, BadInput, UnsupportedModel; UnknownName with the nearest files or quantizations.
    """
    repo = open_repo(name.repo, name.revision, wire, online)
    has_weights = any(file.endswith(".safetensors") for file in repo.files)
    if name.file or name.quant:
        return _gguf(repo, _variant(repo, name))
    found = variants(repo.files) if not has_weights else []
    if any(one.kind == "model" for one in found):
        return _gguf(repo, choose(found, "", repo.id))
    if "config.json" not in repo.files:
        raise BadInput(
            f"{repo.id} holds no config.json and no GGUF, so nothing tells its shape; it has {_some(repo.files)}."
        )
    return _checkpoint(repo)


def repo_variants(name: Named, wire: Wire, online: bool | None = None) -> tuple[str, list[Variant]]:
    """The repository's resolved revision, and its GGUF models and companions with their sizes."""
    repo = open_repo(name.repo, name.revision, wire, online)
    return repo.revision, variants(repo.files)


# ---- GGUF ------------------------------------------------------------------------------------------------------------------


def _variant(repo: Repo, name: Named) -> Variant:
    if not name.file:
        return choose(variants(repo.files), name.quant, repo.id)
    if name.file not in repo.files:
        raise UnknownName.among(
            f"file of {repo.id}", name.file, [file for file in repo.files if file.endswith(".gguf")] or repo.files
        )
    path = PurePosixPath(name.file)
    files = tuple(str(path.with_name(part)) for part in part_names(path.name))
    for file in files:
        if file not in repo.files:
            raise BadInput(
                f"{printable(name.file)} is one of {len(files)} parts, and {printable(file)} is not beside it."
            )
    return Variant(kind="model", quant=quant_in(name.file), files=files, bytes=None)


def _gguf(repo: Repo, chosen: Variant) -> Model:
    """The model of the chosen files, the projector that llama.cpp loads beside it told."""
    opened = [repo.open(file, 2**16 if i else 2**19) for i, file in enumerate(chosen.files)]
    others = variants(repo.files)
    alone = chosen.quant and sum(one.quant == chosen.quant and one.kind == "model" for one in others) == 1
    source = f"{repo.id}:{chosen.quant}" if alone else f"hf://{repo.id}/{chosen.path}"
    model = model_from_bytes(opened, source=source, revision=repo.revision)
    beside = projector(others, chosen) if model.layers else None
    if beside is None:
        return model
    size = model_from_bytes([repo.open(file, 2**16) for file in beside.files]).projector_bytes
    return model.with_(projector_bytes=size, extra=tuple(sorted({**dict(model.extra), "mmproj": beside.path}.items())))


# ---- config and safetensors ------------------------------------------------------------------------------------------------


def _checkpoint(repo: Repo) -> Model:
    """The model of config.json, its bytes exact where the weights are safetensors."""
    config = _json(repo, "config.json")
    if not isinstance(config, dict):
        raise BadInput(f"{repo.id}/config.json holds {type(config).__name__}, a mapping was expected.")
    if "hf_quant_config" not in config and "hf_quant_config.json" in repo.files:
        config["hf_quant_config"] = _json(repo, "hf_quant_config.json")
    model = model_from_config(config, name=repo.id, source=repo.id, place=f"{repo.id}/config.json").with_(
        revision=repo.revision
    )
    shards = shards_of(repo)
    missing = [name for name in shards.names if name not in repo.files]
    if missing and not repo.partial:
        raise BadInput(f"{repo.id}: {printable(missing[0])}, which the index lists, is not in the repository.")
    if missing or not shards.names:
        return model.with_(file_bytes=shards.total)
    return with_headers(model, headers_of(repo, shards))


def _json(repo: Repo, name: str) -> Any:
    return repo.json(name, _MOST_CONFIG, most_values=_MOST_CONFIG_VALUES, numbers_only=False)


def _some(files: Mapping[str, int | None]) -> str:
    names = sorted(files)
    return (
        ", ".join(printable(name, 60) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        or "no files"
    )
