"""llama.cpp's options under llama.cpp's names, with llama-server's defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Literal, get_args

from fitkit.errors import BadInput, UnknownName, short
from fitkit.model import Model
from fitkit.rules.llamacpp.rows import CACHE_TYPES

Backend = Literal["cuda", "cpu", "metal", "vulkan", "rocm"]
FlashAttention = Literal["auto", "on", "off"]
Caller = Literal["server", "api"]

NEWEST = "b11434"
_INT32 = 2**31 - 1
_MOST = {"lora_bytes": 2**50, "gpus": 2**10}
_WHOLE = ("n_ctx", "n_gpu_layers", "gpus", "n_cpu_moe", "lora_bytes", "n_seq_max", "n_batch", "n_ubatch")
_SWITCHES = ("kv_unified", "swa_full", "offload_kqv", "cpu_moe", "repack", "mmap", "pipeline")
MOST_SEQUENCES = 256  # LLAMA_MAX_SEQ, llama-cparams.h


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings:
    """Options that decide llama.cpp's memory; the defaults are llama-server's.

    `n_ctx` 0 is the model's own length. `gpus` 0 or backend "cpu" keeps all on the CPU; `n_gpu_layers` counts the
    output layer as one. `tensor_split` gives each GPU's share (None: equal free memory). `cpu_moe` keeps every
    layer's experts on the host, `n_cpu_moe` those of the first layers. `caller` "server" asks logits for its slots,
    "api" for the whole micro-batch; `n_outputs_max` overrides it (0: the whole batch). `pipeline` False turns the
    copies for pipeline parallelism off, None lets the engine decide. `mmproj` and `draft` are what is loaded beside
    the model; `lora_bytes` the size of adapters.

    Source: llama.cpp b11434, common/arg.cpp and include/llama.h.
    """

    n_ctx: int = 0
    n_seq_max: int = 4
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: FlashAttention = "auto"
    kv_unified: bool = True
    swa_full: bool = False
    n_gpu_layers: int = 999
    gpus: int = 1
    split_mode: Literal["layer", "none"] = "layer"
    tensor_split: tuple[float, ...] | None = None
    offload_kqv: bool = True
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    repack: bool = True
    mmap: bool = True
    pipeline: bool | None = None
    backend: Backend = "cuda"
    compute_capability: float | None = None
    caller: Caller = "server"
    n_outputs_max: int | None = None
    mmproj: Model | None = None
    draft: Model | None = None
    lora_bytes: int = 0
    version: str = NEWEST

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = _whole(name, getattr(self, name), int(name in ("n_seq_max", "n_batch")), _MOST.get(name, _INT32))
            object.__setattr__(self, name, value)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool) and (name != "pipeline" or self.pipeline is not None):
                raise BadInput(f"{name} is True or False, not {short(getattr(self, name))}.")
        if self.n_seq_max > MOST_SEQUENCES:
            raise BadInput(f"n_seq_max is at most {MOST_SEQUENCES} in llama.cpp, not {self.n_seq_max}.")
        if self.n_outputs_max is not None:
            object.__setattr__(self, "n_outputs_max", _whole("n_outputs_max", self.n_outputs_max, 0, _INT32))
        for name in ("type_k", "type_v"):
            kind = _folded(getattr(self, name))
            if kind not in CACHE_TYPES:
                raise UnknownName.among(f"llama.cpp cache type for {name}", getattr(self, name), CACHE_TYPES)
            object.__setattr__(self, name, kind)
        _one_of("flash_attn", self.flash_attn, get_args(FlashAttention))
        _one_of("backend", self.backend, get_args(Backend))
        _one_of("caller", self.caller, get_args(Caller))
        _one_of("split_mode", self.split_mode, ("layer", "none"))
        if self.tensor_split is not None:
            object.__setattr__(self, "tensor_split", _shares(self.tensor_split, self.gpus))
        for name in ("mmproj", "draft"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Model):
                raise BadInput(f"{name} is a loaded Model (fitkit.load(...)), not {short(value)}.")
        build_of(self.version)

    @property
    def devices(self) -> int:
        """GPUs that take part."""
        if self.backend == "cpu":
            return 0
        return min(self.gpus, 1) if self.split_mode == "none" else self.gpus

    @property
    def build(self) -> int:
        """The number of `version`'s build."""
        return build_of(self.version)


OPTIONS = tuple(field.name for field in fields(LlamaCppSettings))


def build_of(version: str) -> int:
    """The build number of a version such as "b11434".

    >>> build_of("b6000")
    6000
    """
    digits = str(version).strip().lower().removeprefix("b")
    if not digits.isdigit():
        raise BadInput(f"A llama.cpp build such as '{NEWEST}' was expected as version, not {short(version)}.")
    return int(digits)


def _whole(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise BadInput(f"{name} is a whole number of at least {least} and at most {most:,}, not {short(value)}.")
    return int(value)


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise UnknownName.among(name, value, known)


def _folded(name: object) -> str:
    text = name.strip().casefold() if isinstance(name, str) else ""
    return {"fp16": "f16", "float16": "f16", "auto": "f16", "bfloat16": "bf16", "fp32": "f32"}.get(text, text)


def _shares(split: object, gpus: int) -> tuple[float, ...]:
    if not isinstance(split, (tuple, list)) or not all(isinstance(share, (int, float)) for share in split):
        raise BadInput(f"tensor_split is one number for each GPU, not {short(split)}.")
    if len(split) > gpus or not all(0 <= share < float("inf") for share in split) or not any(split):
        raise BadInput(f"tensor_split needs {gpus} shares, none negative and one above 0, not {short(split)}.")
    return tuple(float(share) for share in split) + (0.0,) * (gpus - len(split))
