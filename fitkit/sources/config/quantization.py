"""What a quantized checkpoint leaves as it is and how the rest is packed: quantization_config → a dtype per tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from fitkit.errors import UnknownName, UnsupportedModel, short
from fitkit.facts.formats import format_named
from fitkit.model import Tensor
from fitkit.packing import Format
from fitkit.sources.config.build import Build
from fitkit.sources.config.names import Names
from fitkit.sources.config.view import Config


@dataclass(slots=True, kw_only=True)
class Scheme:
    """What one method does to a checkpoint: which format the modules get that it converts, and which those are.

    `named` wins over `default`; `ignore` wins over both. A method converts linear layers; whether heads, vision parts and
    what lies outside the blocks are among them unless ignored is the method's own default.
    """

    default: str = ""  # the format of what is converted; empty: only what `named` or `experts` names
    experts: str = ""  # the routed experts' own format
    named: list[tuple[Names, str]] = field(default_factory=list)
    ignore: Names = field(default_factory=lambda: Names(()))
    head: bool = False
    vision: bool = True
    text_only: bool = False  # said within text_config: what lies beside the language model is not touched
    outside: bool = True  # linear layers outside the numbered blocks
    pack: int = 1  # outputs packed into one word: layers that do not divide are left
    kv_dtype: str = ""


Method = Callable[[Config, Config], Scheme]
METHODS: dict[str, Method] = {}  # by quant_method

# Two-dimensional, and yet no linear layer: tables, convolutions, recurrences, learned vectors.
_NO_LINEAR = re.compile(
    r"(.*[._])?(embd|embd_.*|norm|.*conv.*|ssm_(a|d|dt)|time_mix_(?!key|value|receptance|output).*|pos_.*|.*_token|sinks|scale|tables?|rel_.*|cls|.*_hc_.*|hc_.*)"
)
_ROUTERS = ("ffn_gate_inp", "ffn_gate_inp_shexp")
# Routers stay in 16 bits, also where no list says so, except in families whose vLLM module passes its method on to the router.
# Source: vLLM 0.33.0 models/qwen3_moe.py, granitemoe.py; router bytes of the modules in its weight listing.
_CONVERTED_ROUTERS = frozenset(("qwen3_moe", "qwen3_vl_moe", "granitemoe"))
# Linear layers that stay in 16 bits in vLLM's modules whatever the method says: the sparse indexer's key and weights
# projections (models/deepseek_v2.py), the compressors of DeepSeek-V4, Kimi-K3's way into and out of its narrow experts.
_NEVER = frozenset(
    ("indexer.proj", "indexer.attn_k", "attn_compressor_kv", "attn_compressor_gate", "indexer_compressor_kv",
     "indexer_compressor_gate", "ffn_routed_down", "ffn_routed_up")
)  # fmt: skip


def apply_quantization(config: Config, build: Build) -> tuple[tuple[Tensor, ...], str, str]:
    """The build's tensors with their stored dtypes, the scheme's name ("" for none) and what the checkpoint asks for its cache."""
    scheme = scheme_of(config)
    if scheme is None:
        return tuple(build.tensors), "", ""
    family = config.text("model_type", default="")
    tensors = tuple(
        part
        for tensor, module in zip(build.tensors, build.modules, strict=True)
        for part in _split(tensor, module, scheme, family)
    )
    return tensors, quant_name(tensors), scheme.kv_dtype


def scheme_of(config: Config) -> Scheme | None:
    """What the config (or its text part, or the hf_quant_config beside it) says of quantization; None where nothing."""
    from fitkit.sources.config import quant_groups, quant_methods  # noqa: F401  (they fill METHODS)

    said = _said(config)
    if said is None:
        return None
    method = said.text("quant_method", default="").lower().replace("_", "-")
    if not method and (said.text("quant_algo", default="") or said.view("quantization")):
        method = "modelopt"
    reader = METHODS.get(method)
    if reader is None:
        near = UnknownName.among("quant_method", method, METHODS).nearest
        raise UnsupportedModel(
            f"{said.place}: quant_method {short(method)} is not modelled"
            f"{'; the nearest known are ' + ', '.join(near) if near else ''}. It needs one function in fitkit/sources/config/quant_methods.py."
        )
    scheme = reader(said, config)
    text = config.view("text_config")
    if text is not None and said is text.view(said.place.rpartition(" ")[2]):
        scheme.text_only = True
    return scheme


def _said(config: Config) -> Config | None:
    """The view that speaks of quantization: config.json's own first, as vLLM reads it."""
    text = config.view("text_config")
    for place in (config, text):
        for key in ("quantization_config", "compression_config"):
            if place is not None and (view := place.view(key)) is not None and view.mapping:
                return view
    return config.view("hf_quant_config")


def quant_name(tensors: tuple[Tensor, ...]) -> str:
    """What the checkpoint is called by: the format that most elements have, "" where nothing is packed."""
    elements: dict[str, int] = {}
    for tensor in tensors:
        name = format_named(tensor.dtype).quant if tensor.dtype else ""
        if name and tensor.part != "mtp":
            elements[name] = elements.get(name, 0) + tensor.elements * tensor.copies
    return max(elements, key=elements.__getitem__, default="")


def formats_of(tensors: tuple[Tensor, ...]) -> tuple[Format, ...]:
    """The rows of every format these tensors use, for rules that read no files."""
    return tuple(format_named(name) for name in sorted({tensor.dtype for tensor in tensors if tensor.dtype}))


def _split(tensor: Tensor, module: str, scheme: Scheme, family: str) -> Iterator[Tensor]:
    """`tensor` as one group a format: an ignore list may touch only some layers."""
    if not _is_linear(tensor):
        yield tensor
        return
    groups: dict[str, list[int]] = {}
    if not scheme.ignore and not scheme.named:  # nothing is told apart by name
        yield replace(tensor, dtype=_format(tensor, "", scheme, family))
        return
    for layer in tensor.layers or (-1,):
        name = module.format(layer).replace(".*.", ".0.") or tensor.role
        groups.setdefault(_format(tensor, name, scheme, family), []).append(layer)
    for dtype, layers in groups.items():
        yield replace(tensor, dtype=dtype or tensor.dtype, layers=tuple(layers) if tensor.layers else ())


def _is_linear(tensor: Tensor) -> bool:
    """Whether a tensor is a linear layer's weight, which alone is ever converted."""
    return (
        len(tensor.shape) > 1
        and not tensor.dtype
        and not tensor.role.endswith(".bias")
        and tensor.role not in _NEVER
        and not _NO_LINEAR.fullmatch(tensor.role)
    )


def _format(tensor: Tensor, name: str, scheme: Scheme, family: str) -> str:
    """The format of one module, "" where it stays as it is."""
    if name in scheme.ignore:
        return ""
    if tensor.part and tensor.part != "mtp" and scheme.text_only:
        return ""
    for names, form in scheme.named:
        if name in names:
            return form
    if "_exps" in tensor.role:
        return scheme.experts or scheme.default
    if tensor.role in _ROUTERS and (family not in _CONVERTED_ROUTERS or tensor.shape[1] == 1):
        return ""
    if tensor.role == "output" and not scheme.head:
        return ""
    if tensor.part in ("vision", "audio") and not scheme.vision:
        return ""
    if (not tensor.layers and not scheme.outside and tensor.role != "output") or tensor.shape[1] % scheme.pack:
        return ""
    return scheme.default
