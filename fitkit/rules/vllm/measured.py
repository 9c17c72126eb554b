"""The part of vLLM's memory that no rule gives exactly: the profiling run's peak, what is not torch's, CUDA graphs.

The peak's shape is understood, its two constants are fitted to start-up logs; how firm each figure is stands with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fitkit.model import Model
from fitkit.rules.base import Evidence
from fitkit.rules.vllm.encoder import budget_tokens, encoder_pass, loads_encoder
from fitkit.rules.vllm.settings import DTYPES, VLLMSettings, release_of
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
    moved_by: str = ""  # the options that raise or lower it


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
    `group_gib` are what one GPU and each GPU of a tensor-parallel group loses to NCCL and other non-torch memory, counted
    inside vLLM's share; `graph_mib` is a CUDA graph's memory for one layer and one batch size.
    """

    first: tuple[int, int]
    scratch: Range
    alone_gib: Range
    group_gib: Range
    peak_spread_gib: float
    forward_high: float  # a forward pass may take this many times its rule
    graph_mib: Range
    persistent_state: bool
    measured: tuple[
        tuple[int, int], ...
    ]  # versions whose start-ups the constants were fitted to; others are assumed alike
    source: str


# Newest first. The constants of 0.17-0.19 come from one sweep of 24 text start-ups on an H100 (root mean square of
# what the peak's rule leaves: 0.007 GiB); older ones from eight logs; from 0.20 on few logs name their terms.
ERAS: tuple[Era, ...] = (
    Era(
        first=(0, 25),
        scratch=Range(expected=8.8, low=4.0, high=16.0),
        alone_gib=Range(expected=0.2, low=0.02, high=0.8),
        group_gib=Range(expected=0.8, low=0.1, high=2.3),
        peak_spread_gib=0.35,
        forward_high=2.0,
        graph_mib=Range(expected=0.25, low=0.0, high=1.3),
        persistent_state=True,
        measured=(),
        source="vLLM 0.33.0 gpu_worker.py and sampler, with three public logs of 0.26 to 0.31 that name their terms",
    ),
    # The second model runner, with its own sampler, is the default for dense models from 0.25 on (vLLM pull 44443).
    Era(
        first=(0, 20),
        scratch=Range(expected=12.5, low=4.0, high=16.0),
        alone_gib=Range(expected=0.25, low=0.02, high=0.8),
        group_gib=Range(expected=0.8, low=0.1, high=2.3),
        peak_spread_gib=0.35,
        forward_high=2.0,
        graph_mib=Range(expected=0.25, low=0.0, high=1.3),
        persistent_state=False,
        measured=(),
        source="as vLLM 0.19.0, whose sampler is the default until 0.25; groups and graphs as logged from 0.26 on",
    ),
    Era(
        first=(0, 17),
        scratch=Range(expected=12.5, low=12.2, high=12.8),
        alone_gib=Range(expected=0.25, low=0.05, high=0.47),
        group_gib=Range(expected=2.1, low=2.05, high=2.25),
        peak_spread_gib=0.03,
        forward_high=1.3,
        graph_mib=Range(expected=0.57, low=0.3, high=1.6),
        persistent_state=False,
        measured=((0, 17), (0, 19)),
        source="start-up logs of vLLM 0.19.0 on H100, llm-d planner accuracy sweep, 2026-04",
    ),
    Era(
        first=(0, 0),
        scratch=Range(expected=36.0, low=12.0, high=37.0),
        alone_gib=Range(expected=0.13, low=0.02, high=0.35),
        group_gib=Range(expected=0.55, low=0.25, high=2.2),
        peak_spread_gib=0.06,
        forward_high=1.3,
        graph_mib=Range(expected=0.3, low=0.0, high=1.3),
        persistent_state=False,
        measured=((0, 11), (0, 16)),
        source="start-up logs of vLLM 0.11.0 and 0.16.0 on H100, llm-d planner's empirical page, 2026",
    ),
)
# What lies outside vLLM's share: the CUDA context, and NCCL's first buffers where there are several GPUs.
# Source: init_non_torch of the same 0.19.0 logs: 0.51 GiB alone, 1.43 to 1.51 in groups.
CONTEXT_GIB = {False: Range(expected=0.51, low=0.3, high=0.6), True: Range(expected=1.5, low=0.6, high=1.6)}
PEAK_CONSTANT_GIB = 0.053  # what the sweep leaves after every term that scales


def era_of(version: str) -> Era:
    """The newest era that had begun by `version`."""
    release = release_of(version)
    return next(era for era in ERAS if release[:2] >= era.first)


def measured_parts(settings: VLLMSettings, model: Model, tokens: int, sequences: int) -> tuple[Part, ...]:
    """Activation peak, persistent sampler state, non-torch memory and CUDA graphs of one rank, inside vLLM's share.

    `tokens` is max_num_batched_tokens, `sequences` max_num_seqs, both as vLLM resolves them.
    """
    era = era_of(settings.version)
    # Stages talk over plain sends: two stages of the sweep lost no more than a GPU alone.
    outside = era.alone_gib if settings.tensor_parallel_size == 1 else era.group_gib
    parts = [
        activation_peak(settings, model, era, tokens, sequences),
        _part("non_torch", settings, outside, GIB, "tensor_parallel_size"),
    ]
    if era.persistent_state:
        # Output token counts in int32 and one bit a token, for every sequence slot (penalties).
        state = sequences * (model.vocab_size * 4 + -(-model.vocab_size // 32) * 4)
        parts.append(_part("sampler_state", settings, Range(expected=state, low=0, high=state), 1, "max_num_seqs"))
    if settings.has("subtracts_cuda_graphs") and not settings.enforce_eager:
        parts.append(cuda_graphs("cuda_graphs", settings, model, era, tokens, sequences))
    return tuple(parts)


def outside_parts(settings: VLLMSettings, model: Model, tokens: int, sequences: int) -> tuple[Part, ...]:
    """What must fit beside vLLM's share of one GPU: the CUDA context, and up to 0.19 the CUDA graphs."""
    era = era_of(settings.version)
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size * settings.data_parallel_size
    parts = [_part("cuda_context", settings, CONTEXT_GIB[ranks > 1], GIB, "")]
    if not settings.has("subtracts_cuda_graphs") and not settings.enforce_eager:
        parts.append(cuda_graphs("graphs_outside", settings, model, era, tokens, sequences))
    return tuple(parts)


def cuda_graphs(name: str, settings: VLLMSettings, model: Model, era: Era, tokens: int, sequences: int) -> Part:
    """Captured graphs: layers of one stage x captured batch sizes x what one of both takes."""
    steps = len(model.layers) * capture_sizes(tokens, sequences) // settings.pipeline_parallel_size
    return _part(name, settings, era.graph_mib, steps * MIB, "enforce_eager, max_num_seqs")


def activation_peak(settings: VLLMSettings, model: Model, era: Era, tokens: int, sequences: int) -> Part:
    """The profiling run's peak: max(a forward pass, the sampler over its hidden states), with the experts' workspaces.

    sampler = rows x vocabulary x (dtype + scratch) + tokens x hidden x dtype; forward = tokens x (3 ffn/tp + 6 hidden)
    x dtype, with all heads' width in place of a narrower ffn and MLA's unfolded latents; workspaces = tokens x top-k x
    (max(width, hidden) + max(2 width, hidden)) x dtype, width = expert/tp. An encoder's own pass may be larger than
    both, and its cache takes tokens x hidden x dtype.
    """
    tp = settings.tensor_parallel_size
    dtype = 4 if DTYPES[settings.dtype] == "F32" else 2  # "auto" serves a float32 checkpoint in 16 bits
    logits = min(sequences, tokens) * model.vocab_size
    hidden = tokens * model.hidden_size * dtype
    forward = tokens * (3 * widest(model) // tp + 6 * model.hidden_size) * dtype + latents_unfolded(model, tp, dtype)
    experts = expert_workspace(settings, model, tokens, dtype)
    pictures = loads_encoder(settings, model)
    encoder = encoder_pass(settings, model, tokens, sequences, dtype)
    beside = (budget_tokens(model, tokens) * model.hidden_size * dtype if pictures else 0) + PEAK_CONSTANT_GIB * GIB
    spread = era.peak_spread_gib * GIB

    def peak(scratch: float, passes: float = 1.0) -> float:
        language = max(forward * passes, logits * (dtype + scratch) + hidden) + experts
        return max(language, encoder * passes) + beside

    figures = Range(
        expected=peak(era.scratch.expected),
        # Kernels that split the batch need less for experts; few logs are bound by the forward pass.
        low=peak(era.scratch.low, 0.5) - spread - experts * 0.9,
        # Of encoders without a rule nothing is known but that the sweep's four left up to 0.15 GiB.
        high=peak(era.scratch.high, era.forward_high) + spread + (GIB // 2 if pictures else 0),
    )
    return _part("activation_peak", settings, figures, 1, "max_num_seqs, max_num_batched_tokens, limit_mm_per_prompt")


def widest(model: Model) -> int:
    """The widest array a layer makes of a token, besides routed experts: feed-forward, or all heads."""
    widths = [max(layer.ffn_dim, layer.shared_dim) for layer in model.layers]
    widths += [tensor.shape[0] for tensor in model.tensors if tensor.role == "attn_output" and not tensor.part]
    return max(widths, default=0)


def latents_unfolded(model: Model, tensor_parallel: int, dtype: int) -> int:
    """Keys and values MLA makes of the latents of a prefill's earlier chunks, at most 64k tokens at once.

    Source: vLLM 0.33.0 mla_attention.py, which allocates them in the profiling run; sparse attention unfolds none.
    """
    if any(cache.kind == "indexer" for cache in model.caches()):
        return 0
    widths = [tensor.shape[-1] for tensor in model.tensors if tensor.role == "attn_kv_b" and not tensor.part]
    return 64 * 1024 * max(widths, default=0) // tensor_parallel * dtype


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


def capture_sizes(tokens: int, sequences: int) -> int:
    """How many batch sizes are captured: 1, 2, 4, every 8 to 256, every 16 to twice the sequences, at most 512."""
    top = min(2 * sequences, 512, tokens)
    return sum(size <= top for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)))


def _part(name: str, settings: VLLMSettings, figures: Range, unit: int, moved_by: str) -> Part:
    era = era_of(settings.version)
    evidence: Evidence = "fitted" if release_of(settings.version)[:2] in era.measured else "assumed"
    return Part(
        name=name, bytes=round(figures.expected * unit), low=max(0, round(figures.low * unit)),
        high=round(figures.high * unit), evidence=evidence, source=era.source, moved_by=moved_by,
    )  # fmt: skip
