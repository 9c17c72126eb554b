"""What would make a row fit, and what a row that fits has room for: each change checked by the same calculation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import pandas as pd

from fitkit import facts
from fitkit.answers import QUANT_ORDER, quants_offered, with_utilization
from fitkit.errors import BadInput, FitError
from fitkit.hardware import machine
from fitkit.tables import fit
from fitkit.tables.asked import RowQuestion, question, whole
from fitkit.tables.frames import FIT_COLUMNS
from fitkit.tables.resolve import DEFAULT_CONTEXT
from fitkit.units import GB, show_gib

_RAM_GB = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_USUAL = (
    "1x RTX 4090", "1x RTX 5090", "1x L40S", "1x H100 80GB", "1x H200 141GB", "2x H100 80GB", "4x H100 80GB", "8x H100 80GB",
    "8x H200 141GB", "8x B200", "8x B300",
)  # fmt: skip


def suggest(row: Any) -> pd.DataFrame:
    """Changes that make a row that does not fit fit (of one that fits: what more there is room for), each checked by `fit`.

    Returns the changed `fit` rows, most wanted first, with two columns before them: `change` (in words) and `changes` (the
    arguments of `fit` that differ).
    """
    asked = question(row)
    if asked.machine is None:
        raise BadInput("A row of fk.fit with a machine was expected; fk.demand judges none.")
    wanted = bool(asked.row.get("fits"))
    found: list[tuple[str, dict[str, Any], pd.Series[Any]]] = []
    first = _more(asked) if wanted else chain(_mends(asked), _remedies(asked))
    then = iter(()) if wanted else chain(_combined(asked), islice(_larger_gpu(asked), 1, 2), _mends_elsewhere(asked))
    for text, changes in chain(first, (one for one in then if len(found) < 2)):
        if _holds(asked, changes):
            changed = fit(**asked.arguments(**changes)).iloc[0]
            found.append((text(changed) if callable(text) else text, changes, changed))
    rows = [one for _, _, one in found]
    table = pd.DataFrame(rows, columns=rows[0].index if rows else list(FIT_COLUMNS)).reset_index(drop=True)
    table.insert(0, "change", pd.Series([text for text, _, _ in found], dtype="str"))
    table.insert(1, "changes", pd.Series([changes for _, changes, _ in found], dtype=object))
    return table


Words = str | Callable[[Any], str]


def _holds(asked: RowQuestion, changes: dict[str, Any]) -> bool:
    """Whether the changed question fits; what cannot be asked does not."""
    try:
        return asked.holds(**changes)
    except FitError:
        return False


def _mends(asked: RowQuestion) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the engine or the model refuses on any machine, asked so that it can run."""
    engine, longest = str(asked.row["engine"]), asked.model.context
    if asked.row.get("limited_by") != "engine":
        return
    if longest and asked.context > longest:
        for context in (longest, longest // 2):
            yield f"{context:,} tokens of context", {"contexts": context}
        return
    bits, known = _bits(asked.quant), quants_offered(asked.model, engine)
    if asked.quant not in known:
        for quant in sorted(known, key=lambda one: abs(_bits(one) - bits))[:2]:
            yield f"{quant} weights", {"quants": quant}
    if asked.rules == "engine":
        other = "vllm" if engine == "llama.cpp" else "llama.cpp"
        changes: dict[str, Any] = {"engine": other, "kv_dtypes": None}
        yield f"{other} instead", changes
        yield f"{other} instead, its usual weights", changes | {"quants": None}


def _mends_elsewhere(asked: RowQuestion) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same on a larger machine, where it does not run on this one."""
    for text, changes in _mends(asked):
        for words, more in islice(_larger_gpu(asked, changes), 2):
            yield f"{text}, {words}", more


def _remedies(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """Changes worth a try, least painful first."""
    yield from _as_published(asked)
    yield from _smaller_cache(asked)
    yield from _data_parallel(asked)
    requests = whole(asked.row.get("max_parallel")) or 0
    if asked.parallel and 0 < requests < asked.parallel:
        yield f"{requests:,} request{'s' if requests != 1 else ''} at once", {"parallel": requests}
    context = _round_context(whole(asked.row.get("max_context")) or 0)
    if 0 < context < asked.context:
        yield f"{context:,} tokens of context", {"contexts": context}
    yield from _more_gpus(asked)
    yield from _more_ram(asked)
    yield from _smaller_quant(asked)
    yield from _offload(asked)
    yield from _utilization(asked)
    yield from islice(_larger_gpu(asked), 1)


def _more(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """What a row that fits has room for."""
    yield from _as_published(asked)
    requests = whole(asked.row.get("max_parallel")) or 0
    if requests > (whole(asked.row.get("fit_parallel")) or 1):
        yield f"room for {requests:,} requests at once", {"parallel": requests}
    context = whole(asked.row.get("max_context")) or 0
    if context > asked.context:
        yield f"up to {context:,} tokens of context", {"contexts": context}
    better = _ladder(asked)
    if asked.quant in better:
        for quant in better[: better.index(asked.quant)]:
            yield f"{quant} also fits", {"quants": quant}


def _smaller_cache(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    llama = str(asked.row["engine"]) == "llama.cpp"
    if asked.kv_dtype in ("f16", "auto", "bf16", "f32"):
        for kind in ("q8_0", "q4_0") if llama else ("fp8",):
            yield partial(_room, kind), {"kv_dtypes": kind}


def _data_parallel(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """vLLM: ranks with requests of their own, where tensor parallel ranks would each keep the whole latent of all of them."""
    one = asked.machine
    if str(asked.row["engine"]) != "vllm" or asked.rules != "engine" or one is None or not asked.parallel:
        return
    if not any(cache.kind == "latent" for layer in asked.model.layers for cache in layer.caches):
        return
    from fitkit.predict import VLLM

    settings: Any = VLLM() if isinstance(asked.engine, str) else asked.engine
    gpus = min(asked.gpus or one.count, one.count)
    if settings.data_parallel_size > 1 or settings.pipeline_parallel_size > 1:
        return
    for ranks in (n for n in (8, 4, 2) if n <= min(gpus, asked.parallel) and gpus % n == 0):
        sizes = {"data_parallel_size": ranks, "tensor_parallel_size": gpus // ranks}
        experts = settings.enable_expert_parallel or bool(asked.model.experts)
        changes = {"engine": replace(settings, **sizes, enable_expert_parallel=experts), "gpus": None}
        if _holds(asked, changes):
            yield partial(_ranks, ranks, " with expert parallel" if experts else ""), changes
            return


def _ranks(ranks: int, experts: str, row: Any) -> str:
    return f"data_parallel_size {ranks}{experts}: room for {int(row['max_parallel']):,} requests at once"


def _room(kind: str, row: Any) -> str:
    return f"{kind} cache: {int(row['max_parallel']):,} request{'s' if row['max_parallel'] != 1 else ''} of {int(row['context']):,}"


def _more_gpus(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """More GPUs of the machine; else as many machines or such GPUs as would hold it."""
    one = asked.machine
    assert one is not None
    if one.gpu is None:
        return
    if asked.gpus is not None and asked.gpus < one.count:
        yield partial(_all_of, one.name), {"gpus": None}
    for count in (n for n in (2, 4, 8, 16) if n > one.count and not one.gpu.unified):
        larger = replace(one, name=f"{count}x {one.gpu.name}", count=count)
        changes = {"machines": larger, "gpus": None}
        if _holds(asked, changes):
            yield f"{count}× {one.gpu.name}", changes
            return


def _more_ram(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """The next usual size of RAM that holds it, where it runs from RAM."""
    one = asked.machine
    if one is None or one.count:
        return
    for size in (size * GB for size in _RAM_GB if size * GB > one.ram_bytes):
        changes = {"machines": replace(one, name=f"{one.name} with {size // GB} GB", ram_bytes=size)}
        if _holds(asked, changes):
            yield f"{size // GB} GB of RAM", changes
            return


def _all_of(name: str, row: Any) -> str:
    return f"{row['fit_gpus']} GPUs of {name}"


def _offload(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """llama.cpp: experts of some layers, or some layers, in RAM."""
    if str(asked.row["engine"]) != "llama.cpp" or asked.rules != "engine":
        return
    one = asked.machine
    if one is None or one.gpu is None or one.gpu.unified:
        return
    from fitkit.predict import LlamaCpp

    settings: Any = LlamaCpp() if isinstance(asked.engine, str) else asked.engine
    layers = len(asked.model.layers)
    least = 1 + _guess_layers(asked, settings)
    for n in sorted({least, least + 1, least + 2, layers}):
        if asked.model.experts:
            option, value, text = "n_cpu_moe", n, f"experts of {n} of {layers} layers in RAM"
        else:
            option, value, text = "n_gpu_layers", layers + 1 - n, f"{n} of {layers} layers in RAM"
        changes = {"engine": replace(settings, **{option: value})}
        if n <= layers and _holds(asked, changes):
            yield partial(_beside, text), changes
            return


def _guess_layers(asked: RowQuestion, settings: Any) -> int:
    """About how many layers are too many for the GPU, by what their weights take."""
    need, usable = whole(asked.row.get("need_per_gpu_bytes")), whole(asked.row.get("usable_per_gpu_bytes"))
    if need is None or usable is None:
        return 0
    moved = [
        tensor
        for tensor in asked.model.tensors
        if tensor.layers and ("_exps" in tensor.role or not asked.model.experts)
    ]
    share = sum(tensor.elements * tensor.copies for tensor in moved) / max(1, asked.model.params)
    each = share * (whole(asked.row.get("weights_bytes")) or 0) / max(1, whole(asked.row.get("fit_gpus")) or 1)
    return max(0, int((need - usable) / max(1.0, each) * len(asked.model.layers)))


def _beside(text: str, row: Any) -> str:
    return f"{text} ({show_gib(row['host_bytes'])} there)"


def _larger_gpu(asked: RowQuestion, beside: dict[str, Any] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Usual machines of larger GPUs that hold it, the smallest first; of any where the engine does not run on these."""
    assert asked.machine is not None
    here = asked.machine.gpu.nominal_bytes if asked.machine.gpu and asked.row.get("limited_by") != "engine" else 0
    for line in _USUAL:
        other = machine(line)
        if other.gpu is not None and other.gpu.nominal_bytes > here:
            changes = {"machines": other, "gpus": None} | (beside or {})
            if _holds(asked, changes):
                yield f"{line.replace('x ', '× ')}", changes


def _smaller_quant(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """The first smaller quantization that fits."""
    for quant in _smaller_quants(asked):
        if _holds(asked, {"quants": quant}):
            yield f"{quant} weights", {"quants": quant}
            return


def _utilization(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    share = getattr(asked.rules, "gpu_memory_utilization", None) or getattr(
        asked.engine, "gpu_memory_utilization", None
    )
    if asked.rules not in ("budget", "engine") and share is None:
        return
    arguments = asked.arguments()
    for value in (0.92, 0.95):
        if share is None or value > share:
            try:
                changed = with_utilization(arguments, value)
            except BadInput:
                return
            yield f"gpu_memory_utilization {value:g}", {key: changed[key] for key in ("rules", "engine")}


def _combined(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """A smaller quantization and a shorter context together, for what one does not mend."""
    for quant in _smaller_quants(asked):
        for context in dict.fromkeys((min(asked.context, 8192), min(asked.context, DEFAULT_CONTEXT // 2), 2048)):
            changes = {"quants": quant, "contexts": context, "parallel": 1}
            if context <= asked.context and _holds(asked, changes):
                yield f"{quant} weights, one request of {context:,} tokens", changes
                return


def _smaller_quants(asked: RowQuestion) -> list[str]:
    """Smaller quantizations, without those whose weights alone are clearly too much."""
    ladder = _ladder(asked)
    bits, weights = _bits(asked.quant), whole(asked.row.get("weights_bytes")) or 0
    usable = (whole(asked.row.get("usable_per_gpu_bytes")) or 0) * max(1, whole(asked.row.get("fit_gpus")) or 1)
    smaller = [quant for quant in ladder if _bits(quant) < bits]
    return [quant for quant in smaller if not usable or weights * _bits(quant) / bits * 0.8 < usable]


def _ladder(asked: RowQuestion) -> list[str]:
    """The usual quantizations beside the one asked, most bits first; published rules count GGUF types for vLLM too."""
    engine = str(asked.row["engine"])
    if engine != "llama.cpp" and asked.quant in QUANT_ORDER:
        return list(QUANT_ORDER)
    return quants_offered(asked.model, engine)


def _as_published(asked: RowQuestion) -> Iterator[tuple[Words, dict[str, Any]]]:
    """The file type that keeps the experts as they were published, where another was asked."""
    if asked.ask().requantized:
        yield "MXFP4_MOE weights, the experts as published", {"quants": "MXFP4_MOE"}


def _bits(quant: str) -> float:
    row = facts.find("quants", quant.removesuffix("+imatrix"))
    return float(row["bits"]) if row else 16.0


def _round_context(tokens: int) -> int:
    """Down to what people use: a power of two, or half way to the next."""
    if tokens < 256:
        return tokens
    power = 1 << (tokens.bit_length() - 1)
    return power + power // 2 if tokens >= power + power // 2 else power
