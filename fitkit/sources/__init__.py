"""Whatever describes a model → Model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fitkit.errors import BadInput, short
from fitkit.model import Model
from fitkit.sources.json_text import strict_json

__all__ = ["load"]

_MOST_CONFIG_BYTES, _MOST_CONFIG_VALUES = 16 * 2**20, 2**18


def load(source: str | os.PathLike[str] | Mapping[str, Any] | Model) -> Model:
    """The model that `source` describes."""
    if isinstance(source, Model):
        return source
    if isinstance(source, Mapping):
        from fitkit.sources.config import model_from_config

        return model_from_config(source)
    if isinstance(source, str) and not _is_path(source):
        from fitkit.sources.catalog import catalog_model, unknown_model

        model = catalog_model(source)
        if model is None:
            raise unknown_model(source)
        return model
    path = Path(source)
    if not path.exists():
        raise BadInput(f"{short(str(source))}: there is no such file or directory.")
    if path.suffix == ".gguf" and path.is_file():
        from fitkit.sources.gguf import model_from_gguf

        return model_from_gguf(path)
    if path.is_dir() or path.suffix in (".json", ".safetensors"):
        from fitkit.sources.checkpoint import model_from_path

        return model_from_path(path)
    raise BadInput(
        f"{short(str(source))}: a .gguf, a .safetensors, a config.json or a directory with one was expected."
    )


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
