"""What nearly every decoder's config says, read once: sizes, layer kinds, rotary tables, and the parts most families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fitkit.errors import BadInput, UnsupportedModel, short
from fitkit.facts import Row, find
from fitkit.model import Cache
from fitkit.sources.config import Shape
from fitkit.sources.config.build import Build
from fitkit.sources.config.rope import rope_tables, served_context
from fitkit.sources.config.view import MOST, MOST_LAYERS, Config

WORDS = {
    "full_attention": "full",
    "global_attention": "full",
    "attention": "full",
    "full": "full",
    "sliding_attention": "sliding",
    "local_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "conv": "conv",
    "moe": "moe",
    "mlp": "mlp",
    "dense": "dense",
    "sparse": "sparse",
    "deepseek_sparse_attention": "full",
    "indexed_attention": "full",
    "hybrid": "full",
    "hybrid_sliding": "sliding",
    "minimax_m3_sparse": "sparse",
}


@dataclass(slots=True, kw_only=True)
class Decoder:
    """The sizes of one decoder and the build they fill."""

    config: Config
    build: Build
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    tied: bool
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def all(self) -> range:
        """Every layer's number."""
        return self.build.all

    @classmethod
    def read(cls, config: Config, *, layers: int = 0) -> Decoder:
        """The usual keys, and what the family's class assumes where a file is silent (facts/config_defaults.csv).

        Sizes may only be left out of a mapping inside another one, as the libraries that write these files do.
        """
        row = find("config_defaults", config.text("model_type", default="")) or {}
        size = row if config.nested else {}
        n = layers or _size(
            config, size, "layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers", high=MOST_LAYERS
        )
        hidden = _size(config, size, "hidden_size", "hidden_size", "n_embd", "n_embed", "d_model")
        heads = _size(config, size, "heads", "num_attention_heads", "n_head", "n_heads", "num_heads")
        usual = int(row.get("head_dim") or 0) or hidden // heads
        width = config.whole("head_dim", "kv_channels", "attention_head_dim", default=usual, low=0) or usual
        if width < 1:
            raise BadInput(f"{config.place}: hidden_size {hidden} over {heads} heads leaves no width for a head.")
        kv_heads = min(int(row.get("kv_heads") or heads), heads)
        return cls(
            config=config,
            build=Build(n),
            hidden=hidden,
            vocab=_size(config, size, "vocab", "vocab_size", "padded_vocab_size"),
            heads=heads,
            kv_heads=config.whole("num_key_value_heads", "num_kv_heads", "n_head_kv", default=kv_heads),
            head_dim=width,
            context=context_of(config, int(row.get("context") or 2048)),
            tied=config.flag("tie_word_embeddings", default=row.get("tied") == "1"),
        )

    @property
    def ffn_dim(self) -> int:
        """Width of a dense feed-forward."""
        row = find("config_defaults", self.config.text("model_type", default="")) if self.config.nested else None
        return _size(self.config, row or {}, "ffn_dim", "intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")

    def shape(self, gguf: str, **extra: Any) -> Shape:
        """The finished shape; `gguf` is llama.cpp's name for the architecture ("" where it has none)."""
        return Shape(
            build=self.build,
            hidden_size=self.hidden,
            vocab_size=self.vocab,
            context=self.context,
            tied_embeddings=self.tied,
            gguf_architecture=gguf,
            extra={**self.extra, **served_context(self.config, self.context), **extra},
        )

    # ---- parts ---------------------------------------------------------------------------------------------------------

    def embeddings(self, **names: str) -> None:
        """Token table, final norm, and the head where it is not the table itself."""
        self.build.embeddings(self.vocab, self.hidden, tied=self.tied, **names)

    def attention(self, layers: Iterable[int] | None = None, **how: Any) -> None:
        """The projections of ordinary attention (see Build.attention) in `layers` (None: all)."""
        self.build.attention(
            self.all if layers is None else layers, self.hidden, self.heads, self.kv_heads, self.head_dim, **how
        )

    def cache(self, kinds: Sequence[str] | None = None, window: int = 0) -> None:
        """An attention cache per layer: full, or of `window` tokens where the layer's kind is sliding or chunked."""
        for layer, kind in enumerate(kinds or ["full"] * self.build.n):
            if kind not in ("full", "sliding", "chunked"):
                continue
            limited = kind if window else "full"
            self.build.keep(
                Cache(
                    kind=limited,  # type: ignore[arg-type]
                    kv_heads=self.kv_heads,
                    k_dim=self.head_dim,
                    v_dim=self.head_dim,
                    window=window if limited != "full" else 0,
                ),
                (layer,),
            )

    def feed_forward(self, layers: Iterable[int] | None = None, ffn_dim: int = 0, **how: Any) -> None:
        """A dense feed-forward in `layers` (None: all) of `intermediate_size` unless another width is given."""
        self.build.feed_forward(self.all if layers is None else layers, self.hidden, ffn_dim or self.ffn_dim, **how)

    def norms(self, *roles: str, layers: Iterable[int] | None = None, bias: bool = False) -> None:
        """Norms of the hidden width in `layers` (None: all)."""
        self.build.norms(self.all if layers is None else layers, self.hidden, *roles, bias=bias)

    def experts(
        self, layers: Iterable[int], experts: int, used: int, expert_dim: int, *, correction: bool = False, **how: Any
    ) -> None:
        """Routed experts (see Build.experts); `correction`: the router's per-expert bias, kept in 32 bits."""
        layers = tuple(layers)
        if used > experts:
            raise BadInput(f"{self.config.place}: {used} of {experts} experts for each token cannot be.")
        self.build.experts(layers, self.hidden, experts, used, expert_dim, **how)
        if correction:
            self.build.add("exp_probs_b.bias", (experts,), layers, dtype="F32", module="router.e_score_correction_bias")

    def mtp(self, blocks: int, fill: Callable[[Decoder, range], None], *, joint: bool = True) -> None:
        """Multi-token-prediction blocks: numbered on after the last layer, part "mtp", not loaded unless speculation is on.

        `fill` adds one block's tensors to the decoder it is given; `joint` the usual two norms, the projection of
        (embedding, hidden) and the final norm.
        """
        if not blocks:
            return
        side = Decoder(
            config=self.config,
            build=Build(self.build.n + blocks),
            hidden=self.hidden,
            vocab=self.vocab,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            context=self.context,
            tied=self.tied,
        )
        layers = range(self.build.n, self.build.n + blocks)
        fill(side, layers)
        if joint:
            side.build.add("nextn.eh_proj", (2 * self.hidden, self.hidden), layers, module="model.layers.{}.eh_proj")
            side.build.norms(layers, self.hidden, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
        self.build.take(side.build, part="mtp")
        self.extra["mtp_layers"] = blocks

    def rope(self, width: int = 0, **how: Any) -> None:
        """Note the rotary tables an engine builds (see rope_tables)."""
        tables = rope_tables(self.config, width or self.head_dim, self.context, **how)
        self.extra["rope_tables"] = tables
        if tables:
            self.extra["rope_positions"], self.extra["rope_dim"] = tables[0][:2]
        said = self.config.view("rope_parameters") or self.config.view("rope_scaling")
        if kind := said.text("rope_type", "type", default="") if said else "":
            self.extra["rope_scaling"] = kind  # some kinds put a table of factors into a GGUF


def _size(config: Config, row: Row, column: str, *keys: str, high: int = MOST) -> int:
    """A size from the file, or from the family's row."""
    said = row.get(column)
    return config.whole(*keys, default=int(said), high=high) if said else config.whole(*keys, high=high)


def context_of(config: Config, default: int) -> int:
    """The longest context the model was made for [tokens]."""
    return config.whole(
        "max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "max_seq_len", "n_ctx",
        "model_max_length", default=default,
    )  # fmt: skip


def layer_kinds(
    config: Config, n: int, default: Sequence[str], allowed: Sequence[str], key: str = "layer_types"
) -> tuple[str, ...]:
    """Each layer's kind in our words from `layer_types`, or the family's own pattern where the file is silent.

    Raises UnsupportedModel for a word the family does not know; entries past the last layer belong to MTP blocks.
    """
    said = config.entries(key, default=())
    if not said:
        return tuple(default)
    if len(said) < n:
        raise BadInput(f"{config.place}: {key} has {len(said)} entries for {n} layers.")
    kinds = []
    for word in said[:n]:
        kind = WORDS.get(word, "") if isinstance(word, str) else ""
        if kind not in allowed:
            raise UnsupportedModel(
                f"{config.place}: {key} says {short(word)}, a kind of layer this family's function does not model; add it in fitkit/sources/config."
            )
        kinds.append(kind)
    return tuple(kinds)


def every(n: int, period: int, usual: str, last: str, offset: int = 0) -> tuple[str, ...]:
    """`n` layers of kind `usual` with every `period`-th of kind `last` (period 0: none)."""
    return tuple(last if period and (i + 1 - offset) % period == 0 else usual for i in range(n))


def of_kind(kinds: Sequence[str], *wanted: str) -> tuple[int, ...]:
    """The numbers of the layers whose kind is one of `wanted`."""
    return tuple(i for i, kind in enumerate(kinds) if kind in wanted)
