"""fitkit: will this open-weight model fit this hardware, at which quantization and context, for how many requests.

Names load on first use, so that `import fitkit` stays quick; only pandas comes at once, as every answer is a frame and the
first question would wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pandas as pd

__version__ = "0.1.0"

_HOME = {
    "BadInput": "errors", "FetchError": "errors", "FitError": "errors", "UnknownName": "errors", "UnsupportedModel": "errors",
    "Cache": "model", "Layer": "model", "Model": "model", "Tensor": "model",
    "Gpu": "hardware", "Machine": "hardware", "machine": "hardware",
    "load": "sources",
    "demand": "tables", "fit": "tables",
    "badges": "answers", "best_quant": "answers", "explain": "answers", "max_context": "answers", "max_parallel": "answers", "min_gpus": "answers",
    "min_utilization": "answers", "suggest": "remedies",
    "Plan": "plans", "plan": "plans",
    "Launch": "launch", "command": "commands", "read_command": "launch",
    "files": "catalog", "gpus": "catalog", "kv_dtypes": "catalog", "machines": "catalog", "models": "catalog", "quants": "catalog",
    "LlamaCpp": "predict", "VLLM": "predict",
    "dashboard": "views.dashboard",
    "Budget": "rules.published.budget", "Library": "rules.published.library", "Shard": "rules.published.shard",
}  # fmt: skip

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from fitkit.answers import (
        badges,
        best_quant,
        explain,
        max_context,
        max_parallel,
        min_gpus,
        min_utilization,
    )
    from fitkit.catalog import files, gpus, kv_dtypes, machines, models, quants
    from fitkit.commands import command
    from fitkit.errors import BadInput, FetchError, FitError, UnknownName, UnsupportedModel
    from fitkit.hardware import Gpu, Machine, machine
    from fitkit.launch import Launch, read_command
    from fitkit.model import Cache, Layer, Model, Tensor
    from fitkit.plans import Plan, plan
    from fitkit.predict import VLLM, LlamaCpp
    from fitkit.remedies import suggest
    from fitkit.rules.published.budget import Budget
    from fitkit.rules.published.library import Library
    from fitkit.rules.published.shard import Shard
    from fitkit.sources import load
    from fitkit.tables import demand, fit
    from fitkit.views.dashboard import dashboard


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"fitkit.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fitkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
