"""The engines' settings objects as users meet them: options under the engine's names, and what it would say at start-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from fitkit.errors import BadInput, short
from fitkit.hardware import Gpu
from fitkit.hardware import gpu as gpu_named
from fitkit.keywords import told_class
from fitkit.model import Model
from fitkit.rules.base import Evidence
from fitkit.rules.llamacpp import answers
from fitkit.rules.llamacpp.settings import LlamaCppSettings
from fitkit.rules.vllm.settings import VLLMSettings
from fitkit.rules.vllm.startup import Startup, startup
from fitkit.sources import load
from fitkit.units import GIB

if TYPE_CHECKING:
    import pandas as pd

Free: TypeAlias = float | Sequence[float]  # GiB: one figure for all GPUs, or one for each


@told_class
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

        model, quant = _sized(model, quant)
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

    def most_gpu_layers(self, model: Any, free_gib: Free, quant: str | None = None) -> int | None:
        """The largest n_gpu_layers with which these settings fit `free_gib` of each GPU [GiB]; None where not even 0 does.

        >>> import fitkit as fk
        >>> fk.LlamaCpp(n_ctx=8192).most_gpu_layers("llama-3.3-70b", 24, quant="Q4_K_M") > 30
        True
        """
        return answers.most_gpu_layers(*_sized(model, quant), self, self._free_bytes(free_gib))

    def fewest_cpu_moe(self, model: Any, free_gib: Free, quant: str | None = None) -> int | None:
        """The smallest n_cpu_moe (first layers whose experts stay on the host) that fits; None where none does.

        >>> import fitkit as fk
        >>> fk.LlamaCpp(n_ctx=8192).fewest_cpu_moe("gpt-oss-20b", 80)
        0
        """
        return answers.fewest_cpu_moe(*_sized(model, quant), self, self._free_bytes(free_gib))

    def best_tensor_split(self, model: Any, free_gib: Free, quant: str | None = None) -> tuple[float, ...] | None:
        """The tensor_split over unequal GPUs that leaves the fullest the largest share free; None where none fits.

        >>> import fitkit as fk
        >>> sum(fk.LlamaCpp(n_ctx=8192, gpus=2).best_tensor_split("llama-3.1-8b", [24, 8], quant="Q4_K_M"))
        33.0
        """
        return answers.best_tensor_split(*_sized(model, quant), self, self._free_bytes(free_gib))

    def longest_context(
        self, model: Any, free_gib: Free, slots: int | None = None, quant: str | None = None
    ) -> int | None:
        """The longest context [tokens] of each of `slots` requests at once (None: n_seq_max); None where none fits.

        >>> import fitkit as fk
        >>> fk.LlamaCpp().longest_context("llama-3.1-8b", 24, slots=1, quant="Q4_K_M")
        131072
        """
        slots = self.n_seq_max if slots is None else slots
        return answers.longest_context(*_sized(model, quant), self, self._free_bytes(free_gib), slots)

    def _free_bytes(self, free_gib: Free) -> tuple[int, ...]:
        each = [free_gib] * self.devices if isinstance(free_gib, int | float) else list(free_gib)
        if not all(isinstance(gib, int | float) and 0 < gib < 2**30 for gib in each):
            raise BadInput(
                f"free_gib is {short(free_gib)}, where GiB above 0, one figure or one for each GPU, were expected."
            )
        return tuple(round(gib * GIB) for gib in each)


def _sized(model: Any, quant: str | None) -> tuple[Model, str | None]:
    """The model, and the file type that sizes it: a GGUF's own where none is asked for."""
    from fitkit.tables.resolve import is_gguf, quants_of

    model = load(model)
    if quant is not None or not is_gguf(model):
        [quant] = quants_of(model, quant, "llama.cpp")
    return model, quant


def _weakest(levels: Iterable[Evidence]) -> Evidence:
    """A sum is as firm as its least firm part."""
    return max(levels, key=get_args(Evidence).index)


def _all(sources: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(sources))


@told_class
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
