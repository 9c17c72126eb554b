"""A model as llama.cpp would load it: its GGUF's tensors with the types a file type gives them."""

from __future__ import annotations

from dataclasses import dataclass

from fitkit.model import Model, Tensor
from fitkit.rules.llamacpp.ggml_types import file_types
from fitkit.rules.llamacpp.tensors import as_gguf
from fitkit.rules.remember import once_a_model


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model as its file describes it, with the types its tensors have. Compared by identity, so that it is cheap to look up."""

    model: Model
    tensors: tuple[Tensor, ...]


@once_a_model
def loaded(model: Model, quant: str | None) -> Loaded:
    """`model` as a GGUF of file type `quant` (None: its own, Q4_K_M where it has none).

    Raises UnsupportedModel where llama.cpp has no such architecture.
    """
    if quant is None and model.get("block_count") is not None and model.basis == "estimate":
        return Loaded(model, model.tensors)
    return Loaded(as_gguf(model), file_types(model, quant or "Q4_K_M"))


@once_a_model
def without_types(model: Model) -> Loaded:
    """The model's tensors whatever their types: all that a graph needs whose weights are never copied."""
    return Loaded(model, model.tensors)
