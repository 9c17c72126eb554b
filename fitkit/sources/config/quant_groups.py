"""Quantization configs that give groups of modules their own weights: compressed-tensors and NVIDIA's ModelOpt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fitkit.errors import BadInput, UnsupportedModel, short
from fitkit.sources.config.names import Names
from fitkit.sources.config.quant_methods import block_format, grouped, kv_of, method, modelopt_format, names
from fitkit.sources.config.quantization import Scheme
from fitkit.sources.config.view import Config


@method("compressed-tensors", "compressed_tensors")
def compressed_tensors(said: Config, config: Config) -> Scheme:
    """compressed-tensors: groups of targets (a class, names, "re:" expressions), each with its own weights."""
    sparsity = said.view("sparsity_config")
    if sparsity and sparsity.text("format", default="dense") != "dense":
        raise UnsupportedModel(f"{said.place}: sparse weights ({short(sparsity.raw('format'))}) are not modelled.")
    usual, named, head = "", [], False
    groups = said.view("config_groups")
    for key in groups.mapping if groups else ():
        group = groups.view(key) if groups else None
        if group is None:
            continue
        form = weights_format(group, said)
        targets = list(group.entries("targets", default=("Linear",)))
        plain = [target for target in targets if target not in ("Linear", "FusedMoE", "RoutedExperts")]
        if form and len(plain) < len(targets):
            usual = form
        if form and plain:
            names_ = Names(plain, said.place)
            named.append((names_, form))
            head = head or "lm_head" in names_
    return Scheme(
        default=usual,
        named=named,
        ignore=names(said, "ignore"),
        head=head,
        kv_dtype=kv_of(said.raw("kv_cache_scheme"), said.place),
    )


def weights_format(group: Config, said: Config) -> str:
    """The format of one config group's weights, "" where only activations are quantized."""
    weights = group.view("weights")
    if weights is None:
        return ""
    bits, kind = weights.whole("num_bits", default=8), weights.text("type", default="int")
    strategy = weights.text("strategy", default="")
    size = weights.whole("group_size", default=-1, low=-1)
    layout = group.text("format", default="") or said.text("format", default="")
    static = _is_static(group.raw("input_activations"))
    if "marlin-24" in layout:
        raise UnsupportedModel(f"{said.place}: format {short(layout)} (2:4 sparse) is not modelled.")
    if kind == "float" and bits == 4:
        return "mxfp4" if "mxfp4" in layout or size == 32 else "ct_nvfp4"
    if kind == "float" and bits == 8:
        if strategy == "block":
            return block_format("ct_fp8_block", weights.entries("block_structure"), said.place)
        if strategy == "group" and size == 32:
            return "mxfp8"
        return {"channel": "ct_fp8_channel"}.get(strategy, "ct_fp8_tensor_static" if static else "ct_fp8_tensor")
    if kind == "int" and (bits == 4 or "pack" in layout):
        base = ("int4" if bits == 4 else "int8") + ("" if weights.flag("symmetric", default=True) else "_zero")
        if bits in (4, 8):
            return grouped(base, size if strategy in ("group", "") else 0)
    if kind == "int" and bits == 8:
        return "int8_tensor" if strategy == "tensor" else "int8_channel"
    raise UnsupportedModel(f"{said.place}: weights of type {short(kind)} with {bits} bits are not modelled.")


@method("modelopt", "modelopt-fp4", "modelopt-mxfp8", "modelopt-mixed", "modelopt-fp8")
def modelopt(said: Config, config: Config) -> Scheme:
    """NVIDIA ModelOpt: one algorithm for every linear layer that is not excluded, or one a module (MIXED_PRECISION).

    Vision towers stay as they are, and a head is packed unless it is excluded, as vLLM loads them.
    """
    inner = said.view("quantization") or said
    algo = inner.text("quant_algo", default="").upper()
    group = inner.whole("group_size", default=16)
    left = names(inner, "exclude_modules", "ignore")
    kv = kv_of(inner.raw("kv_cache_quant_algo", default=inner.raw("kv_cache_scheme")), said.place)
    if algo != "MIXED_PRECISION":
        form = modelopt_format(algo, group, said.place)
        return Scheme(default=form, ignore=left, head=True, vision=False, kv_dtype=kv)
    by_format: dict[str, list[str]] = {}
    layers = inner.raw("quantized_layers", default={})
    for module, how in layers.items() if isinstance(layers, Mapping) else ():
        if not isinstance(how, Mapping):
            raise BadInput(
                f"{said.place}: quantized_layers of {short(module)} is {short(how)}, a mapping was expected."
            )
        form = modelopt_format(str(how.get("quant_algo", "")), how.get("group_size", group), said.place)
        by_format.setdefault(form, []).append(module)
    named = [(Names(modules, said.place), form) for form, modules in by_format.items()]
    return Scheme(named=named, ignore=left, vision=False, kv_dtype=kv)


def _is_static(activations: Any) -> bool:
    """Whether the inputs' scale is stored."""
    return isinstance(activations, Mapping) and activations.get("dynamic") is False
