"""The part of vLLM's memory that no rule gives exactly: the profiling run's peak, what is not torch's, CUDA graphs.

The peak's shape is understood, its two constants are fitted to start-up logs; how firm each figure is stands with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fitkit.model import Model
from fitkit.rules.base import Evidence
from fitkit.rules.vllm.settings import VLLMSettings, release_of
from fitkit.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of one rank's memory [bytes]."""

    name: str
    bytes: int
    low: int
    high: int
    evidence: Evidence
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """An expected figure and the bounds the logs stay within."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """The versions from `first` on, until the next one, and what was logged by them.

    `scratch` is bytes for each logit (sequences x vocabulary) besides the logits themselves; `alone_gib` and
    `group_gib` are what one GPU and each GPU of a group loses to the driver, NCCL and other non-torch memory.
    """

    first: tuple[int, int]
    scratch: Range
    alone_gib: Range
    group_gib: Range
    peak_spread_gib: float
    graph_mib: Range
    persistent_state: bool
    evidence: Evidence
    source: str


# Newest first. The constants of 0.17-0.19 come from one sweep of 26 text start-ups on an H100 (root mean square of
# what the peak's rule leaves: 0.007 GiB); older ones from eight logs; from 0.20 on few logs name their terms.
ERAS: tuple[Era, ...] = (
    Era(
        first=(0, 20),
        scratch=Range(expected=8.8, low=4.0, high=16.0),
        alone_gib=Range(expected=0.26, low=0.02, high=0.8),
        group_gib=Range(expected=1.2, low=0.2, high=2.3),
        peak_spread_gib=0.35,
        graph_mib=Range(expected=0.25, low=0.02, high=1.0),
        persistent_state=True,
        evidence="assumed",
        source="vLLM 0.33.0 gpu_worker.py and sampler, with three public logs of 0.20 and later that name every term",
    ),
    Era(
        first=(0, 17),
        scratch=Range(expected=12.5, low=12.2, high=12.8),
        alone_gib=Range(expected=0.25, low=0.05, high=0.47),
        group_gib=Range(expected=2.1, low=2.05, high=2.25),
        peak_spread_gib=0.03,
        graph_mib=Range(expected=0.45, low=0.2, high=1.3),
        persistent_state=False,
        evidence="fitted",
        source="start-up logs of vLLM 0.19.0 on H100, llm-d planner accuracy sweep, 2026-04",
    ),
    Era(
        first=(0, 0),
        scratch=Range(expected=36.0, low=12.0, high=37.0),
        alone_gib=Range(expected=0.13, low=0.02, high=0.35),
        group_gib=Range(expected=0.55, low=0.25, high=2.2),
        peak_spread_gib=0.06,
        graph_mib=Range(expected=0.3, low=0.0, high=1.3),
        persistent_state=False,
        evidence="fitted",
        source="start-up logs of vLLM 0.11.0 and 0.16.0 on H100, llm-d planner's empirical page, 2026",
    ),
)
PEAK_CONSTANT_GIB = 0.053  # what the sweep leaves after every term that scales


def era_of(version: str) -> Era:
    """The newest era that had begun by `version`."""
    release = release_of(version)
    return next(era for era in ERAS if release[:2] >= era.first)


def measured_parts(settings: VLLMSettings, model: Model, tokens: int, sequences: int) -> tuple[Part, ...]:
    """Activation peak, persistent sampler state, non-torch memory and CUDA graphs of one rank.

    `tokens` is max_num_batched_tokens, `sequences` max_num_seqs, both as vLLM resolves them.
    """
    era = era_of(settings.version)
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    outside = era.alone_gib if ranks == 1 else era.group_gib
    parts = [
        activation_peak(settings, model, era, tokens, sequences),
        _part("non_torch", era, outside.expected * GIB, outside.low * GIB, outside.high * GIB),
    ]
    if era.persistent_state:
        # Output token counts in int32 and one bit a token, for every sequence slot (penalties).
        state = sequences * (model.vocab_size * 4 + -(-model.vocab_size // 32) * 4)
        parts.append(_part("sampler_state", era, state, 0, state))
    if settings.has("subtracts_cuda_graphs") and not settings.enforce_eager:
        steps = len(model.layers) * capture_sizes(tokens, sequences) // settings.pipeline_parallel_size
        each = era.graph_mib
        parts.append(
            _part("cuda_graphs", era, steps * each.expected * MIB, steps * each.low * MIB, steps * each.high * MIB)
        )
    return tuple(parts)


def activation_peak(settings: VLLMSettings, model: Model, era: Era, tokens: int, sequences: int) -> Part:
    """The profiling run's peak: max(a forward pass, the sampler over its hidden states), with the experts' workspaces.

    sampler = rows x vocabulary x (dtype + scratch) + tokens x hidden x dtype; forward = tokens x (3 ffn/tp + 6 hidden)
    x dtype; workspaces = tokens x top-k x (max(width, hidden) + max(2 width, hidden)) x dtype, width = expert/tp; an
    encoder's cache budget = tokens x hidden x dtype.
    """
    tp = settings.tensor_parallel_size
    dtype = 4 if (settings.dtype in ("float", "float32") or model.dtype == "F32") else 2
    logits = min(sequences, tokens) * model.vocab_size
    hidden = tokens * model.hidden_size * dtype
    ffn = max((max(layer.ffn_dim, layer.shared_dim) for layer in model.layers), default=0)
    forward = tokens * (3 * ffn // tp + 6 * model.hidden_size) * dtype
    experts = expert_workspace(settings, model, tokens, dtype)
    encoder = hidden if takes_pictures(settings, model) else 0
    beside = experts + encoder + PEAK_CONSTANT_GIB * GIB
    spread = era.peak_spread_gib * GIB

    def peak(scratch: float) -> float:
        return max(forward, logits * (dtype + scratch) + hidden) + beside

    return _part(
        "activation_peak",
        era,
        peak(era.scratch.expected),
        peak(era.scratch.low) - spread - experts // 2,
        # An encoder's own forward pass is not modelled: the sweep's four leave up to 0.15 GiB, larger pictures more.
        peak(era.scratch.high) + spread + (GIB // 2 if encoder else 0),
    )


def expert_workspace(settings: VLLMSettings, model: Model, tokens: int, dtype: int) -> int:
    """The two scratch arrays of the fused experts kernel; MXFP4 kernels keep none."""
    if model.quant == "MXFP4":
        return 0
    wide = max(model.layers, key=lambda layer: layer.experts_used * layer.expert_dim, default=None)
    if wide is None or not wide.experts_used:
        return 0
    width = wide.expert_dim if settings.enable_expert_parallel else wide.expert_dim // settings.tensor_parallel_size
    rows = tokens * wide.experts_used
    return rows * (max(width, model.hidden_size) + max(2 * width, model.hidden_size)) * dtype


def takes_pictures(settings: VLLMSettings, model: Model) -> bool:
    """Whether an encoder is loaded: the model has one and no limit of 0 leaves it out."""
    limits = settings.limit_mm_per_prompt
    if limits is not None and limits and not any(limits.values()):
        return False
    return any(tensor.part in ("vision", "audio") for tensor in model.tensors)


def capture_sizes(tokens: int, sequences: int) -> int:
    """How many batch sizes are captured: 1, 2, 4, every 8 to 256, every 16 to twice the sequences, at most 512."""
    top = min(2 * sequences, 512, tokens)
    return sum(size <= top for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)))


def _part(name: str, era: Era, expected: float, low: float, high: float) -> Part:
    return Part(
        name=name, bytes=round(expected), low=max(0, round(low)), high=round(high), evidence=era.evidence,
        source=era.source,
    )  # fmt: skip
