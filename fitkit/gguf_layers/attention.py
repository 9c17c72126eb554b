"""Architectures with attention in every block: whole, by windows, or none kept at all."""

from __future__ import annotations

from collections.abc import Sequence

from fitkit.errors import BadInput
from fitkit.gguf_layers import Caches, Hparams, architecture


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
