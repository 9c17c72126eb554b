"""Models that also read pictures or sound: the text model's own function over the text part, beside it the tower and the projector.

`part` tells them apart: "" the language model, vision, audio, projector. What a published checkpoint holds and no engine
loads is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fitkit.errors import BadInput, UnknownName, UnsupportedModel, short
from fitkit.sources.config import ARCHITECTURES, FAMILIES, Shape, family
from fitkit.sources.config.build import Build
from fitkit.sources.config.view import Config
from fitkit.sources.config.vision import Tower, read_tower


def text_part(
    config: Config,
    *keys: str,
    default: str = "",
    prefix: str = "model.language_model.",
    silent: Mapping[str, Any] = MappingProxyType({}),
    instead: Mapping[str, Any] = MappingProxyType({}),
) -> Shape:
    """The text model's shape, from the first of `keys` that is there (none: from the config itself); `prefix` replaces "model." before its modules.

    A head tied at the top is tied in the text part, whose own config may be silent; `silent` are other values that hold
    where it says nothing, `instead` those that hold whatever it says.
    """
    key = next((key for key in keys if key in config), "")
    said = config.mapping.get(key)
    also = {name: value for name, value in silent.items() if isinstance(said, Mapping) and said.get(name) is None}
    if "tie_word_embeddings" in config:
        also["tie_word_embeddings"] = config.flag("tie_word_embeddings")
    also.update(instead)
    text = config.view(key, **also) if key else config
    if text is None:
        raise BadInput(f"{config.place} has none of {', '.join(keys)}, which this model's family needs.")
    model_type = text.text("model_type", default="") if key else default
    named = text.entries("architectures", default=()) if key else ()
    architecture = named[0] if named and isinstance(named[0], str) else ""
    function = FAMILIES.get(model_type or default) or ARCHITECTURES.get(architecture)
    if function is None:
        near = UnknownName.among("model_type", model_type or default, FAMILIES).nearest
        raise UnsupportedModel(
            f"{text.place}: the text model {short(model_type or architecture or default)} is not modelled"
            f"{'; the nearest known are ' + ', '.join(near) if near else ''}."
        )
    shape = function(text)
    build = shape.build
    build.modules = [
        prefix + name.removeprefix("model.") if name.startswith("model.") else name for name in build.modules
    ]
    return shape


def vision_part(config: Config, shape: Shape, module: str, *, default: str = "", key: str = "vision_config") -> int:
    """Add the tower under `key`; the width its projector sees."""
    vision = config.view(key)
    if vision is None:
        raise BadInput(f"{config.place} has no {key}, which this model's family needs.")
    return read_tower(shape.build, vision, module, default)


def projector(build: Build, module: str) -> Tower:
    """Collects a projector's tensors; replicated on every rank unless said otherwise."""
    return Tower(build=build, part="projector", module=module, prefix="mm.")


_UNMODELLED = {
    "mllama": "its cross-attention layers keep states of the picture that no current engine rule counts (vLLM dropped it before 0.33)",
    "multi_modality": "it also draws pictures, with a decoder of its own that is not described",
    "inkling_mm_model": "its hierarchical vision encoder is not described",
    "deepseek_v41": "neither its text model nor its tower is described",
    "qwen2_5_omni": "its speech parts (talker, token2wav) are not described",
}


def _refuse(config: Config) -> Shape:
    """Say by name what is missing."""
    name = config.text("model_type", default="")
    raise UnsupportedModel(f"{config.place}: model_type {short(name)} is not modelled: {_UNMODELLED[name]}.")


family(*_UNMODELLED)(_refuse)
