"""A model as memory sees it: layers with what they keep, tensors with their shapes. Frozen values, no files, no formulas of engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

CacheKind = Literal["full", "sliding", "chunked", "latent", "indexer", "compressed", "state"]
Basis = Literal["estimate", "arch", "catalog", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One thing a layer keeps between tokens.

    Attention (`full`, `sliding`, `chunked`): per token `kv_heads * (k_dim + v_dim)` elements, at most `window` tokens
    of them where there is a window. `latent` (MLA): one vector of `k_dim` (latent + rope) elements a token, no heads,
    `v_dim` 0. `indexer` (sparse attention): one vector of `k_dim` elements a token. `compressed`: one state of `k_dim`
    elements for `ratio` tokens. `state` (SSM, linear attention, short convolution): independent of the context, a
    sequence keeps `conv_elements + ssm_elements`.

    A state's sizes, for every variant of it:
    conv = (conv_kernel - 1) * (heads * head_dim + 2 * groups * state_dim); ssm = heads * head_dim * state_dim.
    Mamba-1 has one head of d_inner channels and no groups; gated delta net and KDA have their key heads as groups; a short convolution has state_dim 0;
    RWKV-7 keeps two shifted tokens (conv_kernel 3) and heads of head_dim x head_dim.
    """

    kind: CacheKind
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int = 0  # tokens; for sliding and chunked
    ratio: int = 1  # tokens in one compressed state
    variant: str = ""  # of a state: mamba1, mamba2, gdn, kda, shortconv, rwkv7, lightning, ...
    heads: int = 0
    head_dim: int = 0
    state_dim: int = 0
    groups: int = 0
    conv_kernel: int = 1
    dtype: str = ""  # what the model itself asks for ("float32"); empty: the engine's choice

    @property
    def elements_per_token(self) -> int:
        """Elements one token adds (per `ratio` tokens where compressed); a state adds none."""
        if self.kind == "state":
            return 0
        return max(1, self.kv_heads) * (self.k_dim + self.v_dim)

    @property
    def conv_elements(self) -> int:
        """Elements of the convolution's memory, per sequence."""
        return (self.conv_kernel - 1) * (self.heads * self.head_dim + 2 * self.groups * self.state_dim)

    @property
    def ssm_elements(self) -> int:
        """Elements of the recurrent state itself, per sequence."""
        return self.heads * self.head_dim * self.state_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block: what it keeps (`caches`, in order; none for shared or FFN-only layers) and the widths its work needs."""

    caches: tuple[Cache, ...] = ()
    heads: int = 0  # query heads
    ffn_dim: int = 0  # width of the dense feed-forward, 0 where there is none
    experts: int = 0
    experts_used: int = 0
    expert_dim: int = 0  # width of one routed expert
    shared_dim: int = 0  # width of all shared experts together


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Equal tensors of one role.

    `role` is the GGUF name without block number and suffix (`attn_q`, `ffn_down_exps`, `token_embd`); a bias is
    `attn_q.bias`, other suffixes likewise. `shape` is input first, as GGUF writes it: (in, out) or (in, out, experts). `layers` are the block
    numbers that have one, empty for the model-wide ones. `dtype` is how the source stores it: a ggml type (`Q4_K`),
    `BF16`, `F16`, `F32`, or a row of facts/formats.csv (`fp8_block`, `awq`, ...); empty: the model's own dtype.
    """

    role: str
    shape: tuple[int, ...]
    layers: tuple[int, ...] = ()
    count: int = 1  # how many in each of those layers (or in all, for model-wide ones)
    dtype: str = ""
    part: str = ""  # "" the language model, else mtp, vision, audio, projector, ...
    shard: str = ""  # how tensor parallelism cuts it where the role alone does not say: column, row, vocab, replicated

    def __hash__(self) -> int:
        # enough to tell tensors apart; all of it would cost more than most of what is remembered by it
        return hash((self.role, self.shape, self.dtype, self.part))

    @property
    def elements(self) -> int:
        """Elements of one of them."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def copies(self) -> int:
        """How many there are in the whole model."""
        return self.count * (len(self.layers) or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, ready for every engine's rules.

    Sizes are in elements and tokens; bytes only where a file gave them. `params` counts the language model and what
    comes with it in the checkpoint that an engine loads by default (vision towers yes, MTP blocks no, a tied head once).
    """

    name: str
    family: str  # config.json's model_type, or the GGUF architecture
    basis: Basis
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    hidden_size: int
    vocab_size: int
    context: int  # the longest the model was made for [tokens]
    params: int
    active_params: int
    tied_embeddings: bool = False
    dtype: str = "BF16"  # of what is not quantized
    quant: str = ""  # the checkpoint's own: "" (dtype), a GGUF file type (Q4_K_M), or FP8, AWQ, GPTQ, MXFP4, NVFP4, ...
    kv_dtype: str = ""  # what a checkpoint asks for its cache ("fp8"), empty: the dtype
    architecture: str = ""  # config.json's architectures[0]
    gguf_architecture: str = ""  # llama.cpp's general.architecture, empty where it has none
    file_bytes: int = 0  # of the weights' files, where known
    header_bytes: int = 0  # GGUF header and tokenizer, in file_bytes beside the tensors
    projector_bytes: int = 0  # a vision projector loaded beside it (mmproj)
    downloads: int = 0
    source: str = ""
    revision: str = ""  # the resolved commit of a hub repository
    extra: tuple[tuple[str, Any], ...] = field(
        default=()
    )  # what one engine's rule for one family needs besides; sorted by key

    def __hash__(self) -> int:
        return hash((self.name, self.family, self.quant, self.params, self.file_bytes))

    @property
    def experts(self) -> int:
        """Routed experts of the widest layer, 0 in a dense model."""
        return max((layer.experts for layer in self.layers), default=0)

    @property
    def experts_used(self) -> int:
        """Routed experts a token passes."""
        return max((layer.experts_used for layer in self.layers), default=0)

    @property
    def heads(self) -> int:
        """Query heads of the widest layer."""
        return max((layer.heads for layer in self.layers), default=0)

    @property
    def kv_heads(self) -> int:
        """Key/value heads of the widest attention layer."""
        return max((cache.kv_heads for cache in self.caches()), default=0)

    def caches(self) -> Iterator[Cache]:
        """Every cache of every layer."""
        for layer in self.layers:
            yield from layer.caches

    def get(self, key: str, default: Any = None) -> Any:
        """One of `extra`."""
        for name, value in self.extra:
            if name == key:
                return value
        return default

    def with_(self, **changes: Any) -> Model:
        """A copy with some fields changed."""
        return replace(self, **changes)
