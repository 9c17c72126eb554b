"""What layers are written with: a few operations that make nodes, and the context they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fitkit.model import Model, Tensor
from fitkit.rules.llamacpp.flash import Heads, has_kernel
from fitkit.rules.llamacpp.graph.tensor import (
    CELLS,
    ONE,
    OUTPUTS,
    TOKENS,
    TOKENS_CELLS,
    TOKENS_WINDOW,
    WINDOW,
    ZERO,
    Form,
    Graph,
    Node,
    form,
    plus,
    times,
)
from fitkit.rules.llamacpp.placement import INPUT_ROLES, OUTPUT_NORM, OUTPUT_ROLES, ROTARY_ROLES, is_expert
from fitkit.rules.llamacpp.rows import is_quantized, row_bytes
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.split import HOST, Split
from fitkit.rules.llamacpp.versions import has

F32, F16, I32, I64 = 4, 2, 4, 8


@dataclass(slots=True)
class Builder:
    """A graph in the making, for one model and setting."""

    model: Model
    settings: LlamaCppSettings
    placed: Split
    flash: bool
    roles: Mapping[int, Mapping[str, Tensor]]  # block (-1: model-wide) -> role -> tensor
    v_transposed: bool
    widest_v: int = 0
    equal_heads: tuple[bool, bool] = (True, True)  # of the full and of the sliding caches
    has_windows: bool = False
    graph: Graph = field(default_factory=Graph)
    kept: dict[Node, list[Node]] = field(default_factory=dict)
    inputs: dict[str, Node] = field(default_factory=dict)
    attention: list[tuple[Node, int]] = field(default_factory=list)  # flash attention of each block
    top_k: list[tuple[Node, Node, Node]] = field(default_factory=list)  # router's scores, probabilities, weights
    routed: dict[int, tuple[Node, Node, Node]] = field(default_factory=dict)  # product, input, chosen experts
    beside: dict[int, tuple[Node, Node, Node]] = field(default_factory=dict)  # the shared expert's gate, up, product

    # ---- leaves ---------------------------------------------------------------------------------------------------------

    @property
    def cpu(self) -> int:
        """The CPU's device number."""
        return self.placed.devices

    def device(self, block: int) -> int:
        """The device that holds a block (the output layer past the last)."""
        where = self.placed.blocks[block] if block < len(self.placed.blocks) else self.placed.output
        return self.cpu if where == HOST else where

    def has(self, block: int, role: str) -> bool:
        """Whether a block has this weight."""
        return role in self.roles.get(block, {})

    def width(self, block: int, role: str) -> int:
        """Outputs of a weight, 0 where the block has none."""
        tensor = self.roles.get(block, {}).get(role)
        return tensor.shape[1] if tensor and len(tensor.shape) > 1 else 0

    def weight(self, block: int, role: str) -> Node:
        """A weight, where it lies."""
        tensor = self.roles.get(block, {}).get(role)
        size = 0
        if tensor:
            size = row_bytes(tensor.dtype or "F32", tensor.shape[0])
            for extent in tensor.shape[1:]:
                size *= extent
        last = block < 0 and (
            role.partition(".")[0] in OUTPUT_ROLES or role == OUTPUT_NORM.get(self.model.gguf_architecture)
        )
        device = self.device(len(self.placed.blocks) if last else max(block, 0))
        settings = self.settings
        if role in INPUT_ROLES or (is_expert(role) and (settings.cpu_moe or 0 <= block < settings.n_cpu_moe)):
            device = self.cpu
        return Node("weight", form(ONE, size), (), stored=True, weight=True, device=device)

    def input(self, name: str, size: Form) -> Node:
        """A graph input, made once."""
        if name not in self.inputs:
            self.inputs[name] = Node("leaf", size, (name,), is_input=True, label=name)
        return self.inputs[name]

    # ---- operations -----------------------------------------------------------------------------------------------------

    def make(
        self,
        op: str,
        width: float,
        *sources: Node,
        rows: int | None = None,
        layout: object = None,
        size: Form | None = None,
    ) -> Node:
        """A result of `width` floats for each row of its first source (or of `rows`)."""
        basis = sources[0].rows if rows is None else rows
        size = form(basis, width * F32) if size is None else size
        return Node(op, size, (width, basis) if layout is None else (layout,), list(sources), rows=basis)

    def view(self, source: Node, width: float, op: str = "view", rows: int | None = None) -> Node:
        """A look into another tensor."""
        basis = source.rows if rows is None else rows
        node = Node(op, form(basis, width * F32), ("view", id(source), width), [source], rows=basis)
        node.root = source.root or source
        return node

    def floats(self, node: Node) -> float:
        """Floats a row of a node."""
        return node.size[node.rows] / F32

    def like(self, op: str, node: Node, *others: Node) -> Node:
        """An elementwise operation, in place where it can be."""
        return Node(
            op,
            form(node.rows, self.floats(node) * F32),
            (self.floats(node), node.rows),
            [node, *others],
            rows=node.rows,
        )

    def same(self, op: str, node: Node) -> Node:
        """An elementwise operation whose result lies as its source does."""
        out = self.like(op, node)
        out.layout = node.layout
        return out

    def slides(self, block: int) -> bool:
        """Whether a block's attention is a sliding one, by the file's pattern where it owns no cache."""
        pattern = self.model.get("attention.sliding_window_pattern")
        if isinstance(pattern, tuple) and block < len(pattern):
            return bool(pattern[block])
        return any(cache.kind != "full" for cache in self.model.layers[block].caches)

    def norm(self, x: Node, block: int, role: str, rms: bool = True) -> Node:
        """RMS or layer norm with its weight and bias; `x` itself where the block has none."""
        if not self.has(block, role):
            return x
        cur = self.like("rms_norm" if rms else "norm", x)
        cur = self.like("mul", cur, self.weight(block, role))
        return self.like("add", cur, self.weight(block, role + ".bias")) if self.has(block, role + ".bias") else cur

    def mm(self, x: Node, block: int, role: str, width: int = 0) -> Node:
        """X times a weight, plus its bias."""
        cur = self.make("mul_mat", width or self.width(block, role), self.weight(block, role), x, rows=x.rows)
        if self.has(block, role + ".bias"):
            cur = self.like("add", cur, self.weight(block, role + ".bias"))
        return cur

    def add(self, a: Node, b: Node) -> Node:
        """A + b."""
        return self.like("add", a, b)

    def rope(self, x: Node, block: int, window: bool) -> Node:
        """Rotary positions: a result as wide, its layout a head's; frequencies of the model's own are a weight.

        Windowed layers of Gemma 4 turn by the plain ones (gemma4.cpp).
        """
        sources = [x, self.input("positions", form(TOKENS, I32 * self.positions))]
        factors = next((role for role in sorted(ROTARY_ROLES) if self.has(-1, role)), "")
        if factors and not (window and self.model.gguf_architecture == "gemma4"):
            sources.append(self.weight(-1, factors))
            sources[-1].device = self.device(block)
        node = self.like("rope", *sources)
        node.layout = ("heads", self.floats(x), x.rows)
        return node

    @property
    def positions(self) -> int:
        """Position numbers a token (four with multimodal rope)."""
        return 4 if self.model.get("rope.dimension_sections") else 1

    def rows_out(self, x: Node) -> Node:
        """Only the rows whose logits are wanted."""
        return self.make("get_rows", self.floats(x), x, self.input("outputs", form(OUTPUTS, I32)), rows=OUTPUTS)

    # ---- cache ----------------------------------------------------------------------------------------------------------

    def cache(self, block: int) -> Node:
        """A layer's K or V tensor."""
        device = self.device(self.owner(block)) if self.settings.offload_kqv else self.cpu
        return Node("cache", ZERO, (), stored=True, device=device)

    def owner(self, block: int) -> int:
        """The block whose cache this one uses: its own, or the last of its kind that has one."""
        if self.model.layers[block].caches or not self.model.get("attention.shared_kv_layers"):
            return block
        owners = (other for other in range(block, -1, -1) if self.model.layers[other].caches)
        return next((other for other in owners if self.slides(other) == self.slides(block)), block)

    def mask(self, window: bool) -> Node:
        """The mask of the full or the sliding caches: one f16 (f32 without flash attention) a token and cell."""
        basis = TOKENS_WINDOW if window else TOKENS_CELLS
        if has(self.settings.build, "f16_masks"):
            return self.input(f"mask{int(window)}", form(basis, F16 if self.flash else F32))
        mask = self.input(f"mask{int(window)}", form(basis, F32))
        if not self.flash:
            return mask
        name = f"mask{int(window)} as f16"
        if name not in self.inputs:
            self.inputs[name] = self.make("cast", 0, mask, size=form(basis, F16), rows=TOKENS)
        return self.inputs[name]

    def cells(self, window: bool) -> int:
        """The basis that counts a cache's cells."""
        return WINDOW if window else CELLS

    def store(self, block: int, cur: Node, name: str, window: bool, width: float = 0) -> None:
        """Write K or V into the cache."""
        index = self.input(f"{name}{int(window)}", form(TOKENS, I64 * (width or 1)))
        cache = self.cache(block)
        node = Node("set_rows", ZERO, ("stored",), [self.view(cur, self.floats(cur)), index], root=cache)
        self.graph.expand(node)

    def is_latent(self, heads: Heads) -> bool:
        """Whether K and V are one latent row."""
        return any(cache.kind == "latent" for cache in self.model.caches()) and heads.kv_heads == 1

    def kernel(self, heads: Heads) -> bool:
        """Whether the GPU computes this attention."""
        return self.cpu == 0 or has_kernel(heads, self.settings)

    def f16_copy(self, kind: str, width: float, window: bool) -> Form:
        """The f16 copy of one side of a layer's cache that a CUDA kernel makes where the cache is of another type."""
        return ZERO if kind == "f16" else form(self.cells(window), F16 * width)


__all__ = ["F16", "F32", "I32", "I64", "Builder", "is_quantized", "plus", "times"]
