"""Recurrent blocks: Mamba 1 and 2, the gated delta net, RWKV-7.

Source: llama.cpp b11434, src/models/mamba-base.cpp, delta-net-base.cpp, qwen3next.cpp, qwen35.cpp, rwkv7-base.cpp; llama-graph.cpp (build_rs).
"""

from __future__ import annotations

from collections.abc import Callable

from fitkit.model import Cache
from fitkit.rules.llamacpp.graph.build import F32, I32, Builder
from fitkit.rules.llamacpp.graph.tensor import SEQUENCES, TOKENS, ZERO, Form, Node, form, plus


def state_of(b: Builder, block: int) -> Cache | None:
    """A block's recurrent state."""
    return next((cache for cache in b.model.layers[block].caches if cache.kind == "state"), None)


def gather(b: Builder, block: int, size: float, read: Callable[[Node], Node] | None = None) -> Node:
    """The states of the batch's sequences: copied out of the cache, or read in place by `read`."""
    cache = b.cache(block)
    states = Node("reshape", ZERO, ("cache",), [cache], root=cache)
    b.graph.expand(Node("scale_in_place", ZERO, ("cache",), [states], root=cache))  # a fresh state is cleared
    ids = b.input("state_ids", form(SEQUENCES, I32))
    rows = form(SEQUENCES, size * F32)
    if read is None:
        out = b.make("get_rows", 0, states, ids, size=rows, rows=TOKENS)
        view = Node("view", rows, ("states",), [out], root=out)
        b.graph.expand(view)
        put_back(b, block, out)  # states of sequences that are not in the batch
        return view
    scanned = read(states)
    b.graph.expand(scanned)
    put_back(b, block, b.make("get_rows", 0, states, ids, size=_less_one(rows, size), rows=TOKENS))
    return scanned


def _less_one(rows: Form, size: float) -> Form:
    return (rows[0] - size * F32, *rows[1:])


def put_back(b: Builder, block: int, source: Node) -> None:
    """Write a state into the cache."""
    cache = b.cache(block)
    b.graph.expand(Node("cpy", ZERO, ("cache",), [b.view(source, 0)], root=cache))


def with_states(tokens_width: float, state_width: float) -> Form:
    """Results for each token followed by the states after the last ones."""
    return plus(form(TOKENS, tokens_width * F32), form(SEQUENCES, state_width * F32))


def convolve(b: Builder, x: Node, block: int, cache: Cache, width: float) -> Node:
    """The short convolution over remembered and new columns."""
    before = gather(b, block, cache.conv_elements)
    columns = b.make(
        "concat",
        0,
        b.view(before, 0, "reshape"),
        b.view(x, width, "permute"),
        size=with_states(width, cache.conv_elements),
        rows=TOKENS,
    )
    put_back(b, block, columns)
    cur = b.make("ssm_conv", width, columns, b.weight(block, "ssm_conv1d"), rows=TOKENS)
    if b.has(block, "ssm_conv1d.bias"):
        cur = b.like("add", cur, b.weight(block, "ssm_conv1d.bias"))
    return b.like("unary", cur)


def _scan(b: Builder, block: int, before: tuple[Node, ...], after: tuple[Node, ...], size: Form) -> Node:
    """The scan: one row of results and states."""
    node = b.make("ssm_scan", 0, *before, b.weight(block, "ssm_a"), *after, size=size, rows=TOKENS)
    node.one_row = True
    return node


def mamba1(b: Builder, x: Node, block: int) -> Node:
    """Selective scan with one channel a head."""
    cache = state_of(b, block)
    assert cache is not None
    inner, state = cache.heads * cache.head_dim, cache.state_dim
    both = b.mm(x, block, "ssm_in")
    left, z = b.view(both, inner), b.view(both, inner)
    cur = convolve(b, left, block, cache, inner)
    rank = b.roles[block]["ssm_dt"].shape[0]
    small = b.mm(cur, block, "ssm_x")
    dt, b_in, c_in = b.view(small, rank), b.view(small, state), b.view(small, state)
    if b.has(block, "ssm_dt_norm"):
        dt, b_in, c_in = (
            b.norm(node, block, role)
            for node, role in ((dt, "ssm_dt_norm"), (b_in, "ssm_b_norm"), (c_in, "ssm_c_norm"))
        )
    else:
        dt = b.make("cont", rank, dt)
    dt = b.mm(dt, block, "ssm_dt")
    seen = b.view(cur, inner, "reshape")

    def scan(states: Node) -> Node:
        return _scan(b, block, (states, seen, dt), (b_in, c_in), with_states(inner, inner * state))

    scanned = gather(b, block, inner * state, scan)
    put_back(b, block, scanned)
    y = b.view(scanned, inner)
    y = b.like("add", y, b.like("mul", cur, b.weight(block, "ssm_d")))
    y = b.make("glu", inner, b.make("cont", inner, z), y)
    return b.mm(y, block, "ssm_out")


def mamba2(b: Builder, x: Node, block: int) -> Node:
    """State-space duality: heads and groups."""
    cache = state_of(b, block)
    assert cache is not None
    inner, wide = cache.heads * cache.head_dim, cache.heads * cache.head_dim + 2 * cache.groups * cache.state_dim
    joined = b.mm(x, block, "ssm_in")
    flat = b.view(joined, b.floats(joined), "reshape")
    z, mixed, dt = b.view(flat, inner), b.view(flat, wide), b.view(flat, cache.heads)
    cur = convolve(b, mixed, block, cache, wide)
    x_in, b_in, c_in = b.view(cur, inner), b.view(cur, cache.state_dim), b.view(cur, cache.state_dim)
    dt = b.like("add", b.make("cont", cache.heads, dt), b.weight(block, "ssm_dt.bias"))

    def scan(states: Node) -> Node:
        return _scan(b, block, (states, x_in, dt), (b_in, c_in), with_states(inner, inner * cache.state_dim))

    scanned = gather(b, block, inner * cache.state_dim, scan)
    put_back(b, block, scanned)
    y = b.view(scanned, inner)
    y = b.like("add", y, b.like("mul", x_in, b.weight(block, "ssm_d")))
    y = b.make("glu", inner, b.make("cont", inner, z), y)
    if b.has(block, "ssm_norm"):
        y = b.norm(b.view(y, inner, "reshape"), block, "ssm_norm")
        y = b.view(y, inner, "reshape")
    return b.mm(y, block, "ssm_out")


def delta_net(b: Builder, x: Node, block: int, repeat: bool) -> Node:
    """Gated delta net (Qwen3-Next, Qwen3.5), the fused operation."""
    cache = state_of(b, block)
    assert cache is not None
    inner, keys = cache.heads * cache.head_dim, cache.groups * cache.state_dim
    wide = inner + 2 * keys
    mixed = b.view(b.mm(x, block, "attn_qkv"), wide, "reshape")
    z = b.mm(x, block, "attn_gate")
    before = gather(b, block, cache.conv_elements)
    columns = b.make(
        "concat",
        0,
        b.view(before, 0, "reshape"),
        b.view(mixed, wide, "permute"),
        size=with_states(wide, cache.conv_elements),
        rows=TOKENS,
    )
    put_back(b, block, columns)
    state = gather(b, block, cache.ssm_elements)
    cur = b.like("unary", b.make("ssm_conv", wide, columns, b.weight(block, "ssm_conv1d"), rows=TOKENS))
    q, k, v = (
        _l2_norm(b, b.view(cur, keys)), _l2_norm(b, b.view(cur, keys)), b.view(cur, inner),
    )  # fmt: skip
    if repeat and cache.groups != cache.heads:
        q, k = b.make("repeat", cache.heads * cache.state_dim, q), b.make("repeat", cache.heads * cache.state_dim, k)
    gate, beta = _gates(b, x, block, cache)
    size = with_states(inner, cache.ssm_elements)
    out = b.make("delta_net", 0, q, k, v, gate, beta, state, size=size, rows=TOKENS)
    put_back(b, block, out)
    normed = b.norm(b.view(out, inner), block, "ssm_norm")
    cur = b.like("mul", normed, b.like("unary", b.view(z, inner, "reshape")))
    return b.mm(b.view(cur, inner, "reshape"), block, "ssm_out")


def short_convolution(b: Builder, x: Node, block: int) -> Node:
    """LFM2's gated short convolution."""
    cache = state_of(b, block)
    assert cache is not None
    width = b.model.hidden_size
    joined = b.mm(b.view(x, width, "reshape"), block, "shortconv.in_proj")
    left, gate, right = (b.view(joined, width) for _ in range(3))
    mixed = b.view(b.like("mul", left, right), width, "permute")
    before = b.view(gather(b, block, cache.conv_elements), 0, "reshape")
    columns = b.make("concat", 0, before, mixed, size=with_states(width, cache.conv_elements), rows=TOKENS)
    put_back(b, block, columns)
    cur = b.make("ssm_conv", width, columns, b.weight(block, "shortconv.conv"), rows=TOKENS)
    out = b.mm(b.like("mul", gate, cur), block, "shortconv.out_proj")
    return b.view(out, width, "reshape")


def kimi_delta(b: Builder, x: Node, block: int) -> Node:
    """Kimi's delta attention: Q, K and V convolved apart, a gate for each channel."""
    cache = state_of(b, block)
    assert cache is not None
    inner = cache.heads * cache.head_dim
    remembered = gather(b, block, cache.conv_elements)
    sides = []
    for letter in "qkv":
        cur = b.view(b.mm(x, block, f"attn_{letter}"), inner, "permute")
        size = with_states(inner, cache.conv_elements / 3)
        columns = b.make("concat", 0, b.view(remembered, 0), cur, size=size, rows=TOKENS)
        put_back(b, block, columns)
        conv = b.make("ssm_conv", inner, columns, b.weight(block, f"ssm_conv1d_{letter}"), rows=TOKENS)
        sides.append(b.view(b.like("unary", b.view(conv, inner, "reshape")), inner, "reshape"))
    gate = b.mm(b.mm(x, block, "ssm_f_a"), block, "ssm_f_b")
    gate = b.like("unary", b.like("add", gate, b.weight(block, "ssm_dt.bias")))
    gate = b.like("mul", b.view(gate, inner, "reshape"), b.weight(block, "ssm_a"))
    beta = b.like("unary", b.view(b.mm(x, block, "ssm_beta"), cache.heads, "reshape"))
    state = gather(b, block, cache.ssm_elements)
    q, k = _l2_norm(b, sides[0]), _l2_norm(b, sides[1])
    size = with_states(inner, cache.ssm_elements)
    out = b.make("delta_net", 0, q, k, sides[2], b.view(gate, inner, "reshape"), beta, state, size=size, rows=TOKENS)
    put_back(b, block, out)
    result = b.make("cont", inner, b.view(out, inner))
    opened = b.view(b.mm(b.mm(b.view(x, b.floats(x), "reshape"), block, "ssm_g_a"), block, "ssm_g_b"), inner, "reshape")
    normed = b.norm(b.view(result, inner, "reshape"), block, "ssm_norm")
    gated = b.make("cont", inner, b.like("mul", normed, b.like("unary", opened)))
    return b.mm(gated, block, "attn_output")


def _gates(b: Builder, x: Node, block: int, cache: Cache) -> tuple[Node, Node]:
    if b.has(block, "ssm_ba"):
        both = b.mm(x, block, "ssm_ba")
        beta = b.like("unary", b.make("cont", cache.heads, b.view(both, cache.heads)))
        alpha = b.make("cont", cache.heads, b.view(both, cache.heads))
    else:
        beta = b.like("unary", b.view(b.mm(x, block, "ssm_beta"), cache.heads, "reshape"))
        alpha = b.view(b.mm(x, block, "ssm_alpha"), cache.heads, "reshape")
    alpha = b.like("unary", b.like("add", alpha, b.weight(block, "ssm_dt.bias")))
    gate = b.like("mul", alpha, b.weight(block, "ssm_a"))
    return b.view(gate, cache.heads, "reshape"), b.view(beta, cache.heads, "reshape")


def _l2_norm(b: Builder, x: Node) -> Node:
    return b.like("scale", b.like("rms_norm", x))


def rwkv7(b: Builder, x: Node, block: int, first: list[Node], last: bool) -> Node:
    """One RWKV-7 block: time mix and channel mix; `first` keeps the first block's values."""
    width = b.model.hidden_size
    cache = state_of(b, block)
    assert cache is not None
    x = b.view(x, width, "reshape")
    shift = b.view(gather(b, block, cache.conv_elements), 0, "reshape")
    normed = b.norm(x, block, "attn_norm", rms=False)
    before = b.make("concat", width, b.view(shift, 0), b.view(normed, width), rows=TOKENS)
    cur = _time_mix(b, normed, before, block, cache, first)
    joined = b.add(cur, x)
    normed_2 = b.norm(joined, block, "attn_norm_2", rms=False)
    before = b.make("concat", width, b.view(shift, 0), b.view(normed_2, width), rows=TOKENS)
    kept = b.make(
        "concat", 0, b.view(normed, 0), b.view(normed_2, 0), size=form(SEQUENCES, 2 * width * F32), rows=TOKENS
    )
    put_back(b, block, kept)
    joined, normed_2, before = (b.view(node, width, "reshape") for node in (joined, normed_2, before))
    if last:
        joined, normed_2, before = (b.rows_out(node) for node in (joined, normed_2, before))
    mixed = b.like("mul", b.like("sub", before, normed_2), b.weight(block, "channel_mix_lerp_k"))
    key = b.mm(b.like("add", mixed, normed_2), block, "channel_mix_key")
    key = b.like("unary", b.like("unary", key))
    return b.add(b.mm(key, block, "channel_mix_value"), joined)


def _time_mix(b: Builder, x: Node, before: Node, block: int, cache: Cache, first: list[Node]) -> Node:
    width, gated = b.model.hidden_size, b.has(block, "time_mix_g1")
    mixes = 6 if gated else 5
    spread = b.make("repeat", width * mixes, b.like("sub", before, x))
    spread = b.like("add", b.like("mul", spread, b.weight(block, "time_mix_lerp_fused")), x)
    xr, xw, xk, xv, xa = (b.view(spread, width, "slice") for _ in range(5))
    r = b.mm(xr, block, "time_mix_receptance")
    w = b.mm(b.like("unary", b.mm(xw, block, "time_mix_w1")), block, "time_mix_w2")
    w = b.like("unary", b.like("scale", b.like("unary", b.like("add", w, b.weight(block, "time_mix_w0")))))
    k, v = b.mm(xk, block, "time_mix_key"), b.mm(xv, block, "time_mix_value")
    if not first:
        first.append(v)
    else:
        low = b.mm(b.mm(xv, block, "time_mix_v1"), block, "time_mix_v2")
        share = b.like("unary", b.like("add", low, b.weight(block, "time_mix_v0")))
        v = b.like("add", v, b.like("mul", b.like("sub", first[0], v), share))
    g = (
        b.mm(b.like("unary", b.mm(b.view(spread, width, "slice"), block, "time_mix_g1")), block, "time_mix_g2")
        if gated
        else None
    )
    a = b.mm(b.mm(xa, block, "time_mix_a1"), block, "time_mix_a2")
    a = b.like("unary", b.like("add", a, b.weight(block, "time_mix_a0")))
    kk = b.make("l2_norm", width, b.view(b.like("mul", k, b.weight(block, "time_mix_k_k")), width, "reshape"))
    ka = b.like("mul", k, b.weight(block, "time_mix_k_a"))
    k = b.like("add", k, b.like("sub", b.like("mul", a, ka), ka))
    r, w, k, v, a = (b.view(node, width, "reshape") for node in (r, w, k, v, a))
    state = gather(b, block, cache.ssm_elements)
    out = b.make(
        "wkv",
        0,
        r,
        w,
        k,
        v,
        b.like("unary", kk),
        b.like("mul", kk, a),
        state,
        size=with_states(width, cache.ssm_elements),
        rows=TOKENS,
    )
    cur = b.view(out, width)
    put_back(b, block, out)
    if b.has(block, "time_mix_ln"):
        cur = b.view(b.like("norm", b.view(cur, width, "reshape")), width, "reshape")
        cur = b.like("add", b.like("mul", cur, b.weight(block, "time_mix_ln")), b.weight(block, "time_mix_ln.bias"))
    rk = b.make("sum_rows", cache.heads, b.like("mul", b.like("mul", k, r), b.weight(block, "time_mix_r_k")))
    cur = b.like("add", cur, b.view(b.like("mul", v, rk), width, "reshape"))
    if g:
        cur = b.like("mul", cur, g)
    return b.mm(cur, block, "time_mix_output")
