"""Wrong values get one plain sentence that names the value, what was expected and the nearest known name."""

from __future__ import annotations

from typing import Any

import pytest

import fitkit as fk

OK: dict[str, Any] = {"models": "llama-3.1-8b", "machines": "RTX 4090", "engine": "vllm", "rules": "budget"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"models": "lama-3.1-8b"}, "llama-3.1-8b"),
    ({"models": []}, "No model"),
    ({"machines": "H101"}, "H100"),
    ({"quants": "Q4_K_X"}, "Q4_K_M"),
    ({"quants": 4}, "name such as"),
    ({"kv_dtypes": "fp9"}, "fp8"),
    ({"kv_dtypes": 8}, "KV-cache type such as"),
    ({"kv_dtypes": "q8_0"}, "vLLM has no q8_0 cache"),
    ({"engine": "tgi"}, "llama.cpp, vllm, sglang"),
    ({"engine": 3}, "fk.VLLM"),
    ({"engine": "llama.cpp"}, "engine='vllm'"),
    ({"rules": "bugdet"}, "budget"),
    ({"rules": 3}, "fk.Budget"),
    ({"rules": fk.Budget}, "fk.Budget"),
    ({"contexts": 0}, "contexts is 0"),
    ({"contexts": -5}, "contexts is -5"),
    ({"contexts": 2.5}, "contexts is 2.5"),
    ({"contexts": True}, "contexts is True"),
    ({"contexts": "many"}, "contexts is 'many'"),
    ({"contexts": []}, "contexts is empty"),
    ({"contexts": None}, "contexts is None"),
    ({"contexts": 200_000}, "131,072"),
    ({"contexts": 2**40}, "whole number from 1"),
    ({"parallel": 0}, "parallel is 0"),
    ({"parallel": float("nan")}, "parallel is nan"),
    ({"gpus": -1}, "gpus is -1"),
    ({"contexts": 100_000, "parallel": list(range(1, 300)), "kv_dtypes": ["auto"] * 100, "machines": ["RTX 4090"] * 1000}, "combinations"),
    ({"engine": "sglang"}, "budget rules speak of vLLM"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[str(change)[:60] for change, _ in WRONG])
def test_fit_refuses(change: dict[str, Any], said: str) -> None:
    with pytest.raises(fk.BadInput) as caught:
        fk.fit(**(OK | change))
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 400
    assert message.endswith((".", "?"))


def test_unknown_names_carry_the_nearest() -> None:
    with pytest.raises(fk.UnknownName) as caught:
        fk.fit("gemma-3-27b-itt", "RTX 4090", engine="vllm", rules="budget")
    assert "gemma-3-27b-it" in caught.value.nearest


def test_unknown_keywords_are_errors() -> None:
    with pytest.raises(TypeError, match="context"):
        fk.fit("llama-3.1-8b", "RTX 4090", context=8192)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="context"):
        fk.max_parallel("llama-3.1-8b", "RTX 4090", context=8192)


def test_settings_refuse_what_cannot_be() -> None:
    for make in (
        lambda: fk.Budget(gpu_memory_utilization=1.5),
        lambda: fk.Budget(overhead_gib=-1),
        lambda: fk.Budget(bits_per_weight=0),
        lambda: fk.Shard(max_nodes=0),
        lambda: fk.Shard(max_nodes=1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(fk.BadInput):
            make()


def test_a_gguf_on_vllm_is_refused_by_name() -> None:
    for rules in ("library", "engine"):
        with pytest.raises(fk.BadInput, match="GGUF on vLLM is a plug-in that is not modelled"):
            fk.fit("llama-3.1-8b", "RTX 4090", "Q4_K_M", engine="vllm", rules=rules)


def test_what_is_no_row() -> None:
    table = fk.fit(**OK, contexts=[1024, 2048])
    for row in (table, 3, {"model": "llama-3.1-8b"}, "row", None):
        with pytest.raises(fk.BadInput):
            fk.explain(row)
    with pytest.raises(fk.BadInput, match="judges none"):
        fk.suggest(fk.demand("llama-3.1-8b", engine="vllm", rules="budget").iloc[0])
