"""From a model and settings to vLLM's plan of the KV cache: specs, block size, groups, bytes per block and stage."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from fitkit.errors import UnsupportedModel
from fitkit.model import Cache, Model
from fitkit.rules.vllm import architectures, backends, blocks, dtypes, families
from fitkit.rules.vllm.backends import Ask, Kernel
from fitkit.rules.vllm.capacity import Need, needs
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.groups import Group, bytes_per_block, grouped
from fitkit.rules.vllm.pages import Spec, local_heads, state_shape
from fitkit.rules.vllm.pipeline import stages
from fitkit.rules.vllm.settings import VLLMSettings

ATTENTION = ("full", "sliding", "chunked")
STATE_VARIANTS = frozenset({"mamba1", "mamba2", "gdn", "kda", "shortconv", "lightning"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How vLLM lays out the cache, whatever memory it gets."""

    refusal: str = ""  # why vLLM does not start at all
    kv_dtype: str = "auto"
    block_size: int = 0  # of ordinary attention layers, before pages are unified [tokens]
    groups: tuple[Group, ...] = ()
    needs: Counter[Need]
    stage_block_bytes: tuple[int, ...] = ()  # bytes of one block of the pool, per pipeline stage

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on the fullest stage."""
        return max(self.stage_block_bytes, default=0)


def refusal(settings: VLLMSettings, model: Model) -> str:
    """Why vLLM's own checks of the architecture and the parallel sizes stop it; empty where they pass."""
    unknown = architectures.refusal(settings, model.architecture)
    if unknown:
        return unknown
    tp, dcp = settings.tensor_parallel_size, settings.decode_context_parallel_size
    heads = model.heads
    if heads and heads % tp:
        return f"The model's {heads} attention heads are not divisible by tensor_parallel_size {tp}."
    mla = any(cache.kind in ("latent", "compressed") for cache in model.caches())
    for cache in model.caches():
        if cache.kind in ATTENTION and cache.kv_heads % tp and tp % cache.kv_heads:
            return f"tensor_parallel_size {tp} neither divides the model's {cache.kv_heads} KV heads nor is a multiple of them."
        if cache.kind == "state" and cache.variant not in ("mamba1", "shortconv") and cache.heads % tp:
            return f"The model's {cache.heads} state heads are not divisible by tensor_parallel_size {tp}."
    if dcp > 1 and not mla and 0 < tp <= model.kv_heads:
        return f"Decode context parallelism needs tensor_parallel_size ({tp}) greater than the model's {model.kv_heads} KV heads."
    if settings.pipeline_parallel_size > max(1, len(model.layers)):
        return f"pipeline_parallel_size {settings.pipeline_parallel_size} is more than the model's {len(model.layers)} layers."
    return ""


def make_plan(settings: VLLMSettings, model: Model, device: Device) -> Plan:
    """The plan; UnsupportedModel for a cache whose handling by vLLM is not modelled."""
    why = refusal(settings, model)
    if why:
        return Plan(refusal=why, needs=Counter())
    builder = _Builder(settings, model, device)
    if builder.refusal:
        return Plan(refusal=builder.refusal, kv_dtype=builder.kv_dtype, needs=Counter())
    specs = builder.specs()
    packed = builder.packed
    groups = grouped(
        specs,
        hybrid_manager=not settings.disable_hybrid_kv_cache_manager,
        packed=packed,
        even=1.5 if settings.has("groups_within_one_and_a_half") else 1.25,
    )
    per_stage = tuple(
        bytes_per_block(groups, layers, align=PACKED_ALIGN if packed else 1)
        for layers in stages(len(model.layers), settings.pipeline_parallel_size)
    )
    return Plan(
        kv_dtype=builder.kv_dtype, block_size=builder.block, groups=groups, needs=needs(groups),
        stage_block_bytes=per_stage,
    )  # fmt: skip


# DeepSeek-V4 with FlashMLA: tokens a block, bytes a stored state (448 fp8 + 64 bf16 + 8 of scales), page alignment, and the
# blocks of the compressors' fp32 states. Source: vLLM 0.33.0 models/deepseek_v4.
PACKED_BLOCK, PACKED_WINDOW_BLOCK, PACKED_STATE_BYTES, PACKED_ALIGN = 256, 64, 584, 576
COMPRESSOR_BLOCK = {4: 4, 128: 8}
COMPRESSOR_OVERLAP = {4: 2, 128: 1}


class _Builder:
    """Walks the layers once; what it decides on the way stays on it."""

    def __init__(self, settings: VLLMSettings, model: Model, device: Device) -> None:
        self.settings, self.model, self.device = settings, model, device
        self.tp = settings.tensor_parallel_size
        self.element = dtypes.model_element_bytes(settings, model)
        self.kv_dtype = dtypes.resolve_kv_dtype(settings, model, device)
        self.kinds = {cache.kind for cache in model.caches()}
        self.packed = "compressed" in self.kinds
        self.sparse = "indexer" in self.kinds and "latent" in self.kinds
        if "latent" in self.kinds and model.family not in families.MLA:
            raise UnsupportedModel(
                f"{model.name}: vLLM treats only certain model types as MLA, and {model.family} is none of them; how it keeps "
                "these latents was not looked at."
            )
        self.refusal = ""
        self.kernels: dict[Cache, Kernel] = {}
        self.caching = families.prefix_caching(settings, model)
        self.skipped = self._unquantized_layers()
        self.block = self.padded = 0
        if self.packed:
            self._packed_device()
        else:
            self._choose_kernels()
        if not self.refusal:
            self._choose_block()

    def _unquantized_layers(self) -> frozenset[int]:
        """Layers TurboQuant leaves in the model's dtype: the first and last two, in models without states."""
        n = len(self.model.layers)
        if not self.kv_dtype.startswith("turboquant") or "state" in self.kinds or not n:
            return frozenset()
        edge = min(2, n // 2)
        return frozenset((*range(edge), *range(n - edge, n)))

    def _packed_device(self) -> None:
        self.block = PACKED_BLOCK
        if self.device.family not in (9, 10):  # elsewhere a kernel with another layout
            raise UnsupportedModel(
                f"{self.model.name}: vLLM's packed cache of compressed attention is known for FlashMLA (compute capability 9 "
                f"and 10), not on {self.device.name}."
            )

    def _choose_kernels(self) -> None:
        prefix = families.image_prefix(self.settings, self.model)
        sinks = families.has_sinks(self.model)
        capability = self.device.capability if self.device.cuda else (0, 0)
        for number, layer in enumerate(self.model.layers):
            for cache in layer.caches:
                if cache.kind not in (*ATTENTION, "latent"):
                    continue
                if cache in self.kernels and number not in self.skipped:
                    continue
                latent = cache.kind == "latent"
                ask = Ask(
                    capability=capability, kv_dtype=self.kv_dtype, head_dim=cache.k_dim,
                    v_dim=cache.v_dim or cache.k_dim, heads=layer.heads // self.tp, latent=latent,
                    sparse=self.sparse and latent, image_prefix=prefix, sinks=sinks,
                )  # fmt: skip
                kernel = backends.choose(ask)
                self.refusal = self.refusal or backends.refused(ask, kernel, self.device)
                if kernel is not None:
                    self.kernels[cache] = kernel
        if self.sparse:
            self.kv_dtype = next(
                (backends.sparse_dtype(k, self.kv_dtype) for c, k in self.kernels.items() if c.kind == "latent"),
                self.kv_dtype,
            )

    def _readers(self) -> list[Kernel]:
        """All kernels of non-state layers, in layer order."""
        readers = list(dict.fromkeys(self.kernels.values()))
        if "indexer" in self.kinds:
            readers.append(backends.INDEXER if self.sparse else backends.BLOCK_SPARSE)
        if self.skipped:
            readers.insert(0, backends.FLASH)  # the unquantized first layer's
        return readers

    def _choose_block(self) -> None:
        states = [cache for cache in self.model.caches() if cache.kind == "state"]
        unknown = {cache.variant for cache in states} - STATE_VARIANTS
        if unknown:
            raise UnsupportedModel(
                f"{self.model.name}: vLLM's cache of {', '.join(sorted(unknown))} states is not modelled."
            )
        if self.packed:
            return
        readers = self._readers()
        if not readers:
            self.block = self.settings.block_size or blocks.DEFAULT_BLOCK
            return
        self.block = blocks.preferred(readers, self.settings.block_size)
        first = next(cache for cache in self.model.caches() if cache in self.kernels)
        if states:
            self.block, self.padded = blocks.aligned(
                readers, self.block, state_bytes=max(map(self._state_bytes, states)),
                token_bytes=self._token_bytes(first, same_width=True), unit=self._least_unit(first),
                checkpoint=self._checkpoint_alignment(states) if self.caching else 1,
            )  # fmt: skip
        elif self.skipped:
            heads = local_heads(first.kv_heads, self.tp)
            self.block = blocks.covering_unquantized(
                self.block, heads * 2 * first.k_dim, heads * 2 * first.k_dim * self.element, readers[0].smallest
            )

    def _least_unit(self, cache: Cache) -> int:
        """What a hybrid's block is a multiple of at least: 128 tokens beside MLA, 64 in old versions."""
        if cache.kind != "latent":
            return 1
        if self.settings.has("latent_hybrid_block_128"):
            return 128
        return 1 if self.settings.has("hybrid_block_from_kernel") else 64

    def _checkpoint(self, cache: Cache) -> int:
        return families.checkpoint(self.settings, self.model, cache.variant, cache.state_dim, self.device)

    def _checkpoint_alignment(self, states: list[Cache]) -> int:
        """1 unless every state layer can make checkpoints."""
        each = [self._checkpoint(cache) for cache in dict.fromkeys(states)]
        return math.lcm(*each) if all(each) else 1

    def _state_bytes(self, cache: Cache) -> int:
        conv, ssm = state_shape(cache, self.tp)
        ssm_bytes = (
            4 if cache.variant == "kda" and not cache.dtype else dtypes.state_element_bytes(cache.dtype, self.element)
        )
        return conv * self.element + ssm * ssm_bytes

    def _token_bytes(self, cache: Cache, kv_dtype: str = "", *, same_width: bool = False) -> int:
        """Bytes a token takes in one layer on one rank; `same_width` counts V as wide as K, as the alignment does."""
        kv_dtype = kv_dtype or self.kv_dtype
        if cache.kind == "latent":
            return dtypes.latent_token_bytes(kv_dtype, cache.k_dim, self.element)
        v_dim = cache.k_dim if same_width else cache.v_dim
        return local_heads(cache.kv_heads, self.tp) * dtypes.head_token_bytes(
            kv_dtype, cache.k_dim, v_dim, self.element
        )

    def specs(self) -> list[Spec]:
        """One spec for every cache of every layer."""
        out: list[Spec] = []
        for number, layer in enumerate(self.model.layers):
            for cache in layer.caches:
                make = self._packed_spec if self.packed else self._spec
                out.extend(replace(spec, layer=number) for spec in make(cache, number))
        return out

    def _spec(self, cache: Cache, number: int) -> list[Spec]:
        if cache.kind == "state":
            checkpoint = int(self._checkpoint(cache) > 0)
            return [
                Spec(kind="state", block=self.block, state_bytes=self._state_bytes(cache), padded=self.padded,
                     shape=(*state_shape(cache, self.tp),), checkpoint=checkpoint, align_mode=self.caching)
            ]  # fmt: skip
        if cache.kind == "indexer":
            if not self.sparse:
                return [Spec(kind="full", latent=True, block=self.block, token_bytes=cache.k_dim * self.element)]
            return [
                Spec(kind="full", latent=True, block=self.block, token_bytes=cache.k_dim + 4 * -(-cache.k_dim // 128))
            ]
        if cache.kind == "latent":
            return [Spec(kind="full", latent=True, block=self.block, token_bytes=self._token_bytes(cache))]
        if cache.kind not in ATTENTION:
            raise UnsupportedModel(f"{self.model.name}: vLLM's handling of a {cache.kind} cache is not modelled.")
        token_bytes = self._token_bytes(cache, "auto" if number in self.skipped else "")
        shape = (local_heads(cache.kv_heads, self.tp), cache.k_dim, cache.v_dim)
        kind = cache.kind
        block = self.kernels[cache].largest_within(self.block) if kind == "sliding" else self.block
        window = 0 if kind == "full" else cache.window
        return [Spec(kind=kind, block=block, token_bytes=token_bytes, window=window, shape=shape)]  # type: ignore[arg-type]

    def _packed_spec(self, cache: Cache, number: int) -> list[Spec]:
        """DeepSeek-V4: windowed latents, compressed latents with their indexer, and the compressors' own states."""
        if cache.kind == "sliding":
            return [Spec(kind="sliding", latent=True, block=PACKED_WINDOW_BLOCK, token_bytes=PACKED_STATE_BYTES,
                         align=PACKED_ALIGN, window=cache.window)]  # fmt: skip
        if cache.kind not in ("compressed", "indexer"):
            raise UnsupportedModel(
                f"{self.model.name}: a {cache.kind} cache beside compressed attention is not modelled."
            )
        ratio = cache.ratio
        if ratio == 1:  # an indexer compresses like the attention of its layer
            ratio = next((c.ratio for c in self.model.layers[number].caches if c.kind == "compressed"), 1)
        if ratio not in COMPRESSOR_BLOCK:
            raise UnsupportedModel(f"{self.model.name}: vLLM compresses 4 or 128 tokens into one state, not {ratio}.")
        indexer = cache.kind == "indexer"
        stored = cache.k_dim + 4 * -(-cache.k_dim // 128) if indexer else PACKED_STATE_BYTES
        overlap = COMPRESSOR_OVERLAP[ratio]
        return [
            Spec(kind="full", latent=True, block=PACKED_BLOCK, token_bytes=stored, ratio=ratio, align=PACKED_ALIGN),
            Spec(kind="sliding", latent=True, block=COMPRESSOR_BLOCK[ratio], token_bytes=2 * overlap * cache.k_dim * 4,
                 align=PACKED_ALIGN, window=overlap * ratio),
        ]  # fmt: skip
