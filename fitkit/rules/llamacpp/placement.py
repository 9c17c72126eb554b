"""Which buffer each weight lands in: CPU, CPU_Mapped, CPU_REPACK, GPU_Host, GPU0, GPU1, ..."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

from fitkit.model import Tensor
from fitkit.rules.llamacpp.cache import GPU_ALIGNMENT, GPU_ROW, HOST_ALIGNMENT
from fitkit.rules.llamacpp.loaded import Loaded
from fitkit.rules.llamacpp.rows import block_of, row_bytes
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.llamacpp.split import HOST, Split

# Read on the host, whatever is offloaded. Source: llama.cpp b11434, llama-arch.cpp, LLM_TENSOR_LAYER_INPUT.
INPUT_ROLES = frozenset({"token_embd", "position_embd", "token_types", "per_layer_token_embd"})
# With the output layer's device (LLM_TENSOR_LAYER_OUTPUT); other model-wide tensors go with block 0.
OUTPUT_ROLES = frozenset({
    "output", "output_norm", "cls", "cls.output", "cls.norm", "dense_2", "dense_3", "token_embd_norm_2", "dec.output_norm",
    "enc.output_norm", "output_hc_fn", "output_hc_base", "output_hc_scale", "altup_proj", "altup_unembd_proj",
})  # fmt: skip
# One copy on every device that holds blocks.
ROTARY_ROLES = frozenset({"rope_freqs", "rope_factors_long", "rope_factors_short"})
# x86 with AVX2 and AVX-512: weights copied into an interleaved layout. Source: ggml-cpu/repack.cpp.
REPACKED = frozenset({"Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4"})
# LFM2 names its output norm after the embeddings; llama-arch.cpp, LLM_TENSOR_OUTPUT_NORM_LFM2.
OUTPUT_NORM = {"lfm2": "token_embd_norm", "lfm2moe": "token_embd_norm"}
# The table itself is multiplied with, wherever it lies.
HEAD_NEVER = frozenset({"bitnet"})
# Their output is made from the embedding table before the table itself is asked for, so a tied head is always a copy.
HEAD_FIRST = frozenset({"gemma3n", "gemma4"})


# Weights of prediction blocks that are loaded though those blocks are not: the engine forgets to leave them out.
# Source: llama.cpp b11434, src/models/*.cpp: created without mtp_flags.
_FEED_FORWARD = (
    "ffn_gate", "ffn_down", "ffn_up", "ffn_gate_inp", "ffn_gate_exps", "ffn_down_exps", "ffn_up_exps", "ffn_gate_up_exps",
    "exp_probs_b", "exp_probs_b.bias", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
)  # fmt: skip
_NEXT_HEAD = ("nextn.embed_tokens", "nextn.shared_head_head", "nextn.shared_head_norm")
LOADED_AHEAD: dict[str, frozenset[str]] = {
    "cohere2moe": frozenset(_NEXT_HEAD), "deepseek32": frozenset(("exp_probs_b.bias",)), "glm-dsa": frozenset(("exp_probs_b.bias",)),
    "hy_v3": frozenset((*_FEED_FORWARD, *_NEXT_HEAD)),
    "step35": frozenset((*_FEED_FORWARD, *_NEXT_HEAD, "attn_q_norm", "attn_k_norm", "attn_gate")),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weight:
    """A stored tensor: role, shape and ggml type."""

    role: str
    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        """Bytes without padding."""
        rows = 1
        for extent in self.shape[1:]:
            rows *= extent
        return row_bytes(self.kind, self.shape[0]) * rows


def weight_of(tensor: Tensor) -> Weight:
    """One of a group of equal tensors."""
    return Weight(tensor.role, tensor.shape, tensor.dtype or "F32")


def is_loaded(tensor: Tensor, arch: str) -> bool:
    """Whether llama.cpp loads it: no towers, of prediction blocks only what the engine does not leave out."""
    return not tensor.part or (tensor.part == "mtp" and tensor.role in LOADED_AHEAD.get(arch, ()))


@lru_cache(maxsize=4096)
def unread_bytes(what: Loaded) -> int:
    """Bytes of the file's tensors that are not loaded: prediction blocks, there for a draft of the model's own."""
    arch = what.model.gguf_architecture
    unread = [tensor for tensor in what.tensors if tensor.part == "mtp" and not is_loaded(tensor, arch)]
    return sum(weight_of(tensor).size * tensor.copies for tensor in unread)


def is_expert(role: str) -> bool:
    """Whether `cpu_moe` keeps this weight on the host (its pattern is ffn_(up|down|gate|gate_up)_(ch|)exps)."""
    name = role.partition(".")[0]
    return name.startswith("ffn_") and name.endswith(("_exps", "_chexps"))


@lru_cache(maxsize=4096)
def model_bytes(what: Loaded, settings: LlamaCppSettings, placed: Split) -> dict[str, int]:
    """Bytes of the model's tensors in each buffer, by its name in the log; a tied head's copy is `head_copy`.

    Source: llama.cpp b11434, llama-model.cpp (load_tensors) and llama-model-loader.cpp (create_tensor).
    """
    total: dict[str, int] = defaultdict(int)
    arch = what.model.gguf_architecture
    for tensor in what.tensors:
        if not is_loaded(tensor, arch):
            continue
        weight = weight_of(tensor)
        blocks = tensor.layers or (-1,)
        where = Counter(device for block in blocks for device in _devices(tensor.role, block, arch, settings, placed))
        for device, many in where.items():
            total[_buffer(weight, device, settings, placed)] += _padded(weight, device) * many * tensor.count
    return dict(total)


def _devices(role: str, block: int, arch: str, settings: LlamaCppSettings, placed: Split) -> tuple[int, ...]:
    if role in INPUT_ROLES:
        return (HOST,)
    if role in ROTARY_ROLES:
        return tuple(dict.fromkeys(placed.blocks))
    if block < 0:
        last = role.partition(".")[0] in OUTPUT_ROLES or role == OUTPUT_NORM.get(arch)
        return (placed.output if last else placed.blocks[0],)
    if (settings.cpu_moe or block < settings.n_cpu_moe) and is_expert(role):
        return (HOST,)
    return (placed.blocks[block],)


def _buffer(weight: Weight, device: int, settings: LlamaCppSettings, placed: Split) -> str:
    if device != HOST:
        return f"GPU{device}"
    if placed.devices:
        return "CPU_Mapped" if settings.mmap else "GPU_Host"
    if settings.repack and is_repacked(weight):
        return "CPU_REPACK"
    return "CPU_Mapped" if settings.mmap else "CPU"


def is_repacked(weight: Weight) -> bool:
    """Whether the CPU backend copies this weight: a matrix of a repackable type whose rows come in eights."""
    if weight.kind not in REPACKED or weight.role in INPUT_ROLES or weight.role.endswith((".bias", ".scale")):
        return False
    dimensions = len(weight.shape)
    matrix = dimensions == 2 or (dimensions == 3 and "_exps" in weight.role)
    return matrix and weight.shape[1] % 8 == 0


def _padded(weight: Weight, device: int) -> int:
    size, alignment = weight.size, HOST_ALIGNMENT
    if device != HOST:
        alignment = GPU_ALIGNMENT
        if block_of(weight.kind) > 1 and weight.shape[0] % GPU_ROW:
            size += row_bytes(weight.kind, GPU_ROW - weight.shape[0] % GPU_ROW)
    return -(-size // alignment) * alignment


@lru_cache(maxsize=4096)
def head_copy(what: Loaded, settings: LlamaCppSettings, placed: Split) -> tuple[str, int] | None:
    """A tied head is the embedding table once more wherever it does not lie in the same buffer: which buffer, bytes."""
    arch = what.model.gguf_architecture
    if arch in HEAD_NEVER or any(tensor.role == "output" and not tensor.part for tensor in what.tensors):
        return None
    for tensor in what.tensors:
        if tensor.role != "token_embd" or tensor.part:
            continue
        weight = weight_of(tensor)
        head = Weight("output", weight.shape, weight.kind)
        here = _buffer(weight, HOST, settings, placed)
        there = _buffer(head, placed.output, settings, placed)
        again = arch in HEAD_FIRST and there != "CPU_Mapped"
        if there != here or again:
            return there, _padded(head, placed.output)
    return None
