"""What the controls offer for a question, and how a question is brought in line with its engine and rules. Names come from the facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from fitkit import facts
from fitkit.errors import FitError
from fitkit.hardware import machine
from fitkit.model import Model
from fitkit.tables.resolve import quants_of
from fitkit.views.state import State

Option = dict[str, Any]

_ENGINES = {"llama.cpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}
_RULES = {
    "engine": "What the engine allocates",
    "library": "A model library's rule",
    "budget": "A vLLM memory budget",
    "shard": "A gateway's shard plan",
}
_RULE_ENGINES = {
    "engine": ("llama.cpp", "vllm"),
    "library": ("llama.cpp", "vllm"),
    "budget": ("vllm",),
    "shard": ("llama.cpp", "vllm", "sglang"),
}
_SHARD_QUANTS = {"llama.cpp": ("Q8_0", "Q4_K_M"), "vllm": ("BF16", "FP8"), "sglang": ("BF16", "FP8")}
_BUDGET_QUANTS = ("BF16", "FP8", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "GPTQ", "AWQ", "MXFP4")
# The rows of the matrix: what people choose between, heaviest first.
WAYS = (
    ("budget", "vllm"),
    ("engine", "llama.cpp"),
    ("engine", "vllm"),
    ("library", "llama.cpp"),
    ("library", "vllm"),
    ("shard", "vllm"),
)
_COMMON = {
    "llama.cpp": ("BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "Q2_K"),
    "vllm": ("BF16", "FP8", "INT8", "AWQ", "GPTQ", "MXFP4", "NVFP4", "BNB-NF4"),
}
_LINES = {"llama.cpp": ("f16", "q8_0", "q4_0"), "vllm": ("f16", "fp8"), "sglang": ("f16", "fp8")}
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_UTILIZATIONS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.95, 0.96, 0.98)
_TAKEN = (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)
_GPUS = ("auto", "1", "2", "4", "8", "16")


def contexts(longest: int) -> list[int]:
    """Powers of two up to the model's own length, which is the last stop [tokens]."""
    out = [2**n for n in range(10, 31) if 2**n < longest]
    return [*(out or []), longest]


def requests() -> list[int]:
    """The stops of the requests."""
    return list(_REQUESTS)


def quants(state: State) -> tuple[str, ...]:
    """Every quantization the engine and the rules know, heaviest first."""
    if state.rules == "shard":
        return _SHARD_QUANTS[state.engine]
    if state.rules == "budget":
        return _BUDGET_QUANTS
    rows = [row for row in facts.rows("quants") if state.engine in row["engines"].split("|")]
    return tuple(row["name"] for row in sorted(rows, key=lambda row: -float(row["bits"] or 0)))


def matrix_quants(state: State) -> list[str]:
    """The rows of the matrix: the common ones and the chosen one."""
    known = quants(state)
    wanted = {*_COMMON.get(state.engine, known), state.quant} if state.rules in ("engine", "library") else {*known}
    return [name for name in known if name in wanted]


def kv_dtypes(state: State) -> tuple[str, ...]:
    """KV cache types of the engine."""
    engine = "vllm" if state.engine == "sglang" else state.engine
    return tuple(row["name"] for row in facts.rows("kv_dtypes") if engine in row["engines"].split("|"))


def line_kv_dtypes(state: State) -> list[str]:
    """The lines of the chart: the common ones and the chosen one."""
    return list(dict.fromkeys([*_LINES[state.engine], state.kv]))


def settle(state: State, model: Model | None, before: State, given: Collection[str] = ()) -> State:
    """`state` with what no longer goes together put right, the newest choice winning; `given` names what was chosen just now."""
    if state.engine not in _RULE_ENGINES[state.rules]:
        if state.rules != before.rules:
            state = replace(state, engine=_RULE_ENGINES[state.rules][0])
        else:
            state = replace(state, rules="shard" if state.engine == "sglang" else "engine")
    if model and state.model != before.model and "quant" not in given:
        [makers] = quants_of(model, None, state.engine)
        if state.engine != "llama.cpp" or "MXFP4_MOE" in (makers, state.quant):  # as the makers publish it
            state = replace(state, quant=makers)
    if state.quant not in quants(state):
        own = model.quant or model.dtype if model else ""
        choices = ["Q4_K_M"] if state.engine == "llama.cpp" else [own, "BF16"]
        state = replace(state, quant=next((name for name in choices if name in quants(state)), quants(state)[0]))
    usual = {"budget": 0.9}
    if state.util == usual.get(before.rules, 0.92):  # untouched: the default of what counts
        state = replace(state, util=usual.get(state.rules, 0.92))
    if state.kv not in kv_dtypes(state):
        state = replace(state, kv="f16")
    if model and state.model != before.model and state.context > model.context:
        state = replace(state, context=model.context)
    return state


def left_out(asked: State, settled: State, errors: dict[str, str], given: Collection[str]) -> dict[str, str]:
    """A sentence for each thing a link asked for and the page does not show."""
    out = {name: f"Left out of the link: {text}" for name, text in errors.items()}
    for name in ("rules", "engine", "quant", "kv", "context"):
        wanted, shown = getattr(asked, name), getattr(settled, name)
        if name in given and name not in out and wanted != shown:
            out[name] = f"Left out of the link: {wanted} does not go with the rest of it; {shown} is shown."
    return out


def form(state: State, model: Model | None, chosen: Sequence[Option]) -> dict[str, Any]:
    """Everything the controls need to draw themselves."""
    vllm = state.engine != "llama.cpp" and state.rules in ("engine", "budget")
    return {
        "quant": [_quant(name) for name in quants(state)],
        "engine": [
            {"value": name, "label": label}
            for name, label in _ENGINES.items()
            if name != "sglang" or state.rules == "shard"
        ],
        "rules": [{"value": name, "label": label} for name, label in _RULES.items()],
        "kv": [_kv(name, state.engine) for name in kv_dtypes(state)],
        "context": contexts(model.context if model else 131072),
        "parallel": requests(),
        "util": list(_UTILIZATIONS),
        "taken": list(_TAKEN),
        "gpus": [{"value": n, "label": "As many as it takes" if n == "auto" else n} for n in _GPUS],
        "machines": list(chosen),
        "off": {"util": "" if vllm else "Only vLLM reserves a share of the card; llama.cpp takes what it needs."},
    }


def summary(state: State) -> str:
    """The question in one line, for a narrow window."""
    lead = state.lead.replace("x ", "× ", 1) or "no machine"
    return f"{state.model} · {state.quant} · {state.context:,} × {state.parallel} · {lead}"


def _quant(name: str) -> Option:
    row = facts.get("quants", name, "quantization")
    bits = f"{float(row['bits']):.3g} bits" if row["bits"] else ""
    return {"value": name, "label": f"{name} · {bits}" if bits else name}


def _kv(name: str, engine: str) -> Option:
    return {"value": name, "label": "auto (16 bits)" if name == "f16" and engine != "llama.cpp" else name}


def chosen_machines(names: Sequence[str]) -> list[Option]:
    """The chosen machines with their memory."""
    out = []
    for name in names:
        found = machine(name)
        each = f"{found.gpu_nominal_gib:g} GiB" if found.gpu else "no GPU"
        out.append({"value": name, "label": name.replace("x ", "× ", 1), "detail": each})
    return out


@cache
def catalog() -> dict[str, list[Option]]:
    """What the two searchable lists offer: models by popularity, machines and GPUs by name."""
    try:
        rows = sorted(facts.rows("models"), key=lambda row: -int(row["downloads"] or 0))
    except FitError:
        rows = []
    models = [
        {
            "value": row["name"],
            "label": row["name"],
            "detail": f"{int(row['params']) / 1e9:,.3g}B" if row["params"] else "",
            "find": " ".join([*facts.aliases(row), row["repo"]]).casefold().translate(_SPLIT),
        }
        for row in rows
    ]
    gpus = [
        {"value": f"1x {row['name']}", "label": row["name"], "detail": f"{float(row['nominal_gib']):g} GiB",
         "find": " ".join(facts.aliases(row)).casefold().translate(_SPLIT)}
        for row in facts.rows("gpus")
    ]  # fmt: skip
    machines = [
        {"value": row["name"], "label": row["name"], "detail": f"{row['count']}× {row['gpu']}",
         "find": " ".join([*facts.aliases(row), row["gpu"]]).casefold().translate(_SPLIT)}
        for row in facts.rows("machines")
    ]  # fmt: skip
    return {"models": models, "machines": [*gpus, *machines]}


_SPLIT = str.maketrans(dict.fromkeys("-_/()", " "))


def catalog_date() -> str:
    """The newest date a row of the models or GPUs was checked, as year and month."""
    dates = [row["checked"] for table in ("models", "gpus") for row in facts.rows(table)]
    return max(dates, default="")[:7]
