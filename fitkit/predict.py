"""The engines' settings objects as users meet them: options under the engine's names, and what it would say at start-up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from fitkit.errors import BadInput
from fitkit.hardware import Gpu
from fitkit.hardware import gpu as gpu_named
from fitkit.rules.base import Evidence
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.vllm.settings import VLLMSettings
from fitkit.rules.vllm.startup import Startup, startup
from fitkit.sources import load

if TYPE_CHECKING:
    import pandas as pd


class LlamaCpp(LlamaCppSettings):
    """llama.cpp's memory options (see LlamaCppSettings for all of them), with llama-server's defaults."""

    __slots__ = ()

    def buffers(self, model: Any, quant: str | None = None) -> pd.DataFrame:
        """Every buffer llama.cpp would make for `model` (a Model, or what `load` takes), as its log prints them.

        `quant` sizes a model that has no file (None: a GGUF's own type, else what `demand` takes: Q4_K_M, MXFP4_MOE for
        MXFP4 checkpoints). Columns: device (CPU, CPU_Mapped, CPU_REPACK, GPU_Host, GPU0, ...), kind (model, kv, state,
        compute, output, runtime; mmproj, draft, lora), bytes, low, high, evidence, log_name, source.

        Raises BadInput, with the engine's reason, where llama.cpp refuses the setting or dies of it; UnsupportedModel
        for an architecture that is not modelled.

        >>> import fitkit as fk
        >>> table = fk.LlamaCpp(n_ctx=32768).buffers("llama-3.1-8b", quant="Q4_K_M")
        >>> int(table.loc[table.kind == "kv", "bytes"].sum()) // 2**20
        4096
        """
        import numpy as np
        import pandas as pd

        from fitkit.rules.llamacpp.engine import parts, why_not
        from fitkit.tables.resolve import is_gguf, quants_of

        model = load(model)
        if quant is not None or not is_gguf(model):
            [quant] = quants_of(model, quant, "llama.cpp")
        why = why_not(model, quant, self, self.n_ctx, self.n_seq_max)
        if why:
            raise BadInput(why)
        one = np.ones(1, dtype=np.int64)
        rows = [
            {
                "device": part.device, "kind": part.kind, "bytes": int(part.bytes[0]),
                "low": int((part.bytes if part.low is None else part.low)[0]),
                "high": int((part.bytes if part.high is None else part.high)[0]),
                "evidence": part.evidence, "log_name": part.log_name, "source": part.source,
            }
            for part in parts(model, quant, self, one * self.n_ctx, one * self.n_seq_max)
        ]  # fmt: skip
        groups = pd.DataFrame(rows).groupby(["device", "kind", "log_name"], sort=False, as_index=False)
        sizes = {name: (name, "sum") for name in ("bytes", "low", "high")}
        frame = groups.agg(**sizes, evidence=("evidence", _weakest), source=("source", _all))
        return frame[["device", "kind", "bytes", "low", "high", "evidence", "log_name", "source"]]


def _weakest(levels: Iterable[Evidence]) -> Evidence:
    """A sum is as firm as its least firm part."""
    return max(levels, key=get_args(Evidence).index)


def _all(sources: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(sources))


class VLLM(VLLMSettings):
    """vLLM's memory options (see VLLMSettings for all of them) with the defaults of its version, 0.33 unless told."""

    __slots__ = ()

    def startup(self, model: Any, gpu: str | Gpu) -> Startup:
        """What vLLM would do at start-up with `model` (a Model, or what `load` takes) on GPUs of this kind: its log line, or why it stops.

        Raises UnknownName for a GPU nobody knows, UnsupportedModel where vLLM's handling of the model is not modelled.

        >>> import fitkit as fk
        >>> fk.VLLM(kv_cache_memory_bytes=8 * 2**30).startup("llama-3.1-8b", gpu="H100 80GB").block_size
        16
        """
        return startup(self, load(model), gpu if isinstance(gpu, Gpu) else gpu_named(gpu))
