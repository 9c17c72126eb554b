"""Which tensors of a quantized checkpoint are packed how, as one short text: the catalog's column `packing`.

`kv=fp8 fp8_block=[attn_q,ffn_up_exps] nvfp4={ffn_down=[0*3,1*58]}`: formats, each with the roles that are wholly in it, or with the layers
(1) that are. A role of a part beside the language model is `vision/attn_q`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fitkit.errors import BadInput
from fitkit.facts import shape
from fitkit.model import Model, Tensor


def packing_of(plain: Model, packed: Model) -> str:
    """The text that makes `packed` of the same model `plain`, "" where nothing is packed. Raises BadInput where no such text can."""
    formats: dict[tuple[str, int], str] = {}
    for tensor in packed.tensors:
        for layer in tensor.layers or (-1,):
            formats[_key(tensor), layer] = tensor.dtype
    for tensor in plain.tensors:  # what it says of itself, such as states in 32 bits, needs no telling
        for layer in tensor.layers or (-1,):
            if formats[_key(tensor), layer] == tensor.dtype:
                formats[_key(tensor), layer] = ""
    whole: dict[str, list[str]] = {}
    mixed: dict[str, dict[str, list[int]]] = {}
    for key, layers in _layers(plain).items():
        used = {form for layer in layers if (form := formats[key, layer])}
        for form in used:
            here = [int(formats[key, layer] == form) for layer in layers]
            if all(here):
                whole.setdefault(form, []).append(key)
            else:
                mixed.setdefault(form, {})[key] = here
    said: dict[str, Any] = {"kv": packed.kv_dtype} if packed.kv_dtype else {}
    said |= {
        form: [*whole.get(form, ()), *([mixed[form]] if form in mixed else ())] for form in sorted({*whole, *mixed})
    }
    text = shape.encode(said)
    if packed_as(plain, text) != packed:
        raise BadInput(f"{packed.name}: which of its tensors are packed is not told by their roles and layers.")
    return text


def packed_as(model: Model, text: str) -> Model:
    """`model` with its tensors packed as `text` says; itself where that is empty."""
    from fitkit.sources.config.quantization import formats_of, quant_name

    if not text:
        return model
    said = shape.decode(text)
    kv_dtype = str(said.pop("kv", ""))
    formats: dict[tuple[str, int], str] = {}
    layers = _layers(model)
    for form, roles in said.items():
        for entry in roles:
            for key, here in entry.items() if isinstance(entry, dict) else ((entry, [1] * len(layers[entry])),):
                formats |= {(key, layer): form for layer, yes in zip(layers[key], here, strict=True) if yes}
    tensors = tuple(part for tensor in model.tensors for part in _split(tensor, formats))
    extra = dict(model.extra)
    if quant := quant_name(tensors):
        extra["formats"] = formats_of(tensors)
    return model.with_(tensors=tensors, quant=quant, kv_dtype=kv_dtype, extra=tuple(sorted(extra.items())))


def _layers(model: Model) -> dict[str, list[int]]:
    """The layers that have a tensor of each role, in order; -1 for the model-wide ones."""
    out: dict[str, list[int]] = {}
    for tensor in model.tensors:
        found = out.setdefault(_key(tensor), [])
        found += [layer for layer in tensor.layers or (-1,) if layer not in found]
    return out


def _key(tensor: Tensor) -> str:
    return f"{tensor.part}/{tensor.role}" if tensor.part else tensor.role


def _split(tensor: Tensor, formats: dict[tuple[str, int], str]) -> Iterator[Tensor]:
    """`tensor` as one group a format, the first layer's first."""
    groups: dict[str, list[int]] = {}
    for layer in tensor.layers or (-1,):
        groups.setdefault(formats.get((_key(tensor), layer), tensor.dtype), []).append(layer)
    for dtype, layers in groups.items():
        yield replace(tensor, dtype=dtype, layers=tuple(layers) if tensor.layers else ())
