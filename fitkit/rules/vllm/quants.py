"""A model as the checkpoint that was asked for: its own, or its 16-bit shape with the usual linear layers packed."""

from __future__ import annotations

from dataclasses import replace

from fitkit.model import Model, Tensor
from fitkit.packing import Format
from fitkit.rules.remember import once_a_model

PLAIN = ("BF16", "F16", "FP16", "F32")

# What such checkpoints usually are: the layout makers publish most. Source: formats of published checkpoints as
# vLLM 0.33.0 reads them (the full list is facts/formats.csv).
USUAL: dict[str, Format] = {
    "FP8": Format(name="fp8_channel", quant="FP8", bits=8, rows=1, scale_bytes=4),
    "INT8": Format(name="int8_channel", quant="INT8", bits=8, rows=1, scale_bytes=4),
    "AWQ": Format(name="awq", quant="AWQ", bits=4, group=128, rows=1, scale_bytes=2, zero_bits=4),
    "GPTQ": Format(name="gptq4", quant="GPTQ", bits=4, group=128, rows=1, scale_bytes=2, zero_bits=4),
    "GPTQ-INT8": Format(name="gptq8", quant="GPTQ", bits=8, group=128, rows=1, scale_bytes=2, zero_bits=8),
    "INT4": Format(name="int4", quant="INT4", bits=4, group=128, rows=1, scale_bytes=2),
    "MXFP4": Format(name="mxfp4", quant="MXFP4", bits=4, group=32, rows=1, scale_bytes=1),
    "MXFP8": Format(name="mxfp8", quant="MXFP8", bits=8, group=32, rows=1, scale_bytes=1),
    "NVFP4": Format(name="nvfp4", quant="NVFP4", bits=4, group=16, rows=1, scale_bytes=1, tensor_bytes=8),
    "BNB-NF4": Format(name="bnb_nf4", quant="BNB", bits=4, group=64, rows=1, scale_bytes=4),
    "BNB": Format(name="bnb_nf4", quant="BNB", bits=4, group=64, rows=1, scale_bytes=4),
    "BNB-INT8": Format(name="bnb_int8", quant="BNB", bits=8, rows=1, scale_bytes=4),
}
ROUTERS = ("ffn_gate_inp", "ffn_gate_inp_shexp")


def served(quant: str) -> bool:
    """Whether a vLLM checkpoint can be that."""
    return quant in PLAIN or quant in USUAL


@once_a_model
def as_asked(model: Model, quant: str) -> tuple[Model, bool]:
    """The model with its tensors stored as `quant`, and whether that is its own checkpoint (else the usual layout)."""
    if quant == (model.quant or model.dtype) or not quant:
        return model, True
    plain = model if not model.quant else model.with_(quant="", tensors=tuple(map(_unpacked, model.tensors)))
    if quant in PLAIN:
        return plain.with_(dtype="F16" if quant == "FP16" else quant), not model.quant
    form = USUAL[quant]
    tensors = tuple(
        replace(tensor, dtype=form.name) if _is_packed(tensor, quant, bool(model.experts)) else tensor
        for tensor in plain.tensors
    )
    return plain.with_(quant=quant, tensors=tensors, extra=_with_format(model, form)), False


def _with_format(model: Model, form: Format) -> tuple[tuple[str, object], ...]:
    others = tuple((key, value) for key, value in model.extra if key != "formats")
    return tuple(sorted((*others, ("formats", (form,)))))


def _unpacked(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in ("", "F32", "BF16", "F16") else replace(tensor, dtype="")


def _is_packed(tensor: Tensor, quant: str, sparse: bool) -> bool:
    """Whether makers of such checkpoints pack it: the language model's linear layers (MXFP4: only the experts of a MoE)."""
    if tensor.part or not tensor.layers or len(tensor.shape) < 2 or "norm" in tensor.role or "." in tensor.role:
        return False
    if tensor.role in ROUTERS or "conv" in tensor.role:
        return False
    return not (quant == "MXFP4" and sparse) or "_exps" in tensor.role
