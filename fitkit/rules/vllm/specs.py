"""Every layer's cache as a spec on one rank: kernels chosen, block size found, pages counted."""

from __future__ import annotations

import math
from dataclasses import replace

from fitkit.errors import UnsupportedModel
from fitkit.model import Cache, Model
from fitkit.rules.vllm import backends, blocks, dtypes, families
from fitkit.rules.vllm.backends import Ask, Kernel
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.pages import Spec, local_heads, state_shape
from fitkit.rules.vllm.settings import VLLMSettings

ATTENTION = ("full", "sliding", "chunked")
STATE_VARIANTS = frozenset({"mamba1", "mamba2", "gdn", "kda", "shortconv", "lightning"})

# DeepSeek-V4 with FlashMLA: tokens a block, bytes a stored state (448 fp8 + 64 bf16 + 8 of scales), page alignment, and the
# blocks of the compressors' fp32 states. Source: vLLM 0.33.0 models/deepseek_v4.
PACKED_BLOCK, PACKED_WINDOW_BLOCK, PACKED_STATE_BYTES, PACKED_ALIGN = 256, 64, 584, 576
COMPRESSOR_BLOCK = {4: 4, 128: 8}
COMPRESSOR_OVERLAP = {4: 2, 128: 1}


class Builder:
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
            if cache.ratio > 1 or (not self.sparse and self.model.family not in families.INDEXED_HEADS):
                raise UnsupportedModel(
                    f"{self.model.name}: how vLLM keeps the indexer of {self.model.family} was not looked at."
                )
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
