"""Bytes of a model's files: a GGUF of any file type, a checkpoint of any format."""

from __future__ import annotations

from fitkit.errors import UnsupportedModel
from fitkit.model import Model
from fitkit.packing import Format, packed_bytes
from fitkit.rules.base import Evidence
from fitkit.rules.remember import once_a_model
from fitkit.rules.vllm.quants import as_asked, served

_PLAIN_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "FP16": 2, "F64": 8, "F8": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
# A GGUF header is mostly the tokenizer; Llama 3's 7.84 MB are 61 bytes a token, gpt-oss 65, Gemma 27.
_HEADER_BYTES_PER_TOKEN = 61


@once_a_model
def gguf_bytes(model: Model, quant: str) -> tuple[int, Evidence]:
    """The file's bytes under a file type, header and tokenizer included.

    Raises UnsupportedModel where llama.cpp has no such model.
    """
    if model.file_bytes and model.quant == quant:
        return model.file_bytes, "exact"
    _needs_shape(model, quant)
    from fitkit.rules.llamacpp.ggml_types import weights_bytes

    tensors = weights_bytes(model, quant)
    if model.header_bytes:
        return tensors + model.header_bytes, "engine"
    return tensors + _HEADER_BYTES_PER_TOKEN * model.vocab_size, "assumed"


@once_a_model
def checkpoint_bytes(model: Model, quant: str) -> tuple[int, Evidence]:
    """The safetensors' bytes in a checkpoint format: the model's own tensors, or the usual layout of another format.

    Of another format the language model's linear layers are packed; embeddings, head, norms and routers stay 16-bit.
    """
    if model.file_bytes and (model.quant or model.dtype) == quant:
        return model.file_bytes, "exact"
    _needs_shape(model, quant)
    if quant != (model.quant or model.dtype) and not served(quant):
        raise UnsupportedModel(f"A {quant} checkpoint of {model.name} cannot be sized: nobody said how it is packed.")
    asked, own = as_asked(model, quant)
    forms: dict[str, Format] = {form.name: form for form in asked.get("formats", ())}
    total = 0
    for tensor in asked.tensors:
        if tensor.part == "mtp":
            continue
        form = forms.get(tensor.dtype)
        size = (
            packed_bytes(tensor.shape, form)
            if form
            else tensor.elements * _PLAIN_BYTES.get(tensor.dtype or asked.dtype, 2)
        )
        total += size * tensor.copies
    return total, ("exact" if not forms else "engine") if own else "assumed"


def _needs_shape(model: Model, quant: str) -> None:
    if not model.tensors:
        raise UnsupportedModel(
            f"Of {model.name} only {model.quant or 'a file size'} is known, not the shape: {quant} cannot be sized. Load its config.json."
        )
