"""Feed-forward: dense, experts, shared experts."""

from __future__ import annotations

from dataclasses import dataclass

from fitkit.rules.llamacpp.graph.build import F32, I32, Builder
from fitkit.rules.llamacpp.graph.tensor import Node, form

MOST_FUSED_EXPERTS = 15  # ggml-cuda.cu, MOE_WEIGHTED_REDUCTION_MAX_EXPERTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How an architecture's experts are chosen and weighed."""

    sigmoid: bool = False
    norm: bool = True
    scale: bool = False
    late_softmax: bool = False
    weigh_before: bool = False  # the input is weighed, not the result (Llama 4)


def dense(b: Builder, x: Node, block: int, suffix: str = "") -> Node:
    """Up and gate, their product, down; without a gate the activation is in place."""
    up_role, gate_role, down_role = f"ffn_up{suffix}", f"ffn_gate{suffix}", f"ffn_down{suffix}"
    up = b.mm(x, block, up_role)
    if b.has(block, gate_role):
        gate = b.mm(x, block, gate_role)
        cur = b.make("glu", b.floats(gate), gate, up)
        if suffix == "_shexp":
            b.beside[block] = (gate, up, cur)
    elif b.width(block, up_role) == 2 * b.roles[block][down_role].shape[0]:
        cur = b.make("glu", b.floats(up) / 2, up)
    else:
        cur = b.like("unary", up)
    return b.mm(cur, block, down_role)


def experts(b: Builder, x: Node, block: int, routing: Routing, probabilities: Node | None = None) -> Node:
    """Routed experts: top-k of the gate's scores, their matrices, the weighed sum."""
    layer = b.model.layers[block]
    count, used = layer.experts, layer.experts_used
    logits = b.mm(x, block, "ffn_gate_inp", count) if probabilities is None else probabilities
    if b.has(block, "ffn_gate_inp.bias") and probabilities is not None:
        logits = b.like("add", logits, b.weight(block, "ffn_gate_inp.bias"))
    start = logits
    probs = logits
    if not routing.late_softmax:
        probs = b.like("unary" if routing.sigmoid else "soft_max", logits)
    chosen_by = logits if routing.weigh_before else probs
    if b.has(block, "exp_probs_b.bias"):
        chosen_by = b.like("add", probs, b.weight(block, "exp_probs_b.bias"))
    chosen_by = _grouped(b, chosen_by, count)
    order = b.make("argsort", count, chosen_by)
    ids = b.view(order, used)
    flat = b.view(probs, count, "reshape")
    weights = b.make("get_rows", used, flat, ids)
    if routing.late_softmax:
        weights = b.view(b.like("soft_max", b.view(weights, used, "reshape")), used, "reshape")
    if routing.norm:
        rows = b.view(weights, used, "reshape")
        total = b.like("clamp", b.make("sum_rows", 1, rows))
        weights = b.view(b.like("div", rows, total), used, "reshape")
    if routing.scale:
        weights = b.like("scale", weights)
    b.graph.expand(weights)
    if b.cpu and not routing.late_softmax and not routing.weigh_before and _has_top_k_kernel(count):
        b.top_k.append((start, probs, weights))
    cur = b.view(x, b.floats(x), "reshape")
    if routing.weigh_before:
        cur = b.like("mul", b.make("repeat", b.floats(x) * used, cur), weights)
    out = _matrices(b, cur, ids, block, used)
    return _weighed_sum(b, out, weights, used, routing)


def _has_top_k_kernel(count: int) -> bool:
    """Whether CUDA chooses among so many experts in one kernel. Source: ggml-cuda/topk-moe.cu."""
    return (count & (count - 1) == 0 and count <= 512) or count in (288, 576)


def _grouped(b: Builder, scores: Node, count: int) -> Node:
    """Only the best groups' experts are candidates (DeepSeek-V3)."""
    groups = int(b.model.get("expert_group_count", 1) or 1)
    if groups <= 1:
        return scores
    used = int(b.model.get("expert_group_used_count", 1) or 1)
    by_group = b.view(scores, count, "reshape")
    top = b.view(b.make("argsort", count, by_group), 2 * groups)
    best = b.make("get_rows", 2 * groups, b.view(by_group, count, "reshape"), top)
    sums = b.view(b.make("sum_rows", groups, b.view(best, 2 * groups, "reshape")), groups, "reshape")
    chosen = b.view(b.make("argsort", groups, sums), used)
    picked = b.make("get_rows", count // groups * used, by_group, chosen)
    filled = b.make("fill", count, by_group)
    masked = b.make("set_rows", count, picked, chosen, filled)
    masked.root = filled
    return b.view(masked, count, "reshape")


def _matrices(b: Builder, x: Node, ids: Node, block: int, used: int) -> Node:
    """up, gate, product, down of the chosen experts."""
    if b.has(block, "ffn_gate_up_exps"):
        both = _by_id(b, x, ids, block, "ffn_gate_up_exps", used)
        half = b.floats(both) / 2
        cur = b.make("glu", half, b.view(both, half), b.view(both, half))
    else:
        up = _by_id(b, x, ids, block, "ffn_up_exps", used)
        if b.has(block, "ffn_gate_exps"):
            gate = _by_id(b, x, ids, block, "ffn_gate_exps", used)
            cur = b.make("glu", b.floats(gate), gate, up)
            b.routed[block] = (cur, x, ids)
        else:
            cur = b.like("unary", up)
    return _by_id(b, cur, ids, block, "ffn_down_exps", used)


def _by_id(b: Builder, x: Node, ids: Node, block: int, role: str, used: int) -> Node:
    cur = b.make("mul_mat_id", b.width(block, role) * used, b.weight(block, role), x, ids, rows=x.rows)
    if b.has(block, role + ".bias"):
        cur = b.like("add_id", cur, b.weight(block, role + ".bias"), ids)
    if b.has(block, role + ".scale"):
        cur = b.like("mul", cur, b.weight(block, role + ".scale"))
    return cur


def _weighed_sum(b: Builder, out: Node, weights: Node, used: int, routing: Routing) -> Node:
    """Each expert's result times its weight, summed. CUDA does it in one kernel and keeps the results until then."""
    raw = out
    if not routing.weigh_before:
        out = b.like("mul", out, weights)
    b.graph.expand(out)
    width = b.floats(out) / used
    parts = []
    for _ in range(used):
        part = b.view(out, width)
        b.graph.expand(part)
        parts.append(part)
    total = parts[0]
    for part in parts[1:]:
        total = b.make("add", width, total, part)
        b.graph.expand(total)
    if used == 1:
        return b.make("cont", width, total)
    if b.cpu and not routing.weigh_before and used <= MOST_FUSED_EXPERTS:
        b.kept.setdefault(total, []).extend([raw, weights])
    return total


__all__ = ["F32", "I32", "Routing", "dense", "experts", "form"]
