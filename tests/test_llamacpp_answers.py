"""The best llama.cpp setting for given memory: it fits, and the next larger one does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fitkit as fk
from fitkit.errors import BadInput
from fitkit.rules.llamacpp import answers
from fitkit.units import GIB


def test_most_gpu_layers_fits_and_one_more_does_not() -> None:
    model, settings, free = fk.load("llama-3.1-70b"), fk.LlamaCpp(n_ctx=8192, n_seq_max=1), [24 * GIB]
    layers = answers.most_gpu_layers(model, "Q4_K_M", settings, free)
    assert layers is not None
    assert 0 < layers < 81
    assert answers.fits(model, "Q4_K_M", replace(settings, n_gpu_layers=layers), free)
    assert not answers.fits(model, "Q4_K_M", replace(settings, n_gpu_layers=layers + 1), free)


def test_experts_go_to_the_host_only_as_far_as_needed() -> None:
    model, settings, free = fk.load("qwen3-30b-a3b"), fk.LlamaCpp(n_ctx=32768, n_seq_max=1), [12 * GIB]
    kept = answers.fewest_cpu_moe(model, "Q4_K_M", settings, free)
    assert kept is not None
    assert 0 < kept < len(model.layers)
    assert answers.fits(model, "Q4_K_M", replace(settings, n_cpu_moe=kept), free)
    assert not answers.fits(model, "Q4_K_M", replace(settings, n_cpu_moe=kept - 1), free)


def test_unequal_gpus_share_by_what_they_hold() -> None:
    model, free = fk.load("llama-3.1-70b"), [12 * GIB, 38 * GIB]
    settings = fk.LlamaCpp(n_ctx=8192, n_seq_max=1, gpus=2)
    found = answers.best_tensor_split(model, "Q4_K_M", settings, free)
    assert found is not None
    assert sum(found) == len(model.layers) + 1
    assert answers.fits(model, "Q4_K_M", replace(settings, tensor_split=found), free)
    assert not answers.fits(model, "Q4_K_M", settings, free)  # equal shares do not


def test_longest_context_of_many_slots() -> None:
    model, settings, free = fk.load("llama-3.1-8b"), fk.LlamaCpp(), [16 * GIB]
    lengths = [answers.longest_context(model, "Q4_K_M", settings, free, slots) for slots in (1, 2, 8)]
    assert None not in lengths
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[2] < lengths[0]
    longer = replace(settings, n_ctx=(lengths[2] + 256) * 8, n_seq_max=8)  # type: ignore[operator]
    assert not answers.fits(model, "Q4_K_M", longer, free)


def test_nothing_fits_and_wrong_figures() -> None:
    model = fk.load("llama-3.1-8b")
    assert answers.longest_context(model, "Q4_K_M", fk.LlamaCpp(), [GIB], 1) is None
    with pytest.raises(BadInput, match="one figure for each of 1 GPUs"):
        answers.fits(model, "Q4_K_M", fk.LlamaCpp(), [GIB, GIB])
