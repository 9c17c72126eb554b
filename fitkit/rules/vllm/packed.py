"""Where vLLM packs weights otherwise than they are stored: groups that a rank cuts through, matrices of several parts."""

from __future__ import annotations

import math
from dataclasses import replace

from fitkit.errors import FitError
from fitkit.packing import Format

# Matrices that vLLM keeps as several parts of one module: each part has scalars of its own.
PARTS_OF = {"attn_qkv": 3}


def fused_scalars(role: str, form: Format) -> int:
    """Scales of the further parts of a matrix that is stored as one and is several to vLLM."""
    each = form.tensor_bytes + (form.scale_bytes if not form.group and not form.rows else 0)
    return (PARTS_OF.get(role, 1) - 1) * each


def whole_groups(form: Format, width: int, name: str) -> Format:
    """The format a rank's experts get where a group of weights does not divide their `width`.

    AWQ and GPTQ fall to a kernel whose group is halved until it does (and that keeps no zeros of a symmetric GPTQ), an
    FP8 block becomes the greatest common divisor, and compressed-tensors refuses.

    Source: vLLM 0.33.0 quantization/moe_wna16.py, fp8.py, compressed_tensors.
    """
    if not form.group or width % form.group == 0:
        return form
    base = form.name.partition("@")[0]
    if base.startswith(("awq", "gptq")):
        group = form.group
        while width % group:
            group //= 2
        zeros = form.zero_bits if base.startswith("awq") else 0
        return replace(form, name=f"moe_{base}", group=group, zero_bits=zeros)
    if base.startswith("fp8_block"):
        return replace(form, group=math.gcd(form.group, width), rows=math.gcd(form.rows or form.group, width))
    if base.startswith("int"):
        raise EngineRefuses(
            f"{name}: compressed-tensors experts with a group of {form.group} need the rank's expert width ({width}) to be a "
            "multiple of it; use fewer ranks or expert parallelism."
        )
    return form


class EngineRefuses(FitError):
    """VLLM itself does not start with these settings; the message is the reason."""
