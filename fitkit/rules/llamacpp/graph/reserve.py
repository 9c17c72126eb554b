"""Compute buffers of a setting: the graph once for a neighbourhood of sizes, its peaks as linear forms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from fitkit.model import Model, Tensor
from fitkit.rules.llamacpp.cache import stores
from fitkit.rules.llamacpp.flash import has_kernel, heads_of
from fitkit.rules.llamacpp.graph.build import Builder
from fitkit.rules.llamacpp.graph.decoder import build
from fitkit.rules.llamacpp.graph.layout import Buffer
from fitkit.rules.llamacpp.graph.schedule import COPIES, OFFLOAD_BATCH, Devices, Schedule, assign, lay, schedule
from fitkit.rules.llamacpp.graph.tensor import BASIS, OUTPUTS, SEQUENCES, TOKENS, Form
from fitkit.rules.llamacpp.loaded import Loaded
from fitkit.rules.llamacpp.rows import block_of
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.split import Split

ALIKE = 3  # blocks of one kind on one device that are laid out


def peaks(
    what: Loaded,
    settings: LlamaCppSettings,
    placed: Split,
    flash: bool,
    units: Form,
    pipeline: bool,
    every: bool = False,
) -> list[Buffer]:
    """Each device's compute buffer, the CPU's last, laid out at `units` (values of BASIS).

    `every` lays all blocks out instead of a few of each kind.
    """
    worth = tuple(unit >= OFFLOAD_BATCH for unit in units)
    return lay(_scheduled(what, settings, placed, flash, worth, pipeline, every), units)


@lru_cache(maxsize=1024)
def _scheduled(
    what: Loaded,
    settings: LlamaCppSettings,
    placed: Split,
    flash: bool,
    worth: tuple[bool, ...],
    pipeline: bool,
    every: bool,
) -> Schedule:
    """The graph with its devices; `worth` tells which counts are large enough to offload by."""
    apart = (
        pipeline
        and flash
        and any(not has_kernel(heads_of(what.model, store), settings) for store in stores(what.model))
    )
    apart = apart or (pipeline and any(tensor.role == "per_layer_token_embd" for tensor in what.tensors))
    b = written(what, settings, placed, flash, every or apart)
    keep_top_k(b)
    join_shared(b)
    units = tuple(float(OFFLOAD_BATCH if enough else 1) for enough in worth)
    devices = Devices(gpus=placed.devices, units=units, copies=COPIES if pipeline else 1)
    return schedule(b.graph, devices, b.kept)


def written(what: Loaded, settings: LlamaCppSettings, placed: Split, flash: bool, every: bool) -> Builder:
    """The graph of a model under a setting."""
    model, roles = what.model, roles_of(what.tensors)
    kept = [store for store in stores(model) if store.kind != "indexer"]
    sizes: tuple[set[tuple[int, int]], set[tuple[int, int]]] = (set(), set())
    for cache in model.caches():
        if cache.kind not in ("state", "indexer"):
            sizes[cache.kind in ("sliding", "chunked")].add((cache.k_dim, cache.v_dim))
    b = Builder(
        model, settings, placed, flash, roles, settings.flash_attn == "off",
        widest_v=max((store.v_width for store in kept), default=0), equal_heads=(len(sizes[0]) == 1, len(sizes[1]) == 1),
        has_windows=bool(sizes[1]),
    )  # fmt: skip
    build(b, picked(model, roles, placed, every))
    return b


def attention_stays(what: Loaded, settings: LlamaCppSettings, placed: Split, sequences: int) -> bool:
    """Whether each block's flash attention, for one token a sequence, would run on the block's own device.

    Source: llama.cpp b11434, llama-context.cpp, resolve_fused_ops.
    """
    b = written(what, settings, placed, True, True)
    units = [1.0] * len(BASIS)
    units[TOKENS] = units[OUTPUTS] = units[SEQUENCES] = float(sequences)
    assign(b.graph, Devices(gpus=placed.devices, units=tuple(units)))
    return all(node.device == b.device(block) for node, block in b.attention)


def keep_top_k(b: Builder) -> None:
    """CUDA chooses experts in one kernel: all that leads from the scores to the weights is kept until the next operation.

    Source: llama.cpp b11434, ggml-cuda.cu, graph_optimize and ggml_cuda_topk_moe_fusion; routing by groups does not match.
    """
    if int(b.model.get("expert_group_count", 1) or 1) > 1:
        return
    nodes = b.graph.nodes
    for scores, probabilities, weights in b.top_k:
        first, last = nodes.index(probabilities), nodes.index(weights)
        if last + 1 >= len(nodes) or weights.device == b.cpu:
            continue
        held = dict.fromkeys(node for one in nodes[first : last + 1] for node in (one, *one.sources) if not node.stored)
        held.setdefault(scores)
        b.kept.setdefault(nodes[last + 1], []).extend(held)


def join_shared(b: Builder) -> None:
    """CUDA computes a shared expert's gate and up together with the routed ones, right after them, where they are alike.

    Source: llama.cpp b11434, ggml-cuda.cu, ggml_cuda_match_shared_expert and graph_optimize.
    """
    nodes = b.graph.nodes
    for block, (gate, up, product) in b.beside.items():
        if block not in b.routed or not b.cpu or b.routed[block][1].op != "reshape" or not _alike(b, block):
            continue
        routed, source, chosen = b.routed[block]
        for node in (gate, up, product):
            nodes.remove(node)
        at = nodes.index(routed) + 1
        nodes[at:at] = [gate, up, product]
        b.kept.setdefault(product, []).extend([source, chosen])


def _alike(b: Builder, block: int) -> bool:
    own, shared = b.roles[block]["ffn_up_exps"], b.roles[block]["ffn_up_shexp"]
    there = b.weight(block, "ffn_up_exps").device, b.weight(block, "ffn_up_shexp").device
    same = own.dtype == shared.dtype and own.shape[:2] == shared.shape[:2] and there[0] == there[1] != b.cpu
    return same and block_of(own.dtype or "F32") > 1


def roles_of(tensors: tuple[Tensor, ...]) -> dict[int, dict[str, Tensor]]:
    """The weights of each block (-1: model-wide) by role; no prediction blocks."""
    roles: dict[int, dict[str, Tensor]] = {}
    for tensor in tensors:
        for block in () if tensor.part else tensor.layers or (-1,):
            roles.setdefault(block, {})[tensor.role] = tensor
    return roles


def picked(model: Model, roles: Mapping[int, Mapping[str, Tensor]], placed: Split, every: bool) -> list[int]:
    """A few blocks of each kind on each device, the last, and those beside another device's: more add nothing to a peak."""
    trunk = [number for number in range(len(model.layers)) if number in roles]
    seen: dict[object, int] = {}
    chosen = []
    for block in trunk:
        kind = (model.layers[block], placed.blocks[block], frozenset(roles[block]))
        seen[kind] = seen.get(kind, 0) + 1
        beside = {placed.blocks[other] for other in (block - 1, block + 1) if 0 <= other < len(placed.blocks)}
        if every or seen[kind] <= ALIKE or block == trunk[-1] or beside - {placed.blocks[block]}:
            chosen.append(block)
    return chosen
