"""A model's directory: config.json with what lies beside it, and the safetensors headers, laid against each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fitkit.errors import BadInput, printable, short
from fitkit.facts.formats import format_named
from fitkit.model import Model
from fitkit.packing import packed_bytes
from fitkit.sources import read_json
from fitkit.sources.config import model_from_config
from fitkit.sources.json_text import strict_json
from fitkit.sources.places import own
from fitkit.sources.safetensors import Header, Stored, joined, read_file
from fitkit.units import show_gb

_MOST_INDEX_BYTES = 64 * 2**20
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d+)\.")
_ELSEWHERE = re.compile(r"vision|visual|vpm|audio|encoder|mtp|resampler|merger|mm_|talker|token2wav")
# Below this difference lie buffers, scales kept in another width, a tied head stored twice is told by name.
_CLOSE = 0.01


def model_from_path(path: Path) -> Model:
    """The model of a directory, of a config.json, or of a .safetensors file with a config.json beside it.

    A config.json alone gives basis "arch"; a directory with weights "estimate", its `file_bytes` exact.
    Raises BadInput where files are missing, broken, or belong to another model than the config.
    """
    if path.suffix == ".json":
        return model_from_config(
            config_of(path), name=printable(path.resolve().parent.name), source=str(path), place=path.name
        )
    folder = path if path.is_dir() else path.parent
    config = folder / "config.json"
    if not config.is_file():
        raise BadInput(f"{short(str(path))}: there is no config.json {'in it' if path.is_dir() else 'beside it'}.")
    model = model_from_config(config_of(own(config, folder)), name=printable(folder.resolve().name), source=str(path))
    if path.is_dir() or _SHARD.search(path.name):
        files, total = weights_in(folder)
    else:
        files, total = [path], 0
    if not files:
        return model.with_(file_bytes=total)
    owned = files if files == [path] else [own(file, folder) for file in files]
    return with_headers(model, {file.name: read_file(file) for file in owned})


def config_of(path: Path) -> dict[str, Any]:
    """A config.json with the hf_quant_config.json beside it under that name, as vLLM reads the two."""
    mapping = read_json(path)
    if not isinstance(mapping, dict):
        raise BadInput(f"{path.name} holds {type(mapping).__name__}, a mapping was expected.")
    beside = path.with_name("hf_quant_config.json")
    if "hf_quant_config" not in mapping and beside.is_file():
        mapping["hf_quant_config"] = read_json(own(beside, path.parent))
    return mapping


def weights_in(folder: Path) -> tuple[list[Path], int]:
    """The files that make up the model, and the index's own total where none of them is there [bytes]."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        found = sorted(folder.glob("*.safetensors"))
        usual = [file for file in found if not file.name.startswith(("consolidated", "adapter_"))]
        return usual or found, 0
    if index.stat().st_size > _MOST_INDEX_BYTES:
        raise BadInput(f"{index.name} has {index.stat().st_size:,} bytes, more than any model's index.")
    names, total = index_of(strict_json(own(index, folder).read_bytes(), index.name), index.name)
    files = [folder / name for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if len(missing) == len(files):
        return [], total
    if missing:
        raise BadInput(
            f"{printable(folder.name)}: {len(missing)} of {len(files)} files that the index lists are missing, {printable(missing[0])} first."
        )
    return files, total


def index_of(index: Any, place: str) -> tuple[list[str], int]:
    """The files an index lists, sorted, and its total [bytes] (0: not said)."""
    if not isinstance(index, Mapping) or not isinstance(index.get("weight_map"), Mapping):
        raise BadInput(f"{place} has no weight_map.")
    names = set(index["weight_map"].values())
    for name in names:
        if not isinstance(name, str) or "/" in name or "\\" in name or name.startswith(".") or len(name) > 255:
            raise BadInput(f"{place}: {short(name)} is no file name beside it.")
    metadata = index.get("metadata")
    total = metadata.get("total_size", 0) if isinstance(metadata, Mapping) else 0
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if isinstance(total, bool) or not isinstance(total, int) or not 0 <= total <= 2**53:
        raise BadInput(f"{place}: total_size is {short(total)}.")
    return sorted(names), total


def with_headers(model: Model, headers: Mapping[str, Header]) -> Model:
    """`model` with the exact bytes of its files, basis "estimate".

    Where they differ from what the config's shape gives, `extra` has a "mismatch": one sentence.
    Raises BadInput where the files lack layers that the config has.
    """
    stored = joined(headers)
    size = sum(header.data_bytes for header in headers.values())
    found = layers_stored(stored)
    if found and found < len(model.layers):
        raise BadInput(
            f"{model.name}: the files hold {found} layers, config.json says {len(model.layers)}; they are not of one model or not complete."
        )
    note = mismatch(model, stored, size)
    extra = {**dict(model.extra), **({"mismatch": note} if note else {})}
    return model.with_(basis="estimate", file_bytes=size, extra=tuple(sorted(extra.items())))


def layers_stored(stored: Mapping[str, Stored]) -> int:
    """How many numbered blocks of the text model the names show."""
    numbers = [int(match[1]) for name in stored if not _ELSEWHERE.search(name) and (match := _LAYER.search(name))]
    return max(numbers, default=-1) + 1


def mismatch(model: Model, stored: Mapping[str, Stored], size: int) -> str:
    """What the files have that the config's shape does not explain, in one sentence; "" where they agree."""
    shaped = {
        part: sum(
            packed_bytes(tensor.shape, format_named(tensor.dtype or model.dtype)) * tensor.copies
            for tensor in model.tensors
            if (tensor.part == "mtp") == (part == "mtp")
        )
        for part in ("", "mtp")
    }
    expected = shaped[""] + shaped["mtp"]
    if model.tied_embeddings and any(name.endswith("lm_head.weight") for name in stored):
        twice = next(one.size_bytes for name, one in stored.items() if name.endswith("lm_head.weight"))
        expected += twice  # stored again, loaded once
    if any(abs(size - one) <= _CLOSE * size for one in (expected, expected - shaped["mtp"])):
        return ""
    return (
        f"The files hold {show_gb(size)}, the shape in config.json gives {show_gb(expected)} ({size / expected - 1:+.1%}): "
        "the files' size is used; check that the two belong together."
    )
