"""Where tensors lie in a compute buffer: best fit among free blocks, freed after the last use, results in a source's place.

What is taken, given back and reused in which order follows from the graph alone and is worked out once (`steps`); where it
lies depends on the sizes (`lay_out`).

Source: llama.cpp b11434, ggml-alloc.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fitkit.rules.llamacpp.graph.tensor import INPLACE, ZERO, Form, Node, plus

_ENDLESS = 2**62
# On a device, memory of a number is taken or given back, of a size.
Step = tuple[int, int, bool, Form]


@dataclass(slots=True)
class _Block:
    offset: int
    size: int
    place: Form  # of its beginning


class Buffer:
    """One device's address range."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.free = [_Block(0, _ENDLESS, ZERO)]
        self.ends: set[Form] = set()

    def take(self, size: int, form: Form) -> tuple[int, Form]:
        """The smallest free block that holds `size` bytes, the last one only where no other does: its offset and place."""
        size = self.padded(size)
        best = None
        for block in self.free[:-1]:
            if block.size >= size and (best is None or block.size <= best.size):
                best = block
        if best is None:
            best = self.free[-1]
        taken = best.offset, best.place
        end = plus(best.place, form)
        best.offset += size
        best.size -= size
        best.place = end
        if best.size == 0:
            self.free.remove(best)
        self.ends.add(end)
        return taken

    def give_back(self, offset: int, size: int, place: Form) -> None:
        """Free a range and merge it with free neighbours."""
        size = self.padded(size)
        if not size:
            return
        blocks = self.free
        for number, block in enumerate(blocks):
            if block.offset + block.size == offset:
                block.size += size
                after = blocks[number + 1] if number + 1 < len(blocks) else None
                if after and block.offset + block.size == after.offset:
                    block.size += after.size
                    del blocks[number + 1]
                return
            if offset + size == block.offset:
                block.offset, block.size, block.place = offset, block.size + size, place
                before = blocks[number - 1] if number else None
                if before and before.offset + before.size == offset:
                    before.size += block.size
                    del blocks[number]
                return
        at = next((number for number, block in enumerate(blocks) if block.offset > offset), len(blocks))
        blocks.insert(at, _Block(offset, size, place))

    def padded(self, size: int) -> int:
        """`size` aligned."""
        return -(-size // self.alignment) * self.alignment


def lay_out(todo: Iterable[Step], sizes: Mapping[Form, int], buffers: Sequence[Buffer]) -> None:
    """Take and give back in order, each form of a size as large as `sizes` says [bytes]."""
    places: dict[int, tuple[int, Form]] = {}
    for device, number, is_taken, form in todo:
        if is_taken:
            places[number] = buffers[device].take(sizes[form], form)
        else:
            offset, place = places[number]
            buffers[device].give_back(offset, sizes[form], place)


def steps(nodes: Sequence[tuple[Node, int]], leafs: Sequence[tuple[Node, int]]) -> list[Step]:
    """What the allocator does for a graph whose nodes and inputs have their device, whatever the sizes."""
    out: list[Step] = []
    for leaf, device in leafs:
        _allocate(leaf, device, out)
    for node, device in nodes:
        if node.root is not None and node.op != "keep":
            node.root.views += 1
        if node.is_input:
            _allocate(node, device, out)
        for source in node.sources:
            source.children += 1
            if source.is_input:
                _allocate(source, device, out)
    for node, device in nodes:
        for source in node.sources:
            _allocate(source, device, out)
        _allocate(node, device, out)
        for source in node.sources:
            source.children -= 1
            if source.children == 0 and source.views == 0:
                _release(source, out)
    return out


def _allocate(node: Node, device: int, out: list[Step]) -> None:
    if node.stored or node.held or node.root is not None:
        return
    node.held = True
    if node.op in INPLACE and _reuse(node):
        return
    node.buffer, node.number = device, len(out)
    out.append((device, node.number, True, node.size))


def _reuse(node: Node) -> bool:
    """Take a source's memory where nobody else needs it and it lies the same way; a view's is never taken."""
    for parent in node.sources:
        if not parent.held or parent.is_output or parent.layout != node.layout:
            continue
        if parent.children != 1 or parent.views != 0:
            continue
        node.buffer, node.number = parent.buffer, parent.number
        parent.held = False
        return True
    return False


def _release(node: Node, out: list[Step]) -> None:
    if node.root is not None:
        owner = node.root
        owner.views -= 1
        if owner.views == 0 and owner.children == 0 and owner.held:
            _free(owner, out)
    elif node.held:
        _free(node, out)


def _free(node: Node, out: list[Step]) -> None:
    if node.is_output:
        return
    out.append((node.buffer, node.number, False, node.size))
    node.held = False
