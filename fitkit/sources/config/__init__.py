"""A config.json mapping → Model: one small registered function a family, found by model_type, then by architectures, never by substring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fitkit.errors import BadInput, UnknownName, UnsupportedModel, printable, short
from fitkit.model import Model, Tensor
from fitkit.sources.config.build import Build
from fitkit.sources.config.leftover import refuse_leftovers
from fitkit.sources.config.view import Config

Family = Callable[[Config], "Shape"]
FAMILIES: dict[str, Family] = {}  # by model_type
ARCHITECTURES: dict[str, Family] = {}  # by architectures[0], for files whose model_type is missing or shared


@dataclass(slots=True, kw_only=True)
class Shape:
    """What a family function returns: the build and the few numbers that are not in it."""

    build: Build
    hidden_size: int
    vocab_size: int
    context: int
    tied_embeddings: bool = False
    gguf_architecture: str = ""
    extra: dict[str, Any] | None = None


def family(*model_types: str, architectures: tuple[str, ...] = ()) -> Callable[[Family], Family]:
    """Register a family function under its model types (and architectures)."""

    def register(function: Family) -> Family:
        for name in model_types:
            FAMILIES[name] = function
        for name in architectures:
            ARCHITECTURES[name] = function
        return function

    return register


_MOST_PARAMS = 10**15  # hundreds of times the largest published; more would not fit the tables' integers


def model_from_config(
    mapping: Mapping[str, Any], *, name: str = "", source: str = "", place: str = "config.json"
) -> Model:
    """The model a config describes, basis "arch": its bytes are computed from the shape.

    Raises BadInput for values that cannot be, UnsupportedModel for a family that no function knows.
    """
    try:
        return model_from_view(Config(mapping, place), name=name, source=source)
    except ArithmeticError as error:  # each number is one, and what follows from them together is none
        raise BadInput(f"{place}: its numbers together give no size ({error}).") from None


def model_from_view(config: Config, *, name: str = "", source: str = "") -> Model:
    """As model_from_config, over a view whose record the caller wants to see afterwards."""
    _load_families()
    from fitkit.sources.config.encoder import other_head

    model_type = config.text("model_type", default="")
    named = config.entries("architectures", default=[])
    architecture = named[0] if named and isinstance(named[0], str) else ""
    function = FAMILIES.get(model_type) or ARCHITECTURES.get(architecture)
    if "text_config" in config:  # some files name the text model's type at the top too
        function = ARCHITECTURES.get(architecture, function)
    if function is None:
        if not model_type and not architecture:
            raise BadInput(
                f"{config.place} names no model_type and no architectures, so it is no model's configuration."
            )
        near = UnknownName.among("model_type", model_type, FAMILIES).nearest
        raise UnsupportedModel(
            f"{config.place}: model_type {short(model_type)} (architecture {short(architecture)}) is not modelled; the nearest known "
            f"{'are ' + ', '.join(near) if near else 'one is far'}. It needs one function in fitkit/sources/config that says which caches and tensors its layers have."
        )
    shape = function(config)
    refuse_leftovers(config, model_type or architecture)
    other_head(config, shape, architecture)
    return finish(config, shape, name=name, source=source, family=model_type or architecture, architecture=architecture)


def finish(config: Config, shape: Shape, *, name: str, source: str, family: str, architecture: str) -> Model:
    """Layers, totals and dtypes of a walked config."""
    # Imported here: it needs the tensors' module names, and the families above.
    from fitkit.sources.config.quantization import apply_quantization, formats_of

    tensors, quant, kv_dtype = apply_quantization(config, shape.build)
    layers = shape.build.layers()
    params, active = count(tensors, layers_experts(shape))
    if params > _MOST_PARAMS:
        raise BadInput(f"{config.place}: its numbers give {params:,} parameters together, more than any model's.")
    return Model(
        name=printable(name or config.text("_name_or_path", default="") or family),
        family=family,
        basis="arch",
        layers=layers,
        tensors=tensors,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        context=shape.context,
        params=params,
        active_params=active,
        tied_embeddings=shape.tied_embeddings,
        dtype=dtype_of(config),
        quant=quant,
        kv_dtype=kv_dtype,
        architecture=architecture,
        gguf_architecture=shape.gguf_architecture,
        projector_bytes=projector_bytes(tensors),
        source=source or config.place,
        extra=tuple(sorted({**(shape.extra or {}), **({"formats": formats_of(tensors)} if quant else {})}.items())),
    )


def projector_bytes(tensors: tuple[Tensor, ...]) -> int:
    """Bytes of an F16 mmproj file with all that lies beside the language model: matrices in 16 bits, vectors in 32 (llama.cpp's converter)."""
    beside = [tensor for tensor in tensors if tensor.part in ("vision", "audio", "projector")]
    return sum(tensor.elements * tensor.copies * (2 if len(tensor.shape) > 1 else 4) for tensor in beside)


def layers_experts(shape: Shape) -> dict[int, tuple[int, int]]:
    """Per layer: experts and how many a token passes."""
    return {i: (w.get("experts", 0), w.get("experts_used", 0)) for i, w in enumerate(shape.build.widths)}


# Tables a token takes one row of; counted as active only where the table is the head too.
LOOKUPS = ("token_embd", "per_layer_token_embd", "position_embd")


def count(tensors: tuple[Tensor, ...], experts: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Total and active parameters.

    MTP blocks are not loaded by default and not counted, nor are tables of whole numbers. Active are those of the language
    model one token passes: of an expert stack `used` of `experts`; the head (also a tied one), but not the input embedding,
    of which a token reads one row (publishers differ: OpenAI and DeepSeek leave it out, Mistral and Qwen leave it in).
    """
    total = active = 0
    untied = any(tensor.role == "output" for tensor in tensors)
    for tensor in tensors:
        if tensor.part == "mtp" or tensor.dtype in ("I32", "I64"):
            continue
        total += tensor.elements * tensor.copies
        if tensor.part or (tensor.role in LOOKUPS and (untied or tensor.role != "token_embd")):
            continue
        for layer in tensor.layers or (-1,):
            n, used = experts.get(layer, (0, 0))
            share = used / n if n and tensor.shape[-1] == n and "_exps" in tensor.role else 1
            active += round(tensor.elements * tensor.count * share)
    return total, active


def dtype_of(config: Config) -> str:
    """BF16, F16 or F32: what the checkpoint says of its unquantized part."""
    text = config.view("text_config")
    said = (text.raw("dtype", "torch_dtype") if text else None) or config.raw(
        "dtype", "torch_dtype", default="bfloat16"
    )
    return {"float16": "F16", "half": "F16", "float32": "F32", "float": "F32"}.get(
        str(said).removeprefix("torch."), "BF16"
    )


# Each fills FAMILIES as it is imported.
ROOMS = (
    "dense", "variants", "legacy", "glm", "gemma", "olmo", "window", "moe", "experts", "windowed_experts", "latent", "compressed",
    "hybrid", "nemotron_h", "delta", "kda", "shortconv", "rwkv", "encoder", "multimodal", "vendors", "llava",
)  # fmt: skip


def _load_families() -> None:
    """Import the family functions once, on the first config (no work at import)."""
    for room in ROOMS:
        import_module(f"fitkit.sources.config.{room}")
