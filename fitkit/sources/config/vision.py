"""Vision and audio towers by the name their config gives them: what each holds, and how vLLM cuts it. Registered by model_type.

A tower's blocks are one group of `count` equal tensors each: their numbers are not the text model's layers. Roles are
llama.cpp's mmproj names (`v.attn_q`, `mm.0`). Sources: the towers' own modelling code; checked against published totals
and the parameter bytes of vLLM 0.33.0's modules at one and two ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fitkit.errors import UnknownName, UnsupportedModel, short
from fitkit.sources.config.build import Build
from fitkit.sources.config.view import MOST_LAYERS, Config

Reader = Callable[["Tower", Config], int]  # returns the width that a projector sees
TOWERS: dict[str, Reader] = {}


@dataclass(slots=True, kw_only=True)
class Tower:
    """Adds tensors of one part to a build; `module` is the path before every name, `prefix` the roles' first letter."""

    build: Build
    part: str = "vision"
    module: str = ""
    prefix: str = "v."
    blocks: int = 1
    whole: bool = False  # kept whole on every rank

    def add(
        self, role: str, shape: Sequence[int], name: str = "", *, shard: str = "replicated", count: int = 1
    ) -> None:
        """`count` tensors; a tower kept whole is replicated whatever `shard` says."""
        cut = "replicated" if self.whole else shard
        self.build.add(
            self.prefix + role, shape, module=self.module + (name or role), part=self.part, shard=cut, count=count
        )

    def linear(
        self,
        role: str,
        n_in: int,
        n_out: int,
        name: str,
        *,
        bias: bool = True,
        shard: str = "replicated",
        count: int = 1,
    ) -> None:
        """A linear layer; a bias is cut with a column and whole on every rank of a row."""
        self.add(role, (n_in, n_out), name, shard=shard, count=count)
        if bias:
            self.add(f"{role}.bias", (n_out,), name, shard=shard if shard == "column" else "replicated", count=count)

    def norm(self, role: str, width: int, name: str = "", *, bias: bool = True, count: int = 1) -> None:
        """A layer norm, or an RMS norm without `bias`."""
        self.add(role, (width,), name, count=count)
        if bias:
            self.add(f"{role}.bias", (width,), name, count=count)

    def layers(
        self,
        hidden: int,
        ffn: int,
        *,
        attention: Sequence[str] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
        mlp: Sequence[str] = ("mlp.fc1", "mlp.fc2"),
        norms: Sequence[str] = ("layer_norm1", "layer_norm2"),
        inner: int = 0,
        bias: bool = True,
        mlp_bias: bool = True,
        norm_bias: bool = True,
    ) -> None:
        """All blocks: attention of `inner` width (hidden unless said) by four names or two (one for q, k and v), feed-forward by two or three (gate first), norms."""
        n, inner = self.blocks, inner or hidden
        *inputs, out = attention
        for role, name in zip(
            ("attn_qkv",) if len(inputs) == 1 else ("attn_q", "attn_k", "attn_v"), inputs, strict=True
        ):
            self.linear(role, hidden, 3 * inner // len(inputs), name, bias=bias, shard="column", count=n)
        self.linear("attn_out", inner, hidden, out, bias=bias, shard="row", count=n)
        for role, name in zip(("ffn_gate", "ffn_up") if len(mlp) == 3 else ("ffn_up",), mlp, strict=False):
            self.linear(role, hidden, ffn, name, bias=mlp_bias, shard="column", count=n)
        self.linear("ffn_down", ffn, hidden, mlp[-1], bias=mlp_bias, shard="row", count=n)
        for number, name in enumerate(norms, 1):
            self.norm(f"ln{number}", hidden, name, bias=norm_bias, count=n)


def tower(*model_types: str) -> Callable[[Reader], Reader]:
    """Register a tower's reader."""

    def register(function: Reader) -> Reader:
        for name in model_types:
            TOWERS[name] = function
        return function

    return register


def read_tower(build: Build, config: Config, module: str, default: str = "") -> int:
    """Add the tower that `config` (a vision_config) names; the width its projector sees.

    Raises UnsupportedModel for a tower nobody has described.
    """
    from fitkit.sources.config import merging_towers, towers  # noqa: F401  (they fill TOWERS)

    name = config.text("model_type", default=default) or default
    reader = TOWERS.get(name)
    if reader is None:
        near = UnknownName.among("vision tower", name, TOWERS).nearest
        raise UnsupportedModel(
            f"{config.place}: the vision tower {short(name)} is not modelled"
            f"{'; the nearest known are ' + ', '.join(near) if near else ''}. It needs one function in fitkit/sources/config/towers.py."
        )
    blocks = config.whole(
        "num_hidden_layers",
        "depth",
        "layers",
        "vt_num_hidden_layers",
        default=34 if name == "llama4_vision_model" else 24,
        high=MOST_LAYERS,
    )
    return reader(Tower(build=build, module=module, blocks=blocks), config)


def side(config: Config, key: str, default: int) -> int:
    """A side's length, also where the file gives a [height, width] of two equal ones."""
    said = config.raw(key)
    if isinstance(said, list | tuple) and len(said) == 2 and said[0] == said[1]:
        said = said[0]
    return Config({} if said is None else {key: said}, config.place).whole(key, default=default)


def grid(config: Config, image: int, patch: int) -> int:
    """Patches of one square picture."""
    return (side(config, "image_size", image) // side(config, "patch_size", patch)) ** 2


def pixels(config: Config, patch: int) -> int:
    """Values of one patch: channels x side x side."""
    channels = config.whole("num_channels", "in_channels", "in_chans", default=3)
    return channels * side(config, "patch_size", patch) ** 2
