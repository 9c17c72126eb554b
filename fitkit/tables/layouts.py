"""Which numbers of GPUs are tried on a machine, fewest first."""

from __future__ import annotations

from fitkit.hardware import Machine
from fitkit.tables.axes import Ask, Layout

COUNTS = (1, 2, 4, 8)
_MOST_NODES_LOOKED_AT = 16


def layouts(ask: Ask, machine: Machine, asked: int | None) -> list[Layout]:
    """The ways this machine offers; of an asked number only that one."""
    if asked is not None:
        return [_asked(ask, machine, asked)]
    if not machine.count or machine.gpu is None:
        return [Layout(0)]
    if ask.rules == "shard":
        return _shard(ask, machine)
    counts = [n for n in COUNTS if n <= machine.count]
    if ask.rules == "engine":
        if ask.engine == "llama.cpp" and machine.count <= 16:
            counts.append(machine.count)
        counts += [n for n in (16, 32, 64) if n <= machine.count]
    one_node = [Layout(n) for n in sorted(set(counts))]
    if not _spreads(ask):
        return one_node
    return one_node + [Layout(counts[-1] * nodes, nodes) for nodes in range(2, _nodes(ask, machine) + 1)]


def more(ask: Ask, machine: Machine) -> list[Layout]:
    """Larger ways of the same GPU that the machine does not have: what one would need."""
    if machine.gpu is None or machine.gpu.unified or not machine.count:
        return []
    if ask.rules == "shard" and ask.engine != "llama.cpp":
        ways = _per_node(ask, machine)
        first = _nodes(ask, machine) + 1
        return [Layout(ways * nodes, nodes, beyond=True) for nodes in range(first, _MOST_NODES_LOOKED_AT + 1)]
    return [Layout(n, beyond=True) for n in COUNTS if n > machine.count]


def _asked(ask: Ask, machine: Machine, gpus: int) -> Layout:
    nodes = 1
    if _spreads(ask) and machine.count:
        most = _nodes(ask, machine)
        nodes = next((n for n in range(max(1, -(-gpus // machine.count)), most + 1) if gpus % n == 0), 1)
    return Layout(gpus, nodes, beyond=gpus > machine.count * nodes)


def _shard(ask: Ask, machine: Machine) -> list[Layout]:
    one_node = [Layout(n) for n in range(1, machine.count + 1)]
    if ask.engine == "llama.cpp":
        return one_node
    ways = _per_node(ask, machine)
    return one_node + [Layout(ways * nodes, nodes) for nodes in range(2, _nodes(ask, machine) + 1)]


def _spreads(ask: Ask) -> bool:
    """Whether a model may lie over several machines: tensor parallel within, pipeline parallel across."""
    return ask.rules in ("shard", "engine") and ask.engine != "llama.cpp"


def _nodes(ask: Ask, machine: Machine) -> int:
    return max(machine.nodes, getattr(ask.settings, "max_nodes", 1))


def _per_node(ask: Ask, machine: Machine) -> int:
    """The most GPUs of one node the model can be cut over."""
    assert ask.counted is not None
    good = (n for n in range(machine.count, 0, -1) if not ask.counted.check(ask.job(n, machine.gpu)))
    return next(good, 1)
