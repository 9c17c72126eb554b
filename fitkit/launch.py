"""A launch line of llama-server, vllm serve or SGLang read back into settings; nothing in it is run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePath
from typing import Any

from fitkit import facts
from fitkit.errors import BadInput, UnknownName, short
from fitkit.sources.json_text import strict_json

_SCALE = {"k": 1000, "m": 1000**2, "g": 1000**3}
_SCALE_BINARY = {"K": 1024, "M": 1024**2, "G": 1024**3}
_MOST_LINE = 20_000


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a launch line says, as arguments of `fit`; `options` holds the engine's own settings under its own names."""

    engine: str
    model: str
    quant: str | None
    context: int | None
    parallel: int | None
    kv_dtype: str | None
    gpus: int | None
    options: dict[str, Any]
    ignored: tuple[str, ...] = ()  # flags that memory does not depend on, or that are not modelled

    def settings(self) -> Any:
        """The engine's settings object with what the line sets."""
        import fitkit

        make = {"llama.cpp": "LlamaCpp", "vllm": "VLLM"}.get(self.engine)
        return getattr(fitkit, make)(**self.options) if make else self.engine

    def arguments(self) -> dict[str, Any]:
        """Arguments for `fit`: `fk.fit(machines="8x H100 80GB", **fk.read_command(line).arguments())`."""
        found = {
            "models": _known_model(self.model),
            "quants": self.quant,
            "contexts": self.context,
            "parallel": self.parallel,
            "kv_dtypes": self.kv_dtype,
            "gpus": self.gpus,
            "engine": self.settings(),
        }
        return {name: value for name, value in found.items() if value is not None}


def _known_model(name: str) -> str:
    """The catalog's model that a repository's or file's name means, else the name itself (a file that is there stays)."""
    if (not name.endswith(".gguf") and "/" not in name) or Path(name).exists():
        return name
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", PurePath(name).name.removesuffix(".gguf"))
    for row in facts.rows("files"):
        if name == row["repo"] or facts.fold(stem) == facts.fold(row["file"].removesuffix(".gguf")):
            return row["model"]
    quant = _quant_in(f"{stem}.gguf")
    base = re.sub(rf"[-._]{re.escape(quant)}$", "", stem, flags=re.IGNORECASE) if quant else stem
    row_of = facts.find("models", base) or facts.find("models", base.removesuffix("-GGUF"))
    return row_of["name"] if row_of and name.casefold().endswith("gguf") else name


# Flags with a value: spelling → (option of the settings object, how to read it).
_LLAMA_VALUES: dict[str, tuple[str, type]] = {
    "-c": ("n_ctx", int), "--ctx-size": ("n_ctx", int), "-np": ("n_seq_max", int), "--parallel": ("n_seq_max", int),
    "-b": ("n_batch", int), "--batch-size": ("n_batch", int), "-ub": ("n_ubatch", int), "--ubatch-size": ("n_ubatch", int),
    "-ctk": ("type_k", str), "--cache-type-k": ("type_k", str), "-ctv": ("type_v", str), "--cache-type-v": ("type_v", str),
    "-ngl": ("n_gpu_layers", int), "--gpu-layers": ("n_gpu_layers", int), "--n-gpu-layers": ("n_gpu_layers", int),
    "-fa": ("flash_attn", str), "--flash-attn": ("flash_attn", str), "-ncmoe": ("n_cpu_moe", int), "--n-cpu-moe": ("n_cpu_moe", int),
    "-sm": ("split_mode", str), "--split-mode": ("split_mode", str), "-ts": ("tensor_split", tuple), "--tensor-split": ("tensor_split", tuple),
    "-dev": ("device", str), "--device": ("device", str),
}  # fmt: skip
_LLAMA_SWITCHES: dict[str, tuple[str, bool]] = {
    "--kv-unified": ("kv_unified", True), "-kvu": ("kv_unified", True), "--no-kv-unified": ("kv_unified", False),
    "--swa-full": ("swa_full", True), "--cpu-moe": ("cpu_moe", True), "-cmoe": ("cpu_moe", True),
    "--no-kv-offload": ("offload_kqv", False), "-nkvo": ("offload_kqv", False), "--no-repack": ("repack", False),
    "--no-mmap": ("mmap", False),
}  # fmt: skip
_LAYERS, _ALL_LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers"), 999
_LLAMA_MODEL = ("-m", "--model", "-hf", "--hf-repo", "-hfr")
_VLLM_VALUES: dict[str, tuple[str, type]] = {
    "--tensor-parallel-size": ("tensor_parallel_size", int), "-tp": ("tensor_parallel_size", int),
    "--pipeline-parallel-size": ("pipeline_parallel_size", int), "-pp": ("pipeline_parallel_size", int),
    "--data-parallel-size": ("data_parallel_size", int), "-dp": ("data_parallel_size", int),
    "--decode-context-parallel-size": ("decode_context_parallel_size", int), "-dcp": ("decode_context_parallel_size", int),
    "--max-model-len": ("max_model_len", int), "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float), "--max-num-batched-tokens": ("max_num_batched_tokens", int),
    "--max-num-seqs": ("max_num_seqs", int), "--block-size": ("block_size", int), "--dtype": ("dtype", str),
    "--kv-cache-memory-bytes": ("kv_cache_memory_bytes", int), "--quantization": ("quantization", str), "-q": ("quantization", str),
    "--limit-mm-per-prompt": ("limit_mm_per_prompt", dict),
}  # fmt: skip
_VLLM_SWITCHES: dict[str, tuple[str, bool]] = {
    "--enable-expert-parallel": ("enable_expert_parallel", True), "-ep": ("enable_expert_parallel", True),
    "--enforce-eager": ("enforce_eager", True), "--no-enforce-eager": ("enforce_eager", False),
    "--enable-prefix-caching": ("enable_prefix_caching", True), "--no-enable-prefix-caching": ("enable_prefix_caching", False),
    "--async-scheduling": ("async_scheduling", True), "--no-async-scheduling": ("async_scheduling", False),
    "--disable-hybrid-kv-cache-manager": ("disable_hybrid_kv_cache_manager", True),
}  # fmt: skip
_SGLANG_VALUES: dict[str, tuple[str, type]] = {
    "--tp-size": ("tp_size", int), "--tp": ("tp_size", int), "--tensor-parallel-size": ("tp_size", int), "--pp-size": ("pp_size", int),
    "--ep-size": ("ep_size", int), "--context-length": ("context_length", int), "--mem-fraction-static": ("mem_fraction_static", float),
    "--kv-cache-dtype": ("kv_cache_dtype", str), "--quantization": ("quantization", str), "--nnodes": ("nnodes", int),
}  # fmt: skip


def read_command(line: str) -> Launch:
    """A launch line of llama-server, vllm serve or SGLang as settings. Nothing in it is run.

    Flags may be written `--flag value` or `--flag=value`; a line may go over several with a backslash; what memory does not
    depend on is listed in `ignored`.

    Raises BadInput for what is no such line, or for a value that a flag cannot have.

    >>> read_command("vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32k").options
    {'tensor_parallel_size': 2, 'max_model_len': 32000}
    """
    words = _split(line)
    name = PurePath(words[0]).name.removesuffix(".exe") if words else ""
    if name in ("llama-server", "llama-cli", "server") or (name == "llama" and words[1:2] == ["serve"]):
        return _read_llama(words[1:])
    for start in ("vllm serve", "vllm.entrypoints.openai.api_server", "sglang.launch_server", "sglang serve"):
        at = _find(words, start.split())
        if at is not None:
            rest = words[at + len(start.split()) :]
            return _read_sglang(rest) if start.startswith("sglang") else _read_vllm(rest)
    raise BadInput(f"A line of llama-server, vllm serve or sglang.launch_server was expected, not {short(line)}.")


def _split(line: object) -> list[str]:
    if not isinstance(line, str) or len(line) > _MOST_LINE:
        raise BadInput(f"A launch line was expected, not {short(line)}.")
    try:
        words = shlex.split(line.replace("\\\n", " ").replace("\\\r\n", " "), comments=True)
    except ValueError as error:
        raise BadInput(f"The line cannot be read: {str(error).lower()}.") from None
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*|sudo|env|nohup|exec", words[0], re.DOTALL):
        words = words[1:]
    return words


def _find(words: list[str], start: list[str]) -> int | None:
    for at in range(min(len(words), 64)):
        if words[at : at + len(start)] == start or (
            len(start) == 2 and PurePath(words[at]).name == start[0] and words[at + 1 : at + 2] == start[1:]
        ):
            return at
    return None


def _read(
    words: list[str], values: dict[str, tuple[str, type]], switches: dict[str, tuple[str, bool]], named: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, str], list[str], list[str]]:
    """Options, what is given under `named`, bare words, and flags left aside."""
    options: dict[str, Any] = {}
    found: dict[str, str] = {}
    bare: list[str] = []
    ignored: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        flag, _, joined = word.partition("=") if word.startswith("--") else (word, "", "")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if flag in switches:
            option, value = switches[flag]
            options[option] = value
        elif flag in values or flag in named:
            text = joined if "=" in word and word.startswith("--") else _next(flag, waiting)
            if flag in named:
                found[flag] = text
            else:
                options[values[flag][0]] = _value(flag, text, values[flag][1])
        elif word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word):
            ignored.append(flag)
            if not joined and waiting and not waiting[0].startswith("-"):
                waiting.pop(0)
        else:
            bare.append(word)
    return options, found, bare, ignored


_FLASH = {"enabled": "on", "true": "on", "1": "on", "disabled": "off", "false": "off", "0": "off", "-1": "auto"}


def _next(flag: str, waiting: list[str]) -> str:
    """The value behind a flag; flash attention was a switch in older builds, and in lines written for them."""
    if flag in ("-fa", "--flash-attn"):
        given = waiting[0].casefold() if waiting else ""
        if given not in (*_FLASH, *_FLASH.values()):
            return "on"
    return waiting.pop(0) if waiting else ""


def _value(flag: str, text: str, kind: type) -> Any:
    try:
        if kind is int:
            return _ALL_LAYERS if flag in _LAYERS and text in ("all", "auto") else _whole(text)
        if kind is float:
            return float(text)
        if kind is tuple:
            return tuple(float(part) for part in re.split(r"[,/]", text))
        if kind is dict:
            return _limits(text)
    except ValueError:
        expected = {int: "a whole number", float: "a number", tuple: "numbers with commas", dict: "items by kind"}[kind]
        raise BadInput(f"{flag} is {short(text)}, where {expected} was expected.") from None
    if not text:
        raise BadInput(f"{flag} has no value.")
    return text


def _limits(text: str) -> dict[str, int]:
    """Items a request may carry, as JSON or as image=2,video=0."""
    pairs: list[Any]
    if text.startswith("{"):
        found = strict_json(text.encode(), "--limit-mm-per-prompt", most_values=64, numbers_only=False)
        pairs = list(found.items()) if isinstance(found, dict) else []
    else:
        pairs = [tuple(part.split("=", 1)) for part in text.split(",")]
    if not pairs or not all(len(pair) == 2 and re.fullmatch(r"[0-9]{1,6}", str(pair[1])) for pair in pairs):
        raise ValueError(text)
    return {str(kind): int(most) for kind, most in pairs}


def _whole(text: str) -> int:
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kmgKMG]?)", text)
    if match is None:
        raise ValueError(text)
    scale = _SCALE.get(match[2]) or _SCALE_BINARY.get(match[2]) or 1
    return round(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale


def _read_llama(words: list[str]) -> Launch:
    options, found, _, ignored = _read(words, _LLAMA_VALUES | {"--fit": ("fit", str)}, _LLAMA_SWITCHES, _LLAMA_MODEL)
    options.pop("fit", None)
    where = next(iter(found.values()), "")
    if not where:
        raise BadInput("The line names no model: -m FILE or -hf REPOSITORY was expected.")
    if "n_seq_max" in options and "kv_unified" not in options:
        options["kv_unified"] = False  # llama-server unifies the slots only where it chooses their number
    if options.get("n_seq_max") == -1:
        options["n_seq_max"] = 4
    requests = options.get("n_seq_max", 4)
    if requests < 1:
        raise BadInput(f"-np is {requests}, where a number of slots from 1 on was expected.")
    if "flash_attn" in options:
        options["flash_attn"] = _FLASH.get(options["flash_attn"].casefold(), options["flash_attn"])
    if "tensor_split" in options:
        options["gpus"] = len(options["tensor_split"])
    if device := options.pop("device", ""):
        options["gpus"] = 0 if device == "none" else len(device.split(","))
    pool = options.get("n_ctx") or None
    gpus = 0 if options.get("n_gpu_layers") == 0 else 1 if options.get("split_mode") == "none" else options.get("gpus")
    k, v = options.get("type_k", "f16"), options.get("type_v", "f16")
    return Launch(
        engine="llama.cpp",
        model=where if "-hf" not in found else where.partition(":")[0],
        quant=_quant_in(where),
        context=pool // requests if pool else None,
        parallel=requests,
        kv_dtype=k if k == v else None,
        gpus=gpus,
        options=options,
        ignored=tuple(ignored),
    )


def _quant_in(where: str) -> str | None:
    """The file type a file name or `repository:TYPE` names."""
    after = where.partition(":")[2]
    words = [after, *re.split(r"[-.]", PurePath(where).name.removesuffix(".gguf"))[::-1]]
    for word in words:
        row = facts.find("quants", word) if word else None
        if row and "llama.cpp" in row["engines"]:
            return row["name"]
    return None


def _read_vllm(words: list[str]) -> Launch:
    options, found, bare, ignored = _read(words, _VLLM_VALUES, _VLLM_SWITCHES, ("--model",))
    model = found.get("--model") or (bare[0] if bare else "")
    if not model:
        raise BadInput("The line names no model: vllm serve MODEL was expected.")
    ways = prod(options.get(f"{way}_parallel_size", 1) for way in ("tensor", "pipeline", "data"))
    context = options.get("max_model_len")
    return Launch(
        engine="vllm",
        model=model,
        quant={"fp8": "FP8", "bitsandbytes": "BNB-NF4"}.get(str(options.get("quantization"))),
        context=context if context and context > 0 else None,
        parallel=None,
        kv_dtype=options.get("kv_cache_dtype"),
        gpus=ways,
        options=options,
        ignored=tuple(ignored),
    )


def _read_sglang(words: list[str]) -> Launch:
    options, found, _, ignored = _read(words, _SGLANG_VALUES, {}, ("--model-path", "--model"))
    model = found.get("--model-path") or found.get("--model") or ""
    if not model:
        raise BadInput("The line names no model: --model-path MODEL was expected.")
    kind = options.get("kv_cache_dtype")
    if kind is not None and facts.find("kv_dtypes", kind) is None:
        raise UnknownName.among("KV-cache type", kind, facts.every_name("kv_dtypes"))
    return Launch(
        engine="sglang",
        model=model,
        quant={"fp8": "FP8"}.get(str(options.get("quantization"))),
        context=options.get("context_length"),
        parallel=None,
        kv_dtype=kind,
        gpus=options.get("tp_size", 1) * options.get("pp_size", 1),
        options=options,
        ignored=tuple(ignored),
    )
