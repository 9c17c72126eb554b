"""What loading a model takes besides its parameters: rotary tables, kernels' own layouts, torch's rounding of blocks.

`Model loading took` in vLLM's log is the weights as built plus all of this.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from fitkit.model import Model, Tensor
from fitkit.rules.base import Evidence
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.measured import Part
from fitkit.rules.vllm.pipeline import stages
from fitkit.rules.vllm.quants import as_asked
from fitkit.rules.vllm.settings import DTYPES, VLLMSettings, release_of
from fitkit.rules.vllm.weights import Cutter, Ranks, stage_weights
from fitkit.units import GIB, MIB

# Matrices that one module holds in one array. Source: vLLM 0.33.0's model classes (QKVParallelLinear and so on).
FUSED = (
    ("attn_q", "attn_k", "attn_v"),
    ("ffn_gate", "ffn_up"),
    ("ffn_gate_shexp", "ffn_up_shexp"),
    ("ffn_gate_exps", "ffn_up_exps"),
    ("attn_q_a", "attn_kv_a_mqa"),
)
_FIRST = {role: group[0] for group in FUSED for role in group}

# What PyTorch's caching allocator does with a request. Source: PyTorch c10/cuda/CUDACachingAllocator.cpp.
SMALL = MIB  # requests up to this share small segments
LARGE = 10 * MIB  # requests from this on have a segment of their own, in steps of STEP
SHARED_SEGMENT = 20 * MIB  # what lies between shares these
STEP = 2 * MIB


def loaded_parts(settings: VLLMSettings, model: Model, device: Device, weights: int) -> tuple[Part, ...]:
    """What model loading takes on the fullest rank; `weights` is its parameters' bytes, as vLLM's modules are built."""
    basis: Evidence = "exact" if model.basis != "weights" else "assumed"
    wide = DTYPES[settings.dtype] == "F32"
    tables = sum(
        rows * width * (4 if wide or dtype == "F32" else 2) for rows, width, dtype in model.get("rope_tables", ())
    )
    parts = [
        _exact("weights", weights, basis, "vLLM 0.33.0's modules as built"),
        _exact(
            "rope_tables", tables, "engine", "vLLM 0.33.0 rotary_embedding: positions x rotary width, on every rank"
        ),
    ]
    if settings.quantization == "fp8" and not model.quant:
        less = weights - max(stage_weights(settings, as_asked(model, "FP8")[0], device))
        parts.append(_exact("online_fp8", -less, "engine", "vLLM 0.33.0 quantization/fp8.py: converted after loading"))
    copy = dequantized_latents(settings, model)
    if copy:
        source = "vLLM 0.33.0 mla_attention.py: W_UK and W_UV of a quantized kv_b_proj in 16 bits"
        parts.append(_exact("mla_copy", copy, "engine", source))
    padding = kernel_padding(settings, model, device, weights)
    if padding is not None:
        parts.append(padding)
    if device.backend in ("cuda", "rocm") and settings.quantization != "fp8":
        parts.append(allocator_slack(settings, model, device))
    return tuple(parts)


def dequantized_latents(settings: VLLMSettings, model: Model) -> int:
    """The 16-bit copy MLA keeps of a quantized kv_b_proj [bytes of one rank]; of an unquantized one it keeps views."""
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    return sum(
        -(-tensor.elements * tensor.copies * 2 // ranks)
        for tensor in model.tensors
        if tensor.role == "attn_kv_b" and tensor.part != "mtp" and tensor.dtype not in ("", "BF16", "F16", "F32")
    )


# ---- kernels' layouts ----------------------------------------------------------------------------------------------------


def kernel_padding(settings: VLLMSettings, model: Model, device: Device, weights: int) -> Part | None:
    """What Hopper's MXFP4 kernels (triton_kernels) add by swizzling experts, None where they are not used.

    The values' inputs are padded to multiples of 256; from 0.19 on the rank's width to 128 and the scales' outputs to 256
    besides. gpt-oss-20b and 120b on 0.11 within 0.02 GiB, 20b on 0.19 within 0.01; other cards build padded modules.
    """
    if not device.cuda or device.family != 9 or model.family != "gpt_oss" or model.quant != "MXFP4":
        return None
    tp = settings.tensor_parallel_size if not settings.enable_expert_parallel else 1
    newer = release_of(settings.version) >= (0, 17, 0)
    added = most = 0
    for layer in model.layers:
        if not layer.experts:
            continue
        hidden, width = model.hidden_size, _up(layer.expert_dim // tp, 64)
        built = _swizzled(hidden, width, 1, 1)
        wide = _up(width, 128) if newer else width
        added += layer.experts * (_swizzled(hidden, wide, 256, 256 if newer else 1) - built)
        most += layer.experts * (_swizzled(_up(hidden, 256), _up(width, 256), 256, 256) - built)
    shared = settings.pipeline_parallel_size * (settings.tensor_parallel_size // tp)
    source = "triton_kernels' Hopper layouts, fitted to three start-up logs of gpt-oss on H100 (vLLM 0.11.0 and 0.19.0)"
    return Part(
        name="kernel_padding", bytes=added // shared, low=0, high=most // shared, evidence="fitted", source=source
    )


def _swizzled(hidden: int, width: int, inputs: int, outputs: int) -> int:
    """Bytes of one expert's values and scales, inputs of values and outputs of scales padded to these multiples."""
    gate_up = 2 * width * _up(hidden, inputs) // 2 + _up(2 * width, outputs) * hidden // 32
    return gate_up + hidden * _up(width, inputs) // 2 + _up(hidden, outputs) * width // 32


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


# ---- torch's blocks --------------------------------------------------------------------------------------------------------


def allocator_slack(settings: VLLMSettings, model: Model, device: Device) -> Part:
    """What torch's allocator rounds the weights' arrays up by, which `Model loading took` counts.

    The order of allocations is the modules'; what a kernel repacks after loading is laid out anew, so the range starts at 0.
    With it, 37 of 40 logged loads (0.11.0 to 0.28.0, H100 to RTX 3090) are met within the log's rounding.
    """
    stage_slack = [
        slack(_arrays(settings, model, device, layers))
        for layers in stages(len(model.layers), settings.pipeline_parallel_size)
    ]
    most = max(stage_slack, default=0)
    return Part(
        name="allocator",
        bytes=most,
        low=0,
        high=most + GIB // 50,
        evidence="engine",
        source="PyTorch's caching allocator: arrays from 10 MiB on take steps of 2 MiB and keep a rest of up to 1 MiB",
    )


def slack(sizes: Iterable[int]) -> int:
    """What blocks take beyond the requested `sizes` [bytes], allocated in this order and never freed.

    >>> slack([259 * 2**20]) == 2**20, slack([64 * 2**20]), slack([int(64.5 * 2**20)]), slack([3 * 2**20] * 5) < 2**20
    (True, 0, 0, True)
    """
    free: list[int] = []  # rests of segments, smallest first
    total = 0
    for size in sizes:
        size = _up(size, 512)
        if size <= SMALL:
            continue
        at = bisect_left(free, size)
        block = free.pop(at) if at < len(free) else _up(size, STEP) if size >= LARGE else SHARED_SEGMENT
        rest = block - size
        if rest > SMALL:
            insort(free, rest)
        else:
            total += rest
    return total


def _arrays(settings: VLLMSettings, model: Model, device: Device, layers: range) -> Iterator[int]:
    """The arrays of one rank's modules, layer by layer [bytes]."""
    ranks = Ranks(
        tp=settings.tensor_parallel_size,
        experts=settings.tensor_parallel_size * settings.data_parallel_size,
        whole_experts=settings.enable_expert_parallel,
    )
    cutter = Cutter(settings, model, device, ranks)
    by_layer: dict[int, dict[tuple[str, int], int]] = {layer: {} for layer in layers}
    for tensor in model.tensors:
        if tensor.part == "mtp" or (tensor.part and not cutter.encoder):
            continue
        pieces = _pieces(cutter, tensor)
        if not tensor.layers or tensor.part:
            yield from (size for _ in range(tensor.copies) for size in pieces)
            continue
        first = _FIRST.get(tensor.role, tensor.role)
        for layer in tensor.layers:
            if layer in by_layer:
                arrays = by_layer[layer]
                for which, size in enumerate(pieces):
                    arrays[first, which] = arrays.get((first, which), 0) + size * tensor.count
    for arrays in by_layer.values():
        yield from arrays.values()


def _pieces(cutter: Cutter, tensor: Tensor) -> list[int]:
    """The arrays of one tensor on one rank: its weights, and its scales where it is packed [bytes]."""
    size, form = cutter.bytes_of(tensor), cutter.formats.get(tensor.dtype)
    if form is None or not form.quant:
        return [size]
    values = min(size, math.prod(cutter.shape_of(tensor)) * form.bits // 8)
    return [values, size - values]


def _exact(name: str, size: int, evidence: Evidence, source: str) -> Part:
    return Part(name=name, bytes=size, low=size, high=size, evidence=evidence, source=source)
