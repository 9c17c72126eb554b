"""Wrong values get one plain sentence that names the value, what was expected and the nearest known name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
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


class _Silent:
    """What somebody else's library may hand over."""

    def __repr__(self) -> str:
        raise RuntimeError


ODD = (
    None, True, -1, 2**63, 1.5, float("nan"), float("inf"), np.int64(4), np.float32(4), np.str_("4"), "", "x" * 1000, "\x00\n", b"4", b"",
    (), [], {}, set(), range(0), [4, None], [[4]], np.array([]), np.array(4), np.array([[4, 8]]), pd.Series([4, 8]), pd.DataFrame({"a": [4]}),
    pd.NA, pd.NaT, object(), _Silent(), int, {4: 5}, 1j, ..., slice(3), "8k", "hf://", "/dev/null", fk.Budget(), fk.VLLM(), fk.VLLM, [None],
)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["models", "machines", "quants", "contexts", "parallel", "kv_dtypes", "engine", "rules", "gpus"]
)
@pytest.mark.parametrize(
    "ask", [fk.fit, fk.demand, fk.max_context, fk.best_quant, fk.min_utilization], ids=lambda ask: ask.__name__
)
def test_odd_values_are_answered_or_refused_in_one_sentence(ask: Any, name: str) -> None:
    for value in ODD:
        arguments = OK | {"quants": "BF16"} | {name: value}
        if ask is fk.demand:
            arguments.pop("machines")
        elif arguments["machines"] is None:
            continue  # the whole catalog
        try:
            ask(**arguments)
        except fk.FitError as error:
            message = str(error)
            assert "\n" not in message
            assert len(message) < 400
            assert message.endswith((".", "?"))


def test_generators_are_read_once() -> None:
    row = fk.best_quant((one for one in ["llama-3.1-8b"]), "RTX 4090", quants=iter(["Q4_K_M", "Q8_0"]))
    assert row["quant"] == "Q8_0"
    least = fk.min_utilization(iter(["llama-3.1-8b"]), iter(["RTX 4090"]), contexts=iter([8192]), engine="vllm")
    assert least["fits"]


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
        lambda: fk.Budget(gpu_memory_utilization="0.9"),  # type: ignore[arg-type]
        lambda: fk.Budget(overhead_gib=[]),  # type: ignore[arg-type]
        lambda: fk.Budget(bits_per_weight=True),
        lambda: fk.Library(overhead_gib=float("nan")),
        lambda: fk.Library(copies=[3]),  # type: ignore[arg-type]
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


WHOLE = {
    "llama.cpp": ("n_ctx", "n_ubatch", "gpus"),
    "vllm": ("tensor_parallel_size", "max_model_len", "kv_cache_memory_bytes"),
}
SWITCHES = {"llama.cpp": ("kv_unified", "swa_full", "pipeline"), "vllm": ("enforce_eager", "enable_prefix_caching")}
WORDS = {
    "llama.cpp": ("flash_attn", "type_k", "backend", "caller"),
    "vllm": ("kv_cache_dtype", "usage", "gpu_memory_utilization"),
}


@pytest.mark.parametrize(("engine", "make"), [("llama.cpp", fk.LlamaCpp), ("vllm", fk.VLLM)])
def test_options_of_a_wrong_kind_are_refused_when_given(engine: str, make: Any) -> None:
    for names, wrong in (
        (WHOLE, (True, 2.5, "4", [4], 2**63, np.array([4, 8]), _Silent())),
        (SWITCHES, (1, "yes", [], np.array([1, 2]), pd.NA)),
        (WORDS, (object(), [], np.array([1, 2]), pd.NA, _Silent(), b"auto")),
    ):
        for name in names[engine]:
            for value in wrong:
                with pytest.raises(fk.BadInput, match=name.split("_")[0]) as caught:
                    make(**{name: value})
                assert "\n" not in str(caught.value)


def test_whole_numbers_of_numpy_are_options_too() -> None:
    assert fk.LlamaCpp(n_ctx=np.int64(8192)) == fk.LlamaCpp(n_ctx=8192)  # type: ignore[arg-type]
    assert fk.VLLM(max_model_len=np.int32(8192)) == fk.VLLM(max_model_len=8192)  # type: ignore[arg-type]
