"""Whatever describes a model → Model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fitkit.errors import BadInput, short
from fitkit.keywords import told
from fitkit.model import Model
from fitkit.sources.json_text import strict_json

__all__ = ["load"]

_MOST_CONFIG_BYTES, _MOST_CONFIG_VALUES = 16 * 2**20, 2**18


@told
def load(
    source: str | os.PathLike[str] | Mapping[str, Any] | Model,
    *,
    online: bool | None = None,
    progress: Callable[[str, int], object] | None = None,
    timeout: float = 10.0,
) -> Model:
    """The model that `source` describes.

    Parameters
    ----------
    source
        A name, alias or hub repository of the catalog (`"llama-3.1-8b"`); another hub repository (`"org/repo"`, `"org/repo@revision"`), of
        which config.json and the safetensors headers are read, never the weights; a GGUF of a repository (`"org/repo:Q4_K_M"`,
        `"hf://org/repo/file.gguf"`) or at an address (`"https://..."`), of which the header is read; a model of Ollama's store
        (`"ollama:llama3.1:8b"`); a directory with config.json, a config.json, a .safetensors or a .gguf (also split); a config as a mapping; a Model,
        as it is.
    online
        None: what the catalog knows by its plain name is not asked for again, all else is, unless HF_HUB_OFFLINE is set. True asks the hub for a
        catalog model too; False never asks, and reads what the hub's cache has.
    progress
        Called with what is being read and the bytes moved so far [bytes].
    timeout
        The longest silence of a server [s].

    Tokens, HF_ENDPOINT, HF_HUB_OFFLINE and the cache are huggingface_hub's own.

    Raises
    ------
    BadInput, UnknownName
        A source that cannot be read, or a name nobody knows, with the nearest ones.
    UnsupportedModel
        A model whose memory the package does not model.
    FetchError
        The hub or a server did not give what was asked: the address, the status, what to try.

    Examples
    --------
    >>> load("llama-3.1-8b").params
    8030261248
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, str) and not source.strip():
        raise BadInput(f"A model's name was expected, not {short(source)}.")
    if isinstance(source, Mapping):
        from fitkit.sources.config import model_from_config

        return model_from_config(source)
    if isinstance(source, str) and not _is_path(source):
        return _by_name(source, online, progress, timeout)
    if not isinstance(source, str | os.PathLike):
        raise BadInput(f"A model's name, path, config or Model was expected, not {short(source)}.")
    path = Path(source)
    if not path.is_file() and not path.is_dir():
        raise BadInput(f"{short(str(source))}: there is no such file or directory.")
    if path.suffix == ".gguf" and not path.is_dir():
        from fitkit.sources.gguf import model_from_gguf

        return model_from_gguf(path)
    if path.is_dir() or path.suffix in (".json", ".safetensors"):
        from fitkit.sources.checkpoint import model_from_path

        return model_from_path(path)
    raise BadInput(
        f"{short(str(source))}: a .gguf, a .safetensors, a config.json or a directory with one was expected."
    )


def _by_name(text: str, online: bool | None, progress: Callable[[str, int], object] | None, timeout: float) -> Model:
    """The model a text names that is no path: in the catalog, in Ollama's store, on the hub, at an address."""
    from fitkit.sources.catalog import catalog_model, unknown_model

    model = catalog_model(text)
    if model is not None and not (online and model.source):
        return model
    if text.startswith("ollama:"):
        from fitkit.sources.ollama import ollama_model

        return ollama_model(text.removeprefix("ollama:"))
    from fitkit.sources.remote import is_address, model_at, named, repo_model
    from fitkit.sources.wire import Wire

    wanted = named(model.source if model is not None else text)
    if wanted is None and not is_address(text):
        raise unknown_model(text)
    wire = Wire(timeout=timeout, progress=progress)
    return repo_model(wanted, wire, online) if wanted else model_at(text, wire, online)


def _is_path(text: str) -> bool:
    """Whether something of this name is there; what no file can be called is not."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def read_json(path: Path) -> Any:
    """The JSON of a small file, refused where it is too large, too deep or not JSON."""
    if path.stat().st_size > _MOST_CONFIG_BYTES:
        raise BadInput(f"{path.name} has {path.stat().st_size:,} bytes, more than any model's configuration.")
    return strict_json(path.read_bytes(), path.name, most_values=_MOST_CONFIG_VALUES, numbers_only=False)
