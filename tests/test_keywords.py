"""What people type: unknown keywords, empty names, 32k."""

from __future__ import annotations

from typing import Any

import pytest

import fitkit as fk

UNKNOWN: list[tuple[Any, str]] = [
    (lambda: fk.fit("llama-3.1-8b", "RTX 4090", context=8192), "fit has no keyword 'context'; did you mean contexts?"),
    (lambda: fk.fit("llama-3.1-8b", "RTX 4090", quant="Q8_0"), "quants?"),
    (lambda: fk.demand("llama-3.1-8b", kv_dtype="q8_0"), "kv_dtypes?"),
    (lambda: fk.plan("llama-3.1-8b", "RTX 4090", context=8192), "contexts?"),
    (lambda: fk.plan("llama-3.1-8b", "RTX 4090").still_fits(contexts=8192), "context?"),
    (lambda: fk.best_quant("llama-3.1-8b", "RTX 4090", machin=1), "known are|machines"),
    (lambda: fk.machine("RTX 4090", ram=64), "ram_gb?"),
    (lambda: fk.load("llama-3.1-8b", offline=True), "online?"),
    (lambda: fk.VLLM(tp=2), "tensor_parallel_size?"),
    (lambda: fk.LlamaCpp(ctx=2), "n_ctx?"),
    (lambda: fk.Budget(overhead=2), "overhead_gib?"),
    (lambda: fk.Shard(nodes=2), "max_nodes?"),
    (lambda: fk.Library(anything=2), "Library has no keyword 'anything'"),
]


@pytest.mark.parametrize(("ask", "said"), UNKNOWN, ids=[said for _, said in UNKNOWN])
def test_unknown_keywords_name_the_nearest(ask: Any, said: str) -> None:
    with pytest.raises(fk.UnknownName) as caught:
        ask()
    message = str(caught.value)
    assert any(one in message for one in said.split("|"))
    assert message.endswith((".", "?"))
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("ask", [fk.load, fk.fit, fk.demand], ids=lambda ask: ask.__name__)
def test_no_name_is_no_model(ask: Any) -> None:
    for name in ("", "  "):
        with pytest.raises(fk.BadInput, match="A model's name was expected"):
            ask(name)
    with pytest.raises(fk.BadInput, match="None"):
        ask(None)


def test_contexts_as_people_type_them() -> None:
    table = fk.fit("llama-3.1-8b", "RTX 4090", contexts=["16k", "32K", "8,192", "0.5k"])
    assert list(table.context) == [16384, 32768, 8192, 512]
    assert fk.demand("llama-3.1-8b", contexts="16k").context[0] == 16384
    for wrong in ("16q", "-1k", "0.0001k", "9999m", "k"):
        with pytest.raises(fk.BadInput, match="contexts is"):
            fk.fit("llama-3.1-8b", "RTX 4090", contexts=wrong)
