"""The engines' settings objects as users meet them: options under the engine's names, and what it would say at start-up."""

from __future__ import annotations

from fitkit.hardware import Gpu
from fitkit.hardware import gpu as gpu_named
from fitkit.model import Model
from fitkit.rules.vllm.settings import VLLMSettings
from fitkit.rules.vllm.startup import Startup, startup


class VLLM(VLLMSettings):
    """vLLM's memory options (see VLLMSettings for all of them) with the defaults of its version, 0.33 unless told."""

    __slots__ = ()

    def startup(self, model: Model, gpu: str | Gpu) -> Startup:
        """What vLLM would do at start-up on GPUs of this kind: its log line, or why it stops.

        Raises UnknownName for a GPU nobody knows, UnsupportedModel where vLLM's handling of the model is not modelled.

        >>> import fitkit as fk
        >>> fk.VLLM(kv_cache_memory_bytes=8 * 2**30).startup(fk.load("llama-3.1-8b"), gpu="H100 80GB").block_size
        16
        """
        return startup(self, model, gpu if isinstance(gpu, Gpu) else gpu_named(gpu))
