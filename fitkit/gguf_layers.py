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
    tensor_names: frozenset[str] = frozenset()

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
    function = ARCHITECTURES.get(hparams.arch)
    if function is None:
        near = UnknownName.among("architecture", hparams.arch, ARCHITECTURES).nearest
        raise UnsupportedModel(
            f"{hparams.place}: general.architecture {short(hparams.arch)} is not modelled"
            f"{' (near: ' + ', '.join(near) + ')' if near else ''}. What its blocks keep between tokens is missing: "
            "one function in fitkit/gguf_layers.py says it."
        )
    return function(hparams)


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


# ---- attention in every block ---------------------------------------------------------------------------------------------


@architecture(
    "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom", "chameleon", "chatglm", "codeshell",
    "cogvlm", "command-r", "dbrx", "deci", "deepseek", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "falcon", "gemma", "glm4",
    "glm4moe", "gpt2", "gptneox", "granite", "granitemoe", "grok", "grovemoe", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "hy_v3",
    "deepseek2-ocr", "internlm2", "jais", "jais2", "llama", "llama-embed", "maincoder", "minicpm", "minicpm3", "minimax-m2", "mistral3", "mpt", "nemotron", "olmo",
    "olmoe", "openelm", "orion", "paddleocr", "pangu-embedded", "phi2", "phi3", "phimoe", "plamo", "plm", "qwen", "qwen2", "qwen2moe",
    "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact", "seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2",
    "talkie", "xverse",
)  # fmt: skip
def full(h: Hparams) -> Caches:
    """Full attention in every block that has heads, whatever window the file mentions."""
    return [[h.attention(il)] if il < h.trunk and h.kv_heads[il] else [] for il in range(h.blocks)]


@architecture(
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert", "gemma-embedding",
    "dream", "llada", "llada-moe", "rnd1",
)  # fmt: skip
def no_memory(h: Hparams) -> Caches:
    """Encoders and diffusion models keep nothing between batches."""
    return [[] for _ in range(h.blocks)]


# ---- windows ----------------------------------------------------------------------------------------------------------------

# Architecture → blocks in a period, the window where the file has none (None: it must have one, 0: full attention then), whether
# the full block comes first. A period of None: the file must list the pattern.
_WINDOWS: dict[str, tuple[int | None, int | None, bool]] = {
    "gemma2": (2, 4096, False), "gemma3": (6, 0, False), "gpt-oss": (2, None, False), "cohere2": (4, None, False),
    "cohere2moe": (4, None, True), "exaone-moe": (4, None, False), "afmoe": (4, 0, False), "olmo2": (4, 0, False),
    "laguna": (4, 0, True), "mellum": (4, 0, False), "muse-glimmer": (4, None, False), "plamo3": (8, 0, False),
    "smallthinker": (4, 0, True), "mimo2": (None, None, False), "step35": (None, None, False), "maple": (None, None, False),
    "spark2_5": (None, None, False), "granite_swa": (None, None, False),
}  # fmt: skip


def windowed(h: Hparams, slides: Sequence[bool], window: int, kind: str = "sliding") -> Caches:
    """A window where `slides` says so, else full attention; nothing in NextN blocks."""
    return [
        ([h.attention(il, kind, window)] if slides[il] else [h.attention(il)])
        if il < h.trunk and h.kv_heads[il]
        else []
        for il in range(h.blocks)
    ]


@architecture(*_WINDOWS)
def by_period(h: Hparams) -> Caches:
    """Sliding blocks with a full one every so many, or as the file lists them."""
    period, default, dense_first = _WINDOWS[h.arch]
    window = h.whole("attention.sliding_window", default)
    if not window:
        return full(h)
    if h.arch == "smallthinker":
        window = 4096  # set by the engine whatever the file says
    if period is None and not isinstance(h.values.get("attention.sliding_window_pattern"), tuple):
        raise BadInput(
            f"{h.place}: {h.arch}.attention.sliding_window_pattern is missing, which says what blocks slide."
        )
    return windowed(h, h.swa(period or 0, dense_first=dense_first), window)


@architecture("exaone4")
def exaone4(h: Hparams) -> Caches:
    """Only the 64-block model slides."""
    if h.trunk != 64:
        return full(h)
    return windowed(h, h.swa(4), h.whole("attention.sliding_window", 4096))


@architecture("llama4")
def llama4(h: Hparams) -> Caches:
    """Three chunked blocks of 8192 to a full one, whatever the file says; window 0 turns it off."""
    if h.values.get("attention.sliding_window") == 0:
        return full(h)
    return windowed(h, h.swa(4), 8192, "chunked")


@architecture("gemma3n")
def gemma3n(h: Hparams) -> Caches:
    """Period 5; from block 20 on the cache of an earlier block is used."""
    caches = windowed(h, h.swa(5), h.whole("attention.sliding_window"))
    return [kept if il < 20 else [] for il, kept in enumerate(caches)]


@architecture("gemma4")
def gemma4(h: Hparams) -> Caches:
    """Pattern and widths from the file; the last `shared_kv_layers` use the cache of earlier ones."""
    owning = h.blocks - h.whole("attention.shared_kv_layers", 0)
    caches = windowed(h, h.swa(0), h.whole("attention.sliding_window"))
    return [kept if il < owning else [] for il, kept in enumerate(caches)]


# ---- latents ------------------------------------------------------------------------------------------------------------------


def latent(h: Hparams, il: int) -> Cache:
    """MLA as one K head of latent + rope elements and no V; whole heads where the file has no `_mla` keys."""
    if not h.whole("attention.key_length_mla", 0) or not h.whole("attention.value_length_mla", 0):
        return h.attention(il)
    return Cache(kind="latent", k_dim=h.widths[0] * h.kv_heads[il])


@architecture("deepseek2", "mistral4")
def mla(h: Hparams) -> Caches:
    """A latent in every block."""
    return [[latent(h, il)] if il < h.trunk else [] for il in range(h.blocks)]


@architecture("deepseek32", "glm-dsa", "hy_v4")
def sparse_mla(h: Hparams) -> Caches:
    """A latent, and one indexer key a token in the blocks that have an indexer of their own."""
    width = h.whole("attention.indexer.key_length", 0)
    full_ones = _indexed(h)
    kept: Caches = []
    for il in range(h.blocks):
        one = [latent(h, il)] if il < h.trunk else []
        if one and full_ones[il] and width:
            v_dim = 0 if one[0].kind == "latent" else h.widths[1]
            one.append(Cache(kind="indexer", k_dim=width, v_dim=v_dim))
        kept.append(one)
    return kept


def _indexed(h: Hparams) -> list[bool]:
    """The blocks with an indexer of their own; the others use the last one's choice."""
    listed = h.values.get("attention.indexer.types")
    if isinstance(listed, tuple):
        given = [bool(one) for one in listed]
        return given + [False] * (h.blocks - len(given))
    if h.arch == "hy_v4":
        return [False] * h.blocks
    if h.arch == "glm-dsa" and h.whole("context_length", 0) >= 2**20:
        return [il < 3 or il % 4 == 2 for il in range(h.blocks)]  # GLM-5.2 files from before the key
    return [True] * h.blocks


@architecture("minimax-m3")
def minimax_m3(h: Hparams) -> Caches:
    """Full attention; behind the dense lead also an indexer's single head, which llama.cpp gives a V as wide as the model's."""
    width, lead = h.whole("attention.indexer.key_length"), h.whole("leading_dense_block_count", 0)
    indexer = Cache(kind="indexer", kv_heads=1, k_dim=width, v_dim=h.widths[1])
    return [[h.attention(il), *([indexer] if il >= lead else [])] if il < h.trunk else [] for il in range(h.blocks)]


# ---- states -------------------------------------------------------------------------------------------------------------------


def ssm(h: Hparams, variant: str = "mamba2") -> Cache:
    """Mamba's and the delta nets' state: conv (k - 1)(inner + 2 groups state), recurrent inner x state."""
    inner, heads = h.whole("ssm.inner_size"), h.whole("ssm.time_step_rank", 1)
    if variant == "mamba1" or heads < 1 or inner % heads:
        heads = 1
    return Cache(
        kind="state", variant=variant, heads=heads, head_dim=inner // heads, state_dim=h.whole("ssm.state_size"),
        groups=0 if variant == "mamba1" else h.whole("ssm.group_count", 0), conv_kernel=max(1, h.whole("ssm.conv_kernel")),
    )  # fmt: skip


@architecture("mamba", "mamba2")
def mamba(h: Hparams) -> Caches:
    """A state in every block, nothing else."""
    return [[ssm(h, "mamba1" if h.arch == "mamba" else "mamba2")] for _ in range(h.blocks)]


@architecture("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
def rwkv(h: Hparams) -> Caches:
    """Shifted tokens and one head_size x head_size matrix a head."""
    size, width = h.whole("wkv.head_size"), h.whole("embedding_length")
    if not size or width % size:
        raise BadInput(f"{h.place}: {h.arch}.wkv.head_size is {size}, which does not divide {width}.")
    shifts = h.whole("token_shift_count", 2)
    state = Cache(
        kind="state", variant="rwkv7", heads=width // size, head_dim=size, state_dim=size, conv_kernel=shifts + 1
    )
    return [[state] for _ in range(h.blocks)]


def hybrid(
    h: Hparams, state: Cache, keeps: Callable[[int], bool], attention: Callable[[int], Cache] | None = None
) -> Caches:
    """`state` where `keeps` says the block is recurrent, else attention; nothing in NextN blocks."""
    attention = attention or h.attention
    return [([state] if keeps(il) else [attention(il)]) if il < h.trunk else [] for il in range(h.blocks)]


@architecture("jamba", "granitehybrid", "plamo2")
def by_kv_heads(h: Hparams) -> Caches:
    """A block without KV heads is recurrent."""
    return hybrid(h, ssm(h, "mamba1" if h.arch == "jamba" else "mamba2"), lambda il: h.kv_heads[il] == 0)


@architecture("lfm2", "lfm2moe")
def lfm2(h: Hparams) -> Caches:
    """A short convolution where there are no KV heads."""
    width, kernel = h.whole("embedding_length"), h.whole("shortconv.l_cache")
    state = Cache(kind="state", variant="shortconv", heads=1, head_dim=width, conv_kernel=max(1, kernel))
    window = h.whole("attention.sliding_window", 0) if h.arch == "lfm2" else 0
    attend = (lambda il: h.attention(il, "sliding", window)) if window else h.attention
    return hybrid(h, state, lambda il: h.kv_heads[il] == 0, attend)


@architecture("nemotron_h", "nemotron_h_moe")
def nemotron_h(h: Hparams) -> Caches:
    """A block is Mamba, attention or feed-forward, one of them."""
    ffn, state = h.each("feed_forward_length", 0), ssm(h)
    return [
        [] if il >= h.trunk or ffn[il] else [h.attention(il) if h.kv_heads[il] else state] for il in range(h.blocks)
    ]


@architecture("falcon-h1")
def falcon_h1(h: Hparams) -> Caches:
    """Attention and a state in every block."""
    state = ssm(h)
    return [[h.attention(il), state] for il in range(h.blocks)]


@architecture("qwen3next", "qwen35", "qwen35moe")
def gated_delta(h: Hparams) -> Caches:
    """A gated delta net, with attention every `full_attention_interval` blocks."""
    recurrent = h.values.get("attention.recurrent_layers")
    if isinstance(recurrent, tuple):
        flags = h.each("attention.recurrent_layers")
        return hybrid(h, ssm(h, "gdn"), lambda il: bool(flags[il]))
    interval = h.whole("full_attention_interval", 4) or 1
    return hybrid(h, ssm(h, "gdn"), lambda il: (il + 1) % interval != 0)


@architecture("kimi-linear", "kimi-k3", "bailingmoe3")
def kda(h: Hparams) -> Caches:
    """Kimi's delta attention where there are no KV heads, else a latent."""
    dim, heads = h.whole("kda.head_dim"), h.heads[0]
    state = Cache(
        kind="state",
        variant="kda",
        heads=heads,
        head_dim=dim,
        state_dim=dim,
        groups=heads,
        conv_kernel=h.whole("ssm.conv_kernel") or 4,
    )
    caches = hybrid(h, state, lambda il: h.kv_heads[il] == 0, lambda il: latent(h, il))
    if h.arch == "bailingmoe3":  # its NextN blocks are not left out of the cache
        caches[h.trunk :] = [[latent(h, il)] for il in range(h.trunk, h.blocks)]
    return caches


@architecture("minimax-01")
def minimax_01(h: Hparams) -> Caches:
    """Lightning attention's matrix a head, with full attention every so many blocks."""
    heads, dim = h.heads[0], h.widths[0]
    state = Cache(kind="state", variant="lightning", heads=heads, head_dim=dim, state_dim=dim)
    recurrent = h.values.get("attention.recurrent_layers")
    if isinstance(recurrent, tuple):
        flags = h.each("attention.recurrent_layers")
        return hybrid(h, state, lambda il: bool(flags[il]))
    interval = h.whole("full_attention_interval", 8) or 1
    return hybrid(h, state, lambda il: (il + 1) % interval != 0)
