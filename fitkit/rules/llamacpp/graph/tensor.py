"""Tensors and the order in which a graph computes them."""

from __future__ import annotations

from dataclasses import dataclass, field

# What a size may grow with. Bytes of a tensor are a sum over these: a constant, tokens of the batch, tokens x cells of the mask
# (full and sliding caches), cells over all streams (full and sliding), outputs, sequences.
BASIS = ("one", "tokens", "tokens_cells", "tokens_window", "cells", "window", "outputs", "sequences")
ONE, TOKENS, TOKENS_CELLS, TOKENS_WINDOW, CELLS, WINDOW, OUTPUTS, SEQUENCES = range(len(BASIS))
Form = tuple[float, ...]
ZERO: Form = (0.0,) * len(BASIS)

# A view keeps its source's strides, and so does a copy of it; a slice is a contiguous piece.
VIEWS = frozenset({"view", "slice", "reshape", "permute"})
# Source: ggml-alloc.c, ggml_op_can_inplace.
INPLACE = frozenset(
    {"add", "mul", "div", "sub", "scale", "unary", "rope", "rms_norm", "clamp", "soft_max", "add_id", "fill"}
)


def form(basis: int, size: float) -> Form:
    """`size` bytes for each unit of one basis."""
    values = list(ZERO)
    values[basis] = float(size)
    return tuple(values)


def plus(a: Form, b: Form) -> Form:
    """The sum of two sizes."""
    return tuple([x + y for x, y in zip(a, b, strict=True)])


def times(a: Form, factor: float) -> Form:
    """A size taken `factor` times."""
    return tuple([x * factor for x in a])


@dataclass(eq=False, slots=True)
class Node:
    """One tensor of the graph.

    `stored` ones (weights, caches) have memory of their own and never take any of the buffer; `root` is the tensor a view
    looks into; `layout` tells whether a result may take a source's place.
    """

    op: str
    size: Form
    layout: tuple[object, ...]
    sources: list[Node] = field(default_factory=list)
    root: Node | None = None
    stored: bool = False
    weight: bool = False
    is_input: bool = False
    is_output: bool = False
    rows: int = TOKENS  # what its rows count
    lines: int = 1  # its own rows for each of those: heads, where each is normed by itself
    one_row: bool = False  # laid out as a single row, which is never worth offloading
    cpu_only: bool = False
    device: int = -1
    visited: bool = False
    label: str = ""
    # while laid out
    children: int = 0
    views: int = 0
    held: bool = False
    buffer: int = -1
    number: int = -1  # of its memory in that buffer; a result in a source's place has the source's


class Graph:
    """Nodes in the order of computation, inputs in the order they were met. Source: ggml.c, ggml_visit_parents_graph."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leafs: list[Node] = []

    def expand(self, node: Node) -> None:
        """Add `node` and, before it, everything it needs that is not there yet, sources first and in order."""
        stack = [(node, 0)]
        if node.visited:
            return
        node.visited = True
        while stack:
            current, at = stack.pop()
            sources = current.sources
            while at < len(sources) and sources[at].visited:
                at += 1
            if at < len(sources):
                stack.append((current, at + 1))
                sources[at].visited = True
                stack.append((sources[at], 0))
            elif current.stored:
                continue
            elif current.op == "leaf":
                self.leafs.append(current)
            else:
                self.nodes.append(current)
