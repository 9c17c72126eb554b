"""All that llama.cpp allocates for a model and a setting: what, where, how much, how sure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from fitkit.model import Model
from fitkit.rules.base import Evidence, IntArray
from fitkit.rules.llamacpp.cache import kv_bytes, state_bytes
from fitkit.rules.llamacpp.compute import compute_bytes, too_many_nodes
from fitkit.rules.llamacpp.context import sizes
from fitkit.rules.llamacpp.loaded import Loaded, loaded
from fitkit.rules.llamacpp.placement import head_copy, model_bytes
from fitkit.rules.llamacpp.refusals import refusal, row_refusals
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.split import HOST, Split, split
from fitkit.rules.llamacpp.versions import is_seen
from fitkit.units import MIB

Kind = Literal["model", "kv", "state", "compute", "output", "runtime", "mmproj", "draft", "lora"]
SOURCE = "llama.cpp b11434"
# Architectures whose graph was laid beside the engine's own planner (tests/measured/llamacpp.csv).
MEASURED = frozenset({
    "cohere2", "command-r", "dbrx", "deepseek2", "ernie4_5-moe", "falcon", "falcon-h1", "gemma", "gemma2", "gemma3", "gemma3n",
    "gemma4", "glm4", "glm4moe", "gpt-oss", "gpt2", "granitehybrid", "granitemoe", "internlm2", "jamba", "kimi-linear", "lfm2",
    "llama", "llama4", "mamba", "mamba2", "minicpm3", "mistral3", "nemotron_h", "nemotron_h_moe", "olmoe", "phi2", "phi3",
    "phimoe", "qwen2", "qwen2moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen3vl", "rwkv7", "smollm3",
    "stablelm", "starcoder2",
})  # fmt: skip
KNOWN_STATES = frozenset({"mamba1", "mamba2", "gdn", "kda", "shortconv", "rwkv7"})
# What a GPU's driver and libraries take of it besides the engine's own buffers: low, expected, high.
RUNTIME_BYTES = {
    "cuda": (300 * MIB, 500 * MIB, 750 * MIB), "rocm": (300 * MIB, 600 * MIB, 1000 * MIB),
    "vulkan": (50 * MIB, 150 * MIB, 400 * MIB), "metal": (0, 50 * MIB, 200 * MIB), "cpu": (0, 0, 0),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One buffer: where (CPU, CPU_Mapped, CPU_REPACK, GPU_Host, GPU0, ...), of what kind, bytes a row of the grid."""

    device: str
    kind: Kind
    bytes: IntArray
    evidence: Evidence
    log_name: str
    source: str
    low: IntArray | None = None
    high: IntArray | None = None
    note: Literal["", "head", "pages"] = ""  # a tied head's second copy; file pages behind repacked weights

    @property
    def gpu(self) -> int:
        """The GPU's number, -1 on the host."""
        number = self.device.removeprefix("GPU")
        return int(number) if number.isdigit() else HOST


def why_not(model: Model, quant: str | None, settings: LlamaCppSettings, n_ctx: int, n_seq_max: int) -> str:
    """The engine's reason to refuse or die of this setting, empty where it starts."""
    what = loaded(model, quant)
    plain = replace_sizes(settings)
    why = refusal(what.model, plain)
    if why:
        return why
    at = sizes(plain, what.model.context, np.array([n_ctx]), np.array([n_seq_max]))
    rows = row_refusals(what.model, plain, at) or [""]
    return rows[0] or too_many_nodes(what, plain, split(plain, len(what.model.layers)), n_seq_max > 1)


def parts(
    model: Model, quant: str | None, settings: LlamaCppSettings, n_ctx: IntArray, n_seq_max: IntArray
) -> tuple[Part, ...]:
    """Every buffer, for each pair of n_ctx (0: the model's) and n_seq_max."""
    what = loaded(model, quant)
    plain = replace_sizes(settings)
    placed = split(plain, len(what.model.layers))
    at = sizes(plain, what.model.context, n_ctx, n_seq_max)
    ones = np.ones_like(at.n_ctx)
    found = [
        Part(device=name, kind="model", bytes=size * ones, evidence="exact", log_name=f"{log_device(name, settings)} model buffer size",
             source=f"{SOURCE}, llama-model.cpp")
        for name, size in sorted(model_bytes(what, plain, placed).items())
    ]  # fmt: skip
    found.extend(_pages(found, plain))
    copied = head_copy(what, plain, placed)
    if copied:
        found.append(Part(device=copied[0], kind="model", bytes=copied[1] * ones, evidence="exact", note="head",
                          log_name=f"{log_device(copied[0], settings)} model buffer size", source=f"{SOURCE}, tied head"))  # fmt: skip
    tables: tuple[tuple[Kind, str, dict[int, IntArray]], ...] = (
        ("kv", "KV buffer size", kv_bytes(what.model, plain, placed, at)),
        ("state", "RS buffer size", state_bytes(what.model, plain, placed, at)),
    )
    for kind, label, table in tables:
        for number, size in sorted(table.items()):
            name = "CPU" if number == HOST else f"GPU{number}"
            log_name = f"{log_device(name, settings)} {label}"
            source = f"{SOURCE}, llama-kv-cache.cpp"
            found.append(Part(device=name, kind=kind, bytes=size, evidence="exact", log_name=log_name, source=source))
    found.extend(_compute(what, plain, placed, n_ctx, n_seq_max))
    host = "GPU_Host" if placed.devices and placed.output != HOST else "CPU"
    found.append(Part(device=host, kind="output", bytes=at.n_seq_max * what.model.vocab_size * 4, evidence="exact",
                      log_name=f"{log_device(host, settings)} output buffer size", source=f"{SOURCE}, llama-context.cpp"))  # fmt: skip
    found.extend(_runtime(settings, placed, ones))
    found.extend(_companions(settings, ones, n_ctx, n_seq_max))
    return tuple(found)


def _pages(found: list[Part], settings: LlamaCppSettings) -> list[Part]:
    """The file's pages behind repacked weights stay mapped: clean, dropped when memory is short."""
    return [
        replace(part, device="CPU_Mapped", log_name="CPU_Mapped model buffer size", note="pages", evidence="engine", low=0 * part.bytes, high=part.bytes)
        for part in found
        if part.device == "CPU_REPACK" and settings.mmap
    ]  # fmt: skip


@lru_cache(maxsize=1024)
def replace_sizes(settings: LlamaCppSettings) -> LlamaCppSettings:
    """The settings without what the grid sweeps and what is loaded beside, so that equal ones are found again."""
    names = {field: getattr(settings, field) for field in LlamaCppSettings.__dataclass_fields__}
    names.update(n_ctx=0, n_seq_max=1, mmproj=None, draft=None, lora_bytes=0)
    return LlamaCppSettings(**names)


def log_device(name: str, settings: LlamaCppSettings) -> str:
    """The engine's word for a buffer's device."""
    word = {"cuda": "CUDA", "rocm": "ROCm", "metal": "MTL", "vulkan": "Vulkan", "cpu": "CPU"}[settings.backend]
    return name.replace("GPU", word) if name.startswith("GPU") else name


def _compute(
    what: Loaded, settings: LlamaCppSettings, placed: Split, n_ctx: IntArray, n_seq_max: IntArray
) -> list[Part]:
    table = compute_bytes(what, settings, placed, n_ctx, n_seq_max)
    evidence, low, high = _how_sure(what, settings, placed)
    return [
        Part(
            device=name, kind="compute", bytes=size, evidence=evidence, log_name=f"{log_device(name, settings)} compute buffer size",
            source=f"{SOURCE}, ggml-alloc.c and src/models", low=size * low // 100, high=size * high // 100,
        )
        for name, size in sorted(table.items())
    ]  # fmt: skip


def _how_sure(what: Loaded, settings: LlamaCppSettings, placed: Split) -> tuple[Evidence, int, int]:
    """Evidence of the compute buffers, and their range in percent.

    Within 2% on one device for architectures laid beside the engine's own planner, 10% over several devices or partly on
    the host; more where the architecture's graph, the backend or the build was not.
    """
    kinds = {cache.kind for cache in what.model.caches()}
    states = {cache.variant for cache in what.model.caches() if cache.kind == "state"}
    if kinds & {"indexer", "compressed"} or states - KNOWN_STATES:
        return "assumed", 50, 300  # parts of these graphs are not modelled
    if not kinds:
        return "assumed", 60, 160  # no encoder was laid beside the engine's planner
    if not is_seen(settings.build) or settings.backend not in ("cuda", "cpu"):
        return "assumed", 60, 160
    if what.model.gguf_architecture not in MEASURED:
        return "fitted", 80, 125
    whole = (
        placed.devices <= 1 and (placed.whole or not placed.devices) and not settings.cpu_moe and not settings.n_cpu_moe
    )
    return ("engine", 98, 102) if whole else ("engine", 90, 111)


def _runtime(settings: LlamaCppSettings, placed: Split, ones: IntArray) -> list[Part]:
    low, expected, high = RUNTIME_BYTES[settings.backend]
    return [
        Part(device=f"GPU{number}", kind="runtime", bytes=expected * ones, evidence="assumed", log_name="",
             source="driver and library contexts of logged start-ups", low=low * ones, high=high * ones)
        for number in range(placed.devices)
    ]  # fmt: skip


def _companions(settings: LlamaCppSettings, ones: IntArray, n_ctx: IntArray, n_seq_max: IntArray) -> list[Part]:
    """What is loaded beside the model: a projector, a draft model, adapters; on the first GPU where there is one."""
    device = "GPU0" if settings.devices else "CPU"
    found = []
    if settings.mmproj is not None:
        size = settings.mmproj.projector_bytes or settings.mmproj.file_bytes
        found.append(
            Part(
                device=device,
                kind="mmproj",
                bytes=size * ones,
                evidence="engine",
                log_name="mmproj",
                source=f"{SOURCE}, tools/mtmd: the file's tensors",
            )
        )
    if settings.lora_bytes:
        found.append(
            Part(
                device=device,
                kind="lora",
                bytes=settings.lora_bytes * ones,
                evidence="engine",
                log_name="LoRA buffer size",
                source=f"{SOURCE}, llama-adapter.cpp",
            )
        )
    if settings.draft is not None:
        own = replace(settings, draft=None, mmproj=None, lora_bytes=0)
        for part in parts(settings.draft, None, own, n_ctx, n_seq_max):
            if part.kind != "runtime":
                found.append(replace(part, kind="draft", log_name=f"draft: {part.log_name}"))
    return found
