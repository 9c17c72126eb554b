"""Parameter bytes of one rank, as vLLM's modules are built: every tensor cut by its role, then packed in its format.

Source: vLLM 0.33.0's model classes; sizes are those before a kernel repacks weights after loading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fitkit.errors import UnsupportedModel
from fitkit.model import Model, Tensor
from fitkit.packing import Format, loaded_bytes
from fitkit.rules.vllm import families
from fitkit.rules.vllm.cuts import BUFFERS, CUTS, PLAIN_ROLES, VOCAB_PAD, WHOLE
from fitkit.rules.vllm.device import Device
from fitkit.rules.vllm.packed import EngineRefuses, fused_scalars, whole_groups
from fitkit.rules.vllm.pages import local_heads
from fitkit.rules.vllm.pipeline import stages
from fitkit.rules.vllm.settings import DTYPES, VLLMSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How the model is spread: `experts` ranks share the routed experts, whole ones where `whole_experts`."""

    tp: int
    experts: int
    whole_experts: bool


def stage_weights(settings: VLLMSettings, model: Model, device: Device) -> tuple[int, ...]:
    """Bytes of the fullest rank of each pipeline stage."""
    ranks = Ranks(
        tp=settings.tensor_parallel_size,
        experts=settings.tensor_parallel_size * settings.data_parallel_size,
        whole_experts=settings.enable_expert_parallel,
    )
    cutter = Cutter(settings, model, device, ranks)
    layers = stages(len(model.layers), settings.pipeline_parallel_size)
    return tuple(
        sum(
            cutter.bytes_of(tensor) * cutter.count(tensor, stage, len(layers), layers[stage])
            for tensor in model.tensors
        )
        + cutter.attention_scales(layers[stage])
        + cutter.padding(layers[stage])
        for stage in range(len(layers))
    )


class Cutter:
    """Cuts one model's tensors for one rank; equal tensors are worked out once."""

    def __init__(self, settings: VLLMSettings, model: Model, device: Device, ranks: Ranks) -> None:
        self.model, self.device, self.ranks = model, device, ranks
        self.formats: Mapping[str, Format] = {form.name: form for form in model.get("formats", ())}
        self.element = 4 if DTYPES[settings.dtype] == "F32" else 2
        self.encoder = not families.encoder_left_out(settings)
        self.packed = any(cache.kind == "compressed" for cache in model.caches())
        self.expert_pad = families.expert_padding(model, device)
        with_v = {layer for tensor in model.tensors if tensor.role == "attn_v" for layer in tensor.layers}
        self.k_is_v = {i for i, layer in enumerate(model.layers) if any(c.v_dim for c in layer.caches)} - with_v

    def count(self, tensor: Tensor, stage: int, last: int, layers: range) -> int:
        """How many of `tensor` the rank of `stage` has; `last` is how many stages there are."""
        if tensor.part == "mtp" or (tensor.part and not self.encoder):
            return 0
        if tensor.role in BUFFERS:
            return 0
        if tensor.layers and not tensor.part:
            return tensor.count * sum(self._has(tensor, layer) for layer in tensor.layers if layer in layers)
        if tensor.part:
            return tensor.copies if families.encoder_on_stage(self.model, stage) else 0
        return tensor.count if stage in families.stages_with(self.model, tensor.role, last) else 0

    def _has(self, tensor: Tensor, layer: int) -> int:
        """How many times vLLM builds the tensor in a layer: a K that is V too has both, a layer may take another's K and V."""
        if tensor.role not in ("attn_k", "attn_v", "attn_k_norm"):
            return 1
        if self.model.family in families.NO_KV_WHERE_SHARED and not self.model.layers[layer].caches:
            return 0
        return 2 if tensor.role == "attn_k" and layer in self.k_is_v else 1

    def bytes_of(self, tensor: Tensor) -> int:
        """Bytes of one `tensor` on one rank."""
        shape = self.shape_of(tensor)
        role = tensor.role
        form = self._format(tensor)
        if form is not None:
            if role.endswith("_exps"):
                form = whole_groups(form, self._expert_width_of(tensor), self.model.name)
            elif self.ranks.tp > 1 and not tensor.part:
                self._check_groups(tensor, shape, form)
            return loaded_bytes(role, shape, form) + fused_scalars(role, form)
        if role == "altup_correct_scale" or (role == "ffn_gate_inp" and families.router_in_32_bits(self.model)):
            return math.prod(shape) * 4
        return math.prod(shape) * {"F32": 4, "I32": 4, "I64": 8, "BF16": 2, "F16": 2}.get(tensor.dtype, self.element)

    def _check_groups(self, tensor: Tensor, shape: tuple[int, ...], form: Format) -> None:
        """VLLM's linear layers do not start where a rank's inputs cut through a group of weights that share a scale."""
        if form.group > 1 and shape[0] != tensor.shape[0] and shape[0] % form.group:
            raise EngineRefuses(
                f"{self.model.name}: {form.quant} with groups of {form.group} cannot be cut for tensor_parallel_size "
                f"{self.ranks.tp}: {tensor.role} would have {shape[0]} inputs a rank."
            )

    def _format(self, tensor: Tensor) -> Format | None:
        """How vLLM packs it: as stored, but for modules it builds without the checkpoint's method."""
        form = self.formats.get(tensor.dtype)
        if form is None or not form.quant or tensor.role in PLAIN_ROLES:
            return None
        if form.name.startswith("mxfp4") and not tensor.role.endswith("_exps"):
            return None  # vLLM's MXFP4 method knows experts only
        return None if tensor.part and self.model.family in families.PLAIN_ENCODERS else form

    def attention_scales(self, layers: range) -> int:
        """What the checkpoint's quantization method adds to each attention layer (scales of q, k, v and so on).

        Only ModelOpt's method (here: NVFP4) adds them to MLA too.
        """
        form = max(self.formats.values(), key=lambda form: form.attention_bytes, default=None)
        if form is None:
            return 0
        if self.packed:
            return 0  # compressed attention is MLA too
        kinds = ["full", "sliding", "chunked", *(["latent"] if form.quant == "NVFP4" else [])]
        return form.attention_bytes * sum(any(c.kind in kinds for c in self.model.layers[i].caches) for i in layers)

    def padding(self, layers: range) -> int:
        """Rows a fused projection is padded by: Kimi-K3's delta attention to a multiple of 16 outputs a rank."""
        total = 0
        if self.model.family in families.PADDED_KDA:
            for layer in layers:
                for cache in self.model.layers[layer].caches:
                    if cache.variant == "kda":
                        heads = cache.heads // self.ranks.tp
                        rows = 4 * heads * cache.head_dim + cache.head_dim + heads
                        total += -rows % 16 * self.model.hidden_size * self.element
        return total

    def shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape one rank holds."""
        role, bias = tensor.role.removesuffix(".bias"), tensor.role.endswith(".bias")
        if tensor.part:
            return self._part_shape(tensor)
        cut = self._cut(tensor, role)
        shape, tp = tensor.shape, self.ranks.tp
        if role.endswith("_exps"):
            return self._expert_shape(tensor, bias)
        if role == "ssm_norm" and self._state_variant(tensor) == "mamba2":
            cut = "heads"  # over all channels; the other kinds' norm is one head's
        if role == "attn_sinks" and self.packed:
            return shape  # DeepSeek-V4's kernel takes all heads' sinks
        if cut == "replicated" or (tp == 1 and cut != "vocab"):
            return shape
        if cut == "vocab":
            padded = -(-shape[-1] // VOCAB_PAD) * VOCAB_PAD
            return (*shape[:-1], padded // tp)
        if cut == "row":
            return shape if bias else (self._split(tensor, shape[0]), *shape[1:])
        if len(shape) == 3:  # stacked equal matrices
            return (shape[0], self._split(tensor, shape[1]), shape[2])
        if cut == "kv":
            return (*shape[:-1], self._kv(tensor))
        if cut == "qkv":
            return (*shape[:-1], self._qkv(tensor))
        if cut in ("ssm_in", "conv"):
            return (*shape[:-1], self._with_groups(tensor))
        return (*shape[:-1], self._split(tensor, shape[-1]))

    def _cut(self, tensor: Tensor, role: str) -> str:
        """How the role is cut; a role nobody looked at is refused where it would matter."""
        if role in ("attn_q_norm", "attn_k_norm") and self.model.family in families.CUT_QK_NORMS:
            return "kv" if role == "attn_k_norm" else "heads"
        cut = tensor.shard or CUTS.get(role, "")
        if not cut and role not in WHOLE and self.ranks.tp > 1 and not role.endswith("_exps"):
            raise UnsupportedModel(
                f"{self.model.name}: how vLLM's tensor parallelism cuts {tensor.role} is not known; one rank is modelled."
            )
        return cut or "replicated"

    def _split(self, tensor: Tensor, size: int) -> int:
        if size % self.ranks.tp:
            raise UnsupportedModel(
                f"{self.model.name}: {tensor.role} of width {size} is not divisible by tensor_parallel_size {self.ranks.tp}."
            )
        return size // self.ranks.tp

    def _state_variant(self, tensor: Tensor) -> str:
        caches = (cache for layer in tensor.layers for cache in self.model.layers[layer].caches)
        return next((cache.variant for cache in caches if cache.kind == "state"), "")

    def _kv(self, tensor: Tensor) -> int:
        """KV heads of one rank, replicated past their count; layers that share another's cache have its heads."""
        caches = [cache for layer in tensor.layers for cache in self.model.layers[layer].caches]
        heads = next((cache.kv_heads for cache in caches if cache.kv_heads), 0)
        if not heads and any(cache.kind == "state" for cache in caches):
            return self._split(tensor, tensor.shape[-1])  # a linear attention's keys and values
        heads = heads or self.model.kv_heads or 1
        return tensor.shape[-1] // heads * local_heads(heads, self.ranks.tp)

    def _qkv(self, tensor: Tensor) -> int:
        first = self.model.layers[tensor.layers[0]]
        attention = [cache for cache in first.caches if cache.kv_heads]
        if not attention:
            return self._split(tensor, tensor.shape[-1])
        kv = attention[0].kv_heads
        heads = tensor.shape[-1] // attention[0].k_dim - 2 * kv
        return attention[0].k_dim * (heads // self.ranks.tp + 2 * local_heads(kv, self.ranks.tp))

    def _with_groups(self, tensor: Tensor) -> int:
        """Mamba-2's projections: groups that do not divide are repeated until each rank has one."""
        state = next((c for i in tensor.layers for c in self.model.layers[i].caches if c.kind == "state"), None)
        size, tp = tensor.shape[-1], self.ranks.tp
        if state is not None and state.variant == "mamba2" and state.groups % tp:
            size += 2 * (tp - state.groups) * state.state_dim
        return self._split(tensor, size)

    def _expert_shape(self, tensor: Tensor, bias: bool) -> tuple[int, ...]:
        *rest, experts = tensor.shape
        ranks = self.ranks
        down = tensor.role.startswith("ffn_down")
        if ranks.whole_experts:
            experts = -(-experts // ranks.experts)
            each = 1
        else:
            each = ranks.experts
        if bias:
            width = rest[0] if down else self._expert_width(rest[0], each)
            return (self._expert_hidden(width) if down else width, experts)
        n_in, n_out = rest
        if down:
            return (self._expert_width(n_in, each), self._expert_hidden(n_out), experts)
        return (self._expert_hidden(n_in), self._expert_width(n_out, each), experts)

    def _expert_width_of(self, tensor: Tensor) -> int:
        """Width of a rank's part of one expert."""
        width = tensor.shape[0 if tensor.role.startswith("ffn_down") else 1]
        return self._expert_width(width, 1 if self.ranks.whole_experts else self.ranks.experts)

    def _expert_width(self, width: int, ranks: int) -> int:
        if ranks > 1:
            width = max(width, ranks * families.LEAST_EXPERT_WIDTH.get(self.model.family, 0))
        if width % ranks and not self.expert_pad:
            raise UnsupportedModel(f"{self.model.name}: experts of width {width} cannot be cut for {ranks} ranks.")
        width = -(-width // ranks)
        pad = self.expert_pad[0] if self.expert_pad else 1
        return -(-width // pad) * pad

    def _expert_hidden(self, hidden: int) -> int:
        pad = self.expert_pad[1] if self.expert_pad else 1
        return -(-hidden // pad) * pad

    def _part_shape(self, tensor: Tensor) -> tuple[int, ...]:
        tp = self.ranks.tp
        cut = "" if families.encoder_is_whole(self.model, tp) else tensor.shard
        if not cut or cut == "replicated" or tp == 1:
            return tensor.shape
        bias = tensor.role.endswith(".bias")
        if cut == "row":
            return tensor.shape if bias else (self._split(tensor, tensor.shape[0]), *tensor.shape[1:])
        return (*tensor.shape[:-1], self._split(tensor, tensor.shape[-1]))
