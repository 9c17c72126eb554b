"""Which caches each block of a GGUF keeps: one small function for each kind of architecture, found by general.architecture.

The functions say what llama.cpp b11434 does with a file's metadata (src/models/*.cpp: load_arch_hparams; src/llama-model.cpp:
create_memory), not what the model's makers meant: phi3's window is ignored, Llama 4's is always 8192, an MLA file without its
`_mla` keys keeps whole heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fitkit.errors import BadInput, UnknownName, UnsupportedModel, short
from fitkit.model import Cache, Tensor

MOST_BLOCKS = 512  # llama.cpp's LLAMA_MAX_LAYERS
Caches = list[list[Cache]]
Architecture = Callable[["Hparams"], Caches]
ARCHITECTURES: dict[str, Architecture] = {}


def architecture(*names: str) -> Callable[[Architecture], Architecture]:
    """Register a function under the architectures whose blocks it describes."""

    def register(function: Architecture) -> Architecture:
        for name in names:
            ARCHITECTURES[name] = function
        return function

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class Hparams:
    """A file's metadata as llama.cpp reads it; keys without the architecture's name."""

    arch: str
    place: str
    values: Mapping[str, Any]

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise BadInput(
                    f"{self.place}: {self.arch}.{key} is missing, which llama.cpp needs for this architecture."
                )
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # some writers' counts are floats
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
            raise BadInput(f"{self.place}: {self.arch}.{key} is {short(value)}, where a whole number was expected.")
        return value

    def each(self, key: str, default: Sequence[int] | int | None = None) -> tuple[int, ...]:
        """One whole number or flag for each block: a list, or one value that holds for all."""
        value = self.values.get(key)
        if not isinstance(value, tuple):
            if value is None and default is not None:
                value = default if not isinstance(default, int) else [default] * self.blocks
                return tuple(value)
            return (self.whole(key),) * self.blocks
        if len(value) < self.blocks:
            raise BadInput(f"{self.place}: {self.arch}.{key} has {len(value)} entries for {self.blocks} blocks.")
        for entry in value:
            if not isinstance(entry, int) or not 0 <= entry < 2**40:
                raise BadInput(
                    f"{self.place}: {self.arch}.{key} holds {short(entry)}, where whole numbers were expected."
                )
        return tuple(int(entry) for entry in value[: self.blocks])

    @property
    def blocks(self) -> int:
        """Every block of the file, the NextN ones at the end included."""
        count = self.whole("block_count")
        if not 1 <= count <= MOST_BLOCKS:
            raise BadInput(f"{self.place}: {self.arch}.block_count is {count}, where 1 to {MOST_BLOCKS} were expected.")
        return count

    @property
    def trunk(self) -> int:
        """The blocks before the NextN (multi-token prediction) ones, which keep nothing unless they are used."""
        ahead = self.whole("nextn_predict_layers", 0)
        if ahead >= self.blocks:
            raise BadInput(
                f"{self.place}: all {self.blocks} blocks are NextN ones; this is a draft, to be loaded beside its model."
            )
        return self.blocks - ahead

    @property
    def heads(self) -> tuple[int, ...]:
        """Query heads of each block."""
        return self.each("attention.head_count", 0)

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Key/value heads of each block."""
        return self.each("attention.head_count_kv", self.heads)

    @property
    def widths(self) -> tuple[int, int]:
        """K and V of one head; n_embd / n_head where the file does not say."""
        heads = self.heads[0]
        plain = self.whole("embedding_length") // heads if heads else 0
        return self.whole("attention.key_length", plain), self.whole("attention.value_length", plain)

    def attention(self, block: int, kind: str = "full", window: int = 0) -> Cache:
        """One block's ordinary cache."""
        k_dim, v_dim = self.widths
        if kind != "full":
            k_dim, v_dim = (
                self.whole(f"attention.{name}_length_swa", width) for name, width in (("key", k_dim), ("value", v_dim))
            )
        return Cache(kind=kind, kv_heads=self.kv_heads[block], k_dim=k_dim, v_dim=v_dim, window=window)  # type: ignore[arg-type]

    def swa(self, period: int, *, dense_first: bool = False) -> list[bool]:
        """Which blocks slide: the file's pattern, else all but one of `period` (0: all)."""
        pattern = self.values.get("attention.sliding_window_pattern")
        if isinstance(pattern, tuple):
            return [bool(one) for one in self.each("attention.sliding_window_pattern")]
        period = self.whole("attention.sliding_window_pattern", period)
        dense = 0 if dense_first else period - 1
        return [il < self.trunk and (period == 0 or il % period != dense) for il in range(self.blocks)]


def caches_of(hparams: Hparams) -> Caches:
    """The caches of each block, in order.

    Raises UnsupportedModel for an architecture without a function here.
    """
    refuse_unknown(hparams.arch, hparams.place)
    return ARCHITECTURES[hparams.arch](hparams)


def refuse_unknown(arch: str, place: str) -> None:
    """Raise UnsupportedModel for an architecture without a function here, saying what is missing and where it goes."""
    if arch not in ARCHITECTURES:
        near = UnknownName.among("architecture", arch, ARCHITECTURES).nearest
        raise UnsupportedModel(
            f"{place}: general.architecture {short(arch)} is not modelled{' (near: ' + ', '.join(near) + ')' if near else ''}. "
            "What its blocks keep between tokens is missing: one function in fitkit/gguf_layers says it."
        )


def widths_of(tensors: Iterable[Tensor], h: Hparams) -> list[dict[str, int]]:
    """The fields of each block's Layer that its tensors' shapes and the metadata tell."""
    heads, used = h.heads, h.each("expert_used_count", 0)
    widths: list[dict[str, int]] = [{} for _ in range(h.blocks)]
    for tensor in tensors:
        n_in = tensor.shape[0]
        for block in tensor.layers:
            if tensor.role in ("attn_output", "attn_out"):
                widths[block]["heads"] = heads[block]
            elif tensor.role in ("ffn_down", "channel_mix_value"):
                widths[block]["ffn_dim"] = n_in
            elif tensor.role == "ffn_down_exps":
                widths[block].update(experts=tensor.shape[-1], experts_used=used[block], expert_dim=n_in)
            elif tensor.role == "ffn_down_shexp":
                widths[block]["shared_dim"] = n_in
    return widths


from fitkit.gguf_layers import attention, latent, state  # noqa: E402, F401  # they fill ARCHITECTURES
