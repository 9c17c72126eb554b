"""Recurrent and hybrid architectures: a state of fixed size in some blocks or all."""

from __future__ import annotations

from collections.abc import Callable

from fitkit.errors import BadInput
from fitkit.gguf_layers import Caches, Hparams, architecture
from fitkit.gguf_layers.latent import latent
from fitkit.model import Cache


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
