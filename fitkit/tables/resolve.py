"""What a caller wrote, as values: names found in the facts, numbers checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from fitkit import facts
from fitkit.errors import BadInput, UnknownName, short
from fitkit.hardware import Machine, all_machines, machine
from fitkit.model import Model
from fitkit.sources import load
from fitkit.units import parse_count

DEFAULT_CONTEXT = 8192
MOST_CONTEXT, MOST_PARALLEL, MOST_GPUS = 2**31, 2**20, 2**20
_SETTINGS_ENGINE = {"LlamaCppSettings": "llama.cpp", "VLLMSettings": "vllm"}
_ENGINE_WORDS = {"llamacpp": "llama.cpp", "llama.cpp": "llama.cpp", "vllm": "vllm", "sglang": "sglang"}
SPEAKS_OF = {
    "budget": "vLLM",
    "engine": "llama.cpp and vLLM",
    "library": "llama.cpp and vLLM",
    "shard": "vLLM, SGLang and llama.cpp",
}


def many(value: Any) -> list[Any]:
    """A scalar as a list of one; any other iterable as a list."""
    if isinstance(value, np.ndarray) and not value.ndim:
        return [value[()]]
    if isinstance(value, str | bytes | bytearray | os.PathLike | Mapping | Model | Machine) or not isinstance(
        value, Iterable
    ):
        return [value]
    return list(value)


def some(what: str, value: Any) -> list[Any]:
    """`many`, of which there must be one."""
    found = many(value)
    if not found:
        raise BadInput(f"{what} is empty; at least one was expected.")
    return found


def models_of(models: Any) -> list[Model]:
    """The models of names, paths, mappings, Models, or a list of them."""
    if models is None:
        raise BadInput(
            "models is None: name one, such as 'llama-3.1-8b', or give fk.models().name for all of the catalog."
        )
    found = [one if isinstance(one, Model) else load(one) for one in many(models)]
    if not found:
        raise BadInput("No model was given; a name such as 'llama-3.1-8b' was expected.")
    return found


def machines_of(machines: Any) -> list[Machine]:
    """The machines of lines or Machines; None: all of the catalog."""
    if machines is None:
        return list(all_machines())
    return [one if isinstance(one, Machine) else machine(one) for one in many(machines)]


def own_quant(model: Model) -> str:
    """What the model's own files are quantized to; 32-bit checkpoints are served in 16 bits, as engines load them unless told otherwise."""
    return model.quant or ("BF16" if model.dtype == "F32" else model.dtype)


IMATRIX = "+imatrix"  # behind a GGUF file type: quantized with an importance matrix, which moves a few tensors


def quants_of(model: Model, quants: Any, engine: str) -> list[str]:
    """Canonical quantizations; None: a GGUF's own, else Q4_K_M for llama.cpp and the checkpoint's own type for the others.

    An MXFP4 checkpoint stays so in its GGUF too.
    """
    if quants is None:
        if is_gguf(model) or engine != "llama.cpp":
            return [own_quant(model)]
        return [
            "MXFP4_MOE" if model.quant == "MXFP4" else "Q4_K_M"
        ]  # as its makers publish it: no type below makes it smaller
    return [_quant(one, model, engine) for one in some("quants", quants)]


def is_gguf(model: Model) -> bool:
    """Whether the model was read from a GGUF file."""
    row = facts.find("quants", model.quant) if model.quant else None
    return bool(row and row["kind"] == "file type" and "vllm" not in row["engines"] and model.quant)


def _quant(name: Any, model: Model, engine: str) -> str:
    if not isinstance(name, str):
        raise BadInput(f"A quantization's name such as 'Q4_K_M' or 'FP8' was expected, not {short(name)}.")
    if facts.fold(name) == facts.fold(own_quant(model)):
        return own_quant(model)
    base = name.removesuffix(IMATRIX)
    found = facts.get("quants", base, "quantization or precision")["name"]
    found = "MXFP4_MOE" if engine == "llama.cpp" and found == "MXFP4" else found
    return found + IMATRIX if base != name else found


@cache
def bits_of(quant: str) -> float:
    """Nominal bits of a weight, 0 where no table knows them."""
    row = facts.find("quants", quant.removesuffix(IMATRIX)) or facts.find("quants", {"BNB": "BNB-NF4"}.get(quant, ""))
    return float(row["bits"]) if row else 0.0


def kv_dtypes_of(kv_dtypes: Any, engine: str, settings: Any) -> list[str]:
    """Cache types as asked; None: the settings object's, else the engine's default."""
    if kv_dtypes is None:
        if engine == "llama.cpp":
            k, v = getattr(settings, "type_k", "f16"), getattr(settings, "type_v", "f16")
            return [k if k == v else f"{k}/{v}"]
        return [getattr(settings, "kv_cache_dtype", "auto")]
    out = []
    for name in some("kv_dtypes", kv_dtypes):
        if not isinstance(name, str):
            raise BadInput(f"A KV-cache type such as 'f16' or 'fp8' was expected, not {short(name)}.")
        folded = name.strip().casefold()
        facts.get("kv_dtypes", folded, "KV-cache type")
        out.append(folded)
    return out


def engine_of(engine: Any) -> tuple[str, Any]:
    """The engine's name and its settings object, where one was given."""
    if isinstance(engine, str):
        word = engine.strip().casefold()
        if word not in _ENGINE_WORDS:
            raise UnknownName.among("engine", engine, ("llama.cpp", "vllm", "sglang"))
        return _ENGINE_WORDS[word], None
    names = (_SETTINGS_ENGINE.get(kind.__name__) for kind in type(engine).__mro__)
    name = next(filter(None, names), None)
    if name is None:
        raise BadInput(
            f"engine is {short(engine)}, where 'llama.cpp', 'vllm', 'sglang', fk.LlamaCpp(...) or fk.VLLM(...) was expected."
        )
    return name, engine


def gpus_of(settings: Any) -> int | None:
    """The GPUs a settings object asks for where that is not its default of one."""
    ways = getattr(settings, "gpus", None)
    if ways is None:
        names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        ways = int(np.prod([getattr(settings, name, 1) for name in names]))
    return ways if ways > 1 else None


def rules_of(rules: Any) -> tuple[str, Any]:
    if isinstance(rules, str):
        word = rules.strip().casefold()
        if word not in SPEAKS_OF:
            raise UnknownName.among("rules", rules, SPEAKS_OF)
        return word, None
    name = getattr(rules, "name", None)
    if name not in SPEAKS_OF or isinstance(rules, type):
        raise BadInput(
            f"rules is {short(rules)}, where {', '.join(map(repr, SPEAKS_OF))} or fk.Library, fk.Budget, fk.Shard was expected."
        )
    return str(name), rules


def wholes(what: str, values: Any, most: int, *, least: int = 1) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Whole numbers from `least` to `most` as an array; None stays None."""
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1:
        found = values.astype(np.int64)
    else:
        found = np.array([_whole(what, one, least, most) for one in many(values)], dtype=np.int64)
    if not found.size:
        raise BadInput(f"{what} is empty; at least one whole number was expected.")
    if found.min() < least or found.max() > most:
        wrong = int(found.min()) if found.min() < least else int(found.max())
        raise BadInput(f"{what} is {wrong}, where a whole number from {least} to {most:,} was expected.")
    return found


def _whole(what: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, str):
        typed = parse_count(value)
        value = value if typed is None else typed
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise BadInput(f"{what} is {short(value)}, where a whole number from {least} to {most:,} was expected.")
    return int(value)


def contexts_for(model: Model, contexts: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The contexts asked of this model: the default 8192 becomes the model's own length where that is shorter."""
    if len(contexts) == 1 and contexts[0] == DEFAULT_CONTEXT and 0 < model.context < DEFAULT_CONTEXT:
        return np.array([model.context], dtype=np.int64)
    return contexts


def too_long(model: Model, context: int) -> str:
    """One sentence where `context` is more than the model was made for, else empty."""
    if model.context and context > model.context:
        return f"A context of {context:,} tokens is more than the {model.context:,} that {model.name} was made for."
    return ""
