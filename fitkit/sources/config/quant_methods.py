"""One small function a quantization method: what its config says → Scheme. Found by quant_method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fitkit.errors import BadInput, UnsupportedModel, short
from fitkit.sources.config.names import Names
from fitkit.sources.config.quantization import METHODS, Method, Scheme
from fitkit.sources.config.view import Config


def method(*names: str) -> Callable[[Method], Method]:
    """Register a reader under the names quant_method uses."""

    def register(function: Method) -> Method:
        for name in names:
            METHODS[name] = function
        return function

    return register


def names(said: Config, *keys: str) -> Names:
    """All modules that the lists under `keys` name."""
    return Names([entry for key in keys for entry in said.entries(key, default=())], said.place)


def grouped(base: str, group: int, rows: int = 0) -> str:
    """A format's name with its own group; -1 is one scale for all inputs."""
    return f"{base}@{max(group, 0)}x{rows}" if rows else f"{base}@{max(group, 0)}"


@method("awq", "awq-marlin")
def awq(said: Config, config: Config) -> Scheme:
    """AutoAWQ: linear layers of the text model's blocks, 4 bits, packed eight outputs to a word."""
    bits = said.whole("bits", "w_bit", default=4)
    if bits != 4:
        raise UnsupportedModel(f"{said.place}: AWQ with {bits} bits is not modelled; 4 is.")
    return Scheme(
        default=grouped("awq", said.whole("group_size", "q_group_size", default=128, low=-1)),
        ignore=names(said, "modules_to_not_convert"),
        vision=False,
        outside=False,
        pack=8,
    )


@method("gptq", "gptq-marlin", "gptqmodel", "auto-round", "auto-gptq")
def gptq(said: Config, config: Config) -> Scheme:
    """GPTQ and AutoRound: linear layers of the text model's blocks; `dynamic` gives modules their own bits or none."""
    bits = said.whole("bits", default=4)
    if bits not in (2, 3, 4, 8):
        raise UnsupportedModel(f"{said.place}: GPTQ with {bits} bits is not modelled; 2, 3, 4 and 8 are.")
    if "awq" in said.text("packing_format", "checkpoint_format", default="gptq"):
        return awq(said, config)
    group = said.whole("group_size", default=128, low=-1)
    own, left = [], list(said.entries("modules_to_not_convert", default=()))
    dynamic = said.view("dynamic")
    for pattern in dynamic.mapping if dynamic else ():
        sign, _, text = str(pattern).rpartition(":") if str(pattern)[:2] in ("+:", "-:") else ("+", "", str(pattern))
        if sign == "-":
            left.append(f"re:{text}")
            continue
        change = dynamic.view(pattern) if dynamic else None
        if change is not None:
            form = grouped(
                f"gptq{change.whole('bits', default=bits)}", change.whole("group_size", default=group, low=-1)
            )
            own.append((Names([f"re:{text}"], said.place), form))
    return Scheme(
        default=grouped(f"gptq{bits}", group),
        named=own,
        ignore=Names(left, said.place),
        head=said.flag("lm_head", default=False),
        vision=False,
        outside=False,
        pack=32 // bits if bits != 3 else 32,
    )


@method("fp8")
def fp8(said: Config, config: Config) -> Scheme:
    """FP8 by block (weight_block_size) or matrix; every linear layer but the head and what is listed.

    DeepSeek-V4 keeps its routed experts in 4 bits (`expert_dtype` fp4, or ModelOpt's `moe_quant_algo`).
    """
    if said.text("moe_quant_algo", default="") or said.text("quant_algo", default="").upper() == "MIXED_PRECISION":
        experts = modelopt_format(said.text("moe_quant_algo", default="NVFP4"), 16, said.place)
    else:
        fp4 = "fp4" in (said.text("expert_dtype", default=""), config.text("expert_dtype", default=""))
        experts = "mxfp4" if fp4 else ""
    block = said.entries("weight_block_size", default=(), length=None)
    exponent = "ue8m0" in said.text("scale_fmt", default="") and bool(experts)
    if block:
        default = block_format("fp8_block_e8m0" if exponent else "fp8_block", block, said.place)
    else:
        default = "fp8_static" if said.text("activation_scheme", default="dynamic") == "static" else "fp8_dynamic"
    kv = said.text("kv_cache_quant_algo", default="")
    return Scheme(
        default=default,
        experts=experts,
        ignore=names(said, "modules_to_not_convert", "ignored_layers"),
        kv_dtype=kv_of(kv, said.place) or kv_of(said.raw("kv_cache_scheme"), said.place),
    )


@method("fbgemm-fp8")
def fbgemm(said: Config, config: Config) -> Scheme:
    """FBGEMM FP8: a scale an output channel."""
    return Scheme(default="fbgemm_fp8", ignore=names(said, "modules_to_not_convert"))


@method("mxfp4", "gpt-oss-mxfp4")
def mxfp4(said: Config, config: Config) -> Scheme:
    """gpt-oss: only the routed experts are packed."""
    return Scheme(experts="mxfp4", ignore=names(said, "modules_to_not_convert"))


@method("bitsandbytes")
def bitsandbytes(said: Config, config: Config) -> Scheme:
    """bitsandbytes: every linear layer but the head and what is listed, in 4 (nf4, fp4) or 8 bits."""
    if said.flag("load_in_8bit", "_load_in_8bit", default=False):
        form = "bnb_int8"
    elif said.flag("bnb_4bit_use_double_quant", default=False):
        form = "bnb_nf4_double"
    else:
        form = "bnb_nf4"
    return Scheme(default=form, ignore=names(said, "llm_int8_skip_modules"))


@method("quark")
def quark(said: Config, config: Config) -> Scheme:
    """AMD Quark: a global weight type, layers with their own, and exclusions."""
    usual = said.view("global_quant_config")
    weight = usual.view("weight") if usual else None
    own = said.view("layer_quant_config")
    named = []
    for pattern in own.mapping if own else ():
        layer = own.view(pattern) if own else None
        one = layer.view("weight") if layer else None
        if one is not None:
            named.append((Names([pattern], said.place), quark_format(one)))
    return Scheme(
        default=quark_format(weight) if weight else "",
        named=named,
        ignore=names(said, "exclude"),
        kv_dtype="fp8" if _quark_kv(said) else "",
    )


def quark_format(weight: Config) -> str:
    """The format of a Quark weight."""
    dtype, spread = weight.text("dtype"), weight.text("qscheme", default="per_tensor")
    forms = {
        ("fp8_e4m3", "per_tensor"): "fp8_static",
        ("fp8_e4m3", "per_channel"): "fbgemm_fp8",
        ("fp4", "per_group"): "mxfp4",
        ("mxfp4", "per_group"): "mxfp4",
        ("int8", "per_tensor"): "int8_tensor",
        ("int8", "per_channel"): "int8_channel",
    }
    form = forms.get((dtype, spread))
    if form is None:
        raise UnsupportedModel(f"{weight.place}: weights {short(dtype)} {short(spread)} are not modelled.")
    return form


def _quark_kv(said: Config) -> bool:
    """Whether the cache's projections have 8-bit float outputs."""
    export = said.view("export")
    group = export.entries("kv_cache_group", default=()) if export else ()
    own = said.view("kv_cache_quant_config") or said.view("layer_quant_config")
    return bool(group) and own is not None and "fp8" in str(own.mapping)[:100_000]


@method("torchao")
def torchao(said: Config, config: Config) -> Scheme:
    """torchao: one weight type for every linear layer."""
    kind = said.raw("quant_type", default="")
    text = str(kind)[:2000].lower()
    for word, form in (("int4", "torchao_int4"), ("float8", "torchao_fp8"), ("int8", "torchao_int8")):
        if word in text:
            data = kind.get("default", {}).get("_data", {}) if isinstance(kind, Mapping) else {}
            group = data.get("group_size", 128) if isinstance(data, Mapping) else 128
            if form == "torchao_int4" and isinstance(group, int) and not isinstance(group, bool) and group > 0:
                form = grouped(form, group)
            return Scheme(default=form, ignore=names(said, "modules_to_not_convert"))
    raise UnsupportedModel(f"{said.place}: torchao's {short(kind)} is not modelled.")


def modelopt_format(algo: str, group: Any, place: str) -> str:
    """The format of one of ModelOpt's algorithms."""
    known = {
        "FP8": "fp8_static",
        "FP8_PER_CHANNEL_PER_TOKEN": "fbgemm_fp8",
        "FP8_PB_WO": "fp8_block",
        "NVFP4": "nvfp4",
        "NVFP4_AWQ": "nvfp4",
        "W4A16_NVFP4": "nvfp4_w4a16",
        "MXFP4": "mxfp4",
        "MXFP8": "mxfp8",
        "W4A16_AWQ": "awq",
    }
    form = known.get(algo.upper())
    if form is None:
        raise UnsupportedModel(f"{place}: quant_algo {short(algo)} is not modelled; known are {', '.join(known)}.")
    if form.startswith("nvfp4") and group not in (16, None):
        if isinstance(group, bool) or not isinstance(group, int) or not 1 <= group <= 4096:
            raise BadInput(f"{place}: group_size is {short(group)}, where a whole number from 1 to 4096 was expected.")
        return grouped(form, group)
    return form


def block_format(base: str, block: Any, place: str) -> str:
    """`base` with a [rows, inputs] block; the usual 128 x 128 is the row itself."""
    if (
        not isinstance(block, list | tuple)
        or len(block) != 2
        or not all(isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= 2**20 for side in block)
    ):
        raise BadInput(f"{place}: a block of two whole sides was expected, not {short(block)}.")
    return base if list(block) == [128, 128] else grouped(base, block[1], block[0])


def kv_of(said: Any, place: str) -> str:
    """What a checkpoint asks for its cache: "fp8" or "nvfp4", "" for nothing."""
    if said is None or said == "":
        return ""
    if isinstance(said, Mapping):
        said = f"{'FP' if said.get('type', 'float') == 'float' else 'INT'}{said.get('num_bits', 8)}"
    word = str(said).lower()
    if word in ("fp8", "fp8_e4m3", "none", "auto"):
        return "" if word in ("none", "auto") else "fp8"
    if word in ("nvfp4", "fp4"):
        return "nvfp4"
    raise UnsupportedModel(f"{place}: a cache of {short(said)} is not modelled; FP8 and NVFP4 are.")
