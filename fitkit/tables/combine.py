"""Every combination that was asked, and which of them go together at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fitkit import facts
from fitkit.model import Model
from fitkit.rules import rules_for
from fitkit.tables.axes import Ask
from fitkit.tables.resolve import (
    IMATRIX,
    SPEAKS_OF,
    bits_of,
    engine_of,
    gpus_of,
    kv_dtypes_of,
    own_quant,
    quants_of,
    rules_of,
    some,
)

_SHOWN = {"llama.cpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}
_FIRST = {"budget": "vllm", "engine": "llama.cpp", "library": "llama.cpp", "shard": "vllm"}
_SHARD = {"llama.cpp": ("Q8_0", "Q4_K_M"), "vllm": ("BF16", "FP8"), "sglang": ("BF16", "FP8")}


def asks(
    models: Sequence[Model], quants: Any, kv_dtypes: Any, engine: Any, rules: Any, profile: Any = None
) -> list[Ask]:
    """Every combination of rule set, engine, model, quantization and cache type, in that order."""
    out = []
    for rule in some("rules", rules):
        rule_name, rule_settings = rules_of(rule)
        for named in some("engine", engine):
            engine_name, engine_settings = engine_of(named)
            counted = rules_for(rule_name, engine_name)
            settings = engine_settings if rule_name == "engine" else rule_settings
            for model in models:
                for quant in quants_of(model, quants, engine_name):
                    for kv in kv_dtypes_of(kv_dtypes, engine_name, engine_settings):
                        ask = Ask(
                            model=model,
                            quant=quant,
                            kv_dtype=kv,
                            engine=engine_name,
                            rules=rule_name,
                            counted=counted,
                            bits=bits_of(quant),
                            settings=settings,
                            profile=profile,
                            own_gpus=gpus_of(engine_settings),
                        )
                        out.append(replace(ask, refusal=refusal(ask)))
    return out


def refusal(ask: Ask) -> str:
    """Why this rule set, engine, quantization and cache do not go together, in one sentence; empty where they do."""
    shown = _SHOWN[ask.engine]
    if ask.counted is None:
        return (
            f"The {ask.rules} rules speak of {SPEAKS_OF[ask.rules]}, not of {shown}: give engine='{_FIRST[ask.rules]}'."
        )
    if ask.rules == "shard":
        known = _SHARD[ask.engine]
        if ask.quant not in known:
            return f"{shown} serves {' and '.join(known)} in the shard rules, not {ask.quant}."
    elif ask.rules != "budget":
        why = _quant_refusal(ask, shown)
        if why:
            return why
    elif not ask.bits and not getattr(ask.settings, "bits_per_weight", None):
        return f"No table knows the bits of {ask.quant}; give fk.Budget(bits_per_weight=...)."
    return _kv_refusal(ask, shown)


def _quant_refusal(ask: Ask, shown: str) -> str:
    row = facts.find("quants", ask.quant.removesuffix(IMATRIX))
    if row is None:
        if ask.quant == own_quant(ask.model) and ask.engine != "llama.cpp":
            return ""
        return f"{shown} has no {ask.quant}."
    if ask.engine in row["engines"].split("|"):
        return ""
    if ask.engine == "vllm":
        return f"{ask.quant} is a GGUF file type; GGUF on vLLM is a plug-in that is not modelled: ask for BF16, FP8, AWQ or GPTQ, or for llama.cpp."
    return (
        f"llama.cpp serves GGUF files, and {ask.quant} is no GGUF file type: ask for Q4_K_M, Q8_0 or BF16, or for vLLM."
    )


def _kv_refusal(ask: Ask, shown: str) -> str:
    for kind in ask.kv_dtype.split("/"):
        row = facts.find("kv_dtypes", kind)
        engine = "vllm" if ask.engine == "sglang" else ask.engine
        if row is None or engine not in row["engines"].split("|"):
            has = [one["name"] for one in facts.rows("kv_dtypes") if engine in one["engines"].split("|")]
            return f"{shown} has no {kind} cache; it has {', '.join(has)}."
        if ask.rules != "engine" and int(row["head_bytes"] or 0):
            return f"The {ask.rules} rules do not count a {kind} cache; the engine rules do."
    return ""
