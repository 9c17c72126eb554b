"""Writes GGUF files for the tests with the gguf package: real headers over holes, and models from the measured shapes."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from fitkit.model import Model, Tensor
from fitkit.sources.gguf import model_from_gguf

MEASURED = Path(__file__).parent / "measured"


def write_gguf(
    path: Path, architecture: str, keys: Mapping[str, Any], tensors: Mapping[str, tuple[Sequence[int], str]], *, vocab: int = 0,
    name: str = "small", general: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """A GGUF with `tensors` (name → shape input first, ggml type) whose data is a hole; `vocab` entries of a tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    for key, value in {**(general or {}), **{f"{architecture}.{key}": value for key, value in keys.items()}}.items():
        _add(writer, key, value)
    if vocab:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"token-{i}" for i in range(vocab)])
        writer.add_token_scores([0.0] * vocab)
        writer.add_token_types([1] * vocab)
        writer.add_token_merges([f"a{i} b{i}" for i in range(vocab)])
    for tensor, (shape, kind) in tensors.items():
        dtype = gguf.GGMLQuantizationType[kind]
        block, size = gguf.GGML_QUANT_SIZES[dtype]
        writer.add_tensor_info(
            tensor, tuple(reversed(shape)), np.dtype(np.float32), math.prod(shape) // block * size, dtype
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    padded = [-(-info.nbytes // 32) * 32 for info in writer.tensors[0].values()]
    writer.close()
    start = -(-path.stat().st_size // 32) * 32
    os.truncate(path, start + sum(padded))
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


# ---- the measured shapes -------------------------------------------------------------------------------------------------------


@lru_cache
def shapes() -> dict[str, tuple[str, dict[str, Any], tuple[Tensor, ...]]]:
    """Model → architecture, keys, tensors as a BF16 file has them (what is never quantized in its own type)."""
    with (MEASURED / "gguf_shapes.csv").open(newline="") as file:
        return {
            row["model"]: (row["architecture"], dict(_keys(row["keys"])), tuple(_tensors(row["tensors"])))
            for row in csv.DictReader(file)
        }


def _keys(text: str) -> Iterator[tuple[str, Any]]:
    for entry in text.split("; "):
        key, value = entry.split("=")
        if value.startswith("["):
            numbers = tuple(float(one) for one in value[1:-1].split())
            yield (
                key,
                tuple(bool(one) for one in numbers) if key.endswith("pattern") else tuple(int(one) for one in numbers),
            )
        else:
            yield key, int(value) if value.isdecimal() else value


def _tensors(text: str) -> Iterator[Tensor]:
    for entry in text.split("; "):
        role, shape, layers, *kind = entry.split()
        sizes = tuple(int(size) for size in shape.split("x"))
        yield Tensor(
            role=role,
            shape=sizes,
            layers=tuple(_numbers(layers)),
            dtype=kind[0] if kind else "F32" if len(sizes) == 1 else "BF16",
        )


def _numbers(text: str) -> Iterator[int]:
    """The numbers of "0-3,6-27/3,28"."""
    for part in text.split(",") if text != "-" else ():
        ends, _, step = part.partition("/")
        first, _, last = ends.partition("-")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


BARE = ("ssm_a", "ssm_d")


def measured_file(model: str, path: Path) -> Path:
    """The BF16 GGUF of a measured model, its data a hole."""
    architecture, keys, tensors = shapes()[model]
    table = {}
    for tensor in tensors:
        suffix = "" if tensor.role in BARE or tensor.role.endswith((".bias", ".scale")) else ".weight"
        for block in tensor.layers or (-1,):
            table[f"blk.{block}.{tensor.role}{suffix}" if block >= 0 else tensor.role + suffix] = (
                tensor.shape,
                tensor.dtype,
            )
    return write_gguf(path / f"{model}.gguf", architecture, keys, table, name=model, general={"general.file_type": 32})


def measured_model(model: str, path: Path) -> Model:
    """The measured model, read from its file."""
    return model_from_gguf(measured_file(model, path))
