"""Collects a model's tensors and layers while a family function walks its config. Roles are GGUF's words (see model.Tensor)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fitkit.errors import BadInput
from fitkit.model import Cache, Layer, Tensor
from fitkit.sources.config.view import MOST_LAYERS


@dataclass(slots=True)
class Build:
    """A model under construction: `n` layers, none of them filled yet.

    `modules` keeps for each tensor the checkpoint's module name (`model.layers.{}.self_attn.q_proj`), which quantization
    configs and safetensors headers speak of.
    """

    n: int
    tensors: list[Tensor] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    caches: list[list[Cache]] = field(default_factory=list)
    widths: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.n > 2 * MOST_LAYERS:
            raise BadInput(f"{self.n:,} layers are more than any model has.")
        self.caches = [[] for _ in range(self.n)]
        self.widths = [{} for _ in range(self.n)]

    @property
    def all(self) -> range:
        """Every layer's number."""
        return range(self.n)

    def add(
        self,
        role: str,
        shape: Sequence[int],
        layers: Iterable[int] | None = None,
        *,
        module: str = "",
        count: int = 1,
        **rest: Any,
    ) -> None:
        """One tensor in each of `layers` (None: one for the whole model). Empty layers or a zero size add nothing."""
        numbers = () if layers is None else tuple(layers)
        if (layers is not None and not numbers) or 0 in shape or count == 0:
            return
        self.tensors.append(Tensor(role=role, shape=tuple(shape), layers=numbers, count=count, **rest))
        self.modules.append(module)

    def keep(self, cache: Cache, layers: Iterable[int]) -> None:
        """Each of `layers` keeps `cache`."""
        for layer in layers:
            self.caches[layer].append(cache)

    def wide(self, layers: Iterable[int], **widths: int) -> None:
        """Each of `layers` has these widths (fields of model.Layer)."""
        for layer in layers:
            self.widths[layer].update(widths)

    def take(self, other: Build, *, part: str) -> None:
        """The tensors of another build as `part` of this one; its caches are not kept."""
        for tensor, module in zip(other.tensors, other.modules, strict=True):
            self.tensors.append(replace(tensor, part=part))
            self.modules.append(module)

    def layers(self) -> tuple[Layer, ...]:
        """The finished layers; equal ones are one object."""
        seen: dict[Layer, Layer] = {}
        done = (Layer(caches=tuple(kept), **widths) for kept, widths in zip(self.caches, self.widths, strict=True))
        return tuple(seen.setdefault(layer, layer) for layer in done)

    # ---- the parts most families share --------------------------------------------------------------------------------

    def embeddings(self, vocab: int, hidden: int, *, tied: bool, prefix: str = "model.", head: str = "lm_head") -> None:
        """Token table, final norm, and the head where it is not the table itself."""
        self.add("token_embd", (hidden, vocab), module=f"{prefix}embed_tokens")
        self.add("output_norm", (hidden,), module=f"{prefix}norm")
        if not tied:
            self.add("output", (hidden, vocab), module=head)

    def attention(
        self,
        layers: Iterable[int],
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        v_dim: int = 0,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: Sequence[int] = (),
        module: str = "model.layers.{}.self_attn.",
        gate: bool = False,
    ) -> None:
        """Projections q, k, v and o; `bias` on q, k, v; `qk_norm` the widths of the q and k norms; `gate` doubles q for an output gate."""
        if kv_heads and heads % kv_heads:
            raise BadInput(f"{heads} attention heads cannot share {kv_heads} key/value heads evenly.")
        layers = tuple(layers)
        v_dim = v_dim or head_dim
        q_out = heads * head_dim * (2 if gate else 1)
        for role, name, n_in, n_out in (
            ("attn_q", "q_proj", hidden, q_out),
            ("attn_k", "k_proj", hidden, kv_heads * head_dim),
            ("attn_v", "v_proj", hidden, kv_heads * v_dim),
            ("attn_output", "o_proj", heads * v_dim, hidden),
        ):
            self.add(role, (n_in, n_out), layers, module=module + name)
            if out_bias if role == "attn_output" else bias:
                self.add(f"{role}.bias", (n_out,), layers, module=module + name)
        for role, width in zip(("attn_q_norm", "attn_k_norm"), qk_norm, strict=False):
            self.add(role, (width,), layers, module=module + role.removeprefix("attn_"))
        self.wide(layers, heads=heads)

    def feed_forward(
        self,
        layers: Iterable[int],
        hidden: int,
        ffn_dim: int,
        *,
        gated: bool = True,
        bias: bool = False,
        module: str = "model.layers.{}.mlp.",
    ) -> None:
        """A dense feed-forward: gate (where gated), up, down."""
        layers = tuple(layers)
        parts = [("ffn_up", "up_proj", hidden, ffn_dim), ("ffn_down", "down_proj", ffn_dim, hidden)]
        if gated:
            parts.insert(0, ("ffn_gate", "gate_proj", hidden, ffn_dim))
        for role, name, n_in, n_out in parts:
            self.add(role, (n_in, n_out), layers, module=module + name)
            if bias:
                self.add(f"{role}.bias", (n_out,), layers, module=module + name)
        self.wide(layers, ffn_dim=ffn_dim)

    def experts(
        self,
        layers: Iterable[int],
        hidden: int,
        experts: int,
        used: int,
        expert_dim: int,
        *,
        shared_dim: int = 0,
        gated: bool = True,
        module: str = "model.layers.{}.mlp.",
        router: str = "gate",
        shared: str = "shared_experts.",
    ) -> None:
        """Routed experts (stacked: in, out, experts) with their router, and shared experts as one feed-forward of `shared_dim`."""
        layers = tuple(layers)
        self.add("ffn_gate_inp", (hidden, experts), layers, module=module + router)
        parts = [("ffn_up", "up_proj", hidden, expert_dim), ("ffn_down", "down_proj", expert_dim, hidden)]
        if gated:
            parts.insert(0, ("ffn_gate", "gate_proj", hidden, expert_dim))
        for role, name, n_in, n_out in parts:
            self.add(f"{role}_exps", (n_in, n_out, experts), layers, module=f"{module}experts.*.{name}")
        if shared_dim:
            parts = [("ffn_up", "up_proj", hidden, shared_dim), ("ffn_down", "down_proj", shared_dim, hidden)]
            if gated:
                parts.insert(0, ("ffn_gate", "gate_proj", hidden, shared_dim))
            for role, name, n_in, n_out in parts:
                self.add(f"{role}_shexp", (n_in, n_out), layers, module=module + shared + name)
        self.wide(layers, experts=experts, experts_used=used, expert_dim=expert_dim, shared_dim=shared_dim)

    def norms(
        self, layers: Iterable[int], hidden: int, *roles: str, bias: bool = False, module: str = "model.layers.{}."
    ) -> None:
        """RMS or layer norms of one width each; the module names are the roles' own (told apart nowhere: norms are never quantized)."""
        layers = tuple(layers)
        for role in roles:
            self.add(role, (hidden,), layers, module=module + role)
            if bias:
                self.add(f"{role}.bias", (hidden,), layers, module=module + role)
