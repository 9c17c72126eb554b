"""Which device computes what, and the copies that cross devices.

Source: llama.cpp b11434, ggml-backend.cpp (ggml_backend_sched_split_graph and what makes graph_copy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fitkit.rules.llamacpp.graph.layout import Buffer, Step, lay_out, steps
from fitkit.rules.llamacpp.graph.tensor import VIEWS, Form, Graph, Node

OFFLOAD_BATCH = 32  # rows from which an operation with host weights is worth a copy to the GPU; ggml-cuda.cu
COPIES = 4  # GGML_SCHED_MAX_COPIES, of each input in pipeline parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """How many GPUs; the CPU comes last. `units` are the reference values of the basis."""

    gpus: int
    units: Form
    copies: int = 1
    offload: bool = True
    host_alignment: int = 32
    gpu_alignment: int = 128

    @property
    def cpu(self) -> int:
        """The CPU's number."""
        return self.gpus


Placed = list[tuple[Node, int]]


def assign(graph: Graph, devices: Devices) -> None:
    """Give every operation its device, as for a batch of `devices.units`."""
    _assign(graph, devices)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What the allocator takes and gives back on each device, in order."""

    steps: list[Step]
    devices: Devices


def schedule(graph: Graph, devices: Devices, kept: Mapping[Node, Sequence[Node]]) -> Schedule:
    """Devices, splits and copies of `graph`. `kept[n]` are tensors to keep until `n` is done."""
    _assign(graph, devices)
    return Schedule(steps(*_with_copies(graph, devices, kept)), devices)


def lay(planned: Schedule, units: Form) -> list[Buffer]:
    """Lay the tensors out at `units` (values of BASIS); the buffers of all devices, the CPU's last."""
    devices = planned.devices
    buffers = [Buffer(devices.gpu_alignment) for _ in range(devices.gpus)]
    buffers.append(Buffer(devices.gpu_alignment if devices.gpus else devices.host_alignment))
    lay_out(planned.steps, {form: _bytes(form, units) for form in {step[-1] for step in planned.steps}}, buffers)
    return buffers


def _bytes(size: Form, units: Form) -> int:
    """Bytes of a size at the reference sizes."""
    return int(sum([one * unit for one, unit in zip(size, units, strict=True) if one]))


# ---- devices of operations ----------------------------------------------------------------------------------------------------


def _own_device(node: Node, devices: Devices) -> int:
    if node.stored:
        return node.device
    if node.root is not None and node.root.stored:
        return node.root.device
    if node.is_input:
        return devices.cpu
    if node.op in ("rope", "flash_attn"):
        return -1
    for source in node.sources:
        if source.weight:
            if source.device == devices.cpu and devices.gpus and devices.offload and _worth_it(node, devices):
                return 0
            return source.device
    return -1


def _worth_it(node: Node, devices: Devices) -> bool:
    rows = 1.0 if node.one_row else devices.units[node.rows] * node.lines
    return node.op != "get_rows" and rows >= OFFLOAD_BATCH and not node.cpu_only


def _assign(graph: Graph, devices: Devices) -> None:
    """Operations go where their weights are, others where their neighbours are, GPUs first."""
    work = [node for node in graph.nodes if node.op not in VIEWS]
    for node in (*graph.leafs, *graph.nodes):
        if not node.stored and node.device == -1:
            node.device = _own_device(node, devices)
    for order, gpu_only in ((work, True), (work[::-1], True), (work, False), (work[::-1], False)):
        current = -1
        for node in order:
            if node.device != -1:
                current = -1 if gpu_only and node.device == devices.cpu else node.device
            elif current != -1 and not (node.cpu_only and current != devices.cpu):
                node.device = current
    for node in graph.nodes:
        if node.device == -1:
            node.device = node.root.device if node.root is not None else devices.cpu
        for source in node.sources:
            if source.device == -1:
                source.device = source.root.device if source.root is not None else node.device


# ---- copies ---------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Split:
    device: int
    nodes: list[Node]
    inputs: list[Node]


def _with_copies(graph: Graph, devices: Devices, kept: Mapping[Node, Sequence[Node]]) -> tuple[Placed, Placed]:
    copies: dict[tuple[int, int], list[Node]] = {}
    splits = _splits(graph, devices, copies)
    nodes: Placed = []
    for split in splits:
        for source in split.inputs:
            nodes.append((_keep(source), source.device))
            nodes.append((copies[id(source), split.device][0], split.device))
        for node in split.nodes:
            nodes.append((node, node.device))
            if node in kept and split.device != devices.cpu:
                nodes.append((_keep(*kept[node]), split.device))
    leafs: Placed = []
    if devices.copies > 1:
        leafs = _pipeline_leafs(graph, devices, splits, copies)
    leafs.extend((leaf, leaf.device) for leaf in graph.leafs)
    return nodes, leafs


def _splits(graph: Graph, devices: Devices, copies: dict[tuple[int, int], list[Node]]) -> list[_Split]:
    """Runs of operations on one device, with what they need from others."""
    splits: list[_Split] = []
    waiting: list[Node] = []  # views before the first operation
    for node in graph.nodes:
        if node.op in VIEWS:
            (splits[-1].nodes if splits else waiting).append(node)
            continue
        if not splits or node.device != splits[-1].device or _streams_again(node, splits[-1]):
            splits.append(_Split(node.device, waiting, []))
            waiting = []
        split = splits[-1]
        for at, source in enumerate(node.sources):
            if source.device == split.device or source.device == -1:
                continue
            key = id(source), split.device
            if key not in copies:
                copies[key] = [_copy(source, split.device, devices.copies) for _ in range(devices.copies)]
                split.inputs.append(source)
            node.sources[at] = copies[key][0]
        split.nodes.append(node)
    return splits


def _streams_again(node: Node, split: _Split) -> bool:
    """A weight from elsewhere begins a new split, so that the memory of the last one can be used again."""
    return bool(split.inputs) and any(source.weight and source.device != split.device for source in node.sources)


def _copy(source: Node, device: int, copies: int) -> Node:
    several = copies > 1
    strided = source.op == "view" and source.root is not None and not source.root.stored
    size = source.root.size if strided and source.root is not None else source.size
    layout = source.layout
    if source.op in ("reshape", "slice"):  # no view any more, so a result may take its place
        layout = (source.size[source.rows] / 4, source.rows)
    return Node("copy", size, layout, device=device, is_input=several, is_output=several)


def _keep(*sources: Node) -> Node:
    """A node that only holds on to others."""
    return Node("keep", sources[0].size, (), sources=list(sources), root=sources[0].root or sources[0])


def _pipeline_leafs(
    graph: Graph, devices: Devices, splits: Sequence[_Split], copies: Mapping[tuple[int, int], list[Node]]
) -> Placed:
    """Each input COPIES times where it is made and wherever it is used, never given back."""
    leafs: Placed = []
    for leaf in graph.leafs:
        leaf.is_output = True
        leafs.append((leaf, leaf.device))
        for _ in range(devices.copies - 1):
            twin = Node("copy", leaf.size, leaf.layout, device=leaf.device, is_input=True, is_output=True)
            leafs.append((twin, leaf.device))
    for split in splits:
        for source in split.inputs:
            leafs.extend((copy, split.device) for copy in copies[id(source), split.device])
    return leafs


__all__ = ["COPIES", "OFFLOAD_BATCH", "Devices", "Schedule", "lay", "schedule"]
