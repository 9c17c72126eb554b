"""Bytes of a model's files: a GGUF of any file type, a checkpoint as vLLM loads it."""

from __future__ import annotations

from fitkit.model import Model, Tensor
from fitkit.rules.base import Evidence
from fitkit.rules.remember import once_a_model

# Bits a quantized weight takes, with its scales and zero points. Sources: vLLM's parameter shapes (0.33: AWQ and GPTQ
# with groups of 128, FP8 with one scale a channel or block), OCP MX and NVFP4 formats, bitsandbytes' 32-bit absmax for 64 weights.
_CHECKPOINT_BITS = {
    "F32": 32.0, "BF16": 16.0, "F16": 16.0, "FP8": 8.0, "INT8": 8.0, "GPTQ-INT8": 8.1875, "MXFP8": 8.25, "BNB-INT8": 8.0,
    "AWQ": 4.15625, "GPTQ": 4.15625, "INT4": 4.125, "MXFP4": 4.25, "NVFP4": 4.5, "BNB-NF4": 4.5, "BNB": 4.5,
}  # fmt: skip
# A GGUF header is mostly the tokenizer; Llama 3's 7.84 MB are 61 bytes a token, gpt-oss 65, Gemma 27.
_HEADER_BYTES_PER_TOKEN = 61


@once_a_model
def gguf_bytes(model: Model, quant: str) -> tuple[int, Evidence]:
    """The file's bytes under a file type, header and tokenizer included."""
    if model.file_bytes and model.quant == quant:
        return model.file_bytes, "exact"
    from fitkit.rules.llamacpp.ggml_types import weights_bytes

    tensors = weights_bytes(model, quant)
    if model.header_bytes:
        return tensors + model.header_bytes, "engine"
    return tensors + _HEADER_BYTES_PER_TOKEN * model.vocab_size, "assumed"


@once_a_model
def checkpoint_bytes(model: Model, quant: str) -> tuple[int, Evidence]:
    """The safetensors' bytes in a checkpoint format: linear layers in it, embeddings, head, norms and router in 16 bits."""
    if model.file_bytes and (model.quant or model.dtype) == quant:
        return model.file_bytes, "exact"
    bits = _CHECKPOINT_BITS[quant]
    if quant in ("BF16", "F16", "F32"):
        return round(model.params * bits / 8), "exact"
    total = 0.0
    for tensor in model.tensors:
        if tensor.part != "mtp":
            total += tensor.elements * tensor.copies * (bits if _is_quantized(tensor, quant) else 16) / 8
    return round(total), "assumed"


def _is_quantized(tensor: Tensor, quant: str) -> bool:
    """Whether makers of checkpoints quantize this tensor: the language model's linear layers (MXFP4: the experts)."""
    if tensor.part or not tensor.layers or len(tensor.shape) < 2 or "norm" in tensor.role or "." in tensor.role:
        return False
    if tensor.role in ("ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d", "shortconv_conv"):
        return False
    return quant != "MXFP4" or "_exps" in tensor.role
