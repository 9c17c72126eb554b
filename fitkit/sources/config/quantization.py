"""What a quantized checkpoint leaves as it is and how the rest is packed: quantization_config → a dtype per tensor."""

from __future__ import annotations

from fitkit.errors import UnsupportedModel
from fitkit.model import Tensor
from fitkit.sources.config.build import Build
from fitkit.sources.config.view import Config


def apply_quantization(config: Config, build: Build) -> tuple[tuple[Tensor, ...], str, str]:
    """The build's tensors with their stored dtypes, the scheme's name ("" for none) and what the checkpoint asks for its cache."""
    if "quantization_config" in config or "compression_config" in config:
        raise UnsupportedModel(f"{config.place}: quantized checkpoints are not read yet.")
    return tuple(build.tensors), "", ""
