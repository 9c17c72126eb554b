"""What must hold of llama.cpp's buffers whatever the model and settings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fitkit as fk
from fitkit.rules.llamacpp.engine import parts, replace_sizes
from fitkit.rules.llamacpp.rows import CACHE_TYPES

MODELS = (
    "llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-12b", "qwen3-next-80b-a3b", "mamba-2.8b", "deepseek-v3-0324",
)  # fmt: skip
models = st.sampled_from(MODELS)
contexts = st.integers(min_value=1, max_value=500).map(lambda steps: steps * 256)
slots = st.sampled_from([1, 2, 4, 16])
quick = settings(max_examples=25, deadline=None)


@cache
def model(name: str) -> fk.Model:
    return fk.load(name)


def buffers(name: str, **options: object) -> pd.DataFrame:
    return fk.LlamaCpp(**options).buffers(model(name), "Q4_K_M")


def cached(table: pd.DataFrame) -> int:
    return int(table.loc[table.kind.isin(["kv", "state"]), "bytes"].sum())


@quick
@given(models, contexts, contexts, slots, st.booleans())
def test_more_context_never_needs_less_cache(name: str, one: int, two: int, at_once: int, unified: bool) -> None:
    less, more = sorted((one, two))
    sizes = [
        cached(buffers(name, n_ctx=n_ctx * at_once, n_seq_max=at_once, kv_unified=unified)) for n_ctx in (less, more)
    ]
    assert sizes[0] <= sizes[1]


@quick
@given(models, contexts, st.sampled_from([kind for kind in CACHE_TYPES if kind not in ("f32", "f16", "bf16")]))
def test_a_quantized_cache_is_never_larger(name: str, n_ctx: int, kind: str) -> None:
    full = cached(buffers(name, n_ctx=n_ctx, flash_attn="off"))
    try:
        quantized = cached(buffers(name, n_ctx=n_ctx, type_k=kind))
    except fk.BadInput:  # a row of this model's cache is no whole number of the type's blocks
        assume(False)
    assert quantized <= full


@quick
@given(models, st.integers(min_value=1, max_value=4), st.integers(min_value=0, max_value=100))
def test_weights_are_somewhere_and_only_once(name: str, gpus: int, layers: int) -> None:
    whole = buffers(name, n_ctx=4096, gpus=0, repack=False)
    split = buffers(name, n_ctx=4096, gpus=gpus, n_gpu_layers=layers, repack=False)
    sizes = [int(table.loc[table.kind == "model", "bytes"].sum()) for table in (whole, split)]
    assert sizes[0] <= sizes[1]  # equal but for a tied head's copy and the small tensors each GPU keeps
    assert cached(whole) == cached(split)
    assert (split.low <= split.bytes).all()
    assert (split.bytes <= split.high).all()


@quick
@given(models, st.lists(contexts, min_size=1, max_size=6), slots)
def test_a_grid_is_its_rows(name: str, lengths: list[int], at_once: int) -> None:
    plain = replace_sizes(replace(fk.LlamaCpp(), kv_unified=False))
    n_ctx = np.array(lengths, dtype=np.int64) * at_once
    grid = parts(model(name), "Q4_K_M", plain, n_ctx, np.full_like(n_ctx, at_once))
    for row in range(len(lengths)):
        one = parts(model(name), "Q4_K_M", plain, n_ctx[row : row + 1], np.array([at_once]))
        assert [(part.device, part.kind, int(part.bytes[0])) for part in one] == [
            (part.device, part.kind, int(part.bytes[row])) for part in grid
        ]


@quick
@given(models, contexts, st.sampled_from([1, 2]))
def test_terms_sum_to_the_buffers(name: str, n_ctx: int, gpus: int) -> None:
    row = fk.demand(
        model(name), quants="Q4_K_M", contexts=n_ctx, parallel=1, gpus=gpus, engine=fk.LlamaCpp(), kv_dtypes="f16"
    ).iloc[0]
    table = buffers(name, n_ctx=n_ctx, n_seq_max=1, gpus=gpus)
    on_gpu = table[table.device.str.fullmatch(r"GPU\d+")].groupby("device")["bytes"].sum()
    assert int(row["per_gpu_bytes"]) == int(on_gpu.max())
