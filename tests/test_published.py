"""The three published rule sets give their planners' numbers."""

from __future__ import annotations

from typing import Any

import pytest

import fitkit as fk
from fitkit.rules import Job
from fitkit.rules.published.budget import BudgetRules
from fitkit.rules.published.shard import BYTES, ShardRules, tensor_parallel_refusal
from fitkit.units import GB, GIB

LIBRARY_MACHINES = ["8x H100 80GB", "1x RX 7900 XTX"]
# variant; download [GB]; need [GB]; line for eight H100; line for one RX 7900 XTX
LIBRARY_TABLE = [
    ("llama-3.1-8b", "Q4_K_M", "llama.cpp", 4.9, 9.8, "1× H100 80GB ✓", "1× RX 7900 XTX ✓ · ROCm"),
    ("llama-3.1-8b", "BF16", "vllm", 16.1, 18.7, "1× H100 80GB ✓", "1× RX 7900 XTX ✓ · ROCm"),
    ("llama-3.1-70b", "Q4_K_M", "llama.cpp", 42.5, 53.8, "1× H100 80GB ✓", "needs 4 GPUs, has 1"),
    ("llama-3.1-70b", "Q5_K_M", "llama.cpp", 49.9, 61.2, "1× H100 80GB ✓", "needs 4 GPUs, has 1"),
    ("llama-3.1-70b", "Q8_0", "llama.cpp", 75.0, 86.2, "2× H100 80GB ✓", "needs 4 GPUs, has 1"),
    ("llama-3.1-70b", "BF16", "vllm", 141.1, 145.4, "2× H100 80GB ✓", "needs 8 GPUs, has 1"),
]


def one(*arguments: Any, **keywords: Any) -> Any:
    """The only row of a `fit`."""
    table = fk.fit(*arguments, **keywords)
    assert len(table) == 1
    return table.iloc[0]


# ---- library -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "quant", "engine", "download", "need", "h100", "xtx"), LIBRARY_TABLE)
def test_library_table(model: str, quant: str, engine: str, download: float, need: float, h100: str, xtx: str) -> None:
    table = fk.fit(model, LIBRARY_MACHINES, quants=quant, engine=engine, rules="library")
    first = table.iloc[0]
    # 49.950 GB is written 49.9 in the published table, 50.0 when rounded half up
    assert abs(first.download_bytes / GB - download) < 0.051
    assert round(first.total_bytes / GB, 1) == need
    assert list(table.line) == [h100, xtx]
    assert list(table.fits) == ["✓" in h100, "✓" in xtx]


def test_library_file_bytes() -> None:
    table = fk.fit("llama-3.1-8b", "RTX 4090", quants=["Q4_K_M"], rules="library")
    assert table.download_bytes[0] == 4_920_739_232
    assert one("llama-3.1-8b", "RTX 4090", engine="vllm", rules="library").download_bytes == 16_060_522_496
    sizes = fk.fit("llama-3.1-70b", "8x H100", quants=["Q4_K_M", "Q5_K_M", "Q8_0"], rules="library").download_bytes
    assert [round(size / GB, 3) for size in sizes] == [42.520, 49.950, 74.975]
    assert fk.load("llama-3.1-70b").params == 70_553_706_496


def test_library_laptop_takes_one_request_at_a_time() -> None:
    row = one("qwen3-8b", "1x 8 GiB", quants="Q4_K_M", rules="library")
    assert len(fk.load("qwen3-8b").layers) == 36
    assert (row.fits, row.fit_parallel, row.badge) == (True, 1, "fits on a GPU · 1 at a time")
    assert not one("qwen3-8b", "1x 8 GiB", quants="Q4_K_M", rules="library", parallel=2).fits


def test_library_fewer_gpus_come_before_more_requests() -> None:
    row = one("qwen3-8b", "4x 8 GiB", quants="Q4_K_M", rules="library")
    assert (row.fit_gpus, row.fit_parallel) == (1, 1)
    assert one("qwen3-8b", "4x 8 GiB", quants="Q4_K_M", rules="library", parallel=4).fit_gpus == 2


def test_library_badges() -> None:
    def badge(model: str, machine: Any, **keywords: Any) -> str:
        return str(one(model, machine, **({"quants": "Q4_K_M", "rules": "library"} | keywords)).badge)

    small = fk.machine("1x 8 GiB", ram_gb=128)
    assert badge("llama-3.1-8b", "1x RTX 4090") == "fits on a GPU"
    assert badge("llama-3.1-70b", "8x RTX 4090") == "needs 4 GPUs"
    assert badge("llama-3.1-70b", "2x A6000") == "fits on a GPU · 1 at a time"
    assert badge("llama-3.1-70b", small) == "CPU only · slow"
    assert badge("qwen3-4b", fk.machine("1x 2 GiB", ram_gb=16)) == "CPU only"
    assert badge("llama-3.1-70b", "1x RTX 4090") == "doesn't fit"
    assert badge("llama-3.1-70b", small, engine="vllm", quants="BF16") == "doesn't fit"  # vLLM always needs a GPU
    assert badge("llama-3.1-8b", []) == "no machines to judge"


def test_library_badges_over_the_selected_machines() -> None:
    table = fk.fit(["llama-3.1-8b", "llama-3.1-70b"], ["1x RTX 4090", "8x RTX 3060"], "Q4_K_M", rules="library")
    found = fk.badges(table)
    assert list(found.badge) == ["fits on a GPU", "needs 8 GPUs"]
    assert found.lines[1] == ("1x RTX 4090: needs 4 GPUs, has 1", "8x RTX 3060 12GB: 8× RTX 3060 12GB ✓")
    alone = fk.badges(fk.fit("llama-3.1-8b", [], "Q4_K_M", rules="library"))
    assert list(alone.badge) == ["no machines to judge"]


def test_library_cpu_rule_counts_two_requests_and_a_gibibyte() -> None:
    need = 42_520_395_648 + 2 * 8192 * 327_680 + GIB
    needed_gb = need / 0.8 / GB
    row = one("llama-3.1-70b", fk.machine("1x 8 GiB", ram_gb=needed_gb + 0.1), quants="Q4_K_M", rules="library")
    assert (row.fits, row.fit_gpus, row.fit_parallel, row.overhead_bytes) == (True, 0, 2, GIB)
    assert abs(row.total_bytes - need) < 10 * 2**20
    assert not one(
        "llama-3.1-70b", fk.machine("1x 8 GiB", ram_gb=needed_gb - 0.1), quants="Q4_K_M", rules="library"
    ).fits


def test_library_lines_of_what_no_count_holds() -> None:
    row = one("llama-3.1-405b", "1x 8 GiB", quants="Q8_0", rules="library")
    assert row.line == f"needs {row.total_bytes / GB:,.0f} GB of GPU memory; its GPUs have 8 GB"
    assert row.reason.startswith(row.line)


def test_library_disk() -> None:
    def line(machine: Any, **keywords: Any) -> Any:
        return one("llama-3.1-8b", machine, quants="Q4_K_M", **({"rules": "library"} | keywords))

    nowhere = line(fk.machine("RTX 4090", data_location=False))
    assert (nowhere.line, nowhere.fits, nowhere.limited_by) == ("no data location yet — choose", False, "disk")
    assert nowhere.badge == "choose where to keep data"
    full = line(fk.machine("RTX 4090", disk_free_gb=4.9))
    assert (full.fits, full.limited_by) == (False, "disk")
    assert line(fk.machine("RTX 4090", disk_free_gb=5)).fits
    held = fk.machine("RTX 4090", disk_free_gb=1)
    assert line(held, rules=fk.Library(copies=(held.name,))).fits
    roomy = fk.machine("RTX 4090", disk_free_gb=100)
    assert not line(roomy, rules=fk.Library(copies_limit_gb=4)).fits


def test_library_several_gpus_of_llamacpp_need_five_percent_more() -> None:
    row = one("llama-3.1-70b", "8x H100", quants="Q8_0", rules="library")
    assert row.need_per_gpu_bytes == -(-row.total_bytes * 105 // 200)
    alone = one("llama-3.1-70b", "8x H100", quants="BF16", engine="vllm", rules="library")
    assert alone.need_per_gpu_bytes == alone.total_bytes // 2


def test_library_apple_counts_what_macos_lets_it_use_whole() -> None:
    mac = fk.machine("M4 Max 128GB")
    row = one("llama-3.1-8b", mac, quants="Q4_K_M", rules="library")
    assert mac.gpu is not None
    assert row.usable_per_gpu_bytes == mac.gpu.usable_bytes
    assert row.line == "1× M4 Max 128GB ✓ · Metal"


def test_library_judges_a_short_model_at_its_own_length() -> None:
    row = one("tinyllama-1.1b-chat-v1.0", "RTX 4090", quants="Q4_K_M", rules="library")
    assert row.context == fk.load("tinyllama-1.1b-chat-v1.0").context == 2048


def test_library_of_a_file_whose_size_alone_is_known() -> None:
    model = fk.Model(
        name="some file", family="", basis="weights", layers=(), tensors=(), hidden_size=0, vocab_size=0, context=0, params=0,
        active_params=0, quant="Q4_K_M", file_bytes=5 * 10**9,
    )  # fmt: skip
    row = one(model, "RTX 4090", rules="library")
    assert (row.quant, row.basis, row.fits) == ("Q4_K_M", "weights", True)
    assert row.total_bytes == 5 * 10**9 + GIB // 2
    assert "the cache is not counted" in row.note
    assert fk.plan(model, "RTX 4090", rules="library").memory_basis == "weights"
    with pytest.raises(fk.FitError, match="Q8_0 cannot be sized"):
        fk.fit(model, "RTX 4090", "Q8_0", rules="library")


def test_library_counts_a_vision_projector_once() -> None:
    model = fk.load("gemma-3-27b-it")
    checkpoint = fk.demand(model, "BF16", engine="vllm", rules="library").iloc[0]
    assert checkpoint.weights_bytes == 2 * model.params
    files = fk.demand(model.with_(projector_bytes=858_000_000), "Q4_K_M", rules="library").iloc[0]
    plain = fk.demand(model.with_(projector_bytes=0), "Q4_K_M", rules="library").iloc[0]
    assert files.weights_bytes - plain.weights_bytes == files.projector_bytes == 858_000_000


def test_memory_taken_by_others_is_not_usable() -> None:
    for rules, engine in (("library", "llama.cpp"), ("budget", "vllm"), ("shard", "llama.cpp")):
        free = one("llama-3.1-8b", "RTX 4090", quants="Q4_K_M", engine=engine, rules=rules)
        less = one("llama-3.1-8b", fk.machine("RTX 4090", taken_gib=3), quants="Q4_K_M", engine=engine, rules=rules)
        assert free.usable_per_gpu_bytes - less.usable_per_gpu_bytes == 3 * GIB


# ---- budget ------------------------------------------------------------------------------------------------------------


def test_budget_worked_example() -> None:
    row = one("llama-3.1-8b", "RTX 4090", quants="Q4_K_M", parallel=8, engine="vllm", rules="budget")
    shown = [row.weights_bytes, row.kv_bytes, row.overhead_bytes, row.total_bytes, row.free_per_gpu_bytes]
    assert [round(size / GIB, 2) for size in shown] == [4.53, 8.0, 1.5, 14.03, 7.57]
    assert round(row.usable_per_gpu_bytes / GIB, 1) == 21.6
    assert (row.fits, row.max_parallel) == (True, 15)


def test_budget_at_32k_the_cache_is_32_gib() -> None:
    row = one("llama-3.1-8b", "RTX 4090", quants="Q4_K_M", contexts=32768, parallel=8, engine="vllm", rules="budget")
    assert (row.kv_bytes, row.fits, row.limited_by) == (32 * GIB, False, "kv_cache")


def test_budget_fp8_cache_misses_at_0_9_and_fits_at_0_92() -> None:
    asked: Any = {"quants": "Q4_K_M", "contexts": 32768, "parallel": 8, "kv_dtypes": "fp8", "engine": "vllm"}
    row = one("llama-3.1-8b", "RTX 4090", rules="budget", **asked)
    assert round(row.total_bytes / GIB, 2) == 22.03
    assert not row.fits
    row = one("llama-3.1-8b", "RTX 4090", rules=fk.Budget(gpu_memory_utilization=0.92), **asked)
    assert round(row.usable_per_gpu_bytes / GIB, 2) == 22.08
    assert row.fits


def test_budget_bytes_a_token() -> None:
    def kv(model: str, context: int) -> int:
        table = fk.demand(model, "BF16", contexts=context, engine="vllm", rules="budget")
        return int(table.kv_bytes[0])

    assert kv("llama-3.1-8b", 1) == 128 * 1024
    assert kv("llama-3.1-8b", 8192) == GIB
    assert kv("llama-3.3-70b", 1) == 320 * 1024
    assert kv("llama-3.3-70b", 8192) == 5 * GIB // 2
    assert kv("llama-3.3-70b", 32768) == 10 * GIB


def test_budget_counts_every_expert() -> None:
    mixtral, oss = fk.load("mixtral-8x7b"), fk.load("gpt-oss-120b")
    assert round(mixtral.params / 1e9, 1) == 46.7
    assert round(oss.params / 1e9, 1) == 116.8
    row = fk.demand(oss, "MXFP4", engine="vllm", rules="budget").iloc[0]
    assert round(row.weights_bytes / GIB, 1) == 57.8


def test_budget_32_billion_at_4_85_bits() -> None:
    model = fk.load("qwen3-32b").with_(params=32_760_000_000)
    row = fk.demand(model, "Q4_K_M", engine="vllm", rules="budget").iloc[0]
    assert (round(row.weights_bytes / GIB, 2), round(row.weights_bytes / GB, 2)) == (18.50, 19.86)
    card = one(model, "1x 24 GiB", quants="Q4_K_M", engine="vllm", rules="budget")
    assert round((card.usable_per_gpu_bytes - card.weights_bytes - card.overhead_bytes) / GIB, 1) == 1.6
    assert card.max_parallel == 0


def test_budget_tensor_parallel_puts_a_share_on_each_card() -> None:
    row = one("llama-3.3-70b", "4x RTX 4090", quants="AWQ", gpus=4, engine="vllm", rules="budget")
    assert row.overhead_bytes == 4 * 3 * GIB // 2
    assert row.need_per_gpu_bytes == -(-row.weights_bytes // 4) - (-row.kv_bytes // 4) + 3 * GIB // 2


def test_budget_overhead() -> None:
    rocm = one("llama-3.1-8b", "RX 7900 XTX", engine="vllm", rules="budget")
    assert rocm.overhead_bytes == 5 * GIB // 2
    own = one("llama-3.1-8b", "RX 7900 XTX", engine="vllm", rules=fk.Budget(overhead_gib=0.75))
    assert own.overhead_bytes == 3 * GIB // 4


def test_budget_says_where_it_is_an_upper_bound() -> None:
    table = fk.demand(["gemma-3-27b-it", "llama-3.1-8b"], "BF16", engine="vllm", rules="budget")
    assert "upper bound" in table.note[0]
    assert table.note[1] == ""


def test_budget_takes_any_bits() -> None:
    row = fk.demand("llama-3.1-8b", "Q3_K_M", engine="vllm", rules=fk.Budget(bits_per_weight=3.0)).iloc[0]
    assert row.weights_bytes == round(8_030_261_248 * 3 / 8)


# ---- shard -------------------------------------------------------------------------------------------------------------


def test_shard_70b_on_two_cards() -> None:
    row = one("llama-3.3-70b", "2x H100 80GB", quants="BF16", parallel=1, engine="vllm", rules="shard")
    assert round(row.need_per_gpu_bytes / GB, 2) == 75.45
    assert round(row.usable_per_gpu_bytes / GB, 2) == 77.31
    assert (row.fits, row.fit_gpus) == (True, 2)


def test_shard_overhead_is_counted_from_the_shard() -> None:
    job = Job(model=fk.load("llama-3.3-70b"), quant="BF16", kv_dtype="auto", gpus=2, engine="vllm")
    terms = {term.name: term for term in ShardRules().allocate(job, *_pool(8192)).terms}
    assert terms["runtime"].per_gpu[0] == 2 * GIB + 70_553_706_496 // 50


def _pool(tokens: int) -> Any:
    import numpy as np

    return np.array([tokens]), np.array([1])


def test_shard_passes_the_kv_heads_by_a_multiple() -> None:
    row = one("qwen3-235b-a22b", "8x H100 80GB", quants="FP8", engine="vllm", rules="shard")
    assert fk.load("qwen3-235b-a22b").kv_heads == 4
    assert (row.fits, row.fit_gpus) == (True, 4)
    eight = one("qwen3-235b-a22b", "8x H100 80GB", quants="FP8", gpus=8, engine="vllm", rules="shard")
    assert eight.fits
    assert "replicated" in eight.note
    assert "--enable-expert-parallel" in eight.note


def test_shard_refuses_three_ways_over_eight_heads() -> None:
    assert "3 GPUs does not divide 8 KV heads" in tensor_parallel_refusal(3, 64, 8)
    assert tensor_parallel_refusal(8, 64, 4) == ""
    assert "6 GPUs" in tensor_parallel_refusal(6, 64, 8)
    with pytest.raises(fk.BadInput, match="3 GPUs does not divide 8 KV heads: use 1, 2, 4 or 8"):
        fk.fit("llama-3.3-70b", "8x H100", quants="BF16", gpus=3, engine="vllm", rules="shard")


def test_shard_any_number_of_nodes() -> None:
    row = one("llama-3.1-405b", "2x H100", quants="BF16", engine="sglang", rules=fk.Shard(max_nodes=7))
    assert row.fits
    assert (row.fit_gpus, row.fit_nodes) == (12, 6)
    alone = one("llama-3.1-405b", "2x H100", quants="BF16", engine="sglang", rules="shard")
    assert (alone.fits, alone.line) == (False, "needs 12 GPUs, has 2")


@pytest.mark.parametrize(
    ("engine", "quant", "known"), [("vllm", "Q8_0", "BF16 and FP8"), ("llama.cpp", "FP8", "Q8_0 and Q4_K_M")]
)
def test_shard_names_what_goes_with_an_engine(engine: str, quant: str, known: str) -> None:
    with pytest.raises(fk.BadInput, match=known):
        fk.fit("llama-3.1-8b", "8x H100", quants=quant, engine=engine, rules="shard")


def test_shard_bytes_are_those_of_the_facts() -> None:
    from fitkit import facts

    for quant, size in BYTES.items():
        assert float(facts.get("quants", quant, "quantization")["bytes_per_param"]) == float(size)


# ---- all three -----------------------------------------------------------------------------------------------------------


def test_side_by_side() -> None:
    table = fk.fit(
        "llama-3.1-8b", "RTX 4090", quants="BF16", engine="vllm", rules=["library", fk.Budget(overhead_gib=2), "shard"]
    )
    assert list(table.rules) == ["library", "budget", "shard"]
    assert table.total_bytes.nunique() == 3


def test_budget_rules_know_the_log_lines() -> None:
    job = Job(
        model=fk.load("llama-3.1-8b"), quant="Q4_K_M", kv_dtype="f16", gpus=1, engine="vllm", bits=4.85,
        gpu=fk.machine("RTX 4090").gpu,
    )  # fmt: skip
    rules = BudgetRules()
    tokens = rules.max_tokens(job, rules.usable_bytes(job))
    assert tokens // 8192 == 15
