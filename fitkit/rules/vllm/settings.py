"""vLLM's options under vLLM's names, with the defaults of the version asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from numbers import Integral, Real
from typing import Literal, TypeAlias

from fitkit.errors import BadInput, UnknownName, short

Release: TypeAlias = tuple[int, int, int]

NEWEST, OLDEST = "0.33", "0.10"

# What a start-up depends on, by version: (behaviour, last version seen without it, first version seen with it).
# Source: the planning code of the released versions 0.10.2 to 0.33.0; what lies between two of a row was not looked at.
CHANGES: tuple[tuple[str, str, str], ...] = (
    ("groups_within_one_and_a_half", "0.12.0", "0.19.1"),
    ("hybrid_prefix_caching_on_request", "0.12.0", "0.19.1"),
    ("utilization_0_92", "0.19.1", "0.20.2"),
    ("subtracts_cuda_graphs", "0.19.1", "0.20.2"),
    ("tokens_from_concurrency", "0.19.1", "0.20.2"),
    ("hybrid_block_from_kernel", "0.19.1", "0.24.0"),
    ("hybrid_prefix_caching", "0.24.0", "0.26.0"),
    ("concurrent_batches_in_flight", "0.24.0", "0.26.0"),
    ("large_gpu_tier", "0.26.0", "0.28.0"),
    ("one_log_line", "0.26.0", "0.28.0"),
    ("latent_hybrid_block_128", "0.24.0", "0.28.0"),
    ("reserves_null_block", "0.28.0", "0.30.0"),
    ("prefill_checkpoint_block", "0.28.0", "0.30.0"),
)
_IN_WORDS = {
    "groups_within_one_and_a_half": "How layers are grouped",
    "hybrid_prefix_caching_on_request": "Prefix caching on request in hybrids",
    "utilization_0_92": "The default gpu_memory_utilization (0.90, then 0.92)",
    "subtracts_cuda_graphs": "Whether CUDA graphs are subtracted from the cache",
    "tokens_from_concurrency": "How the cache's tokens are counted",
    "hybrid_block_from_kernel": "The block size of hybrids",
    "hybrid_prefix_caching": "Prefix caching in hybrids",
    "concurrent_batches_in_flight": "How many batches are in flight",
    "large_gpu_tier": "The batch limits of GPUs from 160 GiB on",
    "one_log_line": "The log's lines",
    "latent_hybrid_block_128": "The block size of hybrids with MLA",
    "reserves_null_block": "Whether one block is set aside",
    "prefill_checkpoint_block": "The blocks a hybrid's prefill keeps",
}

# The names --kv-cache-dtype takes in 0.33; f16 is fitkit's common name for the model's own 16-bit type.
KV_CACHE_DTYPES = (
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4_ds_mla", "nvfp4",
    "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
)  # fmt: skip
_MOST = 2**50  # bytes or tokens; more than any machine's
_SWITCHES = (
    "enable_expert_parallel",
    "enable_prefix_caching",
    "enforce_eager",
    "async_scheduling",
    "disable_hybrid_kv_cache_manager",
)
SAME_KV_DTYPE = {"f16": "auto", "bf16": "auto", "float16": "auto", "bfloat16": "auto", "fp16": "auto"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings:
    """Options of `vllm serve` that decide its memory; None means vLLM's own default for the GPU and the model.

    `max_model_len` None is the model's own length, -1 the longest that fits. `limit_mm_per_prompt` maps a modality to
    how many items a request may carry (all 0: the encoder is left out). `usage` "api" is the server, "llm" the offline
    class; their batch defaults differ.

    Source: vLLM 0.33.0, engine/arg_utils.py.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    max_model_len: int | None = None
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float | None = None  # 0.92 since 0.20, 0.90 before
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    enforce_eager: bool = False
    async_scheduling: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    kv_cache_memory_bytes: int | None = None
    dtype: str = "auto"
    quantization: str | None = None
    limit_mm_per_prompt: Mapping[str, int] | None = None
    usage: Literal["api", "llm"] = "api"
    version: str = NEWEST

    def __post_init__(self) -> None:
        release_of(self.version)
        for name in ("tensor", "pipeline", "data", "decode_context"):
            name = f"{name}_parallel_size"
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool) and (
                name != "enable_prefix_caching" or self.enable_prefix_caching is not None
            ):
                raise BadInput(f"{name} is True or False, not {short(getattr(self, name))}.")
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size", "kv_cache_memory_bytes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name)))
        if self.max_model_len is not None and not (
            isinstance(self.max_model_len, Integral) and self.max_model_len == -1
        ):
            object.__setattr__(self, "max_model_len", _whole("max_model_len", self.max_model_len))
        for name, what in (
            ("gpu_memory_utilization", Real),
            ("kv_cache_dtype", str),
            ("usage", str),
            ("dtype", str),
            ("quantization", str),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, what):
                raise BadInput(
                    f"{name} is {short(value)}, where {'a number' if what is Real else 'a name'} was expected."
                )
        if self.gpu_memory_utilization is None:
            default = 0.92 if self.has("utilization_0_92") else 0.90
            object.__setattr__(self, "gpu_memory_utilization", default)
        elif isinstance(self.gpu_memory_utilization, bool) or not 0 < self.gpu_memory_utilization <= 1:
            raise BadInput(
                f"gpu_memory_utilization is {short(self.gpu_memory_utilization)}, where a number above 0 and up to 1 was expected."
            )
        if self.kv_cache_dtype not in KV_CACHE_DTYPES and self.kv_cache_dtype not in SAME_KV_DTYPE:
            raise UnknownName.among("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        if self.usage not in ("api", "llm"):
            raise UnknownName.among("usage", self.usage, ("api", "llm"))
        if self.dtype not in DTYPES:
            raise UnknownName.among("dtype", self.dtype, DTYPES)
        if self.decode_context_parallel_size > 1 and self.tensor_parallel_size % self.decode_context_parallel_size:
            raise BadInput(
                f"decode_context_parallel_size {self.decode_context_parallel_size} does not divide tensor_parallel_size "
                f"{self.tensor_parallel_size}; vLLM lays the first inside the second."
            )

    @property
    def utilization(self) -> float:
        """The part of a GPU's memory vLLM asks for."""
        return self.gpu_memory_utilization or 0.92

    def has(self, behaviour: str) -> bool:
        """Whether this version behaves in the newer way; a version between those looked at counts as the older."""
        first = next(new for name, _, new in CHANGES if name == behaviour)
        return release_of(self.version) >= release_of(first)

    @property
    def uncertain(self) -> tuple[str, ...]:
        """What differs between the two versions looked at around this one, in words for a note."""
        here = release_of(self.version)
        return tuple(
            f"{_IN_WORDS[name]} changed between vLLM {old} and {new}"
            for name, old, new in CHANGES
            if release_of(old) < here < release_of(new)
        )

    def __hash__(self) -> int:
        return hash(tuple(_hashable(getattr(self, field.name)) for field in fields(self)))


def parallel_sizes(settings: VLLMSettings, gpus: int, nodes: int = 1) -> tuple[int, int, int]:
    """Tensor, pipeline and data parallel sizes whose product is `gpus`: the object's own, else tensor parallel takes the rest.

    Over several machines, data parallel ranks lie apart where they can, else pipeline stages do. Raises BadInput where the
    object's pipeline and data parallel sizes do not divide `gpus`.
    """
    tensor, pipeline, data = (getattr(settings, f"{way}_parallel_size") for way in ("tensor", "pipeline", "data"))
    if tensor * pipeline * data == gpus:
        return tensor, pipeline, data
    if pipeline == 1 and (data == 1 or data % nodes):
        pipeline = nodes
    if gpus % (pipeline * data):
        names = {"pipeline_parallel_size": pipeline, "data_parallel_size": data}
        ways = " and ".join(f"{name} {size}" for name, size in names.items() if size > 1)
        raise BadInput(
            f"{gpus} GPU{'s' if gpus != 1 else ''} cannot be shared out equally under {ways}: a multiple of {pipeline * data} was expected."
        )
    return gpus // (pipeline * data), pipeline, data


DTYPES = {"auto": "", "half": "F16", "float16": "F16", "bfloat16": "BF16", "float": "F32", "float32": "F32"}


@lru_cache(maxsize=64)
def release_of(version: str) -> Release:
    """Major, minor and patch of "0.33" or "v0.20.2rc1"; BadInput where it is no version from 0.10 on."""
    parts = str(version).removeprefix("v").split("+")[0].split(".")
    numbers = []
    for part in parts[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    if len(numbers) < 2:
        raise BadInput(f"version is {short(version)}, where a vLLM version such as {NEWEST!r} was expected.")
    if tuple(numbers) < (0, 10):
        raise BadInput(f"vLLM {version} is older than {OLDEST}, the first version whose memory planning is modelled.")
    return (numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 99)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= _MOST:
        raise BadInput(f"{name} is {short(value)}, where a whole number from 1 on was expected.")
    return int(value)


def _hashable(value: object) -> object:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value
