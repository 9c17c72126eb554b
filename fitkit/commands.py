"""Launch lines that give exactly the plan."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from fitkit import facts
from fitkit.errors import BadInput
from fitkit.model import Model
from fitkit.rules.vllm.settings import parallel_sizes
from fitkit.tables.asked import RowQuestion, question, whole
from fitkit.tables.resolve import own_quant

_KV_VLLM = {"f16": "auto", "bf16": "auto", "float16": "auto", "bfloat16": "auto", "fp16": "auto"}
_KV_LLAMACPP = {"auto": "f16", "fp16": "f16", "float16": "f16", "bfloat16": "bf16"}
_DEVICES = {"cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan", "xpu": "SYCL"}  # llama.cpp's names of a backend's GPUs
_ONLINE = {"FP8": "fp8", "BNB-NF4": "bitsandbytes"}  # what vLLM makes of a 16-bit checkpoint while loading


def command(row: Any) -> str:
    """The launch line of a row of `fit` (or of a Plan): llama-server, vllm serve or SGLang, safe to paste into a shell.

    The line sets context, GPUs, cache type and memory share, and every other option that differs from the engine's default.
    What is left to a default is counted as the engine chooses it: vLLM's `max_num_seqs` and `max_num_batched_tokens` go by GPU
    and not by `parallel`, so more requests than it takes at once wait. A file or a quantized checkpoint that the catalog knows no
    address of gets a name to be replaced: the model's with the quantization behind. Of a row that does not fit it is the line
    that would fail, for the row's `reason`; of a Plan see `waits`.

    Raises BadInput for what is no such row.
    """
    ready = getattr(row, "command", None)
    if isinstance(ready, str):
        return ready
    asked = question(row)
    writer = {"llama.cpp": _llama_server, "vllm": _vllm_serve, "sglang": _sglang}[str(asked.row["engine"])]
    return shlex.join(writer(asked))


def _llama_server(asked: RowQuestion) -> list[str]:
    requests = whole(asked.row.get("fit_parallel")) or asked.parallel or 1
    gpus = _gpus(asked)
    options = _options(asked.engine)
    words = [
        "llama-server",
        *_gguf(asked.model, asked.quant),
        "-c",
        str(asked.context * requests),
        "-np",
        str(requests),
    ]
    if options.get("kv_unified", True):
        words.append("--kv-unified")
    words += ["-ngl", "0" if gpus == 0 else str(options.get("n_gpu_layers", 999)), "--fit", "off"]
    kinds = asked.kv_dtype.split("/")
    k, v = (_KV_LLAMACPP.get(kind, kind) for kind in (kinds[0], kinds[-1]))
    if (k, v) != ("f16", "f16"):
        words += ["--cache-type-k", k, "--cache-type-v", v]
    flash = options.get("flash_attn", "auto")
    if flash == "auto" and v not in ("f16", "f32", "bf16"):
        flash = "on"
    if flash != "auto":
        words += ["--flash-attn", flash]
    if gpus == 1:
        words += ["--split-mode", "none"]
    for name, flag in (("n_batch", "-b"), ("n_ubatch", "-ub")):
        if name in options:
            words += [flag, str(options[name])]
    for name, flag in (("swa_full", "--swa-full"), ("cpu_moe", "--cpu-moe")):
        if options.get(name):
            words.append(flag)
    for name, flag in (("offload_kqv", "--no-kv-offload"), ("repack", "--no-repack"), ("mmap", "--no-mmap")):
        if options.get(name) is False:
            words.append(flag)
    if options.get("n_cpu_moe"):
        words += ["--n-cpu-moe", str(options["n_cpu_moe"])]
    if options.get("tensor_split"):
        words += ["--tensor-split", ",".join(f"{share:g}" for share in options["tensor_split"])]
    for name, flag in (("mmproj", "--mmproj"), ("draft", "--model-draft")):
        if options.get(name):
            words += [flag, _gguf_path(options[name])]
    return words + _devices(asked, gpus)


def _devices(asked: RowQuestion, gpus: int) -> list[str]:
    """Some of a machine's GPUs by name: llama.cpp spreads over all it sees."""
    one = asked.machine
    if one is None or one.gpu is None or not 1 < gpus < one.count or one.gpu.backend not in _DEVICES:
        return []
    return ["--device", ",".join(f"{_DEVICES[one.gpu.backend]}{n}" for n in range(gpus))]


def _gguf_path(model: Model) -> str:
    """A file beside the model: its path, or a name to be replaced."""
    return model.source if model.source.endswith(".gguf") else f"{PurePath(model.name).name}.gguf"


def _vllm_serve(asked: RowQuestion) -> list[str]:
    gpus, nodes = _gpus(asked) or 1, whole(asked.row.get("fit_nodes")) or 1
    options = _options(asked.engine)
    tensor, pipeline, data = split_over(asked, gpus, nodes)
    checkpoint, converted = _checkpoint(asked, gpus)
    words = ["vllm", "serve", checkpoint, "--max-model-len", str(asked.context)]
    words += ["--tensor-parallel-size", str(tensor)]
    if pipeline > 1:
        words += ["--pipeline-parallel-size", str(pipeline)]
    if data > 1:
        words += ["--data-parallel-size", str(data)]
    if data > 1 and nodes > 1 and data % nodes == 0:
        words += ["--data-parallel-size-local", str(data // nodes), "--data-parallel-backend", "ray"]
    elif nodes > 1:
        words += ["--distributed-executor-backend", "ray"]
    share = getattr(asked.rules, "gpu_memory_utilization", None) or options.get("gpu_memory_utilization")
    words += ["--gpu-memory-utilization", f"{share or _default_share(asked):g}"]
    kv = _KV_VLLM.get(asked.kv_dtype, asked.kv_dtype)
    if kv != "auto":
        words += ["--kv-cache-dtype", kv]
    if converted:
        words += ["--quantization", _ONLINE[asked.quant]]
    if asked.model.experts and gpus > 1 and (asked.row["rules"] == "shard" or options.get("enable_expert_parallel")):
        words.append("--enable-expert-parallel")
    for name in (
        "max_num_batched_tokens",
        "max_num_seqs",
        "block_size",
        "kv_cache_memory_bytes",
        "decode_context_parallel_size",
    ):
        if name in options:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    for name in ("dtype", *(() if converted else ("quantization",))):
        if name in options:
            words += [f"--{name}", str(options[name])]
    if options.get("limit_mm_per_prompt"):
        words += ["--limit-mm-per-prompt", json.dumps(dict(options["limit_mm_per_prompt"]))]
    for name in ("enforce_eager", "disable_hybrid_kv_cache_manager"):
        if options.get(name):
            words.append(f"--{name.replace('_', '-')}")
    if "enable_prefix_caching" in options:
        words.append("--enable-prefix-caching" if options["enable_prefix_caching"] else "--no-enable-prefix-caching")
    if options.get("async_scheduling") is False:
        words.append("--no-async-scheduling")
    return words


def split_over(asked: RowQuestion, gpus: int, nodes: int) -> tuple[int, int, int]:
    """Tensor, pipeline and data parallel sizes of a row's GPUs; of GPUs that cannot be cut so, the sizes as they were set."""
    if asked.row["engine"] == "llama.cpp":
        return 1, max(1, gpus), 1  # whole layers on each GPU
    if isinstance(asked.engine, str):
        return max(1, gpus // nodes), nodes, 1
    try:
        return parallel_sizes(asked.engine, max(1, gpus), nodes)
    except BadInput:
        return tuple(getattr(asked.engine, f"{way}_parallel_size") for way in ("tensor", "pipeline", "data"))


def _sglang(asked: RowQuestion) -> list[str]:
    gpus, nodes = _gpus(asked) or 1, whole(asked.row.get("fit_nodes")) or 1
    checkpoint, converted = _checkpoint(asked, gpus)
    words = ["python", "-m", "sglang.launch_server", "--model-path", checkpoint]
    words += ["--context-length", str(asked.context), "--tp-size", str(gpus // nodes)]
    if nodes > 1:
        # the same line on every node, each with its own rank; the address is the first node's
        words += [
            "--pp-size",
            str(nodes),
            "--nnodes",
            str(nodes),
            "--node-rank",
            "0",
            "--dist-init-addr",
            "NODE-0:5000",
        ]
    if asked.model.experts and gpus > 1:
        words += ["--ep-size", str(gpus // nodes)]
    words += ["--mem-fraction-static", "0.9"]
    if converted:
        words += ["--quantization", "fp8"]
    if asked.kv_dtype.startswith("fp8"):
        words += ["--kv-cache-dtype", "fp8_e4m3" if asked.kv_dtype == "fp8" else asked.kv_dtype]
    return words


def _gpus(asked: RowQuestion) -> int:
    value = whole(asked.row.get("fit_gpus"))
    return value if value is not None else asked.gpus or 0


def _options(engine: Any) -> dict[str, Any]:
    """What a settings object says beyond the engine's defaults."""
    if isinstance(engine, str):
        return {}
    return {
        field.name: getattr(engine, field.name)
        for field in fields(engine)
        if getattr(engine, field.name) != field.default and field.name != "version"
    }


def _default_share(asked: RowQuestion) -> float:
    return 0.9 if asked.row["rules"] != "engine" else 0.92


def _checkpoint(asked: RowQuestion, gpus: int) -> tuple[str, bool]:
    """What the server is given, and whether it quantizes that while loading.

    The model's own repository, a published quantization of it that the catalog knows, the 16-bit one converted where that
    one fits the cards while it loads, or a name to be replaced.
    """
    model, quant = asked.model, asked.quant
    if quant == own_quant(model):
        return _repo(model), False
    own = PurePath(_repo(model)).name.lower()
    for row in facts.rows("models"):
        twin = row["repo"].rpartition("/")[2].lower()
        if row["quant"] == quant and row["family"] == model.family and twin.startswith(f"{own}-"):
            return row["repo"], False
    room = float(asked.row.get("usable_per_gpu_bytes") or 0) * gpus
    known = _ONLINE if asked.row["engine"] == "vllm" else {"FP8": "fp8"}
    if quant in known and own_quant(model) in ("BF16", "F16") and model.params * 2 <= room:
        return _repo(model), True
    return f"{PurePath(_repo(model)).name}-{quant}", False


def _repo(model: Model) -> str:
    """The repository or directory vLLM is given."""
    source = model.source
    if source and (re.fullmatch(r"[\w.-]+/[\w.-]+", source) or PurePath(source).is_absolute()):
        return str(PurePath(source).parent) if source.endswith("config.json") else source
    return model.name


def _gguf(model: Model, quant: str) -> list[str]:
    """Where llama-server finds the file: its path, the repository that is known to hold it, or a name to be replaced."""
    if match := re.fullmatch(r"hf://([\w.-]+/[\w.-]+)/(.+\.gguf)", model.source):
        return ["-hf", match[1], "-hff", match[2]]
    if match := re.fullmatch(r"([\w.-]+/[\w.-]+):([\w.-]+)", model.source):
        return ["-hf", f"{match[1]}:{match[2] if quant == model.quant else quant}"]
    if model.source.startswith(("http://", "https://")):
        return ["-mu", model.source]
    if model.source.endswith(".gguf"):
        return ["-m", model.source]
    for row in facts.rows("files"):
        if row["model"] == model.name and row["quant"] == quant and re.fullmatch(r"[\w.-]+/[\w.-]+", row["repo"]):
            return ["-hf", f"{row['repo']}:{quant}"]
    name = re.sub(r"[^\w.-]+", "-", PurePath(model.name).name)
    return ["-m", f"{name}-{quant}.gguf"]
